// One queue: how deep, how fast, who reads it, how it is set up, what it costs.

import { fill, link, make, pageTo, pathTo, queryOf } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { bytes, count, counted, groupName, milliseconds, plural, rate, seconds, short, when } from "../lib/format.js";
import { go } from "../lib/router.js";
import { chart } from "../ui/chart.js";
import * as dialog from "../ui/dialog.js";
import { badge, button, empty, head, numbers, pairs, section } from "../ui/parts.js";
import { pushDialog } from "../ui/push.js";
import { range, series } from "../ui/range.js";
import { table } from "../ui/table.js";
import { tabs } from "../ui/tabs.js";
import { tell } from "../ui/toast.js";
import { optionsPanel } from "./queue-options.js";

const PAGE = 1000;
const RECOUNT_MS = 5000;

export async function show(view) {
  const name = view.params.queue;
  view.title(name);
  const base = pathTo("api", "v1", "resources", "queues", name);
  const facts = make("div", { class: "stack" });
  const listeners = new Set();
  let latest = await api.get(`${base}?limit=${PAGE}`, { signal: view.signal });
  const again = () => refresh();
  fill(view.root, head(name, { crumbs: [["Queues", "/queues"]], about: labels(latest), actions: actions(view, name, again) }), facts,
    tabs([
      { id: "rates", title: "Rates", show: (panel) => ratesPanel(view, name, panel) },
      { id: "partitions", title: "Partitions", show: (panel) => partitionsPanel(name, base, panel, listeners, () => latest, view) },
      { id: "groups", title: "Groups", show: (panel) => groupsPanel(name, panel, listeners, () => latest) },
      { id: "options", title: "Options", show: (panel) => optionsPanel(view, base, panel) },
      { id: "cost", title: "Cost", show: (panel) => costPanel(view, name, panel, () => latest) },
    ], { name: `Views of ${name}` }));
  const refresh = view.live(async () => {
    latest = await api.get(`${base}?limit=${PAGE}`, { signal: view.signal });
    paintFacts(facts, latest);
    listeners.forEach((listener) => listener(latest));
  }, 5000);
}

/** The queue as it is now. Counts are kept by the broker: have them made anew, as far as the caller
 * may and while it takes no longer than somebody would wait. Their age is said in any case. */
async function countedNow(name) {
  await api.post("/api/v1/stats/refresh", {}, { signal: AbortSignal.timeout(RECOUNT_MS) }).catch(() => null);
  return api.get(`${pathTo("api", "v1", "resources", "queues", name)}?limit=1`);
}

const labels = ({ namespace, task }) => [namespace && `namespace ${namespace}`, task && `task ${task}`].filter(Boolean).join(", ");

function paintFacts(element, { name, totals, groups, storedBytes, pagination, createdAt, statsAge }) {
  const lag = groups.reduce((most, each) => Math.max(most, each.lagSeconds), 0);
  fill(element, numbers([
    { label: "Pending", value: count(totals.pending), href: `/messages${queryOf({ queue: name })}` },
    { label: "Leased", value: count(totals.processing) },
    { label: "Stored messages", value: count(totals.total), note: `${count(totals.written)} ever written` },
    { label: "Dead letters", value: count(totals.deadLetter), kind: totals.deadLetter ? "bad" : "", href: `/dead-letters${queryOf({ queue: name })}` },
    { label: "Lag", value: groups.length ? seconds(lag) : "–", note: groups.length ? `of ${plural(groups.length, "group")}` : "nobody reads it" },
    { label: "Partitions", value: count(pagination.total) },
    { label: "Size", value: bytes(storedBytes) },
    { label: "Created", value: when(createdAt) },
  ]), make("p", { class: "hint" }, `Messages, lag and partitions ${counted(statsAge)}.`));
}

function actions(view, name, again) {
  return [
    make("a", { class: "as-button", href: `/messages${queryOf({ queue: name })}` }, "Messages"),
    view.may("read-write") && button("Push", async () => { if (await pushDialog({ queue: name })) again(); }),
    view.may("admin") && button("Clear", () => clear(name, again), { kind: "danger" }),
    view.may("admin") && button("Delete", () => remove(name), { kind: "danger" }),
  ].filter(Boolean);
}

const these = (number) => (number === 1 ? "is" : "are");

async function clear(name, again) {
  const sure = await dialog.confirm({
    title: `Clear ${name}?`, action: "Delete the messages", type: name,
    facts: async () => {
      const { totals, groups, statsAge } = await countedNow(name);
      return [`${plural(totals.total, "stored message")} ${these(totals.total)} deleted for good, ${count(totals.pending)} unread (${counted(statsAge)}).`,
        groups.length > 0 && `${plural(groups.length, "group goes", "groups go")} on with what is pushed from now on.`, "The queue, its options and its dead letters stay."];
    },
  });
  if (sure && await tell(() => api.remove(pathTo("api", "v1", "queues", name, "clear")), ({ removed }) => `${plural(removed, "message")} deleted.`)) again();
}

async function remove(name) {
  const sure = await dialog.confirm({
    title: `Delete ${name}?`, action: "Delete the queue", type: name,
    facts: async () => {
      const { totals, groups, pagination, statsAge } = await countedNow(name);
      return [`${plural(pagination.total, "partition")} and ${plural(totals.total, "message")} are deleted for good, ${count(totals.pending)} unread (${counted(statsAge)}).`,
        `${plural(totals.deadLetter, "dead letter")} and the progress of ${plural(groups.length, "group")} go with it.`];
    },
  });
  if (sure && await tell(() => api.remove(pathTo("api", "v1", "resources", "queues", name)), `Queue ${name} is deleted.`)) go("/queues");
}

function ratesPanel(view, name, panel) {
  const rates = chart("Messages per second", { unit: rate });
  const latency = chart("Waiting until popped", { unit: milliseconds });
  const requests = chart("Requests per minute", { unit: short });
  const span = range(() => again());
  fill(panel, make("div", { class: "filters" }, span.element), make("div", { class: "columns" }, rates.element, latency.element, requests.element));
  const again = view.live(async () => {
    const { series: rows, bucketMinutes } = await api.get(`/api/v1/analytics/queue-ops${queryOf({ queue: name })}&${span.parameter()}`, { signal: view.signal });
    rates.set([series("In", rows, "bucket", "pushPerSecond"), series("Popped", rows, "bucket", "popPerSecond"), series("Acked", rows, "bucket", "ackPerSecond")], span.span());
    latency.set([series("Mean", rows, "bucket", "avgLagMs"), series("Longest", rows, "bucket", "maxLagMs")], span.span());
    const minutes = rows.map((row) => ({ bucket: row.bucket, push: row.pushRequests / bucketMinutes, ack: row.ackRequests / bucketMinutes, empty: row.popEmpty / bucketMinutes }));
    requests.set([series("Pushes", minutes, "bucket", "push"), series("Acks", minutes, "bucket", "ack"), series("Pops without messages", minutes, "bucket", "empty")], span.span());
  }, 10_000);
}

function partitionsPanel(name, base, panel, listeners, latest, view) {
  const note = make("p", { class: "hint", role: "status" });
  const list = table([
    { title: "Partition", name: "name", value: (row) => link(`/messages${queryOf({ queue: name, partition: row.name })}`, row.name), sort: (row) => row.name },
    { title: "Pending", kind: "num", width: 8, value: (row) => count(row.messages.pending), sort: (row) => row.messages.pending },
    { title: "Leased", kind: "num", width: 7, wide: true, value: (row) => count(row.messages.processing), sort: (row) => row.messages.processing },
    { title: "Dead", kind: "num", width: 6, value: (row) => (row.messages.deadLetter ? badge(count(row.messages.deadLetter), "bad") : "0"), sort: (row) => row.messages.deadLetter },
    { title: "Stored", kind: "num", width: 8, wide: true, value: (row) => count(row.messages.total), sort: (row) => row.messages.total },
    { title: "Written", kind: "num", width: 8, wide: true, value: (row) => count(row.messages.written), sort: (row) => row.messages.written },
    { title: "Oldest", width: 9, wide: true, value: (row) => when(row.oldestMessage), sort: (row) => row.oldestMessage },
    { title: "Newest", width: 9, wide: true, value: (row) => when(row.newestMessage), sort: (row) => row.newestMessage },
  ], { name: "Partitions", key: (row) => row.id, sort: "-pending", sortKey: "partitions", href: (row) => `/messages${queryOf({ queue: name, partition: row.name })}` });
  let more = [];
  const next = button("Show more", load);
  const paint = (found) => {
    const rows = [...found.partitions, ...more];
    note.textContent = rows.length < found.pagination.total ? `${count(rows.length)} of ${plural(found.pagination.total, "partition")}, in the order they came into being` : plural(found.pagination.total, "partition");
    next.hidden = rows.length >= found.pagination.total;
    list.set(rows);
  };
  async function load() {
    const found = await api.get(`${base}?limit=${PAGE}&offset=${PAGE + more.length}`, { signal: view.signal });
    more = [...more, ...found.partitions];
    paint(latest());
  }
  fill(panel, note, list.element, make("div", { class: "more" }, next));
  listeners.add(paint);
  paint(latest());
}

function groupsPanel(name, panel, listeners, latest) {
  const list = table([
    { title: "Group", name: "name", value: (row) => link(pageTo(["groups", row.name], { queue: name }), groupName(row.name)), sort: (row) => row.name },
    { title: "Lag", kind: "num", width: 9, value: (row) => seconds(row.lagSeconds), sort: (row) => row.lagSeconds },
    { title: "Pending", kind: "num", width: 8, value: (row) => count(row.pending), sort: (row) => row.pending },
    { title: "Leased", kind: "num", width: 7, wide: true, value: (row) => count(row.processing), sort: (row) => row.processing },
    { title: "Partitions behind", kind: "num", width: 11, wide: true, value: (row) => count(row.partitionsBehind), sort: (row) => row.partitionsBehind },
    { title: "Dead", kind: "num", width: 6, value: (row) => (row.deadLetter ? badge(count(row.deadLetter), "bad") : "0"), sort: (row) => row.deadLetter },
  ], { name: "Groups", key: (row) => row.name, sort: "-lag", none: empty("Nobody has read this queue yet."), href: (row) => pageTo(["groups", row.name], { queue: name }) });
  fill(panel, list.element);
  const paint = (found) => list.set(found.groups);
  listeners.add(paint);
  paint(latest());
}

/** What a thousand messages cost: this queue's own numbers, and the database's while one looks. */
function costPanel(view, name, panel, latest) {
  const own = make("div"), all = make("div");
  let before = null;
  fill(panel, section("This queue", { about: "over the last hour, for a thousand messages" }, own),
    section("The whole broker", { about: "measured since this was opened, for a thousand messages of all queues" }, all));
  view.live(async () => {
    const { series: rows } = await api.get(`/api/v1/analytics/queue-ops${queryOf({ queue: name })}`, { signal: view.signal });
    const sum = (field) => rows.reduce((total, row) => total + row[field], 0);
    const { totals, storedBytes } = latest();
    const per = (value, messages) => (messages ? (value / messages) * 1000 : null);
    fill(own, pairs([
      ["Stored", bytes(per(storedBytes, totals.total)), "what the log keeps, compressed, of messages that are there now"],
      ["Push requests", count(per(sum("pushRequests"), sum("pushMessages"))), "fewer and larger ones are cheaper"],
      ["Ack requests", count(per(sum("ackRequests"), sum("ackSuccess") + sum("ackFailed"))), "a batch is acknowledged in one"],
      ["Pops without messages", count(per(sum("popEmpty"), sum("popMessages"))), "waiting (wait=true) makes them rare"],
    ]));
    before = await paintDatabase(view, all, before);
  }, 5000);
}

async function paintDatabase(view, element, before) {
  let now;
  try {
    const [postgres, overview] = await Promise.all([api.get("/api/v1/system/postgres", { signal: view.signal }), api.get("/api/v1/resources/overview", { signal: view.signal })]);
    now = { wal: postgres.totals.walBytes, commits: postgres.totals.commits, messages: overview.messages.written };
  } catch (error) {
    if (![403, 404].includes(error.status)) throw error;
    fill(element, empty("You may not see the database's numbers."));
    return before;
  }
  if (!before) { fill(element, empty("Waiting for messages to come in…")); return now; }
  const messages = now.messages - before.messages;
  if (messages < 1) { fill(element, empty("No message came in since this was opened.")); return before; }
  const per = (value) => (value / messages) * 1000;
  fill(element, pairs([["WAL written", bytes(per(now.wal - before.wal))], ["Commits", count(per(now.commits - before.commits))], ["Measured over", plural(messages, "message")]]));
  return before;
}
