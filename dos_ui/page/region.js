// One region: what it does now, its graph with rates, its checkpoints by phase and worker, and changes to it.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { Graph } from "./graph.js";
import { PhaseChart, RateChart } from "./charts.js";
import { ago, Badge, bytes, lastLine, Notice, number, post, rate, seconds, State, Table, useEvents } from "./parts.js";

export function RegionView({ name, changes, Live }) {
  const { data, problems, live } = useEvents(`api/events?region=${encodeURIComponent(name)}`);
  const region = data.region;
  useEffect(() => { document.title = `${name} · DOS`; }, [name]);
  if (!region) return html`<h1>Region ${name}</h1><${Live} live=${live} problems=${problems} />
    ${Object.keys(problems).length === 0 && html`<p class="quiet">Asking its driver…</p>`}`;
  const { status, rates, slow } = region;
  const lastStatus = status ?? (region.ended ? region.lastReport.status : null);
  return html`
    <h1>Region ${name} <${State} shown=${region.shown} /></h1>
    <${Live} live=${live} problems=${problems} />
    <${Now} region=${region} />
    <${Graph} operators=${region.graph} rates=${rates.operators} slow=${slow.operators} />
    <div class="two">
      <section><h2>Rows per second</h2><${RateChart} history=${region.history} /></section>
      <section><h2>Checkpoints by phase</h2><${PhaseChart} timeline=${region.timeline} /></section>
    </div>
    ${lastStatus && html`<${Workers} status=${lastStatus} rates=${rates} slow=${slow} />`}
    ${lastStatus?.eventTimes.length > 0 && html`<${EventTimes} times=${lastStatus.eventTimes} />`}
    <${Checkpoints} region=${region} />
    ${lastStatus?.resets.length > 0 && html`<${Resets} resets=${lastStatus.resets} />`}
    ${changes?.length > 0 && status && html`<${Changes} name=${name} region=${region} changes=${changes} />`}`;
}

function Now({ region }) {
  const { status, manifest, rates } = region;
  const last = manifest.lastCheckpoint;
  const way = status?.underWay;
  return html`
    ${region.stale && html`<${Notice} kind="warn">As of ${ago(region.stale.timeMs)}: ${region.stale.problem}<//>`}
    ${!status && region.problem && html`<${Notice} kind="warn">${region.problem}. What follows is from the
      manifest${region.ended ? " and the last report of that driver" : ""}.<//>`}
    ${status?.reason && html`<${Notice} kind="warn">${status.reason}<//>`}
    ${status?.accessProblem && html`<${Notice} kind="bad">${status.accessProblem}<//>`}
    ${status?.fellBack && html`<${Notice} kind="bad">${status.fellBack}<//>`}
    ${manifest.unproved && html`<${Notice} kind="warn">${manifest.unproved}<//>`}
    <div id="under-way" aria-live="polite">${way && way.seconds > 1 && html`<${Notice} kind="warn">
      Checkpoint ${way.checkpoint} was requested ${seconds(way.seconds)} ago and ${way.waitsFor.length === 0
        ? "is being written to the manifest." : "waits for the votes of:"}
      <ul>${way.waitsFor.map((one) => html`<li>worker ${one.worker}: ${one.why}</li>`)}</ul><//>`}</div>
    <div class="facts">
      <${Fact} name="last checkpoint" value=${last ? number(last.checkpoint) : "none"} more=${last && ago(last.timeMs)} />
      <${Fact} name="rows in" value=${rate(rates.rowsIn)} />
      <${Fact} name="rows out" value=${rate(rates.rowsOut)} />
      <${Fact} name="back-pressure" value=${region.pressure.kind} more=${region.pressure.text} />
      <${Fact} name="state" value=${last ? bytes(last.stateBytes) : ""} />
      ${status && html`
        <${Fact} name="workers" value=${status.workers.length} more=${status.standbys ? `${status.standbys} stand-by` : ""} />
        <${Fact} name="incarnation" value=${number(status.incarnation)} />
        <${Fact} name="a recovery takes" value=${status.recovery ? `about ${seconds(status.recovery.seconds)}` : "?"} />`}
      <${Fact} name="driver" value=${region.driver ?? last?.driver ?? ""} />
    </div>
    ${status?.scaling && html`<${Notice}>${status.scaling.handsTo == null
        ? `Going to ${status.scaling.workers} workers` : `Another driver, of ${status.scaling.handsTo}, takes it over`}:
      ${" "}${status.scaling.phase}, since ${seconds(status.scaling.seconds)}.<//>`}`;
}

const Fact = ({ name, value, more }) => html`<div><div class="name">${name}</div>
  <div class="value">${value}</div>${more && html`<div class="quiet">${more}</div>`}</div>`;

function Workers({ status, rates, slow }) {
  const held = (one) => slow.workers.includes(one.worker) || (slow.operators[one.operator] ?? []).includes(one.worker);
  return html`<h2>Workers</h2>
    <${Table} caption="Workers" rows=${status.workers} columns=${[
      ["worker", (one) => one.worker, "number"],
      ["state", (one) => html`<${Badge} kind=${one.state === "RUNNING" && !held(one) ? "good" : "warn"}>${one.state}<//>
        ${held(one) && one.operator && html` in ${one.operator} for ${seconds(one.operatorSeconds)}`}`],
      ["process", (one) => `${one.host} ${one.pid || ""}`],
      ["attempt", (one) => number(one.attempt), "number"],
      ["step", (one) => number(one.step), "number"],
      ["rows in", (one) => rate(rates.workers[one.worker]?.rowsIn), "number"],
      ["rows out", (one) => rate(rates.workers[one.worker]?.rowsOut), "number"],
      ["busy", (one) => percent(rates.workers[one.worker]?.busySeconds), "number"],
      ["not yet synced", (one) => bytes(one.lagBytes), "number"],
      ["not yet read", (one) => (one.backlogBytes === null ? "?" : bytes(one.backlogBytes)), "number"],
      ["last error", (one) => one.error, "long"],
    ]} />`;
}

const percent = (value) => (value === null || value === undefined ? "?" : `${Math.round(Math.min(1, value) * 100)} %`);

const EventTimes = ({ times }) => html`<h2>Event time</h2>
  <${Table} caption="Event time" rows=${times} columns=${[
    ["operator", (one) => one.name],
    ["watermark", (one) => (one.watermarkMicroseconds === null
      ? "has not begun" : utc(one.watermarkMicroseconds))],
    ["worker", (one) => one.worker, "number"],
    ["held by", (one) => one.heldBy, "long"],
  ]} />`;

function utc(micros) {
  const time = new Date(micros / 1000);
  return Number.isNaN(time.getTime()) ? `${micros} µs` : time.toISOString();
}

function Checkpoints({ region }) {
  const retained = new Set(region.retained);
  const held = Object.entries(region.savepoints);
  const rows = [...region.timeline].reverse();
  return html`<h2>Checkpoints</h2>
    ${held.length > 0 && html`<p>Savepoints: ${held.map(([name, number]) => html`<${Badge}>${name}: checkpoint ${number}<//> `)}</p>`}
    <details><summary>The last ${rows.length}</summary><${Table} caption="Checkpoints" rows=${rows} columns=${[
      ["checkpoint", (one) => number(one.checkpoint), "number"],
      ["committed", (one) => new Date(one.timeMs).toLocaleString()],
      ["step", (one) => number(one.step), "number"],
      ["incarnation", (one) => number(one.incarnation), "number"],
      ["state", (one) => bytes(one.stateBytes), "number"],
      ["by worker", (one) => Object.entries(one.workers).map(([worker, phases]) =>
        `${worker}: ${Object.entries(phases).map(([phase, took]) => `${phase} ${seconds(took)}`).join(", ")}`).join("; "), "long"],
      ["slowest worker", (one) => slowest(one.workers)],
      ["restorable", (one) => (retained.has(one.checkpoint) ? "yes" : "no")],
    ]} /></details>`;
}

function slowest(workers) {
  const totals = Object.entries(workers).map(([worker, phases]) => [worker,
    Object.values(phases).reduce((sum, one) => sum + one, 0)]);
  if (totals.length === 0) return "";
  const [worker, total] = totals.reduce((most, one) => (one[1] > most[1] ? one : most));
  return `worker ${worker}: ${seconds(total)}`;
}

const Resets = ({ resets }) => html`<h2>Resets</h2>
  <${Table} caption="Resets" rows=${[...resets].reverse()} columns=${[
    ["worker", (one) => (one.worker < 0 ? "by hand" : one.worker)],
    ["took", (one) => seconds(one.seconds), "number"],
    ["replayed", (one) => bytes(one.bytes), "number"],
    ["to checkpoint", (one) => number(one.checkpoint), "number"],
    ["phases", (one) => Object.entries(one.phases).map(([phase, took]) => `${phase} ${seconds(took)}`).join(", "), "long"],
    ["reason", (one) => lastLine(one.reason), "long"],
  ]} />`;

// `changes`: the rows of the table of verbs (checkpoint/core/verbs.py) that this page offers.
function Changes({ name, region, changes }) {
  const [key, setKey] = useState(sessionStorage.getItem("key") ?? "");
  const [busy, setBusy] = useState("");
  const [outcome, setOutcome] = useState(null);
  const request = (change, body) => {
    setBusy(change);
    setOutcome(null);
    post(`api/regions/${encodeURIComponent(name)}/${change}`, key, body)
      .then((result) => {
        sessionStorage.setItem("key", key);
        setOutcome(["", `${change}: done${result.checkpoint ? `, at checkpoint ${result.checkpoint}` : ""}`]);
      })
      .catch((error) => setOutcome(["bad", error.message]))
      .finally(() => setBusy(""));
  };
  const off = !key || busy !== "";
  const useless = region.status.state === "PAUSED" ? "pause" : "resume";
  const plain = changes.filter((one) => one.asks.length === 0 && one.name !== useless);
  return html`<h2>Change it</h2>
    <form class="row" onSubmit=${(event) => event.preventDefault()}>
      <label>Key of this page <input name="key" type="password" autocomplete="off" value=${key}
        onInput=${(event) => setKey(event.target.value.trim())} /></label>
      ${plain.map((one) => html`<button key=${one.name} disabled=${off}
        onClick=${() => request(one.name, {})}>${one.button}</button>`)}
    </form>
    ${changes.filter((one) => one.asks.length > 0).map((one) => html`<${Change} key=${one.name} change=${one}
      region=${region} off=${off} onDone=${(given) => request(one.name, given)} />`)}
    <div aria-live="polite">${busy && html`<${Notice}>${busy}: under way…<//>`}
      ${outcome && html`<${Notice} kind=${outcome[0]}>${outcome[1]}<//>`}</div>`;
}

function Change({ change, region, off, onDone }) {
  const dialog = useRef(null);
  const [typed, setTyped] = useState({});
  const begins = { workers: region.status.workers.length, yes: false };
  const given = Object.fromEntries(change.asks.map((one) => [one.name, typed[one.name] ?? begins[one.kind] ?? ""]));
  const fill = (name, value) => setTyped((before) => ({ ...before, [name]: value }));
  const send = () => onDone(Object.fromEntries(change.asks.map((one) =>
    [one.name, one.kind === "workers" ? Number(given[one.name]) : given[one.name]])));
  const text = (name) => (name === "region" ? region.name : given[name].replace(":", " "));
  return html`<form class="row" onSubmit=${(event) => {
      event.preventDefault();
      if (change.confirm) dialog.current.showModal(); else send();
    }}>
    ${change.asks.map((one) => html`<${Asked} key=${one.name} one=${one} region=${region} value=${given[one.name]}
      onFill=${(value) => fill(one.name, value)} />`)}
    <button disabled=${off}>${change.button}</button></form>
    ${change.confirm && html`<dialog ref=${dialog} aria-label=${`Confirm: ${change.button}`}>
      <p>${change.confirm.replace(/{(\w+)}/g, (_, name) => text(name))}</p>
      <form method="dialog" class="row">
        <button onClick=${send}>${change.button}</button>
        <button>Cancel</button></form>
    </dialog>`}`;
}

function Asked({ one, region, value, onFill }) {
  if (one.kind === "yes") return html`<label class="check"><input type="checkbox" name=${one.name} checked=${value}
    onChange=${(event) => onFill(event.target.checked)} /> ${one.text}</label>`;
  if (one.kind !== "target") return html`<label>${one.text} <input name=${one.name} value=${value}
    type=${one.kind === "workers" ? "number" : "text"} required=${one.kind !== "note"}
    onInput=${(event) => onFill(event.target.value)} /></label>`;
  const targets = [
    ...Object.keys(region.savepoints).map((name) => [`savepoint:${name}`, `savepoint ${name}`]),
    ...[...region.retained].reverse().map((number) => [`checkpoint:${number}`, `checkpoint ${number}`]),
  ];
  return html`<label>${one.text} <select required value=${value} onChange=${(event) => onFill(event.target.value)}>
    <option value="">choose</option>
    ${targets.map(([target, text]) => html`<option value=${target}>${text}</option>`)}</select></label>`;
}
