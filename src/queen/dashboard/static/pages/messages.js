// Messages: browse by queue, partition, time, offset, id and text; nothing here takes a lease.

import { fill, link, make, pageTo, pathTo, queryOf } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { count, instant, plural } from "../lib/format.js";
import { go } from "../lib/router.js";
import { nameField } from "../ui/names.js";
import { badge, button, calm, empty, field, head } from "../ui/parts.js";
import { save } from "../ui/payload.js";
import { pushDialog } from "../ui/push.js";
import { table } from "../ui/table.js";
import { toast } from "../ui/toast.js";

const PAGE = 200;
const KINDS = { pending: "info", processing: "warn", completed: "good", dead_letter: "bad" };
export const STATUS = { pending: "pending", processing: "leased", completed: "done", dead_letter: "dead" };
export const statusBadge = (status) => badge(STATUS[status] ?? status, KINDS[status]);
// The id of a message holds its partition; see `partitionOf`.
const MESSAGE_ID = /^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;
const partitionOf = (id) => `${id.slice(0, 18)}-bfff-ffffffffffff`;

const COLUMNS = [
  { title: "Written", width: 12.5, value: (row) => make("time", { datetime: row.createdAt, title: row.createdAt }, instant(row.createdAt)) },
  { title: "Queue", width: 10, wide: true, value: (row) => link(pageTo(["queues", row.queue]), row.queue) },
  { title: "Partition", width: 9, wide: true, value: (row) => row.partition },
  { title: "Offset", width: 6, kind: "num", wide: true, value: (row) => count(row.offset) },
  { title: "Status", width: 7, value: (row) => statusBadge(row.status) },
  { title: "Message", value: preview },
];

function preview(row) {
  const text = row.unreadable ? `unreadable: ${row.unreadable}` : row.preview || row.transactionId;
  return make("a", { class: "preview", href: pageTo(["messages", row.partitionId, row.id]), title: row.transactionId }, text);
}

export function show(view) {
  const filters = { ...{ queue: "", partition: "", status: "", text: "", at: "", from: "", to: "" }, ...view.query };
  let rows = [], skipped = 0, looked = null;
  const note = make("p", { class: "hint", role: "status" });
  const list = table(COLUMNS, {
    name: "Messages", key: (row) => row.id, href: (row) => pageTo(["messages", row.partitionId, row.id]),
    none: empty("No message fits.", make("p", {}, "Without a time, the last hour is shown; retention may have taken older ones.")),
  });
  const change = (changes) => {
    Object.assign(filters, changes);
    view.setQuery(changes);
    skipped = 0;
    again();
  };
  const queue = nameField("Queue", "queue", { id: "queue", value: filters.queue, changed: (value) => change({ queue: value }) });
  const partition = nameField("Partition", "partition", {
    id: "partition", value: filters.partition, changed: (value) => change({ partition: value }), belongs: (each) => each.queue === filters.queue,
  });
  const status = field("Status", { id: "status", value: filters.status, choices: [["", "any"], ...Object.entries(STATUS)], oninput: () => change({ status: status.input.value }) });
  const text = field("Text or id", { id: "text", type: "search", value: filters.text, placeholder: "in payload or transaction id", oninput: calm(() => find(text.input.value.trim()), 400) });
  const at = field("Offset", { id: "at", value: filters.at, type: "number", min: 0, oninput: calm(() => change({ at: at.input.value }), 400) });
  const from = field("From", { id: "from", type: "datetime-local", value: local(filters.from), oninput: () => change({ from: iso(from.input.value) }) });
  const to = field("To", { id: "to", type: "datetime-local", value: local(filters.to), oninput: () => change({ to: iso(to.input.value) }) });
  text.element.classList.add("grow");
  at.element.classList.add("short");
  const newer = button("Newer", () => { skipped = Math.max(0, skipped - PAGE); again(); });
  const older = button("Older", () => { skipped += PAGE; again(); });

  function find(value) {
    if (MESSAGE_ID.test(value)) { go(pageTo(["messages", partitionOf(value), value])); return; }
    change({ text: value });
  }

  fill(view.root, head("Messages", {
    actions: [view.may("read-write") && button("Push", async () => { if (await pushDialog({ queue: filters.queue, partition: filters.partition })) again(); }),
      button("Export as NDJSON", () => exportRows(rows, view.signal))].filter(Boolean),
  }), make("div", { class: "filters" }, queue.element, partition.element, status.element, text.element, at.element, from.element, to.element),
  note, list.element, make("div", { class: "more" }, newer, older));

  const again = view.live(async () => {
    if (!filters.queue) { say("Name a queue to see its messages.", []); return; }
    if (filters.at && !filters.partition) { say("An offset needs a partition.", []); return; }
    const found = await api.get(`/api/v1/messages${queryOf({ ...only(filters), preview: true, limit: PAGE, offset: skipped })}`, { signal: view.signal });
    looked = found.lookedAt ?? null;
    say(summary(found.messages.length), found.messages);
  }, 10_000);

  const summary = (number) => [plural(number, "message"), skipped && `after the newest ${count(skipped)}`, looked != null && `found among the newest ${plural(looked, "message")}`].filter(Boolean).join(", ");

  function say(words, messages) {
    rows = messages;
    note.textContent = words;
    list.set(rows);
    newer.hidden = skipped === 0;
    older.hidden = rows.length < PAGE;
  }
}

const only = ({ queue, partition, status, text, at, from, to }) => ({ queue, partition, status, text, at, from, to });
const iso = (value) => (value ? new Date(value).toISOString() : "");
/** An instant as a field for date and time wants it: in the zone of whoever looks. */
function local(value) {
  const time = Date.parse(value);
  return Number.isNaN(time) ? "" : new Date(time - new Date(time).getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

/** Save what is shown, whole: each message is read once more, with its payload. */
async function exportRows(rows, signal) {
  if (!rows.length) { toast("There is nothing to export.", "bad"); return; }
  const lines = new Array(rows.length);
  let next = 0, failed = 0;
  const work = async () => {
    while (next < rows.length) {
      const index = next;
      next += 1;
      try { lines[index] = await api.getText(pathTo("api", "v1", "messages", rows[index].partitionId, rows[index].id), { signal }); }
      catch { failed += 1; }
    }
  };
  await Promise.all(Array.from({ length: 6 }, work));
  const written = lines.filter(Boolean);
  save("messages.ndjson", `${written.join("\n")}\n`);
  toast(`${plural(written.length, "message")} exported${failed ? `, ${count(failed)} could not be read` : ""}.`, failed ? "bad" : "good");
}
