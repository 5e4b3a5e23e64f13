// One stream of entries: its groups and consumers, what is pending, and its oldest entries.

import { fill, isAddressable, link, make, ONLY_DOTS, pageTo, pathTo } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { count, milliseconds, plural, when } from "../lib/format.js";
import * as dialog from "../ui/dialog.js";
import { badge, button, empty, field, head, numbers, pairs, section } from "../ui/parts.js";
import { payload } from "../ui/payload.js";
import { table } from "../ui/table.js";
import { tell } from "../ui/toast.js";

const SHOWN = 200;
const at = (secondsSince) => (secondsSince ? new Date(secondsSince * 1000).toISOString() : null);

export function show(view) {
  const { stream } = view.params;
  const base = pathTo("stream", stream);
  const filters = { group: view.query.group ?? "" };
  view.title(stream);
  const facts = make("div");
  const groups = table([
    { title: "Group", value: (row) => make("button", { type: "button", class: "as-link", onclick: () => choose(row.name) }, row.name), sort: (row) => row.name },
    { title: "Pending", kind: "num", width: 8.5, value: (row) => (row.totalPending ? badge(count(row.totalPending), "warn") : "0"), sort: (row) => row.totalPending },
    { title: "Lag", kind: "num", width: 7, value: (row) => count(row.lag), sort: (row) => row.lag },
    { title: "Consumers", kind: "num", width: 8, value: (row) => count(row.consumers.length), sort: (row) => row.consumers.length, wide: true },
    { title: "Last delivered", kind: "mono", width: 14, value: (row) => row.lastDeliveredId, wide: true },
  ], { name: "Groups", key: (row) => row.name, sort: "-pending", none: empty("No group reads this stream.") });
  const pending = pendingOf(view, base, filters, () => again());
  const entries = table([
    { title: "Id", kind: "mono", width: 14, value: (row) => make("button", { type: "button", class: "as-link", onclick: () => look(row) }, row.id) },
    { title: "Added", width: 9, value: (row) => when(at(row.timestamp)), wide: true },
    { title: "What", value: (row) => JSON.stringify(row.data).slice(0, 300) },
  ], { name: "Entries", key: (row) => row.id, none: empty("The stream is empty.") });
  const about = make("p", { class: "hint" });
  fill(view.root, head(stream, { crumbs: [["Stream broker", "/stream-broker"]] }), facts, section("Groups", {}, groups.element), pending.element,
    section("Oldest entries", { about: ["They are messages of the queue ", link(pageTo(["queues", stream]), stream), ", where the newest are listed first."] }, about, entries.element));

  function choose(name) { filters.group = name; view.setQuery(filters); again(); }

  const again = view.live(async () => {
    const [info, oldest] = await Promise.all([
      api.get(`${base}/info`, { signal: view.signal }), api.get(`${base}/messages?count=50`, { signal: view.signal }),
    ]);
    if (!info.groups.some(({ name }) => name === filters.group)) filters.group = info.groups.toSorted((a, b) => b.totalPending - a.totalPending)[0]?.name ?? "";
    fill(facts, numbers([
      { label: "Entries", value: count(info.length) }, { label: "Groups", value: count(info.groups.length) },
      { label: "Pending", value: count(info.groups.reduce((sum, group) => sum + group.totalPending, 0)) },
    ]));
    groups.set(info.groups);
    entries.set(oldest.messages);
    about.textContent = oldest.messages.length < info.length ? `The oldest ${count(oldest.messages.length)} of ${count(info.length)}.` : "";
    await pending.read(info.groups.find(({ name }) => name === filters.group));
  }, 3000);
}

function look(row) {
  return dialog.open("Entry", (close) => [
    pairs([["Id", make("code", {}, row.id)], ["Added", when(at(row.timestamp))], row.consumer && ["Pending with", row.consumer, row.idleMs != null ? `for ${milliseconds(row.idleMs)}` : ""],
      row.deliveryCount != null && ["Deliveries", count(row.deliveryCount)]], "Entry"),
    payload(row.data),
    make("div", { class: "dialog-actions" }, make("button", { type: "button", onclick: () => close() }, "Close")),
  ], { wide: true });
}

function pendingOf(view, base, filters, again) {
  const path = (verb) => base + pathTo("group", filters.group, verb);
  const title = make("h2", {}, "Pending");
  const consumers = make("p", { class: "about" });
  const list = table([
    { title: "Id", kind: "mono", width: 14, value: (row) => make("button", { type: "button", class: "as-link", onclick: () => look(row) }, row.id) },
    { title: "Consumer", value: (row) => row.consumer ?? "–" },
    { title: "Idle", kind: "num", width: 8, value: (row) => milliseconds(row.idleMs) },
    { title: "Deliveries", kind: "num", width: 8, value: (row) => count(row.deliveryCount), wide: true },
  ], { name: "Pending entries", key: (row) => row.id, none: empty("Nothing is pending."), select: view.may("read-write") ? paintActions : undefined });
  const actions = make("div", { class: "actions" });

  function paintActions(chosen = list.chosen()) {
    if (!view.may("read-write")) return;
    fill(actions, button(`Claim ${count(chosen.length)} chosen`, () => claim(chosen), { disabled: !chosen.length }),
      button(`Give ${count(chosen.length)} back`, () => settle("nack", chosen, "given back"), { disabled: !chosen.length }),
      button(`Acknowledge ${count(chosen.length)}`, () => settle("ack", chosen, "acknowledged"), { disabled: !chosen.length }));
  }
  async function claim(ids) {
    const consumer = field("Consumer", { id: "claimer", required: true, hint: "Who has them from now on; what it does not acknowledge stays pending." });
    const idle = field("Only those idle for at least, in milliseconds", { id: "idle", type: "number", value: "0", min: "0" });
    await dialog.form({
      title: `Claim ${plural(ids.length, "entry", "entries")}`, action: "Claim", parts: [consumer.element, idle.element],
      act: async () => {
        if (!consumer.input.value) throw new Error("A consumer needs a name.");
        await tell(() => api.post(path("claim"), { consumer: consumer.input.value, minIdleMs: Number(idle.input.value), messageIds: ids }), ({ count: taken }) => `${plural(taken, "entry", "entries")} now with ${consumer.input.value}.`);
      },
    });
    list.clear();
    again();
  }
  async function settle(verb, ids, done) {
    const sure = await dialog.confirm({
      title: verb === "ack" ? "Acknowledge" : "Give back", action: verb === "ack" ? "Acknowledge" : "Give back", danger: verb === "ack",
      facts: [verb === "ack" ? `${plural(ids.length, "entry", "entries")} ${ids.length === 1 ? "counts as done; no consumer gets it" : "count as done; no consumer gets them"} again.` : `${plural(ids.length, "entry", "entries")} can be claimed by anybody at once.`],
    });
    if (sure) await tell(() => api.post(path(verb), { messageIds: ids }), ({ count: number }) => `${plural(number, "entry", "entries")} ${done}.`);
    list.clear();
    again();
  }
  return {
    element: make("section", { class: "section", "aria-label": "Pending" }, make("div", { class: "section-head" }, title, consumers), actions, list.element),
    async read(group) {
      title.textContent = group ? `Pending in ${group.name}` : "Pending";
      consumers.textContent = group ? group.consumers.map(({ name, pending }) => `${name}: ${count(pending)}`).join(", ") : "";
      const within = group && isAddressable(group.name);
      if (group && !within) consumers.textContent = ONLY_DOTS;
      list.set(within ? (await api.get(`${path("pending")}?count=${SHOWN}`, { signal: view.signal })).messages : []);
      paintActions();
    },
  };
}
