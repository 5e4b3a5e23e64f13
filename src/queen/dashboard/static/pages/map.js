// The map: which queue flows through what into which queue, as far as the broker knows.

import { fill, link, make, pageTo, queryOf } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { count, groupName, plural, rate } from "../lib/format.js";
import { graph } from "../ui/graph.js";
import { badge, calm, empty, field, head, section } from "../ui/parts.js";
import { table } from "../ui/table.js";

const HREFS = {
  queue: ({ name }) => pageTo(["queues", name]),
  group: ({ name }) => pageTo(["groups", name]),
  stream: ({ name }) => pageTo(["streams", name]),
  pipeline: ({ name }) => pageTo(["pipelines", name]),
};
const KINDS = { queue: "queue", group: "group", stream: "stream", pipeline: "pipeline", query: "Spark query", pattern: "queues like" };
const EDGES = { reads: "reads", writes: "writes", late: "late messages", errors: "failed messages" };

export const hrefOf = (node) => HREFS[node.kind]?.(node) ?? null;

/** Its name; consumers without a group have none that says something. */
const titleOf = ({ kind, name }) => (kind === "group" ? groupName(name) : name);

/** What stands below the name of a box. */
export function noteOf({ kind, detail }) {
  const parts = [KINDS[kind] ?? kind];
  if (kind === "pipeline") parts.push(detail.state);
  if (detail.paused) parts.push("paused");
  if (detail.pending) parts.push(`${count(detail.pending)} pending`);
  if (detail.deadLetters) parts.push(`${count(detail.deadLetters)} dead`);
  return parts.join(" · ");
}

export const boxOf = (node) => ({
  id: node.id, kind: node.kind, title: titleOf(node), note: noteOf(node), href: hrefOf(node),
  state: node.detail.deadLetters || ["failed", "lost"].includes(node.detail.state) ? "bad" : "",
});

export const lineOf = ({ source, target, kind, perSecond }) => ({
  source, target, kind,
  label: [kind === "late" ? "late" : kind === "errors" ? "failed" : "", perSecond == null ? "" : rate(perSecond)].filter(Boolean).join(" "),
});

export function show(view) {
  const filters = { queue: view.query.queue ?? "" };
  const picture = graph("What flows where");
  const note = make("p", { class: "hint", role: "status" });
  const none = empty("Nothing flows yet.", make("p", {}, "Queues appear here as soon as a group, a stream or a pipeline reads them."));
  const list = table([
    { title: "From", value: ({ from }) => nameOf(from), sort: ({ from }) => from.name },
    { title: "To", value: ({ to }) => nameOf(to), sort: ({ to }) => to.name },
    { title: "What", width: 10, value: ({ kind }) => EDGES[kind] ?? kind, sort: ({ kind }) => kind, wide: true },
    { title: "Rate", kind: "num", width: 8, value: ({ perSecond }) => (perSecond == null ? "not counted" : rate(perSecond)), sort: ({ perSecond }) => perSecond },
  ], { name: "Flows", key: (row) => `${row.source} ${row.target} ${row.kind}`, sort: "-rate", sortKey: "sort", none: empty("Nothing flows.") });
  const near = field("Connected with queue", { id: "queue", type: "search", value: filters.queue, placeholder: "all of it", oninput: calm(() => {
    filters.queue = near.input.value.trim();
    view.setQuery(filters);
    again();
  }) });
  const stage = make("div", {}, picture.element);
  fill(view.root,
    head("Map", { about: "Drawn from definitions, and from what passed within a day: transactions that acknowledge and push, results of windows, batches of Spark. Rates are of this minute and the one before." }),
    make("div", { class: "filters" }, near.element), note, stage, section("As a list", {}, list.element));

  const again = view.live(async () => {
    const { nodes, edges, more } = await api.get(`/api/v1/system/map${queryOf(filters)}`, { signal: view.signal });
    const byId = new Map(nodes.map((node) => [node.id, node]));
    note.textContent = `${plural(nodes.length, "box", "boxes")}, ${plural(edges.length, "flow")}${more ? "; there is more: name a queue to see what is around it" : ""}`;
    fill(stage, edges.length || filters.queue ? picture.element : none);
    picture.set(nodes.map(boxOf), edges.map(lineOf));
    list.set(edges.map((edge) => ({ ...edge, from: byId.get(edge.source), to: byId.get(edge.target) })));
  }, 10_000);
}

function nameOf(node) {
  const href = hrefOf(node);
  return make("span", { title: node.name }, href ? link(href, titleOf(node)) : titleOf(node), " ", badge(KINDS[node.kind] ?? node.kind));
}
