// Dialogs: the browser's own, so that focus stays inside, Escape closes, and the page behind is
// out of reach.

import { fill, make } from "../lib/dom.js";

let serial = 0;

/** Open a dialog. `content(close)` returns what is inside; the promise gives what it was closed
 * with, undefined when it was cancelled. */
export function open(title, content, { wide = false } = {}) {
  serial += 1;
  const id = `dialog-${serial}`;
  const element = make("dialog", { class: wide ? "wide" : "", "aria-labelledby": id });
  const result = new Promise((done) => {
    let value;
    const close = (given) => { value = given; element.close(); };
    element.append(make("h2", { id }, title), ...[content(close)].flat());
    element.addEventListener("close", () => { element.remove(); done(value); });
    element.addEventListener("click", (event) => { if (event.target === element) close(undefined); });
  });
  document.body.append(element);
  element.showModal();
  // What is said first is seen first, whatever has the focus.
  element.scrollTop = 0;
  return result;
}

/** Ask before something that cannot be undone. `facts` say in numbers what will happen, or read
 * them: until they are there nobody can agree. With `type` the name has to be typed. Resolves to
 * true or false. */
export async function confirm({ title, facts, action, danger = true, type = "" }) {
  const answer = await open(title, (close) => {
    const act = make("button", { class: danger ? "danger" : "main", type: "submit", disabled: true }, action);
    let known = false;
    const input = make("input", { id: "typed", autocomplete: "off", spellcheck: "false", oninput: () => weigh() });
    const weigh = () => { act.disabled = !known || input.value !== type; };
    const list = make("ul", { class: "facts", "aria-live": "polite" });
    const say = (lines) => fill(list, lines.filter(Boolean).map((fact) => make("li", {}, fact)));
    const tell = (lines) => { known = true; say(lines); weigh(); };
    if (typeof facts === "function") { say(["Counting…"]); facts().then(tell, (error) => say([error.message])); } else tell(facts);
    const form = make("form", { method: "dialog", class: "stack" },
      list,
      type && make("div", { class: "field" }, make("label", { for: "typed" }, "Type ", make("code", { class: "long" }, type), " to go on"), input),
      make("div", { class: "dialog-actions" }, make("button", { type: "button", onclick: () => close(false) }, "Cancel"), act));
    form.addEventListener("submit", (event) => { event.preventDefault(); if (!act.disabled) close(true); });
    return form;
  });
  return answer === true;
}

/** A form in a dialog. `act` is called on submit; what it throws is shown and the dialog stays.
 * Resolves to what `act` returned. */
export function form({ title, parts, action, act, danger = false, wide = false }) {
  return open(title, (close) => {
    const problem = make("p", { class: "problem", role: "alert" });
    const submit = make("button", { class: danger ? "danger" : "main", type: "submit" }, action);
    const element = make("form", { class: "stack", novalidate: true }, parts, problem,
      make("div", { class: "dialog-actions" }, make("button", { type: "button", onclick: () => close(undefined) }, "Cancel"), submit));
    element.addEventListener("submit", async (event) => {
      event.preventDefault();
      submit.disabled = true;
      try { close((await act()) ?? true); }
      catch (error) { fill(problem, error.message); }
      finally { submit.disabled = false; }
    });
    return element;
  }, { wide });
}
