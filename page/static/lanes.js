// Lanes: the commits of tables in time, the stretches at which all of them can be read, and the epochs that are held.

import { atMost, byId, getJson, setText, shape } from "./dom.js";
import { compared } from "./details.js";
import { state, when } from "./state.js";

const LANE = 30, TOP = 22, NAME = 150, RIGHT = 16, MOST = 12;
const svg = byId("lanes-svg"), box = byId("lanes-box"), words = byId("lane-words"), scale = byId("scale");
let lanes = null, at = null, width = 0, visible = false, shown = null;

scale.addEventListener("change", draw);
new ResizeObserver(() => { if (Math.abs(width - box.clientWidth) > 2) draw(); }).observe(box);
new IntersectionObserver((entries) => { visible = entries.at(-1).isIntersecting; if (visible) refresh(); }).observe(box);
svg.addEventListener("pointermove", (event) => pointAt(stretchAt(event.clientX - svg.getBoundingClientRect().left)));
svg.addEventListener("focus", () => words.setAttribute("aria-live", "polite"));  // else each commit would be read out
svg.addEventListener("blur", () => words.setAttribute("aria-live", "off"));
svg.addEventListener("keydown", (event) => {
  if (!lanes?.stretches.length) return;
  const last = lanes.stretches.length - 1, now = at ?? last;
  const next = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  pointAt(Math.min(last, Math.max(0, next)));
});

// The tables of the lanes: the two that are compared and the chosen one; else the chain that holds back; else the first.
function wanted() {
  const names = [...compared(), ...(state.chosen && state.tables.has(state.chosen) ? [state.chosen] : [])];
  const all = names.length ? names : [...state.document.summary.chain, ...[...state.tables.keys()].sort()];
  return [...new Set(all)].slice(0, MOST);
}

const refresh = atMost(1000, async () => {
  if (!visible || !state.document) return;
  const names = wanted();
  if (!names.length) return;
  try {
    const fresh = await getJson("lanes.json", names);
    const epoch = at === null ? null : lanes.stretches[at].first;  // the epoch that is pointed at stays
    const place = fresh.stretches.findIndex((stretch) => stretch.first === epoch);
    lanes = fresh;
    at = place < 0 ? null : place;
    draw();
  } catch (error) {
    setText(words, error.message);
  }
});

export function renderLanes() {
  if (!visible) return;
  const signature = `${wanted().join()}@${[...state.tables.values()].map((table) => table.max_committed_epoch).join()}`;
  if (signature !== shown) {
    shown = signature;
    refresh();
  }
}

// The left edge of each stretch in pixels, and the right edge of the last one.
function edges() {
  const stretches = lanes.stretches, room = Math.max(60, width - NAME - RIGHT);
  if (scale.value === "commits") return [...stretches.map((_, n) => NAME + (room * n) / stretches.length), NAME + room];
  const first = stretches[0].first_ms, newest = stretches.at(-1).first_ms, end = newest + Math.max(1, (newest - first) / 20);
  const x = (ms) => NAME + (room * (ms - first)) / (end - first);
  return [...stretches.map((stretch) => x(stretch.first_ms)), NAME + room];
}

function draw() {
  width = Math.max(300, box.clientWidth);
  if (!lanes) return;
  const tables = lanes.tables.map((table) => table.name), height = TOP + tables.length * LANE + 8;
  svg.setAttribute("width", width);
  svg.setAttribute("height", height);
  svg.setAttribute("aria-label", `Commits of ${tables.join(", ")}. Left and right arrow move through the epochs.`);
  const content = [];
  if (lanes.stretches.length) {
    const x = edges(), y = (n) => TOP + n * LANE + LANE / 2;
    lanes.stretches.forEach((stretch, n) => {
      if (stretch.readable) content.push(shape("rect", { class: "readable", x: x[n], y: TOP, width: Math.max(0.5, x[n + 1] - x[n]), height: tables.length * LANE }));
    });
    tables.forEach((name, row) => {
      lanes.stretches.forEach((stretch, n) => content.push(shape("line", { class: `lane ${stretch.states[name]}`, x1: x[n], x2: x[n + 1], y1: y(row), y2: y(row) })));
      lanes.stretches.forEach((stretch, n) => {
        if (stretch.landed[name]) content.push(shape("circle", { class: `commit ${stretch.landed[name]}`, cx: x[n], cy: y(row), r: 4, "data-commit": `${name}@${stretch.first}` }));
      });
    });
    for (const mark of lanes.marks) {
      const n = lanes.stretches.findLastIndex((stretch) => stretch.first <= mark.epoch), row = tables.indexOf(mark.table);
      if (n >= 0 && row >= 0) content.push(shape("path", { class: "mark", d: `M${x[n]} ${y(row) - 5} l-5 -8 l10 0 Z` }, shape("title", {}, `${mark.tag ? "tagged" : "held"}: ${mark.holder}`)));
    }
    content.push(shape("text", { class: "small", x: NAME, y: 14, "text-anchor": "middle" }, when(lanes.stretches[0].from)));
    content.push(shape("text", { class: "small", x: width - RIGHT, y: 14, "text-anchor": "end" }, when(lanes.stretches.at(-1).from)));
    if (at !== null) content.push(shape("rect", { class: "cursor", x: x[at], y: TOP, width: Math.max(2, x[at + 1] - x[at]), height: tables.length * LANE }));
  }
  tables.forEach((name, row) => content.push(shape("text", { x: 6, y: TOP + row * LANE + LANE / 2 + 4, "data-lane": name }, shape("title", {}, name), document.createTextNode(name.length > 19 ? `${name.slice(0, 18)}…` : name))));
  svg.replaceChildren(...content);
  describe();
}

function stretchAt(pixel) {
  if (!lanes?.stretches.length) return null;
  const n = edges().findLastIndex((edge) => edge <= pixel);
  return n < 0 ? null : Math.min(n, lanes.stretches.length - 1);
}

function pointAt(n) {
  if (n === at) return;
  at = n;
  draw();
}

// Says in words what a stretch of epochs means.
function describe() {
  if (!lanes.stretches.length) {
    setText(words, "No table has a commit yet.");
    return;
  }
  const stretch = lanes.stretches[at ?? lanes.stretches.length - 1];
  const landed = Object.entries(stretch.landed).map(([name, kind]) => `${name} (${kind === "empty" ? "no rows" : "rows"})`);
  const names = lanes.asked.join(", ");
  const verdict = stretch.readable ? `${names} can be read together.` : `${names} cannot be read together: ${stretch.why_not.map((why) => why.reason).join("; ")}.`;
  setText(words, `${at === null ? "Newest: epoch" : "Epoch"} ${stretch.first} (${when(stretch.from)})${landed.length ? `, a commit of ${landed.join(", ")}` : ""}. ${verdict}`);
}
