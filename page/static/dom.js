// Elements, texts and requests. Every text reaches the page as a text node, so that names with markup stay text.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

// Characters that control a terminal, reorder text or cannot be seen are shown by their number.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

export function visible(text) {
  return String(text).replace(UNSEEN, (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);
}

// A query or a plan, whose line breaks are wanted.
export const visibleLines = (text) => String(text).split("\n").map(visible).join("\n");

export function element(tag, attributes = {}, ...children) {
  return build(document.createElement(tag), attributes, children);
}

export function shape(tag, attributes = {}, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) node.append(child instanceof Node ? child : visible(child));
  }
  return node;
}

// Replaces the children of a node unless they are equal already: a selection, a focus or a scroll position stays.
export function fill(node, ...children) {
  const holder = element(node.localName, {}, ...children);
  if (holder.innerHTML === node.innerHTML) return;
  const focused = node.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  node.replaceChildren(...holder.childNodes);
  if (focused !== undefined) node.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

export function setText(node, text) {
  const shown = visible(text);
  if (node.textContent !== shown) node.textContent = shown;
}

// Fills parts of a node by their keys, each by itself, so that a change of one leaves the others as they are.
export function fillParts(node, parts) {
  const present = new Map([...node.children].map((child) => [child.dataset.part, child]));
  const wanted = parts.map(([key, ...children]) => {
    const part = present.get(key) || element("div", { "data-part": key });
    fill(part, ...children);
    return part;
  });
  if (wanted.length !== node.childNodes.length || wanted.some((part, at) => node.childNodes[at] !== part)) node.replaceChildren(...wanted);
}

export function table(columns, rows) {
  if (!rows.length) return element("p", { class: "quiet" }, "none");
  return element(
    "div", { class: "scroll", tabindex: "0", role: "group", "aria-label": columns.join(", ") },
    element("table", {},
      element("thead", {}, element("tr", {}, columns.map((name) => element("th", { scope: "col" }, name)))),
      element("tbody", {}, rows.map((cells) => element("tr", {}, cells.map(
        (cell) => element("td", { class: typeof cell === "number" ? "number" : null }, cell)))))));
}

export function facts(pairs) {
  return element("dl", {}, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(
    ([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

export async function getJson(path, names = []) {
  const query = names.map((name) => `table=${encodeURIComponent(name)}`).join("&");
  const answer = await fetch(query ? `${path}?${query}` : path, { cache: "no-store" });
  if (answer.status === 401) location.assign("sign-in");
  if (!(answer.headers.get("Content-Type") || "").startsWith("application/json")) throw new Error(`status ${answer.status}`);
  const body = await answer.json();
  if (body.error) throw new Error(body.error.text);
  return body;
}

// ---- formats: as the command line has them --------------------------------------------------------------------------

export function span(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(Math.floor(ms / 100) / 10).toFixed(1)} s`;
  const minutes = Math.floor(ms / 60000), s = Math.floor(ms / 1000) % 60;
  const hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (days) return hours % 24 ? `${days} d ${hours % 24} h` : `${days} d`;
  if (hours) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  return s ? `${minutes} min ${s} s` : `${minutes} min`;
}

export const lag = (ms) => (ms ? span(ms) : "none");
export const count = (number) => Number(number).toLocaleString("en-US");
export const number = (n, what) => `${count(n)} ${what}${n === 1 ? "" : "s"}`;

export function bytes(number) {
  let size = number;
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (size < 999.95 || unit === "TB") return unit === "B" ? `${number} B` : `${size.toFixed(1)} ${unit}`;
    size /= 1000;
  }
}

export const time = (iso) => (iso ? iso.slice(11, 23) : "never");
export const dateTime = (iso) => (iso ? `${iso.slice(0, 10)} ${iso.slice(11, 23)}` : "never");

// Calls a function that asks the server at most once in a number of milliseconds, and so seldom that its answers take a
// quarter of the time. A call meanwhile is made at the end of the pause.
export function atMost(ms, call) {
  let timer = null, running = false, again = false, free = 0;
  const plan = () => {
    if (running) again = true;
    else if (timer === null) timer = setTimeout(run, Math.max(0, free - Date.now()));
  };
  const run = async () => {
    timer = null;
    running = true;
    const began = Date.now();
    try {
      await call();
    } finally {
      free = Date.now() + Math.max(ms, 3 * (Date.now() - began));
      running = false;
      if (again) {
        again = false;
        plan();
      }
    }
  };
  return plan;
}
