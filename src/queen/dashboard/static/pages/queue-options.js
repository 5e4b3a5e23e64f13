// The options of a queue: what each is, what it means, and whether somebody has set it. Changing
// one names that one only and is refused when somebody else was faster.

import { fill, make } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { count, plural, seconds } from "../lib/format.js";
import * as dialog from "../ui/dialog.js";
import { badge, button, section } from "../ui/parts.js";
import { toast } from "../ui/toast.js";

const written = (value) => (value === true ? "on" : value === false ? "off" : String(value));

export function optionsPanel(view, base, panel) {
  const place = make("div");
  fill(panel, place);
  const again = view.live(async () => paint(await api.get(`${base}/options`, { signal: view.signal })), 15_000);

  function paint(found) {
    const rows = found.options.map((option) => make("tr", {},
      make("td", {}, make("strong", {}, option.name), make("p", { class: "hint" }, option.meaning)), make("td", { class: "mono" }, written(option.value)),
      make("td", {}, option.origin === "set" ? badge("set", "info") : badge("default"), option.origin === "set" && make("p", { class: "hint" }, `default ${written(option.default)}`))));
    fill(place, section("Options", {
      about: `revision ${found.revision}`,
      actions: view.may("read-write") ? [button("Edit", () => edit(base, found, again), { kind: "main" })] : [],
    }, make("div", { class: "table-box options" }, make("table", { "aria-label": "Options" },
      make("thead", {}, make("tr", {}, ["Option", "Value", "Origin"].map((title) => make("th", { scope: "col" }, title)))), make("tbody", {}, rows)))));
  }
}

async function edit(base, found, again) {
  const fields = found.options.map(fieldOf);
  const summary = make("p", { class: "hint", role: "status" });
  const changes = () => fields.map((each) => each.change()).filter(Boolean);
  const note = () => {
    const list = changes();
    summary.textContent = list.length ? `${plural(list.length, "change")}: ${list.map(({ name, from, to }) => `${name} ${written(from)} → ${to === null ? "default" : written(to)}`).join(", ")}` : "Nothing is changed.";
  };
  fields.forEach((each) => each.onchange(note));
  note();
  const answer = await dialog.form({
    title: `Options of ${found.queue}`, action: "Save", wide: true,
    parts: [make("div", { class: "edit-options", tabindex: "0", role: "group", "aria-label": "Options" }, fields.map((each) => each.row)), summary],
    act: async () => {
      const list = changes();
      if (!list.length) return { changed: [] };
      if (!await agreed(base, found, list)) throw new Error("Not saved.");
      return api.patch(`${base}/options`, { options: Object.fromEntries(list.map(({ name, to }) => [name, to])), revision: found.revision });
    },
  });
  if (answer?.changed?.length) toast(answer.changed.map((each) => `${each.name}: ${written(each.before)} → ${written(each.now)}`).join(", "));
  if (answer) again();
}

/** The ages at which options remove messages: read or not, and those that all groups have done. */
function limitsOf(values) {
  const smallest = (ages) => Math.min(...ages.filter((age) => age > 0), Infinity);
  const kept = values.retentionEnabled ? values : { retentionSeconds: 0, completedRetentionSeconds: 0 };
  return { any: smallest([kept.retentionSeconds, values.ttl, values.maxWaitTimeSeconds]), done: smallest([kept.completedRetentionSeconds]) };
}

/** Ask before a change by which messages are removed sooner, with how many that are now. */
async function agreed(base, { queue, options }, changes) {
  const before = Object.fromEntries(options.map(({ name, value }) => [name, value]));
  const defaults = Object.fromEntries(options.map((option) => [option.name, option.default]));
  const now = limitsOf({ ...before, ...Object.fromEntries(changes.map(({ name, to }) => [name, to ?? defaults[name]])) });
  const was = limitsOf(before);
  const older = async (age) => {
    const { messages, isCut } = await api.get(`${base}/older?seconds=${age}`);
    return `${isCut ? "At least " : ""}${count(messages)} ${messages === 1 ? "message is" : "messages are"} older than ${seconds(age)} now`;
  };
  if (now.any >= was.any && now.done >= was.done) return true;
  return dialog.confirm({
    title: `Remove messages of ${queue} sooner?`, action: "Save and remove",
    facts: async () => [
      now.any < was.any && `${await older(now.any)} and will be removed for good within minutes, read or not.`,
      now.done < was.done && `${await older(now.done)}; those of them that every living group has done will be removed for good.`,
      "From then on messages go when they get so old."],
  });
}

function fieldOf(option) {
  const id = `option-${option.name}`;
  const common = { id, "aria-describedby": `${id}-hint` };
  const choices = option.choices ?? (option.type === "boolean" ? ["true", "false"] : null);
  const input = choices
    ? make("select", common, choices.map((choice) => make("option", { value: choice, selected: choice === String(option.value) }, option.type === "boolean" ? written(choice === "true") : choice)))
    : make("input", { ...common, type: option.type === "integer" ? "number" : "text", value: String(option.value), min: option.minimum, max: option.maximum, step: option.type === "integer" ? 1 : null });
  let reset = false;
  const back = make("button", { type: "button", disabled: option.origin !== "set", title: `Back to the default, ${written(option.default)}` }, "Default");
  const row = make("div", {}, make("label", { for: id }, option.name), input, back, make("p", { class: "hint", id: `${id}-hint` }, option.meaning));
  const value = () => {
    if (option.type === "boolean") return input.value === "true";
    if (option.type !== "integer") return input.value;
    if (!/^-?\d+$/.test(input.value.trim())) throw new Error(`${option.name} is a whole number.`);
    return Number(input.value);
  };
  return {
    row,
    change() {
      if (reset) return { name: option.name, from: option.value, to: null };
      const now = value();
      return now === option.value ? null : { name: option.name, from: option.value, to: now };
    },
    onchange(told) {
      const update = () => {
        let changed = true;
        try { changed = this.change() !== null; } catch { /* said when it is saved */ }
        row.classList.toggle("changed", changed);
        try { told(); } catch { /* said when it is saved */ }
      };
      input.addEventListener("input", () => { reset = false; update(); });
      back.addEventListener("click", () => { input.value = String(option.default); reset = true; update(); });
    },
  };
}
