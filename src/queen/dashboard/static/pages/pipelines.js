// Every pipeline: what Spark computes from queues, and how it is doing.

import { fill, link, make, pageTo } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { count, milliseconds, rate, seconds, when } from "../lib/format.js";
import { badge, empty, head } from "../ui/parts.js";
import { table } from "../ui/table.js";

const KINDS = { running: "good", starting: "info", stopping: "warn", stopped: "quiet", failed: "bad", lost: "bad", new: "quiet" };
const MEANINGS = { new: "never run", lost: "it says nothing any more: killed, or cut off", stopping: "asked to stop" };

/** The state of a pipeline as a word with a colour. */
export const stateBadge = (state) => badge(state, KINDS[state] ?? "quiet", MEANINGS[state]);

/** How far sealed time is ahead of what was read, in seconds. */
export const gapOf = (row) => (isRunning(row) ? (row.progress.behindMs ?? 0) / 1000 : null);

/** Whether a run is there: what the last one has said of its speed is no news. */
export const isRunning = ({ state, progress }) => Boolean(progress) && ["running", "starting", "stopping"].includes(state);

const COLUMNS = [
  { title: "Pipeline", value: (row) => link(pageTo(["pipelines", row.name]), row.name), sort: (row) => row.name, name: "name" },
  { title: "State", width: 7, value: (row) => stateBadge(row.state), sort: (row) => row.state },
  { title: "Reads", value: (row) => row.reads.join(", "), sort: (row) => row.reads.join(", "), wide: true },
  { title: "Writes", value: (row) => row.writes ?? "–", sort: (row) => row.writes, wide: true },
  { title: "In", kind: "num", width: 7, value: (row) => rate(isRunning(row) ? row.progress.inputRowsPerSecond ?? 0 : null), sort: (row) => row.progress?.inputRowsPerSecond ?? 0 },
  { title: "Batch", kind: "num", width: 7, value: (row) => (isRunning(row) ? milliseconds(row.progress.batchMs ?? 0) : "–"), sort: (row) => row.progress?.batchMs ?? 0, wide: true },
  { title: "Behind", kind: "num", width: 7, value: (row) => seconds(gapOf(row)), sort: gapOf },
  { title: "Late", kind: "num", width: 6, value: (row) => count(row.progress ? row.progress.lateRows ?? 0 : null), sort: (row) => row.progress?.lateRows ?? 0, wide: true },
  { title: "Runs", kind: "num", width: 6.5, value: (row) => count(row.runs), sort: (row) => row.runs, wide: true },
  { title: "Reported", width: 8.5, value: (row) => when(row.reportedAt), sort: (row) => row.reportedAt, wide: true },
];

export function show(view) {
  const list = table(COLUMNS, {
    name: "Pipelines", key: (row) => row.name, href: (row) => pageTo(["pipelines", row.name]), sort: "name", sortKey: "sort",
    none: empty("There is no pipeline.", make("p", {}, "A pipeline computes over queues on Spark and writes its results to a queue, a table or files: `queen pipeline run`.")),
  });
  fill(view.root, head("Pipelines", { about: "What Spark computes. The broker keeps definitions and what runs report; it runs none of them." }), list.element);
  view.live(async () => {
    const { pipelines } = await api.get("/api/v1/pipelines?limit=1000", { signal: view.signal });
    list.set(pipelines);
  }, 3000);
}
