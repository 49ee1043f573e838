// One table in full, and two tables together. Each is asked for only while it is shown.

import { atMost, bytes, byId, count, dateTime, element, facts, fill, fillParts, getJson, lag, number, setText, span, table as rows, visibleLines } from "./dom.js";
import { choose, nameOf, state, when } from "./state.js";

const section = byId("table"), body = byId("table-body"), title = byId("table-title");
let shownName = null;

byId("table-close").addEventListener("click", () => {
  const name = shownName;
  choose(null);
  document.querySelector(`#graph-svg [data-table="${CSS.escape(name)}"]`)?.focus();
});

const pre = (text) => element("pre", { tabindex: "0" }, document.createTextNode(visibleLines(text)));

const isShown = (name) => state.chosen === name && state.tables.has(name);

const refresh = atMost(1500, async () => {
  const name = state.chosen;
  if (!isShown(name)) return;
  try {
    const document = await getJson("table.json", [name]);
    if (isShown(name)) renderTable(document);
  } catch (error) {
    if (isShown(name)) fill(body, element("p", { class: "error", role: "alert" }, `This table cannot be shown: ${error.message}`));
  }
});

export function renderDetails() {
  if (state.chosen !== shownName) {
    shownName = state.chosen;
    section.hidden = shownName === null;
    if (shownName === null) return;
    setText(title, shownName);
    fill(body, element("p", { class: "quiet" }, "reading …"));
    section.scrollIntoView({ block: "nearest" });
    title.focus({ preventScroll: true });
  }
  if (shownName === null) return;
  if (!state.tables.has(shownName)) fill(body, element("p", { class: "quiet" }, "This table was dropped."));
  else refresh();
}

function renderTable(table) {
  const explained = table.explain, retention = table.retention;
  const title = (text) => element("h3", {}, text);
  fillParts(body, [
    ["facts", facts([
      ["state", nameOf(table.state)], ["committed epoch", `${table.max_committed_epoch} (${dateTime(table.max_committed_at)})`],
      ["lag", lag(table.lag_ms)], ["written by", table.job === null ? "any process: a root table" : `job ${table.job}`],
      ["runner", table.runner ? `${table.runner.kind} ${table.runner.pid} on ${table.runner.host}` : table.job === null ? null : "none"],
      ["reads", table.upstreams.join(", ")], ["read by", table.read_by.join(", ")], ["bytes", bytes(table.bytes)],
      ["oldest readable epoch", table.safe_epoch || "0 (all)"], ["why not older", table.held_back.safe_epoch.reason],
      ["history, log kept for", `${span(retention.history_s * 1000)}, ${span(retention.log_s * 1000)}`],
      ["log", `${number(table.log.entries, "commit")}, ${number(table.log.rows, "row")}, ${bytes(table.log.bytes)}; why not shorter: ${table.held_back.log_start.reason}`],
      ["packs of the log", table.log.packs ? `${number(table.log.packed_commits, "commit")} in ${number(table.log.packs, "pack")}: ${number(table.log.packed_files, "file")}, ${bytes(table.log.packed_bytes)}; single: ${number(table.log.entries - table.log.packed_commits, "commit")}, ${number(table.log.files - table.log.packed_files, "file")}` : null],
      ["waiting for compaction", `${number(table.log.unfolded_segments, "segment")}; it begins at ${table.compact_segments}, commits stall at ${table.max_segments}`],
      ["changelog", table.changelog], ["ordered by", table.sequence_by],
    ])],
    ["sql", table.sql === null ? null : [title("Query"), pre(table.sql)]],
    ["explain", explained === null ? null : [title("How it is refreshed"), explained.text === null ? element("p", { class: "quiet" }, explained.error.text) : pre(explained.text)]],
    ["columns", title("Columns"), rows(["column", "type", "null", "key"], table.schema.map((c) => [c.name, c.type, c.nullable ? "yes" : "no", c.key === null ? "" : c.key]))],
    ["holds", title("Who holds its past"), rows(["holder", "log after", "rows from", "age", "expires"], table.holds.map(
      (h) => [h.holder, h.log_epoch ?? "", h.read_epoch ?? "", span(h.age_ms), h.expires ? dateTime(h.expires) : ""]))],
    ["commits", title("Newest commits"), rows(["epoch", "of", "committed", "operation", "rows", "deleted", "bytes"], table.commits.map(
      (c) => [c.epoch, when(c.epoch_at), when(c.at), c.engine ? `${c.operation} (${c.engine})` : c.operation, count(c.rows_upserted), count(c.rows_deleted), bytes(c.bytes)]))],
    ["runs", title("Runs"), rows(["after", "until", "rows", "history rows", "parts", "bytes"], table.run_list.map(
      (r) => [r.after, r.until, count(r.rows), count(r.history_rows), r.parts, bytes(r.bytes)]))],
    ["compactions", title("Newest compactions"), rows(["at", "reason", "by", "rows in", "rows out", "took"], table.compactions.map(
      (c) => [dateTime(c.at), c.reason, c.by, ...(c.packs ? ["", ""] : [count(c.rows_in), count(c.rows_out)]), span(c.took_ms)]))],
  ]);
}

// ---- two tables -----------------------------------------------------------------------------------------------------

const one = byId("one"), other = byId("other"), answer = byId("agreement-body");
let namesSignature = null, askedFor = null, defaultsSet = false;

for (const input of [one, other]) input.addEventListener("input", () => renderAgreement(true));

export const compared = () => [...new Set([one.value.trim(), other.value.trim()])].filter((name) => state.tables.has(name));

const compare = atMost(1000, async () => {
  const names = compared();
  if (!names.length) {
    fill(answer, element("p", { class: "quiet" }, "Name two tables."));
    return;
  }
  try {
    const document = await getJson("agreement.json", names);
    if (names.join() === compared().join()) renderAnswer(document);
  } catch (error) {
    fill(answer, element("p", { class: "error" }, error.message));
  }
});

export function renderAgreement(edited = false) {
  const names = [...state.tables.keys()].sort(), signature = names.join();
  if (signature !== namesSignature) {
    namesSignature = signature;
    fill(byId("names"), names.map((name) => element("option", { value: name })));
  }
  if (!defaultsSet && names.length > 1) {
    defaultsSet = true;
    const held = state.document.summary.held_by.map((late) => late.table), views = names.filter((name) => state.tables.get(name).job !== null);
    const first = held[0] || views[0] || names[0];
    one.value = first;
    other.value = [...views, ...names].find((name) => name !== first && !held.includes(name)) || names.find((name) => name !== first);
  }
  const asked = `${compared().join()}@${state.document.last_epoch}`;
  if (edited || asked !== askedFor || state.document.summary.held_by.length) compare();
  askedFor = asked;
}

function renderAnswer(document) {
  const names = document.tables.join(" and ");
  fill(answer,
    element("p", {}, document.epoch === null ? `No epoch can be read for ${names}.`
      : `${names} ${document.tables.length > 1 ? "agree" : "can be read"} as of `, document.epoch === null ? null : element("strong", { "data-epoch": document.epoch }, `${when(document.at)} (epoch ${document.epoch})`),
      document.against === null ? ": it is the newest epoch of the store." : null),
    document.why_not.length ? [element("p", {}, "Why not a newer one:"), element("ul", {}, document.why_not.map((why) => element("li", {}, why.reason)))] : null);
}
