// Short notes of what has happened. Errors stay until they are closed.

import { icon, make, spoken } from "../lib/dom.js";

const SHOWN_MS = 6000;
let area = null;

function place() {
  if (!area?.isConnected) {
    area = make("div", { class: "toasts", role: "status", "aria-live": "polite" });
    document.body.append(area);
  }
  return area;
}

export function toast(text, kind = "good") {
  const close = () => note.remove();
  const note = make("div", { class: ["toast", kind] }, icon(kind === "bad" ? "warn" : "check"), make("p", {}, text),
    make("button", { class: "plain", onclick: close }, icon("close"), spoken("Close")));
  place().append(note);
  if (kind !== "bad") setTimeout(close, SHOWN_MS);
}

/** Do something and say how it went; returns whether it went well. */
export async function tell(work, success) {
  try {
    const answer = await work();
    const text = typeof success === "function" ? success(answer) : success;
    if (text) toast(text);
    return true;
  } catch (error) {
    toast(error.message, "bad");
    return false;
  }
}
