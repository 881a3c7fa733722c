// What is stored: directories, their objects, the records of a journal, the state of a region.
import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { Badge, bytes, Notice, number, Table, useFetched } from "./parts.js";

const link = (...path) => `#/browse/${path.map(encodeURIComponent).join("/")}`;
const query = (given) => new URLSearchParams(given).toString();

export function Browse({ path }) {
  useEffect(() => { document.title = ["Stored data", ...path].join(" · "); }, [path.join("/")]);
  const [directory, name] = path;
  if (directory === "state-of") return html`<${State} region=${path[1]} table=${path[2] ?? ""} />`;
  if (name) return html`<${Records} directory=${directory} name=${name} />`;
  return directory ? html`<${Objects} directory=${directory} />` : html`<${Directories} />`;
}

function Directories() {
  const [rows, problem] = useFetched("api/directories");
  const [search, setSearch] = useState("");
  return html`<h1>Stored data</h1>
    <${Search} label="Find a directory" onSearch=${setSearch} />
    <${Problem} text=${problem} />
    <${Table} caption="Directories" none="No directory." rows=${rows?.filter((one) => one.name.includes(search))}
      columns=${[
        ["directory", (one) => html`<a href=${link(one.name)}>${one.name}</a>`, "long"],
        ["kind", (one) => one.kind && html`<${Badge}>${one.kind}<//>`],
        ["belongs to", (one) => one.owner],
        ["", (one) => one.kind === "manifest" && html`<a href=${link("state-of", one.owner)}>state</a>`],
      ]} />`;
}

function Objects({ directory }) {
  const [rows, problem] = useFetched(`api/objects?${query({ directory })}`);
  const chains = new Set(rows?.map((one) => one.chain).filter(Boolean));
  return html`<h1><a href="#/browse">Stored data</a> / ${directory}</h1>
    <${Problem} text=${problem} />
    ${chains.size > 0 && html`<p>Journals: ${[...chains].map((chain) =>
      html`<a href=${link(directory, chain)}>${chain}</a> `)}</p>`}
    <${Table} caption="Objects" none="No object." rows=${rows} columns=${[
      ["object", (one) => html`<a href=${link(directory, one.name)}>${one.name}</a>`, "long"],
      ["durable bytes", (one) => number(one.synced), "number"],
      ["", (one) => bytes(one.synced), "number"],
      ["copies", (one) => number(one.copies), "number"],
      ["", (one) => ["corrupt", "poisoned"].filter((mark) => one[mark]).map((mark) =>
        html`<${Badge} kind="bad">${mark}<//>`)],
    ]} />`;
}

function Records({ directory, name }) {
  const [pattern, setPattern] = useState("");
  const [begin, setBegin] = useState(0);
  const [found, problem, busy] = useFetched(`api/records?${query({ directory, name, pattern, begin })}`);
  return html`<h1><a href="#/browse">Stored data</a> / <a href=${link(directory)}>${directory}</a> / ${name}</h1>
    <${Search} label="Regular expression in the strings of a record" button="Search"
      onSearch=${(text) => { setBegin(0); setPattern(text); }} />
    <${Problem} text=${problem} />
    ${found?.notes.map((text) => html`<${Notice}>${text}<//>`)}
    <${Table} caption="Records" none=${busy ? "Reading…" : "No record."} rows=${found?.records ?? []} columns=${[
      ["offset", (one) => number(one.offset), "number"],
      ["record", (one) => one.name, "mono"],
      ["numbers", (one) => one.ints.join(", "), "mono"],
      ["strings", (one) => html`<${Strings} key=${one.offset} record=${one}
        url=${`api/records?${query({ directory, name, begin: one.offset, whole: "" })}`} />`, "mono long"],
    ]} />
    ${found?.fault && html`<${Notice} kind="bad">${found.fault}<//>`}
    ${found?.next && html`<p><button onClick=${() => setBegin(found.next)}>Continue at offset ${number(found.next)}</button></p>`}`;
}

// The strings of a record: shortened, and whole on request.
function Strings({ record, url }) {
  const [wanted, setWanted] = useState(false);
  const [found, problem] = useFetched(wanted ? url : "");
  const whole = found?.records[0]?.offset === record.offset ? found.records[0] : record;
  return html`${whole.strings.map((part) => html`<div>${part.text ?? `hex ${part.hex}`}${part.cut
    ? html` <span class="quiet">… ${number(part.bytes)} bytes</span>` : ""}</div>`)}
    <${Problem} text=${problem} />
    ${!wanted && record.strings.some((part) => part.cut) && html`<button
      aria-label=${`Show the whole record at ${record.offset}`} onClick=${() => setWanted(true)}>show whole</button>`}`;
}

function State({ region, table }) {
  const [search, setSearch] = useState("");
  const [found, problem, busy] = useFetched(`api/state?${query({ region, table, search })}`);
  return html`<h1><a href="#/browse">Stored data</a> / state of <a href=${`#/region/${encodeURIComponent(region)}`}>${region}</a></h1>
    <${Problem} text=${problem} />
    ${found && html`<p class="quiet">At checkpoint ${number(found.checkpoint)}.</p>`}
    <${Table} caption="Tables" none=${busy ? "Reading…" : "No state."} rows=${found?.tables ?? []} columns=${[
      ["table", (one) => html`<a href=${link("state-of", region, one.table)} aria-current=${one.table === table}>${one.table}</a>`],
      ["rows", (one) => number(one.rows), "number"],
    ]} />
    ${table && html`<h2>${table}</h2><${Search} label="Text in any column" button="Search" onSearch=${setSearch} />
      <${Table} caption=${table} none=${busy ? "Reading…" : "No row."} rows=${found?.rows ?? []}
        columns=${(found?.columns ?? []).map((name, at) => [name, (row) => row[at], "mono long"])} />
      ${found?.more && html`<p class="quiet">There are more rows; search for some.</p>`}`}`;
}

const Problem = ({ text }) => text && html`<${Notice} kind="bad">${text}<//>`;

function Search({ label, button, onSearch }) {
  const submit = (event) => { event.preventDefault(); onSearch(new FormData(event.target).get("text")); };
  return html`<form class="row" role="search" onSubmit=${submit}>
    <label>${label} <input name="text" type="search" size="40" onInput=${(event) => {
      if (!button) onSearch(event.target.value);
    }} /></label>${button && html`<button>${button}</button>`}</form>`;
}
