// What the broker runs on: its processes, PostgreSQL, settings, tokens, and who did what.

import { fill, make } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { bytes, count, instant, milliseconds, percent, plural, rate, seconds, when } from "../lib/format.js";
import { caller } from "../lib/session.js";
import { chart } from "../ui/chart.js";
import * as dialog from "../ui/dialog.js";
import { badge, button, calm, empty, field, head, numbers, section } from "../ui/parts.js";
import { table } from "../ui/table.js";
import { tabs } from "../ui/tabs.js";
import { tell } from "../ui/toast.js";

const KEPT = 600;

export function show(view) {
  // A token that sees some namespaces only does not see what belongs to all of them.
  const whole = caller()?.namespaces == null, admin = view.may("admin");
  const shown = [
    whole && { id: "servers", title: "Servers", show: (panel) => servers(view, panel) },
    whole && { id: "postgres", title: "PostgreSQL", show: (panel) => postgres(view, panel) },
    whole && admin && { id: "settings", title: "Settings", show: (panel) => settings(view, panel) },
    admin && { id: "tokens", title: "Tokens", show: (panel) => tokens(view, panel) },
    whole && admin && { id: "audit", title: "Audit log", show: (panel) => audit(view, panel) },
  ].filter(Boolean);
  fill(view.root, head("System"), shown.length ? tabs(shown, { name: "System" })
    : empty("This token is limited to some namespaces. What belongs to all of them is not shown to it."));
}

// ---- servers ----

function servers(view, panel) {
  const list = table([
    { title: "Host", value: (row) => row.hostname, sort: (row) => row.hostname },
    { title: "Port", kind: "num", width: 5.5, value: (row) => String(row.port), sort: (row) => row.port },
    { title: "Worker", kind: "num", width: 6, value: (row) => String(row.worker), sort: (row) => row.worker },
    { title: "CPU", kind: "num", width: 6, value: (row) => (row.cpuPercent == null ? "–" : percent(row.cpuPercent / 100)), sort: (row) => row.cpuPercent },
    { title: "Memory", kind: "num", width: 7, value: (row) => bytes(row.memoryBytes), sort: (row) => row.memoryBytes },
    { title: "Requests", kind: "num", width: 7, value: (row) => rate(row.requestsPerSecond), sort: (row) => row.requestsPerSecond, wide: true },
    { title: "Loop lag", kind: "num", width: 7, value: (row) => milliseconds(row.loopLagMs), sort: (row) => row.loopLagMs, wide: true },
    { title: "Connections", kind: "num", width: 8.5, value: (row) => (row.connections == null ? "–" : `${count(row.connections)} (${count(row.connectionsFree)} free)`), sort: (row) => row.connections, wide: true },
    { title: "Parked", kind: "num", width: 6, value: (row) => count(row.parkedPolls), sort: (row) => row.parkedPolls, wide: true },
    { title: "Errors", kind: "num", width: 6, value: (row) => (row.databaseErrors ? badge(count(row.databaseErrors), "bad") : "0"), sort: (row) => row.databaseErrors, wide: true },
    { title: "Up", width: 8, value: (row) => seconds(Math.floor((Date.now() - Date.parse(row.startedAt)) / 1000)), sort: (row) => row.startedAt },
    { title: "Seen", width: 7, value: (row) => when(row.seenAt), sort: (row) => row.seenAt, wide: true },
  ], { name: "Servers", wraps: true, key: (row) => `${row.hostname}:${row.port}/${row.worker}`, sort: "host", none: empty("No server has reported within half a minute.") });
  const note = make("p", { class: "about" });
  fill(panel, note, list.element);
  view.live(async () => {
    const answer = await api.get("/api/v1/system/servers", { signal: view.signal });
    note.textContent = `Processes that have reported within half a minute. Worker ${answer.worker} on ${answer.hostname}:${answer.port}, version ${answer.version}, answered.`;
    list.set(answer.servers);
  }, 3000);
}

// ---- PostgreSQL ----

function postgres(view, panel) {
  const facts = make("div");
  const wal = chart("WAL", { unit: (value) => `${bytes(value)}/s`, none: "Two readings make a rate." });
  const commits = chart("Transactions", { unit: rate, none: "Two readings make a rate." });
  const held = table([
    { title: "Application", value: (row) => row.application || "–" },
    { title: "Pid", kind: "num", width: 7, value: (row) => String(row.pid) },
    { title: "State", width: 12, value: (row) => row.state },
    { title: "Open for", kind: "num", width: 8, value: (row) => seconds(row.seconds), sort: (row) => row.seconds },
    { title: "In this state", kind: "num", width: 8, value: (row) => seconds(row.stateSeconds), wide: true },
    { title: "Waits for", width: 12, value: (row) => row.waitsFor ?? "–", wide: true },
    { title: "Holds back clean-up", width: 10, value: (row) => (row.holdsBackVacuum ? badge("yes", row.seconds > 60 ? "bad" : "warn") : "no"), wide: true },
  ], { name: "Transactions that are open", key: (row) => row.pid, none: empty("No transaction is open for more than a second.") });
  const slow = table([
    { title: "Statement", kind: "mono", value: (row) => row.statement },
    { title: "Mean", kind: "num", width: 7, value: (row) => milliseconds(row.meanMs), sort: (row) => row.meanMs },
    { title: "Most", kind: "num", width: 7, value: (row) => milliseconds(row.maxMs), sort: (row) => row.maxMs, wide: true },
    { title: "Calls", kind: "num", width: 8, value: (row) => count(row.calls), sort: (row) => row.calls, wide: true },
    { title: "In all", kind: "num", width: 8, value: (row) => milliseconds(row.totalMs), sort: (row) => row.totalMs, wide: true },
  ], { name: "Slow statements", wraps: true, key: (row) => row.statement, none: empty("No statement is counted.") });
  const tables = table([
    { title: "Table", value: (row) => row.table, sort: (row) => row.table },
    { title: "Size", kind: "num", width: 8, value: (row) => bytes(row.bytes), sort: (row) => row.bytes },
    { title: "Rows", kind: "num", width: 9, value: (row) => count(row.live), sort: (row) => row.live, wide: true },
    { title: "Dead rows", kind: "num", width: 9, value: (row) => count(row.dead), sort: (row) => row.dead },
    { title: "Share", kind: "num", width: 6, value: (row) => percent(row.dead / Math.max(1, row.live + row.dead)), sort: (row) => row.dead / Math.max(1, row.live + row.dead), wide: true },
    { title: "Last vacuum", width: 10, value: (row) => (row.lastVacuum ? when(row.lastVacuum) : "never"), sort: (row) => row.lastVacuum, wide: true },
  ], { name: "Tables", key: (row) => row.table, sort: "-dead-rows" });
  const uncounted = make("p", { class: "about" });
  fill(panel, facts, make("div", { class: "columns" }, wal.element, commits.element),
    section("Open transactions", { about: "Those open for more than a second. What they can still see cannot be cleaned up." }, held.element),
    section("Slow statements", { about: "Of the broker, by their mean." }, uncounted, slow.element),
    section("Tables", { about: "Dead rows are cleaned up by autovacuum." }, tables.element));
  const seen = [];
  view.live(async () => {
    const health = await api.get("/api/v1/system/postgres", { signal: view.signal });
    seen.push({ at: Date.parse(health.timestamp), ...health.totals });
    if (seen.length > KEPT) seen.shift();
    const rateOf = (name, now, before) => (now[name] == null ? null : Math.max(0, (now[name] - before[name]) / ((now.at - before.at) / 1000)));
    const line = (title, name) => ({ name: title, points: seen.slice(1).map((now, index) => [now.at, rateOf(name, now, seen[index])]) });
    wal.set([line("Written", "walBytes")]);
    commits.set([line("Commits", "commits"), line("Rollbacks", "rollbacks")]);
    const [before, now] = seen.slice(-2);
    fill(facts, numbers([
      { label: "PostgreSQL", value: health.version, note: ["started ", when(health.startedAt)], kind: health.isStandby ? "bad" : "" },
      { label: "WAL", value: now ? `${bytes(rateOf("walBytes", now, before))}/s` : "…" },
      { label: "Commits", value: now ? rate(rateOf("commits", now, before)) : "…", note: now ? `${rate(rateOf("rollbacks", now, before))} rolled back` : "" },
      { label: "Cache hits", value: percent(health.cacheHitPercent / 100), kind: health.cacheHitPercent < 90 ? "warn" : "" },
      { label: "Connections", value: count(health.connections), note: `of ${count(health.maxConnections)}`, kind: health.connections > 0.9 * health.maxConnections ? "bad" : "" },
      { label: "Oldest snapshot", value: seconds(health.oldestSnapshotSeconds), kind: health.oldestSnapshotSeconds > 60 ? "warn" : "" },
      { label: "Size", value: bytes(health.sizeBytes), note: plural(health.totals.deadlocks, "deadlock") },
    ]));
    held.set(health.held);
    uncounted.textContent = health.countsStatements ? "" : "PostgreSQL counts no statements: load pg_stat_statements (shared_preload_libraries) and create the extension in this database.";
    slow.element.hidden = !health.countsStatements;
    slow.set(health.slow);
    tables.set(health.tables);
  }, 5000);
}

// ---- settings ----

const ORIGINS = { default: ["default", "quiet"], environment: ["environment", "info"], command: ["command line", "good"] };

function settings(view, panel) {
  let all = [];
  const list = table([
    { title: "Option", width: 16, value: (row) => make("span", { title: row.about }, row.name), sort: (row) => row.name },
    { title: "Value", value: (row) => (row.secret ? badge(row.value ? "set, not shown" : "not set", row.value ? "good" : "quiet") : row.value || "–"), sort: (row) => row.value },
    { title: "Origin", width: 10.5, value: (row) => badge(...(ORIGINS[row.origin] ?? [row.origin])), sort: (row) => row.origin },
    { title: "Variable", kind: "mono", width: 18, value: (row) => row.variable ?? "–", sort: (row) => row.variable, wide: true },
    { title: "Meaning", value: (row) => row.about || "–", wide: true },
  ], { name: "Settings", wraps: true, key: (row) => row.name, sort: "option", none: empty("No option fits.") });
  const find = field("Contains", { id: "setting", type: "search", oninput: () => paint() });
  const changed = make("input", { type: "checkbox", id: "changed", onchange: () => paint() });
  fill(panel, make("div", { class: "filters" }, find.element, make("label", { class: "check", for: "changed" }, changed, "Only those that were set")),
    make("p", { class: "about" }, "Of the process that answered. Secrets are never sent to a browser."), list.element);
  function paint() {
    const text = find.input.value.toLowerCase();
    list.set(all.filter((row) => `${row.name} ${row.variable} ${row.about}`.toLowerCase().includes(text) && (!changed.checked || row.origin !== "default")));
  }
  view.live(async () => {
    ({ settings: all } = await api.get("/api/v1/system/settings", { signal: view.signal }));
    paint();
  }, 30_000);
}

// ---- tokens ----

function tokens(view, panel) {
  const list = table([
    { title: "Name", value: (row) => [row.name, row.revokedAt && [" ", badge("revoked", "bad")]], sort: (row) => row.name },
    { title: "Id", kind: "mono", width: 9, value: (row) => row.id, wide: true },
    { title: "Role", width: 7, value: (row) => row.role, sort: (row) => row.role },
    { title: "Namespaces", width: 10, value: (row) => row.namespaces?.join(", ") ?? "all", wide: true },
    { title: "Made", width: 9, value: (row) => when(row.createdAt), sort: (row) => row.createdAt, wide: true },
    { title: "By", width: 8, value: (row) => row.createdBy, wide: true },
    { title: "Last used", width: 9, value: (row) => (row.lastUsedAt ? when(row.lastUsedAt) : "never"), sort: (row) => row.lastUsedAt, wide: true },
    { title: "Ends", width: 9, value: (row) => (row.expiresAt ? when(row.expiresAt) : "never"), sort: (row) => row.expiresAt, wide: true },
    { title: "", width: 7, value: (row) => (row.revokedAt ? "" : button("Revoke", () => revoke(row))) },
  ], { name: "Tokens", wraps: true, key: (row) => row.id, none: empty("No token was made.", make("p", {}, "Tokens are asked for when the server runs with --auth tokens.")) });
  fill(panel, section("Tokens", { about: "Only hashes are stored: a token is shown once, when it is made.", actions: [button("New token", create, { kind: "main" })] }, list.element));

  async function revoke(row) {
    const sure = await dialog.confirm({ title: "Revoke a token", action: "Revoke", facts: [`All servers refuse ${row.name} within a few seconds.`, "It cannot be made good again."] });
    if (sure) await tell(() => api.remove(`/api/v1/tokens/${encodeURIComponent(row.id)}`), "Revoked.");
    again();
  }

  async function create() {
    const name = field("Name", { id: "token-name", required: true });
    const role = field("Role", { id: "token-role", choices: [["read-only", "read-only: look"], ["read-write", "read-write: push, pop, redrive"], ["admin", "admin: everything"]] });
    const spaces = field("Namespaces", { id: "token-namespaces", hint: "Separated by commas; empty is all." });
    const days = field("Ends after days", { id: "token-days", type: "number", min: "1", hint: "Empty: never." });
    const made = await dialog.form({
      title: "New token", action: "Make", parts: [name.element, role.element, spaces.element, days.element],
      act: () => api.post("/api/v1/tokens", {
        name: name.input.value, role: role.input.value,
        namespaces: spaces.input.value.split(",").map((each) => each.trim()).filter(Boolean).length ? spaces.input.value.split(",").map((each) => each.trim()).filter(Boolean) : null,
        expiresInSeconds: days.input.value ? Number(days.input.value) * 86400 : null,
      }),
    });
    if (made?.token) await dialog.open("The token", (close) => [
      make("p", {}, "It is shown only now. Keep it where secrets are kept."), make("pre", { tabindex: "0" }, made.token),
      make("div", { class: "dialog-actions" }, make("button", { type: "button", class: "main", onclick: () => close() }, "Done"))]);
    again();
  }

  const again = view.live(async () => list.set((await api.get("/api/v1/tokens?limit=1000", { signal: view.signal })).tokens), 10_000);
}

// ---- the audit log ----

function audit(view, panel) {
  const filters = { actor: "", act: "" };
  let entries = [], next = null, whole = false;
  const list = table([
    { title: "When", width: 12, value: (row) => make("span", { title: row.at }, instant(row.at)) },
    { title: "Who", width: 11, value: (row) => row.actor },
    { title: "Act", width: 12, value: (row) => row.act },
    { title: "On", value: (row) => row.target },
    { title: "Outcome", width: 8, value: (row) => badge(row.outcome, row.outcome === "refused" ? "bad" : "quiet"), wide: true },
    { title: "More", value: (row) => (Object.keys(row.detail).length ? JSON.stringify(row.detail) : "–"), wide: true },
    { title: "From", width: 9, value: (row) => row.address, wide: true },
  ], { name: "Audit log", wraps: true, key: (row) => row.id, none: empty("Nobody has changed anything.") });
  const narrow = (name) => calm((event) => { filters[name] = event.target.value; whole = false; again(); });
  const who = field("Who", { id: "actor", type: "search", placeholder: "anybody", oninput: narrow("actor") });
  const act = field("Act", { id: "act", type: "search", placeholder: "such as queue.delete", oninput: narrow("act") });
  const more = button("Older", older);
  fill(panel, make("div", { class: "filters" }, who.element, act.element), list.element, make("div", { class: "actions pager" }, more));
  const ask = (before) => api.get(`/api/v1/system/audit?limit=200${before ? `&before=${before}` : ""}&actor=${encodeURIComponent(filters.actor)}&act=${encodeURIComponent(filters.act)}`, { signal: view.signal });

  async function older() {
    if (!next) return;
    // What was paged through stays as it is; new entries come in when the filters change.
    whole = true;
    const page = await ask(next);
    entries = [...entries, ...page.entries];
    next = page.next;
    paint();
  }
  function paint() { list.set(entries); more.disabled = !next; }
  const again = view.live(async () => {
    if (whole) return;
    const page = await ask(null);
    ({ entries, next } = page);
    paint();
  }, 5000);
}
