// The page: the sentence, the stream of events, and what is drawn anew when the store changes.

import { byId, element, fill, getJson, number, setText, span } from "./dom.js";
import { addSample, startCurves } from "./curves.js";
import { renderAgreement, renderDetails } from "./details.js";
import { renderGraph } from "./graph.js";
import { renderLanes } from "./lanes.js";
import { renderLists } from "./lists.js";
import { applyEvent, onChange, replaceDocument, state, when } from "./state.js";

const live = byId("live");
let announced = null;

function renderSummary() {
  const d = state.document, summary = d.summary;
  fill(byId("sentence"), summary.text.split(/(`[a-z0-9_]+`)/).map((part, at) => (at % 2 ? element("code", {}, part.slice(1, -1)) : document.createTextNode(part))));
  const late = summary.held_by.some((held) => held.kind !== "boundary") || summary.missing.length > 0;
  byId("summary").className = late ? "late" : "fine";
  setText(byId("facts"), `${number(d.counts.tables, "table")}, ${number(d.counts.jobs, "job")}; newest epoch ${d.last_epoch}; ` +
    (summary.lag_ms ? `the oldest change that a read lacks is ${span(summary.lag_ms)} old; ` : "") +
    (d.global.epoch === null ? "no read under global" : `reads under global: ${number(d.global.members, "table")} as of ${when(d.global.as_of)}`));
  setText(byId("root"), d.root);
  for (const section of ["agreement", "lanes"]) byId(section).hidden = !d.counts.tables;
  const kind = JSON.stringify(summary.held_by.map((held) => [held.table, held.kind]));
  if (kind !== announced) {  // a screen reader hears of a new cause, not of each second
    announced = kind;
    setText(byId("announced"), summary.text.replaceAll("`", ""));
  }
}

function setLive(on, text) {
  live.className = `pill ${on ? "on" : "off"}`;
  setText(live, text);
}

function showTrouble(trouble) {
  byId("trouble").hidden = trouble === null;
  setText(byId("trouble"), trouble === null ? "" : `The store cannot be read (${trouble.type}): ${trouble.text}`);
}

for (const render of [renderSummary, renderGraph, renderDetails, renderAgreement.bind(null, false), renderLanes, renderLists]) onChange(() => render());

function listen() {
  const events = new EventSource("events");
  const on = (kind, handle) => events.addEventListener(kind, (event) => {
    setLive(true, "live");
    handle(JSON.parse(event.data));
  });
  on("status", replaceDocument);
  on("change", applyEvent);
  on("sample", addSample);
  on("trouble", showTrouble);
  events.addEventListener("error", () => {
    setLive(false, "no events from the page's server");
    if (events.readyState !== EventSource.CLOSED) return;  // the browser tries again by itself
    getJson("curves.json").catch(() => {});  // goes to the form if the session has ended
    setTimeout(listen, 3000);
  });
}

// A still page, `?still`, shows one moment and asks for nothing after it: for pictures, and for paper.
async function showOnce() {
  try {
    replaceDocument(await getJson("status.json"));
    setLive(true, "still");
  } catch (error) {
    setLive(false, error.message);
  }
}

if (new URLSearchParams(location.search).has("still")) showOnce();
else listen();
startCurves();
