// Every queue: how deep, how fast, how late.

import { fill, link, make, pageTo, pathTo } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { bytes, count, plural, seconds, when } from "../lib/format.js";
import { go } from "../lib/router.js";
import * as dialog from "../ui/dialog.js";
import { badge, button, empty, field, head } from "../ui/parts.js";
import { table } from "../ui/table.js";
import { tell } from "../ui/toast.js";

const COLUMNS = [
  { title: "Queue", value: (row) => link(pageTo(["queues", row.name]), row.name), sort: (row) => row.name, name: "name" },
  { title: "Namespace", value: (row) => row.namespace || "–", sort: (row) => row.namespace, width: 8.5, wide: true },
  { title: "Partitions", kind: "num", width: 7, wide: true, value: (row) => count(row.partitions), sort: (row) => row.partitions },
  { title: "Pending", kind: "num", width: 7, value: (row) => count(row.messages.pending), sort: (row) => row.messages.pending },
  { title: "Leased", kind: "num", width: 6.5, wide: true, value: (row) => count(row.messages.processing), sort: (row) => row.messages.processing },
  { title: "Dead", kind: "num", width: 6, value: dead, sort: (row) => row.messages.deadLetter },
  { title: "Lag", kind: "num", width: 7.5, value: (row) => (row.groups ? seconds(row.lagSeconds) : "–"), sort: (row) => (row.groups ? row.lagSeconds : null) },
  { title: "Groups", kind: "num", width: 6, wide: true, value: (row) => count(row.groups), sort: (row) => row.groups },
  { title: "Stored", kind: "num", width: 7, wide: true, value: (row) => bytes(row.storedBytes), sort: (row) => row.storedBytes },
  { title: "Created", width: 9, wide: true, value: (row) => when(row.createdAt), sort: (row) => row.createdAt },
];

function dead({ name, messages }) {
  if (!messages.deadLetter) return "0";
  return make("a", { href: `/dead-letters?queue=${encodeURIComponent(name)}` }, badge(count(messages.deadLetter), "bad"));
}

export function show(view) {
  const filters = { q: view.query.q ?? "", namespace: view.query.namespace ?? "" };
  let queues = [];
  const note = make("p", { class: "hint", role: "status" });
  const list = table(COLUMNS, {
    name: "Queues", key: (row) => row.id, href: (row) => pageTo(["queues", row.name]), sort: "-lag", sortKey: "sort",
    none: empty("No queue fits.", make("p", {}, "A queue comes into being with its first message.")),
  });
  const find = field("Name contains", { id: "find", type: "search", value: filters.q, oninput: () => narrow({ q: find.input.value }) });
  find.element.classList.add("grow");
  const among = field("Namespace", { id: "namespace", choices: [["", "all"]], oninput: () => narrow({ namespace: among.input.value }) });
  fill(view.root,
    head("Queues", { actions: [view.may("admin") && button("New queue", create, { kind: "main" })].filter(Boolean) }),
    make("div", { class: "filters" }, find.element, among.element), note, list.element);

  function narrow(changes) {
    Object.assign(filters, changes);
    view.setQuery(changes);
    paint();
  }

  function paint() {
    const text = filters.q.toLowerCase();
    const fitting = queues.filter((row) => row.name.toLowerCase().includes(text) && (!filters.namespace || row.namespace === filters.namespace));
    note.textContent = fitting.length === queues.length ? plural(queues.length, "queue") : `${count(fitting.length)} of ${plural(queues.length, "queue")}`;
    list.set(fitting);
  }

  function paintNamespaces() {
    const names = [...new Set(queues.map((row) => row.namespace))].filter(Boolean).sort();
    if (names.join("\n") === among.input.dataset.names) return;
    among.input.dataset.names = names.join("\n");
    fill(among.input, [["", "all"], ...names.map((name) => [name, name])].map(([value, text]) =>
      make("option", { value, selected: value === filters.namespace }, text)));
  }

  view.live(async () => {
    ({ queues } = await api.get("/api/v1/resources/queues", { signal: view.signal }));
    paintNamespaces();
    paint();
  }, 5000);
}

// No queue gets so far: one that is there is refused, and stays as it is.
const NO_REVISION = 2 ** 31 - 1;

/** Make a queue that is not there yet. */
async function createOnly(name, namespace, task) {
  const exists = new Error("There is a queue of this name already; nothing was changed.");
  const wanted = { create: true, revision: NO_REVISION, ...(namespace && { namespace }), ...(task && { task }) };
  const refused = (error) => { throw error.status === 409 ? exists : error; };
  const { created } = await api.patch(`${pathTo("api", "v1", "resources", "queues", name)}/options`, wanted).catch(refused);
  if (!created) throw exists;
}

/** Make a queue; its options are set on its own page. */
async function create() {
  const name = field("Name", { id: "new-name", required: true });
  const namespace = field("Namespace", { id: "new-namespace", hint: "Tokens can be limited to namespaces. May be left empty." });
  const task = field("Task", { id: "new-task", hint: "May be left empty." });
  const made = await dialog.form({
    title: "New queue", action: "Create", parts: [name.element, namespace.element, task.element],
    act: async () => {
      if (!name.input.value) throw new Error("A queue needs a name.");
      await createOnly(name.input.value, namespace.input.value, task.input.value);
      return name.input.value;
    },
  });
  if (made) { await tell(async () => {}, `Queue ${made} is there.`); go(pageTo(["queues", made]) ?? "/queues"); }
}
