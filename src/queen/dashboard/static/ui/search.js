// Search over everything: pages at once, what the broker knows as it answers.

import { fill, make, ONLY_DOTS, pageTo } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { groupName, NO_GROUP } from "../lib/format.js";
import { go } from "../lib/router.js";
import { caller } from "../lib/session.js";
import { PAGES } from "../pages.js";
import { open } from "./dialog.js";
import { calm } from "./parts.js";

const isTyping = (target) => target.closest?.("input, textarea, select, [contenteditable]");
let opened = false;

export function startSearch() {
  addEventListener("keydown", (event) => {
    const wanted = event.key === "/" && !event.ctrlKey && !event.metaKey && !event.altKey && !isTyping(event.target);
    const quick = event.key === "k" && (event.ctrlKey || event.metaKey);
    if ((wanted || quick) && caller() && !document.querySelector("dialog[open]")) { event.preventDefault(); openSearch(); }
  });
}

const pagesFor = (words) => PAGES
  .filter((page) => page.group != null && words.every((word) => `${page.title} ${page.words}`.toLowerCase().includes(word)))
  .map((page) => ({ kind: "page", name: page.title, href: page.path }));

const HREFS = {
  queue: ({ name }) => pageTo(["queues", name]),
  group: ({ name }) => pageTo(["groups", name]),
  stream: ({ name }) => pageTo(["streams", name]),
  pipeline: ({ name }) => pageTo(["pipelines", name]),
  partition: ({ name, queue }) => pageTo(["messages"], { queue, partition: name }),
  entries: ({ name }) => pageTo(["stream-broker", name]),
};

async function broker(text) {
  const ask = async (words) => (await api.get(`/api/v1/search?q=${encodeURIComponent(words)}`)).results;
  const isNoGroup = ({ kind, name }) => kind === "group" && name === NO_GROUP;
  // Those without a group are found by what they are called here.
  const nameless = groupName(NO_GROUP).includes(text.toLowerCase()) ? (await ask(NO_GROUP)).filter(isNoGroup) : [];
  const results = [...nameless, ...(await ask(text)).filter((each) => !isNoGroup(each))];
  return results.map((each) => ({ ...each, href: HREFS[each.kind](each), name: each.kind === "group" ? groupName(each.name) : each.name }));
}

export async function openSearch() {
  if (opened) return;
  opened = true;
  const chosen = await open("Search", (close) => {
    let results = [], at = 0, asked = 0;
    const list = make("ul", { class: "results", role: "listbox", id: "results", "aria-label": "Results" });
    const note = make("p", { class: "hint", role: "status" }, "Queues, partitions, groups, streams, pipelines and pages.");
    const input = make("input", {
      type: "search", role: "combobox", "aria-label": "Search over everything", "aria-controls": "results", "aria-expanded": "true",
      autocomplete: "off", spellcheck: "false", placeholder: "Name of anything…", autofocus: true,
    });
    const choose = ({ href }) => { if (href) close(href); else note.textContent = ONLY_DOTS; };
    const paint = () => {
      fill(list, results.map((each, index) => make("li", {
        role: "option", id: `result-${index}`, "aria-selected": String(index === at), onclick: () => choose(each),
      }, make("span", { class: "kind" }, each.kind), make("span", { class: "name", title: each.name }, each.name),
      each.queue && each.kind === "partition" && make("span", { class: "of" }, `of ${each.queue}`))));
      input.setAttribute("aria-activedescendant", results.length ? `result-${at}` : "");
      list.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
    };
    const look = calm(async (text, number) => {
      try {
        const found = await broker(text);
        if (number !== asked) return;
        results = [...results.filter((each) => each.kind === "page"), ...found];
        note.textContent = results.length ? "" : "Nothing has such a name.";
      } catch (error) { note.textContent = error.message; }
      paint();
    }, 120);
    input.addEventListener("input", () => {
      const text = input.value.trim();
      asked += 1; at = 0;
      results = text ? pagesFor(text.toLowerCase().split(/\s+/)) : pagesFor([]);
      note.textContent = "";
      if (text) look(text, asked);
      paint();
    });
    input.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step && results.length) { event.preventDefault(); at = (at + step + results.length) % results.length; paint(); }
      else if (event.key === "Enter" && results[at]) { event.preventDefault(); choose(results[at]); }
    });
    results = pagesFor([]);
    paint();
    return make("div", { class: "search" }, input, note, list);
  });
  opened = false;
  if (chosen) go(chosen);
}
