// One group: lag per partition, who holds what; seek, pause, delete.

import { fill, isAddressable, link, make, ONLY_DOTS, pathTo, queryOf } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { ago, count, counted, groupName, instant, plural, seconds } from "../lib/format.js";
import { go } from "../lib/router.js";
import * as dialog from "../ui/dialog.js";
import { badge, button, calm, empty, field, head, numbers } from "../ui/parts.js";
import { table } from "../ui/table.js";
import { tell } from "../ui/toast.js";

const PAGE = 1000;

const isHeld = (about) => about.paused || Boolean(about.breakerOpenSince);
const stateOf = (about) => (about.paused ? "paused" : about.breakerOpenSince ? "paused by its breaker" : "reading");

export function show(view) {
  const { group } = view.params;
  view.title(groupName(group));
  const base = pathTo("api", "v1", "consumer-groups", group);
  let queue = view.query.queue ?? "";
  const heading = make("div"), facts = make("div"), note = make("p", { class: "hint", role: "status" });
  const list = table(columns(view, () => queue, () => again()), {
    name: "Partitions", key: (row) => row.partitionId, sort: "-lag", sortKey: "sort", none: empty("The queue has no partitions."),
    rowKind: (row) => (row.attempts > 1 && row.offsetLag > 0 ? "stuck" : ""),
  });
  const which = field("Queue", { id: "queue", choices: [], oninput: () => { queue = which.input.value; view.setQuery({ queue }); again(); } });
  fill(view.root, heading, make("div", { class: "filters" }, which.element), facts, note, list.element);

  const again = view.live(async () => {
    const found = await api.get(`${base}${queryOf({ queue, limit: PAGE })}`, { signal: view.signal });
    const names = Object.keys(found);
    if (!names.includes(queue)) queue = names[0];
    await paintQueues(names);
    const about = summed(found[queue]);
    fill(heading, head(groupName(group), { crumbs: [["Groups", "/groups"]], about: stateOf(about) === "reading" ? "" : stateOf(about), actions: actions(view, group, queue, about, again) }));
    fill(facts, numbers([
      { label: "Lag", value: seconds(about.maxTimeLag), kind: about.maxTimeLag > 60 ? "warn" : "" }, { label: "Pending", value: count(about.totalLag) },
      { label: "Behind in", value: count(about.partitionsWithLag), note: "partitions" }, { label: "Leases", value: count(about.activeLeases) },
      { label: "Consumers", value: count(about.members), note: "holding a lease or waiting" }, { label: "State", value: stateOf(about), kind: stateOf(about) === "reading" ? "" : "warn" },
      { label: "Reads", value: about.shared ? "shared" : "in order" },
      { label: "Subscribed", value: about.subscriptionMode, note: about.subscriptionTimestamp ? instant(about.subscriptionTimestamp) : "" },
    ]));
    note.textContent = about.hasMore ? `The first ${plural(about.partitions.length, "partition")}. The numbers above are of all of them, ${counted(about.statsAge)}.` : plural(about.partitions.length, "partition");
    list.set(about.partitions);
  }, 5000);

  /** All queues of the group, though only one is shown. */
  async function paintQueues(names) {
    if (which.input.options.length && [...which.input.options].some((option) => option.value === queue)) return;
    const all = names.length > 1 || !view.query.queue ? names : Object.keys(await api.get(`${base}?limit=1`, { signal: view.signal }));
    fill(which.input, all.map((name) => make("option", { value: name, selected: name === queue }, name)));
  }
}

/** Sums of the rows, where all of them are here: what the broker has counted is older than they. */
function summed(about) {
  if (about.hasMore) return about;
  const behind = about.partitions.filter((row) => row.offsetLag > 0);
  return {
    ...about, partitionsWithLag: behind.length, totalLag: behind.reduce((sum, row) => sum + row.offsetLag, 0),
    maxTimeLag: behind.reduce((most, row) => Math.max(most, row.timeLagSeconds), 0), activeLeases: about.partitions.filter((row) => row.leaseActive).length,
  };
}

const columns = (view, queue, again) => [
  { title: "Partition", name: "name", value: (row) => link(`/messages${queryOf({ queue: queue(), partition: row.partition })}`, row.partition), sort: (row) => row.partition },
  { title: "Lag", kind: "num", width: 7.8, value: (row) => (row.offsetLag ? seconds(row.timeLagSeconds) : "0 s"), sort: (row) => (row.offsetLag ? row.timeLagSeconds : 0) },
  { title: "Pending", kind: "num", width: 6.5, wide: true, value: (row) => count(row.offsetLag), sort: (row) => row.offsetLag },
  { title: "Position", kind: "num", width: 8, wide: true, value: (row) => count(row.position), sort: (row) => row.position },
  { title: "Head", kind: "num", width: 8, wide: true, value: (row) => count(row.head), sort: (row) => row.head },
  { title: "Held", width: 22, wide: true, value: (row) => (row.leaseActive ? badge(`${row.workerId ? `${row.workerId}, ` : ""}ends ${ago(row.leaseExpiresAt)}`, "info", row.leaseExpiresAt) : "–"), sort: (row) => (row.leaseActive ? row.leaseExpiresAt : "") },
  { title: "Attempts", kind: "num", width: 7, wide: true, value: (row) => (row.attempts > 1 && row.offsetLag ? badge(count(row.attempts), "warn") : count(row.attempts)), sort: (row) => row.attempts },
  view.may("read-write") && { title: "", width: 5.6, value: (row) => act("Seek", [queue(), row.partition], () => seekDialog(
    pathTo("api", "v1", "consumer-groups", view.params.group, "queues", queue(), "partitions", row.partition, "seek"), row.partition, row, again)) },
].filter(Boolean);

/** A button that acts on something named in a path; none can be pressed that would reach another thing. */
const act = (text, names, work, kind = "") => (names.every(isAddressable) ? button(text, work, { kind }) : button(text, null, { kind, disabled: true, title: ONLY_DOTS }));

function actions(view, group, queue, about, again) {
  if (!view.may("read-write")) return [];
  const path = (...verb) => pathTo("api", "v1", "consumer-groups", group, "queues", queue, ...verb);
  return [
    act("Seek", [queue], () => seekDialog(path("seek"), queue, null, again), "main"),
    act(isHeld(about) ? "Resume" : "Pause", [queue], () => pause(path(isHeld(about) ? "resume" : "pause"), group, queue, about, again)),
    view.may("admin") && act("Delete", [queue], () => remove(path(), group, queue, about), "danger"),
  ].filter(Boolean);
}

async function pause(path, group, queue, about, again) {
  if (!isHeld(about)) {
    const sure = await dialog.confirm({
      title: `Pause ${groupName(group)} in ${queue}?`, action: "Pause", danger: false,
      facts: [`Its consumers get no messages of this queue until it is resumed; ${count(about.totalLag)} wait now.`, `${plural(about.activeLeases, "lease")} that ${about.activeLeases === 1 ? "is out stays" : "are out stay"} good and can be acknowledged.`],
    });
    if (!sure) return;
  }
  if (await tell(() => api.post(path), isHeld(about) ? "The group reads again." : "The group is paused.")) again();
}

async function remove(path, group, queue, about) {
  const sure = await dialog.confirm({
    title: `Delete ${groupName(group)} in ${queue}?`, action: "Delete the group's progress",
    facts: [`Its progress in ${plural(about.partitions.length, "partition")}${about.hasMore ? " and more" : ""} is forgotten; ${plural(about.activeLeases, "lease")} ${about.activeLeases === 1 ? "ends" : "end"}.`,
      "If it reads again it starts as a new group does.", "No message is deleted."],
  });
  if (sure && await tell(() => api.remove(path), "The group's progress is deleted.")) go("/groups");
}

/** Move a group, after a look at what that would mean. `row` is the partition, null for all. */
async function seekDialog(path, what, row, again) {
  const target = field("To", { id: "seek-to", choices: [["end", "the end: skip what is there"], ["beginning", "the beginning: read all again"], ["time", "a time"], ...(row ? [["offset", "an offset"]] : [])], oninput: () => preview() });
  const time = field("Time", { id: "seek-time", type: "datetime-local", value: new Date(Date.now() - new Date().getTimezoneOffset() * 60_000 - 3_600_000).toISOString().slice(0, 16), oninput: () => preview() });
  const offset = field("Offset", { id: "seek-offset", type: "number", min: 0, value: String(row?.position ?? 0), oninput: () => preview() });
  const meaning = make("p", { class: "meaning", role: "status" }, "…");
  const body = () => {
    const kind = target.input.value;
    if (kind === "end") return { toEnd: true };
    if (kind === "beginning") return { toBeginning: true };
    if (kind === "offset") return { offset: Number(offset.input.value) };
    if (!time.input.value) throw new Error("Say which time is meant.");
    return { timestamp: new Date(time.input.value).toISOString() };
  };
  let asked = 0;
  const preview = calm(async () => {
    time.element.hidden = target.input.value !== "time";
    offset.element.hidden = target.input.value !== "offset";
    asked += 1;
    const number = asked;
    const seek = meaning.closest("form")?.querySelector("[type=submit]");
    if (seek) seek.disabled = target.input.value === "time" && !time.input.value;
    try {
      const found = await api.post(path, { ...body(), dryRun: true });
      if (number === asked) fill(meaning, describe(found));
    } catch (error) { if (number === asked) fill(meaning, error.message); }
  }, 150);
  time.element.hidden = true;
  offset.element.hidden = true;
  preview();
  const answer = await dialog.form({
    title: `Seek in ${what}`, action: "Seek", danger: true, parts: [target.element, time.element, offset.element, make("div", { class: "preview-box" }, make("h3", {}, "What would happen"), meaning)],
    act: async () => api.post(path, body()),
  });
  if (answer) { await tell(async () => {}, `Moved. ${describe(answer)}`); again(); }
}

function describe(found) {
  const partitions = found.partitionsUpdated == null ? "" : ` in ${plural(found.partitionsUpdated, "partition")}`;
  return `${plural(found.messagesAgain ?? 0, "message")} read again, ${plural(found.messagesSkipped ?? 0, "message")} skipped${partitions}. Leases that are out end.`;
}
