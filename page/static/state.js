// The document of the store, kept up to date by events, and what the user has chosen.

import { time } from "./dom.js";

const KEYED = ["tables", "jobs"];

export const state = {
  document: null,
  tables: new Map(),
  jobs: new Map(),
  chosen: null,
  search: "",
  unfolded: false,
};

const listeners = [];

export function onChange(listener) {
  listeners.push(listener);
}

let pending = false;

export function changed() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => {
    pending = false;
    if (state.document) for (const listener of listeners) listener(state);
  });
}

export function replaceDocument(document) {
  state.document = document;
  for (const field of KEYED) state[field] = new Map(document[field].map((value) => [value.name, value]));
  changed();
}

// Applies an event: fields with other values, objects that are new or differ, names that are gone.
export function applyEvent(event) {
  Object.assign(state.document, event.set || {});
  for (const field of KEYED) {
    const objects = state[field];
    for (const name of event.drop?.[field] || []) objects.delete(name);
    for (const patch of event.put?.[field] || []) objects.set(patch.name, { ...objects.get(patch.name), ...patch });
    state.document[field] = [...objects.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
  }
  changed();
}

export function choose(name) {
  state.chosen = name;
  changed();
}

export const jobOf = (table) => (table.job === null ? undefined : state.jobs.get(table.job));

// The name of the state of a table for people.
export const IN_USE = "in use";
export const nameOf = (tableState) => (tableState === "created" ? IN_USE : tableState);

// The time of a commit: with its date if that is not the day of the document.
export function when(iso) {
  const sameDay = !iso || iso.slice(0, 10) === state.document.at.slice(0, 10);
  return sameDay ? time(iso) : `${iso.slice(0, 10)} ${iso.slice(11, 19)}`;
}
