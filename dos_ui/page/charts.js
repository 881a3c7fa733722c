// Charts by Chart.js. Each has a table or a text with the same data beside it.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { rate, seconds } from "./parts.js";

const COLOURS = ["#4f86e8", "#d98a2b", "#3fa66b", "#b65fb0", "#c9515a", "#6b7a90"];
const GAP_MS = 15000; // nobody looked for longer: the line has a gap
const PHASES = ["align", "drain", "write", "sync"];

// make(colours) -> the configuration; change(chart) brings a chart up to date.
function useChart(make, change, deps) {
  const canvas = useRef(null);
  const chart = useRef(null);
  useEffect(() => {
    chart.current = new globalThis.Chart(canvas.current, make());
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const recolour = () => { colour(chart.current); chart.current.update("none"); };
    recolour();
    scheme.addEventListener("change", recolour);
    return () => { scheme.removeEventListener("change", recolour); chart.current.destroy(); };
  }, []);
  useEffect(() => { change(chart.current); chart.current.update("none"); }, deps);
  return canvas;
}

function colour(chart) {
  const style = getComputedStyle(document.documentElement);
  const [ink, line] = [style.getPropertyValue("--quiet"), style.getPropertyValue("--line")];
  chart.options.plugins.legend.labels.color = ink;
  for (const scale of Object.values(chart.options.scales)) {
    scale.ticks.color = ink;
    scale.grid = { color: line };
  }
}

const clock = (value) => (value > 1 ? new Date(value).toLocaleTimeString() : ""); // 0 to 1: there are no points

const options = (format, more = {}, x = { ticks: { maxTicksLimit: 6, maxRotation: 0 } }) => ({
  animation: false,
  responsive: true,
  maintainAspectRatio: false,
  interaction: { mode: "index", intersect: false },
  plugins: {
    legend: { labels: { boxWidth: 12 } },
    tooltip: { callbacks: {
      title: ([item]) => (item.raw?.x ? new Date(item.raw.x).toLocaleTimeString() : item.label),
      label: (item) => `${item.dataset.label}: ${format(item.raw?.x ? item.raw.y : item.raw)}`,
    } },
  },
  scales: {
    x: { ...x, ...more },
    y: { beginAtZero: true, ticks: { callback: (value) => format(value) }, ...more },
  },
});

export function RateChart({ history }) {
  const canvas = useChart(
    () => ({
      type: "line",
      data: { datasets: ["rows in", "rows out"].map((label, at) => ({
        label, data: [], spanGaps: GAP_MS, borderColor: COLOURS[at], backgroundColor: COLOURS[at], borderWidth: 2, pointRadius: 0,
      })) },
      options: options(rate, {}, {
        type: "linear",
        ticks: { maxTicksLimit: 5, maxRotation: 0, includeBounds: false, callback: clock },
      }),
    }),
    (chart) => {
      const points = (name) => history.map((one) => ({ x: one.timeMs, y: one[name] }));
      chart.data.datasets[0].data = points("rowsIn");
      chart.data.datasets[1].data = points("rowsOut");
      chart.options.scales.x.min = history.at(0)?.timeMs;
      chart.options.scales.x.max = history.at(-1)?.timeMs;
    },
    [history],
  );
  const last = history.at(-1);
  return html`<div class="plot"><canvas ref=${canvas} role="img" aria-label=${last
    ? `Rows per second over time; now ${rate(last.rowsIn)} in and ${rate(last.rowsOut)} out` : "No rates yet"}></canvas></div>`;
}

export function PhaseChart({ timeline }) {
  const [worker, setWorker] = useState("");
  const workers = [...new Set(timeline.flatMap((one) => Object.keys(one.workers)))].sort((a, b) => a - b);
  const canvas = useChart(
    () => ({ type: "bar", data: { labels: [], datasets: [] }, options: options(seconds, { stacked: true }) }),
    (chart) => {
      chart.data.labels = timeline.map((one) => one.checkpoint);
      chart.data.datasets = PHASES.map((phase, at) => ({
        label: phase, backgroundColor: COLOURS[at], data: timeline.map((one) => took(one.workers, phase, worker)),
      }));
      chart.options.plugins.tooltip.callbacks.afterBody = ([item]) => byWorker(timeline[item.dataIndex]);
    },
    [timeline, worker],
  );
  return html`<div class="plot"><canvas ref=${canvas} role="img"
      aria-label=${`Seconds of each phase of the last checkpoints, of ${worker ? `worker ${worker}` : "the slowest worker"}`}></canvas></div>
    <label>of <select value=${worker} onChange=${(event) => setWorker(event.target.value)}>
      <option value="">the slowest worker in each phase</option>
      ${workers.map((one) => html`<option value=${one}>worker ${one}</option>`)}</select></label>`;
}

// The seconds of a phase: of one worker, or of the slowest one.
const took = (workers, phase, worker) => Math.max(0, ...Object.entries(workers)
  .filter(([one]) => worker === "" || one === worker).map(([, phases]) => phases[phase] ?? 0));

const byWorker = (one) => Object.entries(one?.workers ?? {}).map(([worker, phases]) =>
  `worker ${worker}: ${PHASES.map((phase) => `${phase} ${seconds(phases[phase] ?? 0)}`).join(", ")}`);
