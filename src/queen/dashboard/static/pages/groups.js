// Every group and the queues it reads: how far behind, who holds what.

import { fill, link, make, pageTo } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { count, groupName, plural, seconds, when } from "../lib/format.js";
import { badge, empty, field, head } from "../ui/parts.js";
import { table } from "../ui/table.js";

export const stateBadge = ({ paused, state }) => (paused ? badge("paused", "warn") : badge(String(state ?? "").toLowerCase() || "–", { Stable: "good", Lagging: "warn", Dead: "bad" }[state]));

const COLUMNS = [
  { title: "Group", name: "name", value: (row) => link(pageTo(["groups", row.name], { queue: row.queueName }), groupName(row.name), make("small", { class: "narrow" }, ` ${row.queueName}`)), sort: (row) => groupName(row.name) },
  { title: "Queue", value: (row) => link(pageTo(["queues", row.queueName]), row.queueName), sort: (row) => row.queueName, wide: true },
  { title: "Lag", kind: "num", width: 9, value: (row) => seconds(row.maxTimeLag), sort: (row) => row.maxTimeLag },
  { title: "Pending", kind: "num", width: 7.5, wide: true, value: (row) => count(row.totalLag), sort: (row) => row.totalLag },
  { title: "Behind in", kind: "num", width: 8, wide: true, value: (row) => plural(row.partitionsWithLag, "partition"), sort: (row) => row.partitionsWithLag },
  { title: "Leases", kind: "num", width: 6.5, wide: true, value: (row) => count(row.activeLeases), sort: (row) => row.activeLeases },
  { title: "State", width: 6.5, wide: true, value: stateBadge, sort: (row) => (row.paused ? "paused" : row.state) },
  { title: "Seen (± 1 min)", width: 10, wide: true, value: (row) => when(row.lastUsedAt), sort: (row) => row.lastUsedAt },
];

export function show(view) {
  let groups = [], text = view.query.q ?? "";
  const note = make("p", { class: "hint", role: "status" });
  const list = table(COLUMNS, {
    name: "Groups", key: (row) => JSON.stringify([row.name, row.queueName]), sort: "-lag", sortKey: "sort",
    href: (row) => pageTo(["groups", row.name], { queue: row.queueName }),
    none: empty("No group fits.", make("p", {}, "A group comes into being when it reads for the first time.")),
  });
  const find = field("Group or queue contains", { id: "find", type: "search", value: text, oninput: () => { text = find.input.value; view.setQuery({ q: text }); paint(); } });
  find.element.classList.add("grow");
  fill(view.root, head("Groups"), make("div", { class: "filters" }, find.element), note, list.element);

  function paint() {
    const wanted = text.toLowerCase();
    const fitting = groups.filter((row) => `${groupName(row.name)}\n${row.queueName}`.toLowerCase().includes(wanted));
    const behind = fitting.filter((row) => row.totalLag > 0).length;
    note.textContent = `${plural(fitting.length, "entry", "entries")}, ${count(behind)} with something to read`;
    list.set(fitting);
  }
  view.live(async () => {
    groups = await api.get("/api/v1/consumer-groups?limit=1000", { signal: view.signal });
    // With more than a page, the rest is read page by page.
    for (let read = 1000; groups.length === read && read < 10_000; read += 1000) {
      groups.push(...await api.get(`/api/v1/consumer-groups?limit=1000&offset=${read}`, { signal: view.signal }));
    }
    paint();
  }, 5000);
}
