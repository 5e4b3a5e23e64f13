// A payload, as text and only as text. A large one is cut on the screen; the whole of it can be
// copied or saved.

import { make } from "../lib/dom.js";
import { bytes, pretty } from "../lib/format.js";
import { button } from "./parts.js";
import { tell, toast } from "./toast.js";

const SHOWN = 20_000;

/** `value` is what the API gave: any JSON. */
export function payload(value, { name = "Payload" } = {}) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? "null";
  const shown = pretty(text);
  const cut = shown.length > SHOWN;
  const block = make("pre", { class: "payload", tabindex: "0", dir: "ltr", "aria-label": name }, cut ? shown.slice(0, SHOWN) : shown);
  const note = make("span", { class: "hint" }, cut ? `the first ${bytes(SHOWN)} of ${bytes(shown.length)}` : bytes(shown.length));
  return make("div", { class: "payload-box" },
    make("div", { class: "payload-bar" }, note,
      button("Copy", () => copy(text)), button("Save", () => save(`${name.toLowerCase()}.json`, text, "application/json"))),
    block);
}

function copy(text) {
  // A page that is neither HTTPS nor local may not write to the clipboard.
  if (!navigator.clipboard) { toast("This browser lets only pages over HTTPS copy.", "bad"); return; }
  tell(() => navigator.clipboard.writeText(text), "Copied.");
}

/** Give the browser a file to save. */
export function save(name, text, type = "application/x-ndjson") {
  const url = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
