// One stream: what it is, how far its groups are, and its windows side by side, key by key.

import { fill, isAddressable, link, make, ONLY_DOTS, pageTo, pathTo, queryOf, spoken } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { bytes, count, instant, milliseconds, plural, seconds, timeOfDay, when } from "../lib/format.js";
import * as dialog from "../ui/dialog.js";
import { badge, button, calm, empty, field, head, pairs, section } from "../ui/parts.js";
import { table } from "../ui/table.js";
import { tell } from "../ui/toast.js";
import { STATES, stateBadge, windowsOf } from "./streams.js";

const MEANINGS = {
  open: "still taking messages", planned: "closed, not taken over by the group yet", waiting: "waits for earlier windows of its key",
  ready: "can be leased", leased: "a consumer has it", retrying: "failed, waits for its next try", done: "acknowledged",
  dead: "given up", before: "before the group began",
};
const GLOBAL = "__GLOBAL__";
const MARKED = 4;

export function show(view) {
  const { stream } = view.params;
  const base = pathTo("api", "v1", "resources", "streams", stream);
  const filters = { group: view.query.group ?? "", key: view.query.key ?? "" };
  view.title(stream);
  const facts = make("div");
  const groups = groupTable(view, base, () => again());
  const strips = make("div", { class: "timeline", role: "region", "aria-label": "Windows by key", tabindex: "0" });
  const why = make("p", { class: "about" });
  const among = field("Group", { id: "group", choices: [["", "none"]], oninput: () => narrow({ group: among.input.value }) });
  const one = field("Key", { id: "key", type: "search", value: filters.key, placeholder: "most urgent", oninput: calm(() => narrow({ key: one.input.value })) });
  fill(view.root, head(stream, { crumbs: [["Streams", "/streams"]] }),
    section("Windows", { about: "The last windows of each key, the newest at the right. First come keys with dead windows, then those with work to do." },
      make("div", { class: "filters" }, among.element, one.element), why, strips, legend()),
    section("Groups", {}, groups.element), facts);

  function narrow(changes) {
    Object.assign(filters, changes);
    view.setQuery(changes);
    again();
  }

  function offerGroups(consumers) {
    const names = consumers.map(({ consumerGroup }) => consumerGroup);
    // Without a choice the first group is shown: whose states else?
    if (!filters.group && !("group" in view.query) && names.length) filters.group = names[0];
    if (filters.group && !names.includes(filters.group)) filters.group = "";
    fill(among.input, [["", "none: only the plan"], ...names.map((name) => [name, name])].map(([value, text]) =>
      make("option", { value, selected: value === filters.group }, text)));
  }

  const again = view.live(async () => {
    const [row, { consumers }] = await Promise.all([
      api.get(base, { signal: view.signal }), api.get(`${base}/consumers?limit=1000`, { signal: view.signal }),
    ]);
    offerGroups(consumers);
    groups.set(consumers);
    const [timeline, explained] = await Promise.all([
      api.get(`${base}/timeline${queryOf(filters)}`, { signal: view.signal }),
      api.get(`${base}/explain${queryOf(filters)}`, { signal: view.signal }),
    ]);
    fill(facts, definition(row));
    fill(why, explained.readyAt && row.plannedUntil ? ["The window that is open now is handed out ", when(explained.readyAt), "."] : `${explained.why[0].toUpperCase()}${explained.why.slice(1)}.`);
    paint(strips, timeline, explained, row, (window, key, reason) => open(view, base, { window, key, reason, row, group: filters.group }).then((acted) => acted && again()));
  }, 3000);
}

function definition(row) {
  const fixed = [
    ["Queues", row.sourceQueues.map((name, at) => [at > 0 && ", ", link(pageTo(["queues", name]), name)])],
    ["Windows", `${row.windowType}: ${windowsOf(row)}`],
    ["Keys", row.partitioned ? "partition names: one window for each" : "none: one window for all partitions"],
    ["Grace", milliseconds(row.windowGracePeriodMs), "how long after its end a window still waits"],
    ["Lease", milliseconds(row.windowLeaseTimeoutMs), `then another consumer gets it; ${plural(row.retryLimit, "retry", "retries")}, ${milliseconds(row.retryDelayMs)} apart`],
    ["In flight", `${plural(row.maxInFlight, "window")} of a key at once`, row.emitEmpty ? "empty windows are handed out too" : "empty windows are skipped"],
    ["Closed until", row.plannedUntil ? instant(row.plannedUntil) : "nothing was written yet"],
    row.namespace && ["Namespace", row.namespace],
  ];
  return section("Definition", {}, pairs(fixed, "Definition"));
}

function groupTable(view, base, again) {
  const path = (group, act) => base + pathTo("consumers", group, act);
  const turn = async (row) => {
    const act = row.paused ? "resume" : "pause";
    await tell(() => api.post(path(row.consumerGroup, act)), `${row.consumerGroup} is ${row.paused ? "served again" : "paused"}.`);
    again();
  };
  const retryAll = async (row) => {
    const sure = await dialog.confirm({
      title: "Try dead windows again", action: "Retry all", danger: false,
      facts: [`${plural(row.dead, "dead window")} of ${row.consumerGroup} will be handed out again.`, "Each gets a full set of tries."],
    });
    if (sure) await tell(() => api.post(`${base}/dead/retry`, { consumerGroup: row.consumerGroup }), ({ retried }) => `${plural(retried, "window")} will be tried again.`);
    again();
  };
  return table([
    { title: "Group", value: (row) => [row.consumerGroup, row.paused && [" ", badge("paused", "warn")]], sort: (row) => row.consumerGroup },
    { title: "Behind", kind: "num", width: 8, value: (row) => seconds(row.behindSeconds), sort: (row) => row.behindSeconds },
    { title: "To do", kind: "num", width: 6, value: (row) => count(row.waiting), sort: (row) => row.waiting },
    { title: "Leased", kind: "num", width: 6, value: (row) => count(row.leased), sort: (row) => row.leased, wide: true },
    { title: "Retrying", kind: "num", width: 6.5, value: (row) => count(row.retrying), sort: (row) => row.retrying, wide: true },
    { title: "Dead", kind: "num", width: 6, value: (row) => (row.dead ? badge(count(row.dead), "bad") : "0"), sort: (row) => row.dead },
    { title: "Done", kind: "num", width: 7, value: (row) => count(row.totalWindowsConsumed), sort: (row) => row.totalWindowsConsumed, wide: true },
    { title: "Last done", width: 9, value: (row) => when(row.lastConsumedAt), sort: (row) => row.lastConsumedAt, wide: true },
    view.may("read-write") && { title: "", width: 15, value: (row) => make("span", { class: "row-actions" }, button(row.paused ? "Resume" : "Pause", () => turn(row), isAddressable(row.consumerGroup) ? {} : { disabled: true, title: ONLY_DOTS }), row.dead > 0 && button("Retry dead", () => retryAll(row))) },
  ].filter(Boolean), { name: "Groups", key: (row) => row.consumerGroup, none: empty("No group has asked for windows yet.") });
}

// ---- the timeline ----

function paint(strips, timeline, explained, row, choose) {
  const focused = document.activeElement?.dataset?.window;
  const timed = ["tumbling", "sliding"].includes(row.windowType);
  // Windows of time have the same bounds for all keys: one column for each.
  const starts = timed ? [...new Set(timeline.keys.flatMap(({ windows }) => windows.map(({ start }) => start)))].sort().slice(-40) : [];
  const open = timed ? timeline.open : [];
  const reasons = new Map(explained.keys.map((reason) => [`${reason.key} ${reason.start}`, reason]));
  const opened = new Map(timeline.open.filter(({ key }) => key != null).map((window) => [window.key, window]));
  const keys = timeline.keys.length ? timeline.keys : [...opened.keys()].map((key) => ({ key, windows: [] }));
  if (!keys.length) { fill(strips, empty("No window has closed yet.")); return; }
  const columns = timed ? starts : null;
  const grid = make("table", { class: "strips" },
    columns && make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Key"),
      // One time stands above several columns: each would be cut.
      columns.map((start, at) => (at % MARKED ? null : make("th", { scope: "colgroup", colspan: Math.min(MARKED, columns.length - at), title: instant(start) }, timeOfDay(start)))),
      open.length > 0 && make("th", { scope: "col" }, "open"))),
    make("tbody", {}, keys.map(({ key, windows }) => {
      const cells = columns ? columns.map((start) => windows.find((window) => window.start === start)) : windows.slice(-40);
      const own = columns ? open[0] : opened.get(key);
      return make("tr", {}, make("th", { scope: "row", title: key }, key === GLOBAL ? "all partitions" : key),
        cells.map((window) => make("td", {}, window && cell(window, key, reasons.get(`${key} ${window.start}`), choose))),
        own && make("td", {}, cell({ ...own, state: "open", messages: null, attempts: 0 }, key, reasons.get(`${key} ${own.start}`), choose)));
    })));
  fill(strips, grid);
  strips.scrollLeft = strips.scrollWidth;
  if (focused) strips.querySelector(`[data-window="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

function cell(window, key, reason, choose) {
  const [kind, sign] = STATES[window.state] ?? ["quiet", "?"];
  const said = `${window.state}, ${instant(window.start)}${window.end ? ` to ${timeOfDay(window.end)}` : ""}${window.messages == null ? "" : `, ${plural(window.messages, "message")}`}`;
  return make("button", { type: "button", class: ["cell", kind], title: said, "data-window": `${key} ${window.start} ${window.id ?? "open"}`, onclick: () => choose(window, key, reason) },
    make("span", { "aria-hidden": "true" }, sign), spoken(`${key}: ${said}`));
}

const legend = () => make("ul", { class: "strip-legend" }, Object.entries(STATES).map(([state, [kind, sign]]) =>
  make("li", { title: MEANINGS[state] }, make("span", { class: ["cell", kind], "aria-hidden": "true" }, sign), state)));

/** Everything about one window; resolves to true when something was done to it. */
function open(view, base, { window, key, reason, row, group }) {
  return dialog.open("Window", (close) => {
    const dead = window.state === "dead" && view.may("read-write");
    const retry = async () => {
      const done = await tell(() => api.post(`${base}/dead/retry`, { consumerGroup: group, windowId: window.id }), "The window will be tried again.");
      if (done) close(true);
    };
    return [
      pairs([
        ["State", [stateBadge(window.state), " ", MEANINGS[window.state]], reason?.why],
        ["Key", key === GLOBAL ? "all partitions" : key],
        ["From", instant(window.start)],
        ["To", window.end ? instant(window.end) : "when enough messages have come"],
        window.readyAt && ["Handed out", when(window.readyAt), "its end and the grace"],
        window.messages != null && ["Messages", count(window.messages), bytes(window.bytes)],
        group && window.state !== "open" && ["Attempts", count(window.attempts)],
        window.consumer && ["Holder", window.consumer],
        window.leaseExpiresAt && window.state === "leased" && ["Lease ends", when(window.leaseExpiresAt)],
        window.retryAt && ["Next try", when(window.retryAt)],
        window.leasedAt && ["Last leased", when(window.leasedAt)],
        window.settledAt && [window.state === "dead" ? "Given up" : "Done", when(window.settledAt)],
        window.error && ["Error", window.error],
        window.id && ["Id", make("code", { class: "long" }, window.id)],
      ], "Window"),
      make("p", {}, row.sourceQueues.map((queue) => [
        link(`/messages${queryOf({ queue, partition: key === GLOBAL ? "" : key, from: window.start, to: window.end })}`, `Messages in ${queue}`), " "])),
      make("div", { class: "dialog-actions" }, make("button", { type: "button", onclick: () => close(false) }, "Close"), dead && button("Retry", retry, { kind: "main" })),
    ];
  }, { wide: true });
}
