// Consumers, snapshots, workers, errors and maintenance.

import { byId, bytes, count, dateTime, element, fillParts, lag, number, span, table as rows } from "./dom.js";
import { state } from "./state.js";

const CAUSES = { boundary: "its boundary", runner: "due", failed: "failing", rebuild: "parked", upstream: "its upstream" };
const named = (tables) => Object.keys(tables).slice(0, 4).join(", ") + (Object.keys(tables).length > 4 ? " …" : "");

function part(title, total, shown, content) {
  const more = total > shown ? `, the first ${shown} of ${count(total)}` : "";
  return [title, element("h3", {}, `${title}${more}`), content];
}

export function renderLists() {
  const d = state.document, tables = [...state.tables.values()], jobs = [...state.jobs.values()];
  const maintenance = tables.filter((table) => table.pressure || table.compaction || table.trouble || table.debt_segments).slice(0, 50);
  const server = d.server, waiting = jobs.filter((job) => !["nothing", "over"].includes(job.waits_for.kind));
  fillParts(byId("lists-body"), [
    part("Errors", d.counts.errors, d.errors.length, rows(["of", "kind", "type", "text", "since"],
      d.errors.map((error) => [error.of, error.kind, error.type, element("span", { class: "error" }, error.text), error.since ? dateTime(error.since) : ""]))),
    part("Jobs that wait", waiting.length, Math.min(waiting.length, 50), rows(["job", "component", "cause", "waits for"],
      waiting.slice(0, 50).map((job) => [job.name, job.component, CAUSES[job.waits_for.kind], element("span", { class: "long" }, job.waits_for.text)]))),
    part("Consumers", d.counts.consumers, d.consumers.length, rows(["name", "tables", "state", "lag", "commits behind", "acknowledged"],
      d.consumers.map((c) => [c.name, c.tables.join(", "), c.state, c.lag_ms === null ? "" : lag(c.lag_ms), c.lag_commits ?? "", c.acked ? dateTime(c.acked) : "never"]))),
    part("Held snapshots and reads", d.counts.held, d.held.length, rows(["kind", "tables", "epoch", "age", "expires"],
      d.held.map((held) => [held.kind, named(held.tables), held.read_epoch ?? held.log_epoch ?? "", span(held.age_ms), held.expires ? dateTime(held.expires) : "never"]))),
    part("Tags", d.tags.length, d.tags.length, rows(["name", "tables", "until"], d.tags.map((tag) => [tag.name, named(tag.epochs), tag.until ? dateTime(tag.until) : "for good"]))),
    part("Drivers of jobs", d.runners.length, d.runners.length, rows(["job", "kind", "host", "process", "since"], d.runners.map((r) => [r.job, r.kind, r.host, r.pid, dateTime(r.since)]))),
    part("Workers", server?.running.length ?? 0, server?.running.length ?? 0, server === null ? element("p", { class: "quiet" }, "This page's process has no coordinator.")
      : [element("p", {}, `${server.workers} connected`), rows(["job or load", "state", "phase", "parts", "waits for", "failures in a row"], server.running.map((r) => [r.name, r.state, r.phase, r.actors, r.waiting_for, r.failures]))]),
    part("Loads", d.loads.length, d.loads.length, rows(["name", "state", "tables", "parts", "finished"], d.loads.map((load) => [load.name, load.state, load.tables.join(", "), load.parts, load.finished_parts]))),
    part("Writers", d.writers.length, d.writers.length, rows(["by", "kind", "age"], d.writers.map((w) => [w.by, w.kind, span(w.age_ms)]))),
    part("Maintenance", maintenance.length, maintenance.length, rows(["table", "waiting segments", "bytes", "compaction", "trouble"],
      maintenance.map((table) => [table.name, table.l0_segments, bytes(table.l0_bytes), table.compaction ? `${table.compaction.done} of ${table.compaction.pieces} subcompactions, ${table.compaction.reason}` : table.pressure || "", table.trouble ? element("span", { class: "error" }, table.trouble.error) : ""]))),
  ]);
}
