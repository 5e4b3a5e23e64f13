// Problems first, each with the page that solves it; then how fast it goes.

import { fill, icon, isAddressable, make, pageTo, pathTo, queryOf } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { ago, bytes, count, groupName, milliseconds, plural, rate, seconds, short } from "../lib/format.js";
import { caller } from "../lib/session.js";
import { chart } from "../ui/chart.js";
import { head, numbers, section } from "../ui/parts.js";
import { range, series } from "../ui/range.js";

// What has waited for longer is worth a look.
const LATE_S = 60;
// Messages that retention will remove unread within so many seconds.
const SOON_S = 24 * 3600;
// So many are shown, the worst; of the rest it is said how many and where.
const SHOWN = 12;
// The broker lists at most so many of each.
const LISTED = 50;
// Windows are asked about so often, of so many streams.
const WINDOWS_MS = 20_000;
const STREAMS = 20;

export function show(view) {
  const facts = make("div"), problems = make("div");
  const rates = chart("Messages per second", { unit: rate });
  const latency = chart("Waiting until popped", { unit: milliseconds });
  const failures = chart("Failures per minute", { unit: short });
  const pools = chart("Event loop delay", { unit: milliseconds });
  // What belongs to all namespaces is neither asked for nor shown to a token that sees some.
  const whole = caller()?.namespaces == null;
  const span = range(() => again());
  fill(view.root, head("Overview", { actions: [span.element] }), problems, facts,
    make("div", { class: "columns" }, rates.element, latency.element, failures.element, whole && pools.element));

  const read = (path) => api.get(path, { signal: view.signal });
  // What a caller may not see is left out; everything else has to be there.
  const maybe = (path) => read(path).catch((error) => { if ([403, 404].includes(error.status)) return null; throw error; });
  const waitingWindows = windowWatch(maybe);
  const again = view.live(async () => {
    const [overview, status, found, errors, spool, streams, maintenance] = await Promise.all([
      read("/api/v1/resources/overview"), read(`/api/v1/status?${span.parameter()}`), read(`/api/v1/status/problems?minLagSeconds=${LATE_S}`),
      read(`/api/v1/dlq/errors?limit=${LISTED}`), whole && maybe("/api/v1/spool"), maybe("/api/v1/resources/streams"), whole && maybe("/api/v1/system/maintenance"),
    ]);
    const { list: waiting, unasked } = await waitingWindows(streams?.streams ?? []);
    const list = [
      ...outage(spool, maintenance), ...atRisk(found.retention), ...paused(found.breakers), ...stuck(found.stuck), ...waiting, ...dead(overview.messages.deadLetter, errors.errors),
    ];
    const cut = [found.stuck, found.retention, found.breakers, errors.errors].some((each) => each.length >= LISTED);
    paintProblems(problems, worstFirst(list), { cut, unasked });
    paintFacts(facts, overview, status, found, whole);
    const minutes = status.bucketMinutes;
    rates.set([series("In", status.throughput, "timestamp", "ingestedPerSecond"), series("Popped", status.throughput, "timestamp", "popPerSecond"), series("Done", status.throughput, "timestamp", "processedPerSecond")], span.span());
    latency.set([series("Mean", status.throughput, "timestamp", "avgLagMs"), series("Longest", status.throughput, "timestamp", "maxLagMs")], span.span());
    const perMinute = status.throughput.map((row) => ({ ...row, nacks: row.ackFailed / minutes, dead: row.dlqCount / minutes, database: row.dbErrors / minutes }));
    failures.set([series("Nacks", perMinute, "timestamp", "nacks"), series("Dead letters", perMinute, "timestamp", "dead"), whole && series("Database errors", perMinute, "timestamp", "database")].filter(Boolean), span.span());
    pools.set([series("Mean", status.throughput, "timestamp", "avgEventLoopLagMs"), series("Longest", status.throughput, "timestamp", "maxEventLoopLagMs")], span.span());
  }, 5000);
}

function paintFacts(element, { queues, partitions, messages, throughput, storedBytes }, { leases, workers }, { stuck: late }, whole) {
  const held = late.map((each) => each.leaseExpiresAt).filter(Boolean).sort();
  fill(element, numbers([
    { label: "In", value: rate(throughput.ingestedPerSecond) },
    { label: "Done", value: rate(throughput.processedPerSecond) },
    { label: "Pending", value: count(messages.pending), note: plural(queues, "queue"), href: "/queues?sort=-pending" },
    { label: "Lag", value: late.length ? seconds(late[0].lagSeconds) : `< ${seconds(LATE_S)}`, note: "of the group that is furthest behind", href: "/groups", kind: late.length ? "warn" : "" },
    { label: "Leases", value: count(Math.max(leases.active, held.length)), note: held.length ? `the first of the late ones ends ${ago(held[0])}` : "" },
    { label: "Dead letters", value: count(messages.deadLetter), href: "/dead-letters", kind: messages.deadLetter ? "bad" : "" },
    { label: "Stored", value: bytes(storedBytes), note: plural(partitions, "partition") },
    whole && { label: "Servers", value: count(workers.filter((each) => Date.now() - Date.parse(each.lastSeen) < 60_000).length), href: "/system" },
  ]));
}

const DEGREES = { bad: 0, warn: 1 };

/** Red before yellow; among those what is worst of each kind before what is second, and so on, so
 * that a hundred late groups do not hide the one queue that dies. */
function worstFirst(list) {
  const seen = new Map();
  const places = list.map((each) => {
    const kind = `${each.kind} ${each.link}`;
    seen.set(kind, (seen.get(kind) ?? -1) + 1);
    return { each, place: seen.get(kind) };
  });
  return places.sort((a, b) => DEGREES[a.each.kind] - DEGREES[b.each.kind] || a.place - b.place).map(({ each }) => each);
}

function paintProblems(element, list, { cut, unasked }) {
  const note = unasked > 0 && make("p", { class: "hint" }, `${plural(unasked, "stream was", "streams were")} not looked at here: see `, make("a", { href: "/streams" }, "Streams"), ".");
  if (!list.length) {
    fill(element, make("p", { class: "calm", role: "status" }, icon("check"), "Nothing needs attention."), note);
    return;
  }
  fill(element, section(`${plural(list.length, "problem")}${cut ? " or more" : ""}`, {}, make("ul", { class: "problems" }, list.slice(0, SHOWN).map((each) =>
    make("li", { class: each.kind }, icon("warn"), make("div", {}, make("strong", {}, each.title), make("p", { class: "about" }, each.about)),
      each.href && make("a", { href: each.href, "aria-label": `${each.link}: ${each.title}` }, each.link)))), restOf(list.slice(SHOWN)), note));
}

const ALL = { Group: ["Groups", "/groups?sort=-lag"], Options: ["Queues", "/queues"], Stream: ["Streams", "/streams"], "Dead letters": ["Dead letters", "/dead-letters"], Spool: ["Spool", "/spool"], System: ["System", "/system"] };

/** How many are not shown, and the pages that list them. */
function restOf(rest) {
  if (!rest.length) return null;
  const kinds = Map.groupBy(rest, (each) => each.link);
  return make("p", { class: "hint" }, `and ${count(rest.length)} more: `, [...kinds].map(([kind, each], at) => [
    at > 0 && ", ", `${count(each.length)} in `, make("a", { href: ALL[kind][1] }, ALL[kind][0])]), ".");
}

function outage(spool, maintenance) {
  const list = [];
  if (spool?.enabled && spool.database !== "connected") list.push({ kind: "bad", title: "The database is away", about: `The breaker is open: pushes go to the spool (${plural(spool.records, "record")} so far) and are written when it is back.`, href: "/spool", link: "Spool" });
  else if (spool?.records > 0 || spool?.waiting > 0) list.push({ kind: "warn", title: "The spool is not empty", about: `${plural(spool.records, "record")} in ${bytes(spool.bytes)}${spool.oldestAt ? `, the oldest from ${ago(spool.oldestAt)}` : ""}, not in the log yet.`, href: "/spool", link: "Spool" });
  if (spool?.quarantined > 0 || spool?.damaged > 0) list.push({ kind: "bad", title: "Spooled messages were set aside", about: `${plural(spool.quarantined, "record")} could not be written and ${plural(spool.damaged, "record")} could not be read.`, href: "/spool", link: "Spool" });
  if (maintenance?.maintenanceMode) list.push({ kind: "warn", title: "Maintenance: pushes go to the spool", about: "Until maintenance is switched off nothing new is in the log.", href: "/system", link: "System" });
  if (maintenance?.popMaintenanceMode) list.push({ kind: "warn", title: "Maintenance: pops give nothing", about: "Consumers wait until it is switched off.", href: "/system", link: "System" });
  return list;
}

const paused = (breakers) => breakers.map((each) => ({
  kind: "bad", title: `The breaker has paused ${groupName(each.consumerGroup)} in ${each.queue}`, about: `Nearly everything failed, since ${ago(each.openedAt)}. Single messages are tried until one succeeds.`,
  href: pageTo(["groups", each.consumerGroup], { queue: each.queue }), link: "Group",
}));

/** One problem for each group and queue: its worst partition stands for all of them. */
function stuck(late) {
  const worst = new Map();
  for (const each of late) {
    const key = JSON.stringify([each.queue, each.consumerGroup]);
    const group = worst.get(key) ?? { ...each, partitions: 0, together: 0, tried: 0 };
    group.partitions += 1;
    group.together += each.pending;
    group.tried = Math.max(group.tried, each.attempts);
    worst.set(key, group);
  }
  return [...worst.values()].sort((a, b) => b.lagSeconds - a.lagSeconds).map((each) => {
    const who = each.leaseExpiresAt ? `The worst is leased${each.consumer ? ` to ${each.consumer}` : ""}, until ${ago(each.leaseExpiresAt)}, attempt ${each.attempts}.` : each.attempts > 1 ? `Nobody holds the worst; what is next was handed out ${count(each.attempts)} times.` : "Nobody holds the worst.";
    return {
      kind: each.tried > 1 ? "bad" : "warn",
      title: `${groupName(each.consumerGroup)} is ${seconds(each.lagSeconds)} behind in ${each.queue}`,
      about: `${plural(each.together, "message")} in ${each.partitions === 1 ? `partition ${each.partition}` : plural(each.partitions, "partition")}. ${who}`,
      href: pageTo(["groups", each.consumerGroup], { queue: each.queue }), link: "Group",
    };
  });
}

const atRisk = (risks) => risks.filter((each) => Date.parse(each.removedAt) - Date.now() < SOON_S * 1000).map((each) => ({
  kind: Date.parse(each.removedAt) < Date.now() + 3_600_000 ? "bad" : "warn",
  title: `Retention will take unread messages of ${each.queue}`,
  about: `${groupName(each.consumerGroup)} has ${plural(each.pending, "message")} to read; the oldest is removed ${ago(each.removedAt)}.`,
  href: pageTo(["queues", each.queue], { tab: "options" }), link: "Options",
}));

const dead = (total, errors) => (total && errors.length ? errors.toSorted((a, b) => b.count - a.count).map((each) => ({
  kind: "bad", title: `${plural(each.count, "dead letter")} in ${each.queue}`,
  about: `${groupName(each.consumerGroup)}: ${each.error || "no reason given"} (last ${ago(each.lastFailedAt)})`,
  href: `/dead-letters${queryOf({ queue: each.queue, errorKey: each.key })}`, link: "Dead letters",
})) : []);

/** Streams whose windows wait or have died, with the reason that the broker gives. Asked for less
 * often than the rest: it takes a request for each stream. */
function windowWatch(read) {
  let known = { list: [], unasked: 0 }, asked = 0;
  return async (streams) => {
    if (Date.now() - asked < WINDOWS_MS) return known;
    asked = Date.now();
    const followed = streams.filter((each) => each.consumerGroups > 0);
    const asking = followed.filter((each) => isAddressable(each.name)).slice(0, STREAMS);
    const lists = await Promise.all(asking.map((stream) => ofStream(stream.name, read)));
    known = { list: lists.flat().sort((a, b) => b.weight - a.weight), unasked: followed.length - asking.length };
    return known;
  };
}

async function ofStream(name, read) {
  const answer = await read(pathTo("api", "v1", "resources", "streams", name, "consumers"));
  const list = [];
  for (const group of answer?.consumers ?? []) {
    const href = pageTo(["streams", name], { group: group.consumerGroup });
    if (group.dead) list.push({ kind: "bad", weight: group.dead, title: `${plural(group.dead, "dead window")} in ${name}`, about: `${group.consumerGroup} gave up after the last attempt.`, href, link: "Stream" });
    if (group.waiting && group.behindSeconds > LATE_S) {
      const explained = await read(`${pathTo("api", "v1", "resources", "streams", name, "explain")}${queryOf({ group: group.consumerGroup })}`);
      const why = group.paused ? "The group is paused." : explained?.keys[0] ? `${explained.keys[0].key}: ${explained.keys[0].why}` : explained?.why ?? "";
      list.push({ kind: "warn", weight: group.behindSeconds, title: `${plural(group.waiting, "window")} of ${name} waiting for ${group.consumerGroup}`, about: `${seconds(group.behindSeconds)} behind. ${why}`, href, link: "Stream" });
    }
  }
  return list;
}
