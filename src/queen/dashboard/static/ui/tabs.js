// Tabs: one of several views of the same thing. The chosen one stands in the address.

import { fill, make } from "../lib/dom.js";
import { query, setQuery } from "../lib/router.js";

/** `tabs` are [{ id, title, show(panel) }]; `show` is called when one is chosen for the first
 * time, and each time after that its panel is shown as it was left. */
export function tabs(items, { name = "Views", key = "tab" } = {}) {
  const panels = new Map();
  const holder = make("div", { class: "panels" });
  const buttons = items.map((item) => make("button", {
    type: "button", role: "tab", id: `tab-${item.id}`, "aria-controls": `panel-${item.id}`,
    onclick: () => choose(item), onkeydown: (event) => move(event, item),
  }, item.title));
  const list = make("div", { class: "tabs", role: "tablist", "aria-label": name }, buttons);

  function choose(item, focus = false) {
    items.forEach((other, at) => {
      const chosen = other === item;
      buttons[at].setAttribute("aria-selected", String(chosen));
      buttons[at].tabIndex = chosen ? 0 : -1;
      if (chosen && focus) buttons[at].focus();
    });
    if (!panels.has(item.id)) {
      const panel = make("div", { role: "tabpanel", id: `panel-${item.id}`, "aria-labelledby": `tab-${item.id}`, class: "panel" });
      panels.set(item.id, panel);
      item.show(panel);
    }
    fill(holder, panels.get(item.id));
    setQuery({ [key]: item === items[0] ? "" : item.id });
  }

  function move(event, item) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    choose(items[(items.indexOf(item) + step + items.length) % items.length], true);
  }

  choose(items.find((item) => item.id === query()[key]) ?? items[0]);
  return make("div", { class: "tabbed" }, list, holder);
}
