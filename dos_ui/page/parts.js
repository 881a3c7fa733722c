// Small parts that all views use: tables, badges, numbers as text, fetching.
import { html, useEffect, useState } from "./vendor/htm-preact.js";

export const number = (value) => (value === null || value === undefined ? "" : value.toLocaleString("en"));

export function bytes(value) {
  if (value === null || value === undefined) return "";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  for (; value >= 1000 && at < units.length - 1; at += 1) value /= 1000;
  return `${at === 0 || value >= 100 ? Math.round(value) : value.toPrecision(3)} ${units[at]}`;
}

export function rate(value) {
  if (value === null || value === undefined) return "?";
  if (value >= 1e6) return `${(value / 1e6).toPrecision(3)} M/s`;
  if (value >= 1e4) return `${(value / 1e3).toPrecision(3)} k/s`;
  return `${value >= 100 ? Math.round(value) : Number(value.toPrecision(2))}/s`;
}

export const seconds = (value) =>
  value >= 100 ? `${Math.round(value)} s` : value >= 1 ? `${value.toFixed(1)} s` : `${Math.round(value * 1000)} ms`;

export function ago(timeMs) {
  const past = Math.max(0, (Date.now() - timeMs) / 1000);
  if (past < 90) return `${Math.round(past)} s ago`;
  if (past < 5400) return `${Math.round(past / 60)} min ago`;
  return past < 172800 ? `${Math.round(past / 3600)} h ago` : `${Math.round(past / 86400)} days ago`;
}

export const Badge = ({ kind = "", children }) => html`<span class=${`badge ${kind}`}>${children}</span>`;

// The state of a region (core/states.py): a badge, since when, and with `full` the reason.
export function State({ shown, full = false }) {
  if (!shown) return html`<span class="quiet">asking its driver…</span>`;
  return html`<${Badge} kind=${shown.kind}>${shown.name}<//>${shown.since &&
    html` <span class="quiet">${shown.since} ${ago(shown.sinceMs)}</span>`}${full && shown.text &&
    html`<div class="quiet">${lastLine(shown.text)}</div>`}`;
}

export const lastLine = (text) => text.trim().split("\n").pop();

export const Notice = ({ kind = "", children }) =>
  html`<div class=${`notice ${kind}`} role=${kind === "bad" ? "alert" : null}>${children}</div>`;

// columns: [heading, cell of a row, class]
export function Table({ caption, columns, rows, none = "none" }) {
  if (!rows) return html`<p class="quiet">Loading…</p>`;
  if (rows.length === 0) return html`<p class="quiet">${none}</p>`;
  return html`
    <div class="scroll"><table aria-label=${caption}>
      <thead><tr>${columns.map(([name, , kind]) => html`<th scope="col" class=${kind}>${name}</th>`)}</tr></thead>
      <tbody>${rows.map((row) => html`
        <tr>${columns.map(([, cell, kind]) => html`<td class=${kind}>${cell(row)}</td>`)}</tr>`)}
      </tbody>
    </table></div>`;
}

async function answerOf(response) {
  const found = await response.json().catch(() => ({ error: `HTTP ${response.status}` }));
  if (!response.ok) throw new Error(found.error ?? `HTTP ${response.status}`);
  return found;
}

// Returns [what was read, the error's text, whether it is being read].
export function useFetched(url) {
  const [state, setState] = useState([null, "", true]);
  useEffect(() => {
    if (!url) return undefined;
    const stop = new AbortController();
    setState(([found]) => [found, "", true]);
    fetch(url, { signal: stop.signal }).then(answerOf)
      .then((found) => setState([found, "", false]))
      .catch((error) => { if (error.name !== "AbortError") setState([null, error.message, false]); });
    return () => stop.abort();
  }, [url]);
  return state;
}

export const post = (url, key, body) => fetch(url, {
  method: "POST",
  headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json" },
  body: JSON.stringify(body),
}).then(answerOf);

// Server-sent events: the last reading of each kind, the problems, and whether the server is connected.
export function useEvents(url) {
  const [state, setState] = useState({ data: {}, problems: {}, live: true });
  useEffect(() => {
    const source = new EventSource(url);
    for (const kind of ["store", "lists", "trees", "region"]) {
      source.addEventListener(kind, (event) => setState(({ data, problems }) => {
        const { [kind]: _, ...others } = problems;
        return { data: { ...data, [kind]: JSON.parse(event.data) }, problems: others, live: true };
      }));
    }
    source.addEventListener("problem", (event) => setState((state) => {
      const { what, error } = JSON.parse(event.data);
      return { ...state, problems: { ...state.problems, [what]: error }, live: true };
    }));
    source.onerror = () => setState((state) => ({ ...state, live: false }));
    return () => source.close();
  }, [url]);
  return state;
}
