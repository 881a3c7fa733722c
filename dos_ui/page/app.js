// The page of DOS: shows the readings of `readings.py`. Without a build step; the libraries are in vendor/.
import { html, render, useEffect, useState } from "./vendor/htm-preact.js";
import { Browse } from "./browse.js";
import { RegionView } from "./region.js";
import { ago, Badge, bytes, Notice, number, State, Table, useEvents, useFetched } from "./parts.js";

function routeOf(hash) {
  const [kind = "", ...rest] = hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  return { kind: kind || "store", rest };
}

function useRoute() {
  const [route, setRoute] = useState(routeOf(location.hash));
  useEffect(() => {
    const changed = () => {
      setRoute(routeOf(location.hash));
      document.getElementById("main")?.focus();
    };
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

function StoreView() {
  const { data, problems, live } = useEvents("api/events");
  const { store, lists, trees } = data;
  useEffect(() => { document.title = "Store · DOS"; }, []);
  return html`
    <h1>Store</h1>
    <${Live} live=${live} problems=${problems} />
    ${store && html`<${StoreState} state=${store} />`}
    <h2>Regions</h2>
    ${lists?.stale && html`<${Notice} kind="warn">As of ${ago(lists.stale.timeMs)}: ${lists.stale.problem}<//>`}
    <${Table} caption="Regions" none="The store has no region." rows=${lists?.regions} columns=${[
      ["region", (one) => html`<a href=${`#/region/${encodeURIComponent(one.region)}`}>${one.region}</a>`],
      ["state", (one) => html`<${State} shown=${one.shown} full />`, "state"],
      ["checkpoint", (one) => number(one.checkpoint), "number"],
      ["committed", (one) => (one.timeMs ? ago(one.timeMs) : "")],
      ["step", (one) => number(one.step), "number"],
      ["workers", (one) => number(one.workers), "number"],
      ["savepoints", (one) => (one.savepoints ?? []).join(", ")],
      ["outputs", (one) => (one.outputs ?? []).join(", ")],
      ["note", (one) => one.problem || (one.final ? "all input is processed" : ""), "long"],
    ]} />
    <h2>Inputs</h2>
    <${Table} caption="Inputs" none="The store has no input." rows=${lists?.inputs} columns=${[
      ["input", (one) => one.input],
      ["producers", (one) => (one.producers ?? []).join(", "), "long"],
      ["read by regions", (one) => (one.regions ?? []).join(", "), "long"],
      ["queries", (one) => (one.queries ?? []).join(", "), "long"],
      ["note", (one) => one.problem, "long"],
    ]} />
    <h2>Trees of files</h2>
    ${trees?.stale && html`<${Notice} kind="warn">As of ${ago(trees.stale.timeMs)}: ${trees.stale.problem}<//>`}
    <${Table} caption="Trees" none="The store has no tree." rows=${trees?.trees} columns=${[
      ["tree", (one) => html`<a href=${`#/browse/${encodeURIComponent(`${one.tree}.fs`)}`}>${one.tree}</a>`],
      ["gateway", (one) => one.epoch !== undefined && html`<${Badge} kind=${one.served ? "good" : "bad"}>${
        one.served ? "served" : "not served"}<//> <span class="quiet">${one.servedAt}, epoch ${one.epoch}</span>`, "long"],
      ["last sign", (one) => (one.lastSignMs ? ago(one.lastSignMs) : "")],
      ["files", (one) => number(one.files), "number"],
      ["live", (one) => bytes(one.liveBytes), "number"],
      ["chain", (one) => bytes(one.chainBytes), "number"],
      ["room for files", (one) => (one.maxBytes ? bytes(one.roomBytes) : ""), "number"],
      ["problems", (one) => one.problems.map(({ problem, remedy }) =>
        html`<div>${problem}${remedy && html`: <span class="quiet">${remedy}</span>`}</div>`), "long"],
    ]} />`;
}

function StoreState({ state }) {
  if (!state.store) {
    return html`<${Notice} kind="bad">${state.verdict}
      <ul>${state.problems.map((line) => html`<li>${line}</li>`)}</ul><//>`;
  }
  const { members, spares } = state.store;
  return html`
    <p><${Badge} kind=${state.writers_wait ? "bad" : "good"}>${state.verdict}<//>
      <span class="quiet"> generation ${state.store.generation}${state.bytes === null
        ? "" : `, ${bytes(state.bytes)} in all`}</span></p>
    ${state.problems.length > 0 && html`<${Notice} kind="warn">
      <ul>${state.problems.map((line) => html`<li>${line}</li>`)}</ul><//>`}
    <${Table} caption="Members" rows=${members} columns=${[
      ["member", (one) => one.address],
      ["condition", (one) => html`<${Badge} kind=${one.present && !one.refuses_appends ? "good" : "bad"}>${
        one.present ? "available" : one.condition.replaceAll("_", " ")}<//> ${one.detail}`, "long"],
      ["state", (one) => one.state],
      ["objects", (one) => number(one.objects), "number"],
      ["bytes", (one) => (one.bytes === null ? "" : bytes(one.bytes)), "number"],
      ["behind", (one) => (one.lag_bytes === null ? "" : bytes(one.lag_bytes)), "number"],
      ["damaged", (one) => (one.damaged?.length ? one.damaged.join(", ") : "none"), "long"],
    ]} />
    ${spares.length > 0 && html`<h2>Spares</h2><${Table} caption="Spares" rows=${spares} columns=${[
      ["spare", (one) => one.address],
      ["condition", (one) => html`<${Badge} kind=${one.present ? "good" : "bad"}>${one.present
        ? "available" : "unavailable"}<//> ${one.detail}`],
    ]} />`}`;
}

function Live({ live, problems }) {
  return html`
    <div aria-live="polite">
      ${!live && html`<${Notice} kind="warn">The page has lost its server, and tries again.<//>`}
      ${Object.values(problems).map((text) => html`<${Notice} kind="bad">${text}<//>`)}
    </div>`;
}

function App() {
  const { kind, rest } = useRoute();
  const [about] = useFetched("api/about");
  const pages = { store: "Store and regions", browse: "Stored data" };
  return html`
    <a class="skip" href="#main" onClick=${(event) => {
      event.preventDefault();
      document.getElementById("main").focus();
    }}>Skip to the content</a>
    <header class="top">
      <strong>DOS</strong>
      <nav aria-label="Pages">${Object.entries(pages).map(([name, text]) => html`
        <a href=${`#/${name}`} aria-current=${kind === name ? "page" : null}>${text}</a>`)}
        ${kind === "region" && html`<a href=${location.hash} aria-current="page">Region ${rest[0]}</a>`}
      </nav>
      <span class="quiet mono">${about?.url}</span>
    </header>
    <main id="main" tabindex="-1">
      ${kind === "region" ? html`<${RegionView} key=${rest[0]} name=${rest[0]} changes=${about?.changes} Live=${Live} />`
        : kind === "browse" ? html`<${Browse} path=${rest} />`
        : html`<${StoreView} />`}
    </main>`;
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
