// Every stream: what it cuts into windows, and how far its groups are.

import { fill, link, make, pageTo } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { count, milliseconds, plural, seconds, when } from "../lib/format.js";
import { badge, empty, head, numbers } from "../ui/parts.js";
import { table } from "../ui/table.js";

/** How a stream cuts, in words. */
export function windowsOf(row) {
  const every = row.windowSlideMs ? ` every ${milliseconds(row.windowSlideMs)}` : "";
  if (row.windowType === "session") return `sessions, gap ${milliseconds(row.windowGapMs)}`;
  if (row.windowType === "count") return `${count(row.windowSizeCount)} messages${row.windowSlideCount ? ` every ${count(row.windowSlideCount)}` : ""}`;
  return `${milliseconds(row.windowDurationMs)}${every}`;
}

const COLUMNS = [
  { title: "Stream", value: (row) => link(pageTo(["streams", row.name]), row.name), sort: (row) => row.name, name: "name" },
  { title: "Queues", value: (row) => row.sourceQueues.join(", "), sort: (row) => row.sourceQueues.join(", "), wide: true },
  { title: "Windows", width: 13, value: windowsOf, sort: (row) => row.windowType },
  { title: "By key", width: 6, value: (row) => (row.partitioned ? "yes" : "no"), sort: (row) => row.partitioned, wide: true },
  { title: "Groups", kind: "num", width: 6, value: (row) => count(row.consumerGroups), sort: (row) => row.consumerGroups, wide: true },
  { title: "Leased", kind: "num", width: 6.5, value: (row) => count(row.activeLeases), sort: (row) => row.activeLeases },
  { title: "Closed until", width: 10, value: (row) => when(row.plannedUntil), sort: (row) => row.plannedUntil, wide: true },
];

export function show(view) {
  const facts = make("div");
  const list = table(COLUMNS, {
    name: "Streams", key: (row) => row.id, href: (row) => pageTo(["streams", row.name]), sort: "name", sortKey: "sort",
    none: empty("There is no stream.", make("p", {}, "A stream cuts what is written to queues into windows, and hands them out as work: POST /api/v1/stream/define, or `queen stream define`.")),
  });
  fill(view.root, head("Streams", { about: "Windows over queues, leased as work." }), facts, list.element);
  view.live(async () => {
    const [{ streams }, stats] = await Promise.all([
      api.get("/api/v1/resources/streams?limit=1000", { signal: view.signal }),
      api.get("/api/v1/resources/streams/stats", { signal: view.signal }),
    ]);
    fill(facts, numbers([
      { label: "Streams", value: count(stats.totalStreams), note: `${count(stats.partitionedStreams)} by key` },
      { label: "Windows leased now", value: count(stats.activeLeases), note: plural(stats.activeConsumers ?? 0, "consumer") },
      { label: "Done in the last hour", value: count(stats.windowsLastHour), note: stats.avgLeaseTime ? `${seconds(stats.avgLeaseTime)} each` : "" },
      { label: "Dead windows", value: count(stats.deadWindows), kind: stats.deadWindows ? "bad" : "" },
    ]));
    list.set(streams);
  }, 5000);
}

/** A word for the state of a window, and its colour. */
export const STATES = {
  open: ["info", "□"], planned: ["quiet", "·"], waiting: ["quiet", "…"], ready: ["info", "○"], leased: ["accent", "◐"],
  retrying: ["warn", "↻"], done: ["good", "✓"], dead: ["bad", "✕"], before: ["faint", "–"],
};
export const stateBadge = (state) => badge(state, STATES[state]?.[0] ?? "quiet");
