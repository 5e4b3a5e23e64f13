// Log-in: a token or a JWT, checked by asking the server who it belongs to.

import { fill, make } from "../lib/dom.js";
import * as api from "../lib/api.js";
import * as session from "../lib/session.js";

export function logIn(why, done) {
  const input = make("input", {
    id: "token", type: "password", name: "token", autocomplete: "off", spellcheck: "false",
    required: true, "aria-describedby": "log-in-problem",
  });
  const problem = make("p", { id: "log-in-problem", class: "problem", role: "alert" });
  const button = make("button", { class: "main", type: "submit" }, "Log in");
  const form = make("form", { class: "card log-in", novalidate: true },
    make("h1", {}, make("span", { class: "crown", "aria-hidden": "true" }, "♛"), " Queen"),
    why && make("p", { class: "hint", role: "status" }, why),
    make("label", { for: "token" }, "Token or JWT"), input, problem, button,
    make("p", { class: "hint" }, "It stays in this tab and is forgotten when the tab is closed, when you sign out, or after half an hour without use. "
      + "An administrator makes one with ", make("code", {}, "queen token create"), "."));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = input.value.trim().replace(/^bearer\s+/i, "");
    if (!text) { fill(problem, "Paste a token first."); input.focus(); return; }
    button.disabled = true;
    try {
      await check(text);
      session.keep(text);
      await done();
    } catch (error) {
      fill(problem, error.status === 401 ? "The server does not take this token." : error.message);
      input.select();
    } finally { button.disabled = false; }
  });
  requestAnimationFrame(() => input.focus());
  return make("main", { class: "alone" }, form);
}

/** Raise unless the server takes a token; it is not kept before that. */
async function check(text) {
  if (!/^[\x21-\x7e]+$/.test(text)) throw new api.ApiError(401, null, "");
  const response = await fetch("/api/v1/whoami", {
    headers: { Authorization: `Bearer ${text}` }, credentials: "omit", cache: "no-store",
  }).catch(() => { throw new api.ApiError(0, null, "The broker cannot be reached."); });
  if (!response.ok) throw new api.ApiError(response.status, await response.json().catch(() => null), "Refused.");
}
