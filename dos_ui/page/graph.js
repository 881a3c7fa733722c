// The dataflow graph: laid out by dagre, drawn as SVG, with the rates of each operator.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { rate, Table } from "./parts.js";

const HEIGHT = 58;
const SHRINK_MIN = 0.8; // its text can still be read

// slow: operator -> the workers that are held up in it.
export function Graph({ operators, rates, slow }) {
  const frame = useRef(null);
  const [room, setRoom] = useState(0);
  useEffect(() => {
    if (!frame.current) return undefined;
    const observer = new ResizeObserver(() => setRoom(frame.current?.clientWidth ?? 0));
    observer.observe(frame.current);
    return () => observer.disconnect();
  }, [operators.length === 0]);
  if (operators.length === 0) return html`<p class="quiet">The graph is known after the first checkpoint.</p>`;
  const drawn = operators.map((one) => ({ ...one, note: slow[one.name] ? heldUp(slow[one.name]) : one.kind }));
  const { nodes, edges, width, height, scale } = fitting(drawn, room);
  const known = operators.map((one) => ({ ...one, rates: rates[one.name] ?? {} }));
  return html`<h2>Dataflow</h2>
    <div class="scroll" ref=${frame}><svg class="graph" viewBox=${`0 0 ${width} ${height}`} width=${scale * width} height=${scale * height} role="img"
      aria-label="The dataflow graph; the table below has the same data">
      <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">
        <path d="M0 0 L8 4 L0 8 z" /></marker></defs>
      ${edges.map((points) => html`<path d=${line(points)} marker-end="url(#tip)" />`)}
      ${nodes.map((node) => html`<g class=${slow[node.name] ? "slow" : ""}
          transform=${`translate(${node.x - node.width / 2},${node.y - HEIGHT / 2})`}>
        <title>${node.name}: ${node.kind} ${node.detail}</title>
        <rect width=${node.width} height=${HEIGHT} rx="6" />
        <text x="10" y="19">${node.name}</text>
        <text x="10" y="34" class="kind">${node.note}</text>
        <text x=${node.width - 10} y="34" text-anchor="end" class="kind">${busy(rates[node.name])}</text>
        <text x="10" y="50" class="rate">${ratesText(node, rates[node.name])}</text></g>`)}
    </svg></div>
    <details><summary>As a table</summary><${Table} caption="Operators" rows=${known} columns=${[
      ["operator", (one) => one.name],
      ["kind", (one) => one.kind],
      ["reads", (one) => one.inputs.join(", ")],
      ["held up", (one) => heldUp(slow[one.name] ?? [])],
      ["rows in", (one) => rate(one.rates.rowsIn), "number"],
      ["rows out", (one) => rate(one.rates.rowsOut), "number"],
      ["busy", (one) => busy(one.rates), "number"],
      ["details", (one) => one.detail, "long"],
    ]} /></details>`;
}

// A source has no rows in, and a sink none out.
function ratesText(node, found) {
  if (!found) return "";
  if (node.kind === "source") return `${rate(found.rowsOut)} out`;
  return node.kind === "sink" ? `${rate(found.rowsIn)} in` : `${rate(found.rowsIn)} in, ${rate(found.rowsOut)} out`;
}

const busy = (found) => found?.busySeconds == null ? "" : `${Math.round(100 * found.busySeconds)} % busy`;

const heldUp = (workers) => workers.length === 0 ? ""
  : `held up in worker${workers.length > 1 ? "s" : ""} ${workers.join(", ")}`;

// From left to right if that fits, otherwise from top to bottom; what is still too wide is scrolled.
function fitting(operators, room) {
  const across = layout(operators, "LR");
  if (across.width * SHRINK_MIN <= room) return { ...across, scale: Math.min(1, room / across.width) };
  const down = layout(operators, "TB");
  return { ...(down.width < across.width ? down : across), scale: 1 };
}

function layout(operators, rankdir) {
  const graph = new globalThis.dagre.graphlib.Graph();
  graph.setGraph({ rankdir, nodesep: 18, ranksep: 34, marginx: 4, marginy: 4 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const one of operators) {
    const width = Math.max(158, 9 * one.name.length + 24, 6.5 * (one.note.length + "  100 % busy".length) + 24);
    graph.setNode(one.name, { ...one, width, height: HEIGHT });
  }
  for (const one of operators) {
    for (const input of one.inputs) if (graph.hasNode(input)) graph.setEdge(input, one.name);
  }
  globalThis.dagre.layout(graph);
  const { width, height } = graph.graph();
  return {
    nodes: graph.nodes().map((name) => graph.node(name)),
    edges: graph.edges().map((edge) => graph.edge(edge).points),
    width: Math.ceil(width), height: Math.ceil(height),
  };
}

const line = (points) => points.map(({ x, y }, at) => `${at === 0 ? "M" : "L"}${x} ${y}`).join(" ");
