// One message: what it says, and what has become of it in each group.

import { fill, link, make, pageTo, pathTo, queryOf } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { ago, count, groupName, instant, plural, when } from "../lib/format.js";
import { go } from "../lib/router.js";
import * as dialog from "../ui/dialog.js";
import { badge, button, field, head, pairs, section } from "../ui/parts.js";
import { payload } from "../ui/payload.js";
import { pushDialog } from "../ui/push.js";
import { tell } from "../ui/toast.js";
import { statusBadge } from "./messages.js";

const KINDS = { completed: "good", dead_letter: "bad", processing: "warn" };

export async function show(view) {
  const { partition, message: id } = view.params;
  const base = pathTo("api", "v1", "messages", partition, id);
  let shown = "";
  const facts = make("div"), life = make("div"), body = make("div");
  const heading = make("div");
  fill(view.root, heading, make("div", { class: "columns" }, facts, life), body);
  const again = view.live(async () => {
    const [found, text, traces] = await Promise.all([
      api.get(base, { signal: view.signal }), api.getText(base, { signal: view.signal }),
      api.get(pathTo("api", "v1", "traces", partition, id), { signal: view.signal }),
    ]);
    view.title(found.transactionId);
    // What somebody may be reading or marking is drawn again only when it has changed.
    const now = JSON.stringify([found.consumerGroups, found.status, traces.total]);
    if (now === shown) return;
    shown = now;
    const raw = rawPayload(text, found);
    fill(heading, head(found.transactionId, { crumbs: [["Messages", `/messages${queryOf({ queue: found.queue, partition: found.partition })}`]], actions: actions(view, base, found, raw, again) }));
    fill(facts, section("Where", {}, pairs([
      ["Status", statusBadge(found.status)], ["Queue", link(pageTo(["queues", found.queue]), found.queue)], ["Partition", link(`/messages${queryOf({ queue: found.queue, partition: found.partition })}`, found.partition)],
      ["Offset", count(found.offset)], ["Written", make("span", {}, instant(found.createdAt), " (", when(found.createdAt), ")")], ["Message id", make("code", {}, found.id)],
      found.producerSub && ["Pushed by", found.producerSub], found.traceId && ["Trace id", found.traceId], found.isEncrypted && ["Stored", "encrypted"],
    ])));
    fill(life, section("What became of it", {}, make("ol", { class: "life" }, events(found, traces.traces))));
    fill(body, section("Payload", {}, payload(raw)), headersOf(found));
  }, 5000);
}

/** What was pushed beside the payload, if anything was. */
function headersOf(found) {
  const named = Object.entries(found.headers ?? {});
  return named.length ? section("Headers", {}, pairs(named.map(([name, value]) => [name, make("code", { class: "long" }, value)]))) : "";
}

/** The payload as it stands in the answer, so that large numbers keep their digits. */
function rawPayload(text, found) {
  // Behind it stand the headers, in which anything may have any name.
  const start = text.indexOf('"payload":'), end = text.lastIndexOf(',"data":', text.lastIndexOf(',"headers":{'));
  return start > 0 && end > start ? text.slice(start + 10, end) : JSON.stringify(found.payload);
}

const event = (kind, at, title, about) => make("li", { class: kind }, at ? make("time", { datetime: at }, instant(at)) : make("span"), make("div", {}, make("strong", {}, title), about && make("p", { class: "about" }, about)));

/** Who has it on a lease, until when, and the how-manyth time. */
const heldBy = (group) => `by ${group.consumer ?? "a consumer without a name"}, until ${instant(group.leaseExpiresAt)} (${ago(group.leaseExpiresAt)}), attempt ${count(group.attempt)}`;

function events(found, traces) {
  const groups = found.consumerGroups.map((group) => {
    const name = groupName(group.name);
    const tries = group.retryCount ? `, given back or lapsed ${plural(group.retryCount, "time")}` : "";
    const words = { completed: ["Done", ""], processing: ["Leased", heldBy(group)], dead_letter: ["Dead letter", group.errorMessage ?? "no reason given"], pending: ["To be read", ""] }[group.status];
    return event(KINDS[group.status], null, `${name}: ${words[0].toLowerCase()}${tries}`, words[1]);
  });
  const traced = traces.map((trace) => event("info", trace.createdAt, [trace.eventType, ...(trace.traceNames ?? [])].filter(Boolean).join(", ") || "Trace", [trace.consumerGroup && groupName(trace.consumerGroup), JSON.stringify(trace.data)].filter(Boolean).join(": ")));
  return [event("good", found.createdAt, "Pushed", found.producerSub ? `by ${found.producerSub}` : ""), traced, groups,
    found.consumerGroups.length === 0 && event("", null, "No group has read this queue yet", "")];
}

function actions(view, base, found, raw, again) {
  if (!view.may("read-write")) return [];
  const dead = found.consumerGroups.filter((group) => group.status === "dead_letter");
  return [
    button("Push a copy", () => pushDialog({ queue: found.queue, partition: found.partition, payload: raw, title: "Push a copy" })),
    dead.length > 0 && button("Deliver again", async () => { if (await tell(() => api.post(`${base}/retry`), `Delivered again to ${plural(dead.length, "group")}.`)) again(); }),
    found.consumerGroups.some((group) => !group.consumed) && button("Move to dead letters", async () => { if (await moveDialog(base, found)) again(); }, { kind: "danger" }),
    button("Delete", () => remove(base, found), { kind: "danger" }),
  ].filter(Boolean);
}

function moveDialog(base, found) {
  const open = found.consumerGroups.filter((group) => !group.consumed);
  const reason = field("Reason", { id: "reason", value: "", hint: "Stands beside the dead letter." });
  return dialog.form({
    title: "Move to dead letters?", action: `Set aside for ${plural(open.length, "group")}`, danger: true,
    parts: [make("ul", { class: "facts" }, make("li", {}, `${plural(open.length, "group")} will not get it any more: ${open.map((group) => groupName(group.name)).join(", ") || "none"}.`), make("li", {}, "It can be delivered again from the dead letters.")), reason.element],
    act: () => api.post(`${base}/dlq`, reason.input.value ? { error: reason.input.value } : {}),
  });
}

async function remove(base, found) {
  const open = found.consumerGroups.filter((group) => !group.consumed);
  const sure = await dialog.confirm({
    title: "Delete this message?", action: "Delete 1 message",
    facts: ["Its payload is gone at once and for good.", `${plural(open.length, "group")} that ${open.length === 1 ? "has" : "have"} not read it will never get it.`],
  });
  if (sure && await tell(() => api.remove(base), "Message deleted.")) go(`/messages${queryOf({ queue: found.queue, partition: found.partition })}`);
}
