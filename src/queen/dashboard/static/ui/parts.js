// Small parts that every page is made of.

import { icon, make, named } from "../lib/dom.js";

/** The head of a page: where we are, its name, what can be done. `crumbs` are [text, href]. */
export function head(title, { crumbs = [], about = "", actions = [] } = {}) {
  return make("header", { class: "head" },
    make("div", { class: "titles" },
      crumbs.length > 0 && make("p", { class: "crumbs" }, crumbs.map(([text, href]) => [make("a", { href }, text), make("span", { "aria-hidden": "true" }, " / ")])),
      make("h1", { title }, named(title)),
      about && make("p", { class: "about" }, about)),
    actions.length > 0 && make("div", { class: "actions" }, actions));
}

/** A part of a page with a heading. */
export const section = (title, { about = "", actions = [], id = null } = {}, ...children) =>
  make("section", { class: "section", id, "aria-label": title },
    make("div", { class: "section-head" }, make("h2", {}, title), about && make("p", { class: "about" }, about),
      actions.length > 0 && make("div", { class: "actions" }, actions)),
    children);

/** A button. `kind` is "main", "danger" or nothing. */
export const button = (text, act, { kind = "", title = null, disabled = false } = {}) =>
  make("button", { type: "button", class: kind, onclick: act, title, disabled }, text);

/** A word with a colour that repeats what the word says: good, warn, bad, info or quiet. */
export const badge = (text, kind = "quiet", title = null) => make("span", { class: ["badge", kind], title }, text);

/** Numbers side by side: [{ label, value, note, href, kind }]. */
export const numbers = (items) => make("dl", { class: "numbers" }, items.filter(Boolean).map(({ label, value, note, href, kind }) =>
  make("div", { class: ["number", kind] }, make("dt", {}, label),
    make("dd", {}, href ? make("a", { href }, value) : value, note && make("small", {}, note)))));

/** Names and values below each other: [[name, value, note]]. */
export const pairs = (items, name = null) => make("dl", { class: "pairs", "aria-label": name }, items.filter(Boolean).map(([term, value, note]) =>
  make("div", {}, make("dt", {}, term), make("dd", {}, value ?? "–", note && make("small", {}, note)))));

/** Nothing here, and what to do about it. */
export const empty = (text, ...more) => make("div", { class: "empty" }, make("p", {}, text), more);

export const waiting = () => make("p", { class: "waiting", role: "status" }, "Loading…");

export const notFound = (text) => make("div", { class: "empty" }, make("h1", {}, "Not found"), make("p", {}, text), make("a", { href: "/" }, "To the overview"));

/** What went wrong, in the server's words; `again` tries once more. */
export const failure = (error, again = null) => make("div", { class: "failure", role: "alert" }, icon("warn"),
  make("div", {}, make("strong", {}, TITLES[error.status] ?? "This could not be read."), " ", make("span", {}, error.message)),
  again && make("button", { type: "button", onclick: again }, "Try again"));

const TITLES = { 0: "No answer.", 403: "Not allowed.", 404: "Not found.", 503: "Not available now." };

/** A field with its label. `choices` makes it a list: [value, text]. */
export function field(label, { id, type = "text", value = "", choices = null, hint = "", placeholder = "", oninput = null, list = null, min = null, required = false } = {}) {
  const input = choices
    ? make("select", { id, onchange: oninput }, choices.map(([key, text]) => make("option", { value: key, selected: String(key) === String(value) }, text)))
    : make(type === "textarea" ? "textarea" : "input", {
      id, type: type === "textarea" ? null : type, value, placeholder, oninput, list, min, required,
      autocomplete: "off", spellcheck: "false", "aria-describedby": hint ? `${id}-hint` : null,
    });
  const element = make("div", { class: "field" }, make("label", { for: id }, label), input,
    hint && make("p", { class: "hint", id: `${id}-hint` }, hint));
  return { element, input };
}

/** Call a function when nobody has typed for a moment. */
export function calm(work, delayMs = 250) {
  let timer = null;
  return (...given) => { clearTimeout(timer); timer = setTimeout(() => work(...given), delayMs); };
}
