// What is to happen later: messages that are not due yet, and those that come again and again.

import { fill, isAddressable, link, make, ONLY_DOTS, pageTo, pathTo, queryOf } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { bytes, count, instant, when } from "../lib/format.js";
import * as dialog from "../ui/dialog.js";
import { button, calm, empty, field, head, section } from "../ui/parts.js";
import { table } from "../ui/table.js";
import { tell } from "../ui/toast.js";

const PAGE = 200;

export function show(view) {
  const filters = { queue: view.query.queue ?? "" };
  let offset = Number(view.query.offset ?? 0);
  const list = table([
    { title: "Due", width: 9, value: (row) => when(row.deliverAt) },
    { title: "At", width: 12, value: (row) => instant(row.deliverAt), wide: true },
    { title: "Queue", value: (row) => link(pageTo(["queues", row.queue]), row.queue) },
    { title: "Partition", width: 10, value: (row) => row.partition, wide: true },
    { title: "Message", kind: "mono", value: (row) => row.transactionId },
    { title: "Size", kind: "num", width: 6, value: (row) => bytes(row.payloadBytes), wide: true },
    { title: "Scheduled", width: 9, value: (row) => when(row.scheduledAt), wide: true },
    view.may("read-write") && { title: "", width: 7, value: (row) => button("Cancel", () => cancel(row), [row.queue, row.transactionId].every(isAddressable) ? {} : { disabled: true, title: ONLY_DOTS }) },
  ].filter(Boolean), {
    name: "Scheduled messages", wraps: true, key: (row) => JSON.stringify([row.queue, row.partition, row.transactionId, row.deliverAt]),
    none: empty("Nothing is scheduled.", make("p", {}, "A push with a delay or a time waits here until it is due.")),
  });
  const calendar = table([
    { title: "Schedule", value: (row) => row.name },
    { title: "State", width: 6, value: (row) => row.state },
    { title: "Cron", kind: "mono", width: 12, value: (row) => row.cron },
    { title: "Zone", width: 10, value: (row) => row.zone, wide: true },
    { title: "Queue", value: (row) => link(pageTo(["queues", row.queue]), row.queue) },
    { title: "Next", width: 9, value: (row) => (row.nextAt === null ? "" : when(row.nextAt)) },
    { title: "Pushed", kind: "num", width: 6, value: (row) => count(row.ticks), wide: true },
    { title: "Missed", kind: "num", width: 6, value: (row) => count(row.missed), wide: true },
  ], {
    name: "Schedules", wraps: true, key: (row) => row.name,
    none: empty("Nothing comes again and again.", make("p", {}, "queen schedule create makes a schedule.")),
  });
  const only = field("Queue", { id: "queue", type: "search", value: filters.queue, placeholder: "all", oninput: calm(() => {
    filters.queue = only.input.value;
    view.setQuery(filters);
    turn(0);
  }) });
  const pager = make("div", { class: "actions pager" });
  fill(view.root, head("Schedules and timers"), make("div", { class: "filters" }, only.element),
    section("Scheduled messages", { about: "The soonest first. Payloads are not shown before they are due." }, list.element, pager),
    section("By the calendar", { about: "One message for each time, in the zone of the schedule." }, calendar.element));

  function turn(to) {
    offset = Math.max(0, to);
    view.setQuery({ offset: offset || "" });
    again();
  }

  async function cancel(row) {
    const sure = await dialog.confirm({
      title: "Cancel a scheduled message", action: "Cancel it",
      facts: [`${row.transactionId} for ${row.queue}, due ${instant(row.deliverAt)}, will never be delivered.`, "Whatever else waits for this queue under this transaction id goes with it."],
    });
    const path = pathTo("api", "v1", "scheduled", row.queue, row.transactionId);
    if (sure) await tell(() => api.remove(path), ({ cancelled }) => `${count(cancelled)} cancelled.`);
    again();
  }

  const again = view.live(async () => {
    const page = await api.get(`/api/v1/scheduled${queryOf({ ...filters, limit: PAGE, offset })}`, { signal: view.signal });
    list.set(page.scheduled);
    calendar.set((await api.get(`/api/v1/schedules${queryOf(filters)}`, { signal: view.signal })).schedules);
    fill(pager, (offset > 0 || page.more) && [
      button("Sooner", () => turn(offset - PAGE), { disabled: offset === 0 }), make("span", { class: "hint" }, `${count(offset + 1)} to ${count(offset + page.scheduled.length)}`),
      button("Later", () => turn(offset + PAGE), { disabled: !page.more })]);
  }, 5000);
}
