// Curves of the last fifteen minutes, drawn by uPlot.

import { byId, element, getJson, setText } from "./dom.js";
import { state } from "./state.js";

const most = (field) => [...state.tables.values()].reduce((top, table) => (table[field] > (top?.[field] ?? 0) ? table : top), null)?.name;
// most: a field of tables; the caption names the table with the greatest value of it.
const LINES = [
  { title: "Largest lag of a table", unit: "s", lines: [["lag", "lag_ms", 0.001]], most: "lag_ms" },
  { title: "Rows into root tables", unit: "rows/s", lines: [["rows", "rows_per_s", 1]] },
  { title: "Barrier latency", unit: "ms", lines: [["boundary to commit", "latency_ms", 1], ["decision", "decision_ms", 1], ["collection", "collection_ms", 1], ["commit", "commit_ms", 1]] },
  { title: "Segments of logs that reads merge, and above the compaction's begin", unit: "segments", lines: [["L0", "l0_segments", 1], ["debt", "debt_segments", 1]], most: "l0_segments" },
];
const COLOURS = { light: ["#0b62a4", "#b3261e", "#1d7a46", "#8a5a00"], dark: ["#6cb4ee", "#ff8a80", "#67c992", "#e6b455"] };
const dark = matchMedia("(prefers-color-scheme: dark)");

let samples = null, plots = [], visible = false;

export async function startCurves() {
  samples = await getJson("curves.json");
  build();
  dark.addEventListener("change", build);
  new ResizeObserver(resize).observe(byId("curves-body"));
  new IntersectionObserver((entries) => { visible = entries.at(-1).isIntersecting; if (visible) update(); }).observe(byId("curves-body"));
}

export function addSample(sample) {
  if (!samples || samples.at_ms.at(-1) >= sample.at_ms) return;
  const most = samples.kept_s / samples.sample_s;
  for (const [name, value] of Object.entries(sample)) {
    samples[name].push(value);
    if (samples[name].length > most) samples[name].shift();
  }
  if (visible) update();
}

const clockOf = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);
const clock = (_, splits) => splits.map(clockOf);
const data = ({ lines }) => [samples.at_ms.map((ms) => ms / 1000), ...lines.map(([, name, factor]) => samples[name].map((value) => (value === null ? null : value * factor)))];
const shown = (value) => (value === null || value === undefined ? "none" : Number(value.toPrecision(3)).toLocaleString("en-US"));
// The value that the legend shows: that below the pointer, or the newest one.
const legendValue = (plot, value, series, at) => shown(at === null ? plot.data[series].at(-1) : value);
const room = () => Math.max(200, Math.min(560, byId("curves-body").firstElementChild?.clientWidth || byId("curves-body").clientWidth));

function build() {
  const colours = COLOURS[dark.matches ? "dark" : "light"], style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--quiet").trim(), line = style.getPropertyValue("--line").trim();
  const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
  for (const { plot } of plots) plot.destroy();
  const figures = LINES.map(({ title, unit }) => element("figure", {}, element("figcaption", {}, `${title} (${unit})`, element("span", { class: "quiet" })), element("p", { class: "unseen" })));
  byId("curves-body").replaceChildren(...figures);
  plots = LINES.map((about, at) => ({
    about, caption: figures[at].firstElementChild, spoken: figures[at].lastElementChild,
    plot: new uPlot({
      width: room(), height: 170, tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      axes: [{ ...axis, values: clock, space: 90 }, { ...axis, size: 56 }],
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high) * 1.05] } },
      series: [{ label: "UTC", value: (plot, seconds, _, at) => ((seconds = at === null ? plot.data[0].at(-1) : seconds) ? clockOf(seconds) : "none") }, ...about.lines.map(([label], n) => ({ label, value: legendValue, stroke: colours[n], width: 1.6, spanGaps: true, points: { show: samples.at_ms.length < 30 } }))],
    }, data(about), figures[at]),
  }));
  update();
}

function update() {
  for (const { about, plot, caption, spoken } of plots) {
    const values = data(about);
    plot.setData(values);
    if (plot.cursor.idx === null || plot.cursor.idx === undefined) plot.setLegend({ idx: null });
    const name = about.most && most(about.most);
    setText(caption.firstElementChild, name ? `, most at ${name}` : "");
    setText(spoken, about.lines.map(([label], n) => `${label}: ${shown(values[n + 1].at(-1))} ${about.unit}`).join(", "));
  }
}

function resize() {
  const width = room();
  for (const { plot } of plots) if (plot.width !== width) plot.setSize({ width, height: 170 });
}
