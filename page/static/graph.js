// The graph of tables: columns by level, and only what is in view is drawn. Many tables are folded but for those that
// hold the store back, those that a search finds, and the neighbours of the chosen one.

import { byId, count, element, fill, lag, setText, shape, span, visible } from "./dom.js";
import { IN_USE, changed, choose, jobOf, nameOf, state, when } from "./state.js";

const WIDTH = 216, HEIGHT = 62, GAP_X = 64, GAP_Y = 14, MARGIN = 12, SLACK = 200;
const MOST_UNFOLDED = 60, MOST_FOUND = 40, LETTERS = 26, LIST_STEP = 100;

const box = byId("graph-box"), svg = byId("graph-svg");
const edgesGroup = shape("g"), nodesGroup = shape("g");
svg.append(edgesGroup, nodesGroup);

let layout = { signature: null, places: new Map(), edges: [], width: 0, height: 0, shown: 0 };
let drawn = new Map();
let focusName = null;
let listed = LIST_STEP;

byId("search").addEventListener("input", (event) => { state.search = event.target.value.trim().toLowerCase(); listed = LIST_STEP; changed(); });
byId("unfold").addEventListener("change", (event) => { state.unfolded = event.target.checked; changed(); });
byId("list").addEventListener("toggle", changed);
byId("list-more").addEventListener("click", () => { listed += LIST_STEP; changed(); });
box.addEventListener("scroll", () => draw(), { passive: true });
new ResizeObserver(() => draw()).observe(box);
svg.addEventListener("keydown", onKey);

const stateOf = (table, job) => (job && job.state === "failed" ? "failed" : nameOf(table.state));
const found = (name) => !state.search || name.includes(state.search);

// The names to show: all of a small store or an unfolded one; else those that matter, and the number that is folded.
function shownNames() {
  const names = [...state.tables.keys()].sort();
  if (state.unfolded || names.length <= MOST_UNFOLDED) return names.filter(found);
  const shown = new Set(state.search ? names.filter(found).slice(0, MOST_FOUND) : state.document.summary.chain.slice(0, MOST_UNFOLDED));
  if (!state.search) for (const { table } of state.document.summary.held_by.slice(0, MOST_FOUND)) shown.add(table);
  if (state.chosen && state.tables.has(state.chosen)) {
    shown.add(state.chosen);
    for (const up of state.tables.get(state.chosen).upstreams) shown.add(up);
    for (const [name, table] of state.tables) if (table.upstreams.includes(state.chosen)) shown.add(name);
  }
  for (const name of names) if (shown.size < 12 && !state.search) shown.add(name);
  return [...shown].filter((name) => state.tables.has(name)).sort();
}

// Places tables in columns by level. Within a column the order is that of the mean place of their upstreams.
function place(names) {
  const included = new Set(names), columns = [], rank = new Map(), places = new Map();
  for (const name of names) (columns[state.tables.get(name).level] ||= []).push(name);
  let height = 0;
  columns.filter(Boolean).forEach((column, at) => {
    const mean = (name) => {
      const ups = state.tables.get(name).upstreams.filter((up) => rank.has(up)).map((up) => rank.get(up));
      return ups.length ? ups.reduce((sum, value) => sum + value, 0) / ups.length : Infinity;
    };
    const means = new Map(column.map((name) => [name, at ? mean(name) : 0]));
    column.sort((a, b) => means.get(a) - means.get(b) || (a < b ? -1 : 1));
    column.forEach((name, row) => {
      rank.set(name, row / Math.max(1, column.length - 1));
      places.set(name, { x: MARGIN + at * (WIDTH + GAP_X), y: MARGIN + row * (HEIGHT + GAP_Y), column: at, row });
    });
    height = Math.max(height, column.length * (HEIGHT + GAP_Y));
  });
  const edges = names.flatMap((name) => state.tables.get(name).upstreams.filter((up) => included.has(up)).map((up) => [up, name]));
  const used = columns.filter(Boolean).length;
  return { places, edges, width: 2 * MARGIN + Math.max(0, used * (WIDTH + GAP_X) - GAP_X), height: height + 2 * MARGIN };
}

export function renderGraph() {
  const names = shownNames();
  const signature = names.map((name) => `${name}<${state.tables.get(name).upstreams.join()}`).join(";");
  if (layout.signature !== signature) {
    layout = { signature, shown: names.length, ...place(names) };
    svg.setAttribute("width", layout.width);
    svg.setAttribute("height", layout.height);
    svg.setAttribute("viewBox", `0 0 ${layout.width} ${layout.height}`);
  }
  const all = state.tables.size;
  setText(byId("shown"), names.length === all ? `${count(all)} shown` : `${count(names.length)} of ${count(all)} shown`);
  box.hidden = !all;
  byId("none").hidden = all > 0;
  byId("unfold").parentElement.hidden = all <= MOST_UNFOLDED;
  draw();
  renderList();
}

function draw() {
  if (!state.document) return;
  const left = box.scrollLeft - SLACK, right = box.scrollLeft + box.clientWidth + SLACK;
  const top = box.scrollTop - SLACK, bottom = box.scrollTop + box.clientHeight + SLACK;
  const inView = ({ x, y }) => x + WIDTH > left && x < right && y + HEIGHT > top && y < bottom;
  const chain = new Set(state.document.summary.chain), held = new Map(state.document.summary.held_by.map((late) => [late.table, late]));
  if (!layout.places.has(focusName)) focusName = layout.places.keys().next().value ?? null;
  const next = new Map();
  for (const [name, at] of layout.places) {
    if (!inView(at) && name !== document.activeElement?.dataset?.table) continue;
    const node = drawn.get(name) || newNode(name);
    update(node, name, at, chain, held);
    next.set(name, node);
  }
  for (const [name, node] of drawn) if (!next.has(name)) node.remove();
  for (const node of next.values()) if (!node.isConnected) nodesGroup.append(node);
  drawn = next;
  drawEdges(chain, inView);
}

function drawEdges(chain, inView) {
  const paths = [];
  for (const [up, name] of layout.edges) {
    const from = layout.places.get(up), to = layout.places.get(name);
    if (!inView(from) && !inView(to)) continue;
    const x1 = from.x + WIDTH, y1 = from.y + HEIGHT / 2, x2 = to.x, y2 = to.y + HEIGHT / 2, middle = (x2 - x1) / 2;
    const d = `M${x1} ${y1} C${x1 + middle} ${y1} ${x2 - middle} ${y2} ${x2} ${y2}`;
    paths.push([d, chain.has(up) && chain.has(name) ? "edge chain" : "edge", `${up}>${name}`]);
  }
  paths.sort((a, b) => a[1].length - b[1].length);
  while (edgesGroup.childNodes.length > paths.length) edgesGroup.lastChild.remove();
  paths.forEach(([d, kind, of], at) => {
    const path = edgesGroup.childNodes[at] || edgesGroup.appendChild(shape("path"));
    for (const [name, value] of [["d", d], ["class", kind], ["data-edge", of]]) if (path.getAttribute(name) !== value) path.setAttribute(name, value);
  });
}

function newNode(name) {
  const node = shape("g", { "data-table": name, role: "button", onclick: () => { focusName = name; choose(name); } },
    shape("title"), shape("rect", { width: WIDTH, height: HEIGHT, rx: 6 }),
    shape("text", { x: 10, y: 19, class: "name" }), shape("text", { x: 10, y: 37, class: "small" }), shape("text", { x: 10, y: 53, class: "small" }));
  return node;
}

function update(node, name, at, chain, held) {
  const table = state.tables.get(name), job = jobOf(table), late = held.get(name);
  const shownState = stateOf(table, job), ill = shownState === "failed" || shownState === "parked";
  const committed = table.max_committed_epoch ? `committed ${when(table.max_committed_at)}` : "no commit yet";
  const lagged = [shownState !== IN_USE && shownState, `lag ${lag(table.lag_ms)}`, table.pressure && "writers stall"].filter(Boolean).join(" · ");
  const classes = ["node", chain.has(name) && "chain", late && "held", ill && "ill", state.chosen === name && "chosen"].filter(Boolean).join(" ");
  for (const [key, value] of [["class", classes], ["transform", `translate(${at.x},${at.y})`], ["tabindex", name === focusName ? "0" : "-1"],
    ["aria-label", `${name}: ${shownState}, ${committed}, lag ${lag(table.lag_ms)}${late ? `, holds the store back: ${visible(late.reason)}` : ""}`]]) {
    if (node.getAttribute(key) !== value) node.setAttribute(key, value);
  }
  const [title, , first, line2, line3] = node.childNodes;
  setText(title, `${name}, epoch ${table.max_committed_epoch}`);
  setText(first, name.length > LETTERS ? `${name.slice(0, LETTERS - 1)}…` : name);
  setText(line2, committed);
  setText(line3, lagged);
}

// ---- keyboard -------------------------------------------------------------------------------------------------------

function onKey(event) {
  const name = event.target.dataset?.table;
  if (!name) return;
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    choose(name);
    return;
  }
  const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
  if (!step) return;
  event.preventDefault();
  const at = layout.places.get(name);
  let best = null;
  for (const [other, there] of layout.places) {
    const inColumn = step[0] === 0 ? there.column === at.column && there.row === at.row + step[1] : there.column === at.column + step[0];
    const distance = Math.abs(there.y - at.y);
    if (inColumn && (best === null || distance < best.distance)) best = { name: other, distance };
  }
  if (best) focusNode(best.name);
}

function focusNode(name) {
  focusName = name;
  const at = layout.places.get(name);
  if (at.x < box.scrollLeft || at.x + WIDTH > box.scrollLeft + box.clientWidth) box.scrollLeft = at.x - MARGIN;
  if (at.y < box.scrollTop || at.y + HEIGHT > box.scrollTop + box.clientHeight) box.scrollTop = at.y - box.clientHeight / 2;
  draw();
  drawn.get(name)?.focus({ preventScroll: true });
}

// ---- the list -------------------------------------------------------------------------------------------------------

function renderList() {
  if (!byId("list").open) return;
  const names = [...state.tables.keys()].filter(found).sort();
  fill(byId("list-rows"), names.slice(0, listed).map((name) => {
    const table = state.tables.get(name), job = jobOf(table);
    return element("tr", { "data-table": name },
      element("td", {}, element("button", { class: "link", "data-key": `list:${name}`, onclick: () => choose(name) }, name)),
      element("td", {}, stateOf(table, job)),
      element("td", { class: "number" }, table.max_committed_epoch), element("td", { class: "number" }, when(table.max_committed_at)),
      element("td", { class: "number", "data-lag": table.lag_ms }, table.lag_ms ? span(table.lag_ms) : "none"),
      element("td", {}, job ? element("span", { class: "long" }, job.waits_for.text) : ""));
  }));
  byId("list-more").hidden = names.length <= listed;
}
