// What is around every page: navigation, search, whether it is live, the theme, who is looking.

import { fill, icon, make, spoken } from "../lib/dom.js";
import { ago } from "../lib/format.js";
import * as live from "../lib/live.js";
import * as session from "../lib/session.js";
import * as theme from "../lib/theme.js";
import { GROUPS, PAGES } from "../pages.js";
import { openSearch } from "./search.js";

export function frame() {
  const nav = navigation();
  const main = make("main", { id: "main", tabindex: "0" });
  const shade = make("div", { class: "shade", hidden: true });
  const menu = make("button", { class: "plain menu", "aria-expanded": "false", "aria-controls": "nav" },
    icon("menu"), spoken("Menu"));
  const open = (value) => {
    element.classList.toggle("open", value);
    shade.hidden = !value;
    menu.setAttribute("aria-expanded", String(value));
  };
  menu.addEventListener("click", () => open(!element.classList.contains("open")));
  shade.addEventListener("click", () => open(false));
  const element = make("div", { class: "frame" }, bar(menu), nav.element, main, shade);
  element.addEventListener("keydown", (event) => { if (event.key === "Escape") open(false); });
  const skip = make("a", { class: "skip", href: "#main", onclick: (event) => { event.preventDefault(); main.focus(); } }, "Skip to the page");
  return {
    element, skip,
    mark: (page) => { nav.mark(page); open(false); },
    show: (root) => { fill(main, root); main.scrollTop = 0; },
  };
}

function navigation() {
  const links = PAGES.filter((page) => page.group != null)
    .map((page) => ({ page, anchor: make("a", { href: page.path }, page.title) }));
  const element = make("nav", { id: "nav", "aria-label": "Pages" },
    make("a", { class: "brand", href: "/" }, make("span", { class: "crown", "aria-hidden": "true" }, "♛"), "Queen"),
    GROUPS.map((group) => {
      const inside = links.filter(({ page }) => page.group === group);
      if (!inside.length) return null;
      const list = make("ul", { "aria-label": group || "Start" }, inside.map(({ anchor }) => make("li", {}, anchor)));
      return [group && make("p", { class: "group", "aria-hidden": "true" }, group), list];
    }),
    make("div", { class: "foot" }, make("a", { href: "/docs" }, "HTTP API")));
  const mark = (page) => {
    const path = page?.under ?? page?.path;
    for (const { page: listed, anchor } of links) {
      if (listed.path === path) anchor.setAttribute("aria-current", "page");
      else anchor.removeAttribute("aria-current");
    }
  };
  return { element, mark };
}

function bar(menu) {
  const search = make("button", { class: "find", onclick: openSearch, "aria-keyshortcuts": "/" },
    icon("search"), make("span", {}, "Search"), make("kbd", { "aria-hidden": "true" }, "/"));
  return make("header", { class: "bar" }, menu, search, make("div", { class: "room" }), liveButton(), themeButton(), who());
}

function liveButton() {
  const words = make("span", { class: "words" });
  const button = make("button", { class: "plain live", onclick: () => live.setPaused(!live.isPaused()) });
  const update = () => {
    const { failed, at } = live.lastRead();
    const kind = failed ? "failed" : live.isPaused() ? "paused" : "on";
    button.dataset.state = kind;
    words.textContent = { failed: at ? `No answer since ${ago(at).replace(" ago", "")}` : "No answer", paused: "Paused", on: "Live" }[kind];
    button.setAttribute("aria-pressed", String(live.isPaused()));
    button.title = live.isPaused() ? "Let updates come in again" : "Hold what is on the screen";
    fill(button, make("span", { class: "dot", "aria-hidden": "true" }), words, icon(live.isPaused() ? "play" : "pause"),
      spoken(live.isPaused() ? ": resume updates" : ": pause updates"));
  };
  live.onChange(update);
  update();
  return button;
}

function themeButton() {
  const button = make("button", { class: "plain", onclick: () => { theme.toggle(); update(); } });
  const update = () => fill(button, icon(theme.isDark() ? "sun" : "moon"), spoken(theme.isDark() ? "Light theme" : "Dark theme"));
  update();
  return button;
}

function who() {
  const me = session.caller();
  if (!me.authenticated) return make("span", { class: "who" }, make("span", { class: "role" }, "no log-in"));
  const reach = me.namespaces ? `${me.role}, only ${me.namespaces.join(", ")}` : me.role;
  return make("span", { class: "who" },
    make("span", { class: "name", title: `${me.subject ?? ""} (${reach})` }, me.subject ?? "token"),
    make("span", { class: "role" }, me.role),
    make("button", { class: "plain", onclick: () => session.end("Signed out."), title: "Sign out" }, icon("leave"), spoken("Sign out")));
}
