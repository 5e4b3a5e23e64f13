// What groups have given up on: by error, one by one, and the way back.

import { fill, link, make, pageTo, plain, queryOf } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { count, ends, groupName, NO_GROUP, plural, when } from "../lib/format.js";
import * as dialog from "../ui/dialog.js";
import { button, calm, empty, field, head, pairs, section } from "../ui/parts.js";
import { payload } from "../ui/payload.js";
import { table } from "../ui/table.js";
import { tell, toast } from "../ui/toast.js";

const PAGE = 100;
// So many are delivered again by one request: an answer comes before anybody wonders.
const STEP = 2000;
// Of an error so much is told in a sentence; all of it stands beside a letter.
const TOLD = 300;
const told = (error) => (error.length > TOLD ? `${error.slice(0, TOLD)}…` : error);

/** The letters of one row of errors; the error itself may be too long for an address. */
const causeOf = (row) => ({ queue: row.queue, consumerGroup: row.consumerGroup ?? NO_GROUP, error: "", errorKey: row.key });

export function show(view) {
  const filters = Object.fromEntries(["queue", "consumerGroup", "error", "errorKey"].map((name) => [name, view.query[name] ?? ""]));
  let cause = "", offset = Number(view.query.offset ?? 0), page = { messages: [], total: 0 };
  const asked = () => queryOf(filters);
  const inputs = {
    queue: field("Queue", { id: "queue", type: "search", value: filters.queue, placeholder: "all", oninput: typed("queue") }),
    consumerGroup: field("Group", { id: "consumerGroup", type: "search", value: filters.consumerGroup, placeholder: "all", oninput: typed("consumerGroup") }),
    error: field("Error, exactly", { id: "error", type: "search", value: filters.error, placeholder: "any", oninput: calm(() => narrow({ error: inputs.error.input.value, errorKey: "" })) }),
  };
  inputs.error.element.classList.add("grow");
  const causes = table([
    { title: "Error", value: (row) => make("button", { type: "button", class: "as-link", title: row.error, onclick: () => narrow(causeOf(row)) }, row.error || "(no error given)"), sort: (row) => row.error },
    { title: "Letters", kind: "num", width: 7, value: (row) => count(row.count), sort: (row) => row.count },
    { title: "Queue", width: 11, wide: true, value: (row) => link(pageTo(["queues", row.queue]), row.queue), sort: (row) => row.queue },
    { title: "Group", width: 9, value: (row) => groupName(row.consumerGroup), sort: (row) => row.consumerGroup, wide: true },
    { title: "First", width: 9, value: (row) => when(row.firstFailedAt), sort: (row) => row.firstFailedAt, wide: true },
    { title: "Last", width: 9, value: (row) => when(row.lastFailedAt), sort: (row) => row.lastFailedAt, wide: true },
    view.may("read-write") && { title: "", width: 9, value: (row) => button("Redrive", () => redriveMatching(causeOf(row), row.count, row.error)) },
  ].filter(Boolean), { name: "Errors", key: (row) => JSON.stringify([row.queue, row.consumerGroup, row.key]), wraps: true, sort: "-letters", none: empty("Nothing has died.") });
  const looked = make("p", { class: "hint" }), only = make("p", { class: "hint long" });
  const letters = table([
    { title: "Message", kind: "mono", value: (row) => make("button", { type: "button", class: "as-link", title: row.transactionId, onclick: () => look(row) }, ends(row.transactionId)) },
    { title: "Queue", width: 13, value: (row) => link(pageTo(["queues", row.queue]), row.queue), wide: true },
    { title: "Partition", width: 9, value: (row) => row.partition, wide: true },
    { title: "Group", width: 10, value: (row) => groupName(row.consumerGroup), wide: true },
    { title: "Error", value: (row) => make("span", { title: row.errorMessage }, told(row.errorMessage ?? "–")) },
    { title: "Tries", kind: "num", width: 5, value: (row) => count(row.retryCount), wide: true },
    { title: "Died", width: 9, value: (row) => when(row.failedAt) },
  ], { name: "Dead letters", key: (row) => row.id, wraps: true, none: empty("No dead letter fits."), select: view.may("read-write") ? paintActions : undefined });
  const actions = make("div", { class: "actions" });
  const pager = make("div", { class: "actions pager" });
  const total = make("p", { class: "hint", role: "status" });
  fill(view.root, head("Dead letters", { about: "Messages a group has given up on. Redriven, they are delivered again, to that group alone." }),
    make("div", { class: "filters" }, Object.values(inputs).map(({ element }) => element), button("Show all", () => narrow({ queue: "", consumerGroup: "", error: "", errorKey: "" }))),
    section("By error", {}, looked, only, causes.element),
    section("One by one", {}, total, actions, letters.element, pager));

  function typed(name) { return calm(() => narrow({ [name]: inputs[name].input.value })); }

  function narrow(changes) {
    Object.assign(filters, changes);
    for (const [name, { input }] of Object.entries(inputs)) if (input !== document.activeElement) input.value = filters[name];
    turn(0);
    view.setQuery(changes);
  }

  function turn(to) {
    offset = Math.max(0, to);
    view.setQuery({ offset: offset || "" });
    letters.clear();
    again();
  }

  function paintActions(chosen = letters.chosen()) {
    if (!view.may("read-write")) return;
    fill(actions,
      button(`Redrive ${count(chosen.length)} chosen`, () => redriveChosen(chosen), { disabled: chosen.length === 0 }),
      button(`Redrive all ${filters.queue ? "that fit" : "of a queue"}`, () => redriveMatching({ ...filters }, page.total, cause || filters.error), { disabled: !filters.queue || page.total === 0, title: filters.queue ? null : "Name a queue first" }),
      view.may("admin") && button("Remove all that fit", purge, { kind: "danger", disabled: !filters.queue || page.total === 0, title: filters.queue ? null : "Name a queue first" }));
  }

  async function redriveChosen(ids) {
    const sure = await dialog.confirm({ title: "Redrive", action: "Redrive", danger: false, facts: [`${plural(ids.length, "message")} will be delivered again, each to the group that gave it up.`, "They go to the end of their partitions."] });
    if (!sure) return;
    await tell(() => api.post("/api/v1/dlq/retry", { ids, limit: ids.length }), ({ retried }) => `${plural(retried, "message")} will be delivered again.`);
    letters.clear();
    again();
  }

  async function redriveMatching(body, known, error) {
    const sure = await dialog.confirm({
      title: "Redrive", action: "Redrive all", danger: false,
      facts: [`${page.totalIsEstimate ? "About " : ""}${plural(known, "message")} of ${body.queue} will be delivered again.`, (body.error || body.errorKey) && `Only those that died of: ${told(error || "no error given")}`, "They go to the end of their partitions, for the group that gave them up."],
    });
    if (sure) await redriveInSteps(body);
    again();
  }

  /** Deliver again step by step, so that it can be seen and left. */
  async function redriveInSteps(body) {
    const wanted = Object.fromEntries(Object.entries(body).filter(([, value]) => value));
    let done = 0, retried = STEP;
    try {
      while (retried === STEP && !view.signal.aborted) {
        ({ retried } = await api.post("/api/v1/dlq/retry", { ...wanted, limit: STEP }, { signal: view.signal }));
        done += retried;
        total.textContent = `${plural(done, "message")} redriven…`;
      }
      toast(`${plural(done, "message")} will be delivered again.`);
    } catch (error) { toast(`${plural(done, "message")} were redriven, then: ${error.message}`, "bad"); }
  }

  async function purge() {
    const sure = await dialog.confirm({
      title: "Remove dead letters for good", action: "Remove", type: filters.queue,
      facts: [`${page.totalIsEstimate ? "About " : ""}${plural(page.total, "dead letter")} will be gone for ever.`, "Nobody can deliver them again."],
    });
    if (sure) await tell(() => api.remove(`/api/v1/dlq${asked()}`), ({ purged }) => `${plural(purged, "dead letter")} removed.`);
    again();
  }

  function look(row) {
    return dialog.open("Dead letter", (close) => [
      pairs([
        ["Message", make("code", { class: "long" }, row.transactionId)], ["Queue", link(pageTo(["queues", row.queue]), row.queue)],
        ["Partition", row.partition, `offset ${count(row.offset)}`], ["Group", groupName(row.consumerGroup)],
        ["Error", make("div", { class: "bounded", tabindex: "0" }, row.errorMessage ?? "–")], ["Tries", count(row.retryCount)], ["Written", when(row.createdAt)], ["Died", when(row.failedAt)],
        row.producerSub && ["Pushed by", row.producerSub], row.traceId && ["Trace", row.traceId],
        ...Object.entries(row.headers ?? {}).map(([name, value]) => [`Header ${name}`, make("code", { class: "long" }, value)]),
      ], "Dead letter"),
      row.unreadable ? make("p", { class: "problem" }, row.unreadable) : payload(row.data),
      make("div", { class: "dialog-actions" },
        make("button", { type: "button", onclick: () => close() }, "Close"),
        view.may("admin") && button("Remove", async () => { close(); await drop(row); }, { kind: "danger" }),
        view.may("read-write") && button("Redrive", async () => { close(); await tell(() => api.post(`/api/v1/dlq/${encodeURIComponent(row.id)}/retry`), "The message will be delivered again."); again(); }, { kind: "main" })),
    ], { wide: true });
  }

  async function drop(row) {
    const sure = await dialog.confirm({ title: "Remove a dead letter", action: "Remove", facts: [`Message ${row.transactionId} of ${row.queue} will be gone for ever.`] });
    if (sure) await tell(() => api.remove(`/api/v1/dlq/${encodeURIComponent(row.id)}`), "Removed.");
    again();
  }

  const again = view.live(async () => {
    const [errors, found] = await Promise.all([
      api.get(`/api/v1/dlq/errors${asked()}`, { signal: view.signal }),
      api.get(`/api/v1/dlq${queryOf({ ...filters, limit: PAGE, offset })}`, { signal: view.signal }),
    ]);
    page = found;
    causes.set(errors.errors);
    cause = filters.errorKey ? errors.errors[0]?.error ?? "" : "";
    only.textContent = filters.errorKey ? plain(`Only those that died of: ${told(cause || "no error given")}`) : "";
    looked.textContent = errors.more ? `Of the latest ${count(errors.lookedAt)}; older ones were not looked at.` : "";
    letters.set(found.messages);
    total.textContent = `${found.totalIsEstimate ? "About " : ""}${plural(found.total, "dead letter")}`;
    paintActions();
    fill(pager, (offset > 0 || found.messages.length === PAGE) && [
      button("Newer", () => turn(offset - PAGE), { disabled: offset === 0 }), make("span", { class: "hint" }, `${count(offset + 1)} to ${count(offset + found.messages.length)}`),
      button("Older", () => turn(offset + PAGE), { disabled: found.messages.length < PAGE })]);
  }, 5000);
}

