// Streams with the verbs of Redis: which there are.

import { fill, link, make, pageTo } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { plural } from "../lib/format.js";
import { empty, field, head } from "../ui/parts.js";
import { table } from "../ui/table.js";

export function show(view) {
  let names = [];
  const filters = { q: view.query.q ?? "" };
  const list = table([
    { title: "Stream", value: (row) => link(pageTo(["stream-broker", row.name]), row.name), sort: (row) => row.name, name: "name" },
  ], {
    name: "Streams of entries", key: (row) => row.name, href: (row) => pageTo(["stream-broker", row.name]), sort: "name", sortKey: "sort",
    none: empty("No stream fits.", make("p", {}, "A stream comes into being with its first entry: XADD, or POST /stream/{stream}/add.")),
  });
  const note = make("p", { class: "hint", role: "status" });
  const find = field("Name contains", { id: "find", type: "search", value: filters.q, oninput: () => { filters.q = find.input.value; view.setQuery(filters); paint(); } });
  fill(view.root, head("Stream broker", { about: "Streams with the verbs of Redis: entries, groups, what is pending." }), make("div", { class: "filters" }, find.element), note, list.element);
  function paint() {
    const fitting = names.filter((name) => name.toLowerCase().includes(filters.q.toLowerCase()));
    note.textContent = plural(fitting.length, "stream");
    list.set(fitting.map((name) => ({ name })));
  }
  view.live(async () => {
    ({ streams: names } = await api.get("/stream", { signal: view.signal }));
    paint();
  }, 5000);
}
