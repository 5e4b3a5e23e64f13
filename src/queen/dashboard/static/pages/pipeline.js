// One pipeline: how its run is doing, what it is made of, and what flows through it.

import { fill, link, make, pageTo, pathTo } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { bytes, count, instant, milliseconds, plural, rate, seconds, when } from "../lib/format.js";
import { go } from "../lib/router.js";
import { chart } from "../ui/chart.js";
import * as dialog from "../ui/dialog.js";
import { graph } from "../ui/graph.js";
import { button, head, numbers, pairs, section } from "../ui/parts.js";
import { payload } from "../ui/payload.js";
import { tell } from "../ui/toast.js";
import { boxOf, lineOf } from "./map.js";
import { gapOf, isRunning, stateBadge } from "./pipelines.js";

const KEPT = 600;

export function show(view) {
  const { pipeline } = view.params;
  const path = pathTo("api", "v1", "pipelines", pipeline);
  view.title(pipeline);
  const top = make("div"), error = make("div"), facts = make("div"), about = make("div");
  const rates = chart("Messages per second", { unit: rate, none: "Collected while this page is open." });
  const batches = chart("Time", { unit: (value) => seconds(value), none: "Collected while this page is open." });
  const picture = graph(`What flows through ${pipeline}`);
  const seen = [];
  fill(view.root, top, error, facts, make("div", { class: "columns" }, rates.element, batches.element),
    section("What flows through it", {}, picture.element), about);

  function collect({ progress, reportedAt }) {
    const at = Date.parse(reportedAt);
    if (!progress || seen.at(-1)?.at === at) return;
    seen.push({ at, ...progress });
    if (seen.length > KEPT) seen.shift();
    const line = (name, value) => ({ name, points: seen.map((each) => [each.at, value(each)]) });
    rates.set([line("Input", (each) => each.inputRowsPerSecond ?? 0), line("Processing", (each) => each.processedRowsPerSecond ?? 0)]);
    batches.set([line("Batch", (each) => (each.batchMs ?? 0) / 1000), line("Behind sealed time", (each) => (each.behindMs ?? 0) / 1000)]);
  }

  async function stop(row) {
    const sure = await dialog.confirm({ title: "Stop a pipeline", action: "Stop", danger: false, facts: [`The run of ${row.name} ends after its micro-batch.`, "It goes on where it was when it is started again."] });
    if (sure) await tell(() => api.post(`${path}/stop`), ({ running }) => (running ? "It was asked to stop." : "No run seems to be there."));
    again();
  }

  async function forget(row) {
    const sure = await dialog.confirm({ title: "Forget a pipeline", action: "Forget", type: row.name, facts: ["Its definition is removed.", "Its queues, its group and its checkpoint stay."] });
    if (sure && await tell(() => api.remove(path), "Forgotten.")) go("/pipelines");
  }

  const again = view.live(async () => {
    const row = await api.get(path, { signal: view.signal });
    const { progress } = row;
    fill(top, head(pipeline, {
      crumbs: [["Pipelines", "/pipelines"]],
      actions: [
        isRunning(row) && safeUrl(progress.uiUrl) && make("a", { class: "button", href: progress.uiUrl, target: "_blank", rel: "noopener noreferrer" }, "Spark UI"),
        view.may("read-write") && ["running", "starting"].includes(row.state) && button("Stop", () => stop(row)),
        view.may("admin") && button("Forget", () => forget(row), { kind: "danger" })].filter(Boolean),
    }));
    fill(error, progress?.error && make("div", { class: "trouble", role: "status" }, make("strong", {}, "Last error "), make("pre", { tabindex: "0" }, progress.error)));
    fill(facts, numbers(numbersOf(row)));
    fill(about, definition(row));
    collect(row);
    await paintGraph(view, picture, row);
  }, 2000);
}

/** What a run says of where it is seen is text of somebody's; only a web address becomes a link. */
const safeUrl = (text) => Boolean(text) && ["http:", "https:"].includes(URL.parse(text)?.protocol);

function numbersOf(row) {
  const progress = row.progress ?? {};
  const known = row.progress != null, running = isRunning(row);
  return [
    { label: "State", value: stateBadge(row.state), note: row.reportedAt ? ["reported ", when(row.reportedAt)] : "never run" },
    { label: "Input", value: rate(running ? progress.inputRowsPerSecond ?? 0 : null), note: `${count(progress.inputRows ?? 0)} in ${running ? "this" : "the last"} run` },
    { label: "Processing", value: rate(running ? progress.processedRowsPerSecond ?? 0 : null), note: `${count(progress.outputRows ?? 0)} results` },
    { label: "Batch", value: running ? milliseconds(progress.batchMs ?? 0) : "–", note: plural(progress.batches ?? 0, "batch", "batches") },
    { label: "Behind sealed time", value: seconds(gapOf(row)), note: running ? plural(progress.behindMessages ?? 0, "message") : "", kind: running && progress.behindMs > 60_000 ? "warn" : "" },
    { label: "State rows", value: count(progress.stateRows ?? (known ? 0 : null)), note: bytes(progress.stateBytes ?? 0) },
    { label: "Late", value: count(progress.lateRows ?? (known ? 0 : null)), note: `${count(progress.failedRows ?? 0)} failed`, kind: progress.lateRows || progress.failedRows ? "warn" : "" },
    { label: "Runs", value: count(row.runs), note: row.startedAt ? ["started ", when(row.startedAt)] : "" },
  ];
}

function definition(row) {
  const { progress } = row;
  return make("div", { class: "columns" },
    section("Run", {}, pairs([
      ["Read until", progress?.doneUntil ? instant(progress.doneUntil) : "–", "everything written before was read"],
      ["Watermark", progress?.watermark ? instant(progress.watermark) : "–", "everything before has closed"],
      ["Host", progress?.host], ["Checkpoint", progress?.checkpoint], ["Run", progress?.runId],
      ["Group", link(pageTo(["groups", row.name]), row.name), "its progress, as of any consumer group"],
    ], "Run")),
    section("Definition", { about: `version ${count(row.version)}, ${row.kind}` }, payload(row.definition, { name: "Definition" })));
}

async function paintGraph(view, picture, row) {
  const queue = row.definition.reads?.flatMap((side) => side.queues ?? [])[0] ?? row.definition.output?.queue;
  let shown = null;
  if (queue) shown = await api.get(`/api/v1/system/map?queue=${encodeURIComponent(queue)}`, { signal: view.signal });
  const me = `pipeline:${row.name}`;
  const edges = (shown?.edges ?? []).filter((edge) => edge.source === me || edge.target === me);
  const near = new Set([me, ...edges.flatMap((edge) => [edge.source, edge.target])]);
  const boxes = (shown?.nodes ?? []).filter(({ id }) => near.has(id)).map(boxOf);
  const lines = edges.map(lineOf);
  // What is not a queue is known to the definition alone.
  const { table, files } = row.definition.output ?? {};
  if (!boxes.some(({ id }) => id === me)) boxes.push({ id: me, kind: "pipeline", title: row.name, note: `pipeline · ${row.state}`, href: null });
  if (table || files) {
    boxes.push({ id: "output", kind: "outside", title: table ?? files, note: table ? "table" : "files", href: null });
    lines.push({ source: me, target: "output", kind: "writes", label: "" });
  }
  picture.set(boxes, lines);
}
