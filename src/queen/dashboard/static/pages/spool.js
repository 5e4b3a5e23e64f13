// The spool: pushes that wait in files beside a server, and records that can never be stored.

import { fill, link, make, pageTo } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { bytes, count, plural, when } from "../lib/format.js";
import { caller } from "../lib/session.js";
import * as dialog from "../ui/dialog.js";
import { badge, button, empty, head, numbers, pairs, section } from "../ui/parts.js";
import { payload } from "../ui/payload.js";
import { table } from "../ui/table.js";
import { tell } from "../ui/toast.js";

export function show(view) {
  if (caller()?.namespaces != null) {
    fill(view.root, head("Spool"), empty("This token is limited to some namespaces. A spool holds pushes of all of them."));
    return;
  }
  const state = make("div", { class: "stack" });
  const quarantine = view.may("admin") ? quarantineOf(view, () => again()) : null;
  fill(view.root, head("Spool", { about: "Where pushes wait that asked to, or that came while the database was away. Each process of a server has a spool of its own; this is the one of the process that answered." }),
    state, quarantine ? quarantine.element : section("Quarantine", {}, empty("Only an administrator may look at records of all queues.")));
  const again = view.live(async () => {
    const spool = await api.get("/api/v1/spool", { signal: view.signal });
    fill(state, summary(spool));
    await quarantine?.read();
  }, 3000);
}

function summary(spool) {
  if (!spool.enabled) return empty("This server has no spool.", make("p", {}, "Pushes fail while the database is away. Set QUEEN_SPOOL_DIR to a folder that can be written."));
  const away = spool.database === "away";
  return [
    spool.problem && make("div", { class: "trouble", role: "status" }, make("strong", {}, "Nothing is drained. "), spool.problem),
    numbers([
      { label: "Waiting", value: count(spool.records), note: `${bytes(spool.bytes)} in ${plural(spool.files, "file")}${spool.counted ? "" : ", or more"}`, kind: spool.records ? "warn" : "good" },
      { label: "Oldest", value: spool.oldestAt ? when(spool.oldestAt) : "–" },
      { label: "Held by their queues", value: count(spool.waiting), note: "not taken yet" },
      { label: "Quarantined", value: count(spool.quarantined), kind: spool.quarantined ? "bad" : "" },
      { label: "Database", href: "/system?tab=postgres", value: away ? badge("away", "bad") : badge("connected", "good"), note: plural(spool.outages, "outage") },
    ]),
    section("Since the start of this process", {}, pairs([
      ["Asked to wait", plural(spool.bufferedMessages, "message"), "pushed with bufferMs, bufferMax or QoS 0"],
      ["Had to wait", plural(spool.failoverMessages, "message"), "pushed while the database was away"],
      ["Stored from it", plural(spool.drainedMessages, "message"), `in ${plural(spool.batches, "batch", "batches")}, the last of ${plural(spool.lastBatchRecords, "record")}`],
      ["Damaged", plural(spool.damaged, "range"), "bytes that the disk did not keep"],
      ["Worker", count(spool.worker)],
    ], "Since the start")),
  ];
}

function quarantineOf(view, again) {
  const path = "/api/v1/spool/quarantine";
  const list = table([
    { title: "Reason", value: (row) => make("button", { type: "button", class: "as-link", title: row.reason, onclick: () => look(row) }, row.reason) },
    { title: "Queue", width: 13, value: (row) => (row.queue ? link(pageTo(["queues", row.queue]), row.queue) : "unreadable") },
    { title: "Partition", width: 9, value: (row) => row.partition ?? "–", wide: true },
    { title: "Messages", kind: "num", width: 7, value: (row) => count(row.messages), wide: true },
    { title: "Size", kind: "num", width: 6, value: (row) => bytes(row.bytes), wide: true },
    { title: "Spooled", width: 9, value: (row) => when(row.spooledAt), wide: true },
    { title: "Refused", width: 9, value: (row) => when(row.refusedAt) },
  ], { name: "Quarantine", key: (row) => row.id, select: paintActions, none: empty("Every record could be stored.") });
  const actions = make("div", { class: "actions" });

  function paintActions(chosen = list.chosen()) {
    fill(actions, button(`Retry ${count(chosen.length)} chosen`, () => retry(chosen), { disabled: !chosen.length }),
      button(`Drop ${count(chosen.length)} chosen`, () => drop(chosen), { kind: "danger", disabled: !chosen.length }));
  }
  async function retry(ids) {
    await tell(() => api.post(`${path}/retry`, { ids }), ({ records }) => `${plural(records ?? ids.length, "record")} will be stored again.`);
    list.clear();
    again();
  }
  async function drop(ids) {
    const sure = await dialog.confirm({ title: "Drop records for good", action: "Drop", facts: [`${plural(ids.length, "record")} with all their messages will be gone for ever.`] });
    if (sure) await tell(() => api.post(`${path}/drop`, { ids }), ({ records }) => `${plural(records ?? ids.length, "record")} dropped.`);
    list.clear();
    again();
  }
  async function look(row) {
    const { records } = await api.get(`${path}?payloads=true&limit=1000`, { signal: view.signal });
    const whole = records.find(({ id }) => id === row.id) ?? row;
    await dialog.open("Quarantined record", (close) => [
      pairs([["Reason", whole.reason], ["Queue", whole.queue ?? "unreadable"], ["Partition", whole.partition ?? "–"], ["Messages", count(whole.messages)],
        ["Spooled", when(whole.spooledAt)], ["Refused", when(whole.refusedAt)], ["Record", make("code", { class: "long" }, whole.id)]], "Record"),
      ...(whole.payloads ?? []).slice(0, 20).map((each, at) => payload(each, { name: whole.transactionIds[at] ?? "Payload" })),
      make("div", { class: "dialog-actions" }, make("button", { type: "button", onclick: () => close() }, "Close"),
        button("Drop", () => { close(); drop([row.id]); }, { kind: "danger" }), button("Retry", () => { close(); retry([row.id]); }, { kind: "main" })),
    ], { wide: true });
  }
  paintActions();
  return {
    element: section("Quarantine", { about: "Records the log refuses for what they are. Retry them once the reason is gone." }, actions, list.element),
    async read() { list.set((await api.get(`${path}?limit=1000`, { signal: view.signal })).records); },
  };
}
