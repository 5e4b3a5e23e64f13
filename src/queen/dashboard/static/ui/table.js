// Tables. Only the rows in sight are in the document, so 10,000 of them scroll as well as ten.
// Every row is one line high; what does not fit is cut with an ellipsis and whole in the tooltip.
// A table that `wraps` shows all of it, and has all its rows in the document: for a few hundred.

import { fill, icon, make, spoken } from "../lib/dom.js";
import { query, setQuery } from "../lib/router.js";
import { empty } from "./parts.js";

const ROW_PX = 36;
// Rows beyond both ends of what is in sight, so that scrolling shows no gaps.
const SPARE = 8;
// So few are drawn whole, without a scrolling box of their own.
const WHOLE = 25;

/**
 * `columns` are [{ title, value(row), sort?(row), kind?, width?, wide?, name? }]:
 *   value  a node or text
 *   sort   what to sort by; a column without it cannot be sorted
 *   kind   "num" for figures, "mono" for ids
 *   width  in rem; columns without one share the rest
 *   wide   true: left out on narrow screens
 *   name   a short name for the address when it is not to be the title
 *
 * Options: `name` (for screen readers), `key(row)` (what tells rows apart), `none` (what stands
 * there instead of rows), `href(row)` (where a click on the row goes), `sort` ("-Lag": by Lag, the
 * largest first), `sortKey` (the address parameter that keeps the order; none keeps it nowhere),
 * `select(keys)` (adds boxes to choose rows by; told of each change), `rowKind(row)` (a class), `wraps` (cells are
 * as high as what is in them).
 *
 * Returns { element, set(rows), chosen(), clear() }.
 */
export function table(columns, options) {
  const state = { rows: [], sorted: [], chosen: new Set(), order: startOrder(columns, options), from: -1, to: -1 };
  const body = make("tbody");
  const heads = columns.map((column) => headCell(column, () => sortBy(column)));
  const all = options.select && make("input", { type: "checkbox", "aria-label": "Choose all rows", onchange: () => chooseAll(all.checked) });
  const grid = make("table", { "aria-label": options.name },
    make("colgroup", {}, all && sized(make("col"), 2.4), columns.map((column) => sized(make("col", { class: column.wide && "wide" }), column.width))),
    make("thead", {}, make("tr", {}, all && make("th", { scope: "col", class: "choose" }, all), heads.map(({ cell }) => cell))), body);
  // Columns that share the rest get some room each; where there is none the table scrolls sideways.
  const needed = (shown) => shown.reduce((sum, { width }) => sum + (width ?? 8), all ? 2.4 : 0);
  grid.style.setProperty("--all-columns", `${needed(columns)}rem`);
  grid.style.setProperty("--few-columns", `${needed(columns.filter(({ wide }) => !wide))}rem`);
  const box = make("div", { class: "table-box", role: "region", "aria-label": options.name, tabindex: "0" }, grid);
  const none = make("div", { hidden: true }, options.none ?? empty("Nothing here."));
  const element = make("div", { class: ["table", options.wraps && "wraps"] }, box, none);
  box.addEventListener("scroll", () => draw(false), { passive: true });
  box.addEventListener("keydown", (event) => moveFocus(event, body, box));
  if (options.href) body.addEventListener("click", (event) => openRow(event, state, options));
  markOrder();

  function sortBy(column) {
    const { order } = state;
    const largestFirst = order.column === column ? !order.largestFirst : column.kind === "num";
    state.order = { column, largestFirst };
    if (options.sortKey) setQuery({ [options.sortKey]: (largestFirst ? "-" : "") + nameOf(column) });
    markOrder();
    arrange();
    draw(true);
  }

  function markOrder() {
    columns.forEach((column, at) => {
      const { cell, arrow } = heads[at];
      const sorted = state.order.column === column;
      if (column.sort) cell.setAttribute("aria-sort", sorted ? (state.order.largestFirst ? "descending" : "ascending") : "none");
      if (arrow) fill(arrow, sorted && icon(state.order.largestFirst ? "down" : "up"));
    });
  }

  function arrange() {
    const { column, largestFirst } = state.order;
    state.sorted = column ? [...state.rows].sort((a, b) => compare(column.sort(a), column.sort(b)) * (largestFirst ? -1 : 1)) : state.rows;
  }

  function chooseAll(value) {
    state.chosen = new Set(value ? state.rows.map(options.key) : []);
    draw(true);
    options.select([...state.chosen]);
  }

  function choose(key, value) {
    if (value) state.chosen.add(key); else state.chosen.delete(key);
    all.checked = state.chosen.size > 0 && state.chosen.size === state.rows.length;
    options.select([...state.chosen]);
  }

  /** Draw the rows in sight; unless forced, only when others have come into sight. */
  function draw(forced) {
    const whole = options.wraps || state.sorted.length <= WHOLE;
    const top = Math.floor(box.scrollTop / ROW_PX);
    const from = whole ? 0 : Math.max(0, top - SPARE);
    const to = whole ? state.sorted.length : Math.min(state.sorted.length, top + Math.ceil(Math.max(box.clientHeight, innerHeight) / ROW_PX) + SPARE);
    if (!forced && from === state.from && to === state.to) return;
    Object.assign(state, { from, to });
    const focused = document.activeElement?.closest?.("tr")?.dataset.key;
    const inFocus = focused != null && body.contains(document.activeElement);
    fill(body, spacer(from), state.sorted.slice(from, to).map((row, at) => rowOf(row, from + at)), spacer(state.sorted.length - to));
    if (inFocus) body.querySelector(`tr[data-key="${CSS.escape(focused)}"] a, tr[data-key="${CSS.escape(focused)}"] button`)?.focus({ preventScroll: true });
  }

  function rowOf(row, at) {
    const key = String(options.key(row));
    const box = all && make("td", { class: "choose" }, make("input", {
      type: "checkbox", checked: state.chosen.has(options.key(row)), "aria-label": `Choose row ${at + 1}`,
      onchange: (event) => choose(options.key(row), event.target.checked),
    }));
    return make("tr", { "data-key": key, "aria-rowindex": at + 2, class: [options.href?.(row) && "opens", options.rowKind?.(row)] }, box,
      columns.map((column) => cellOf(column, row)));
  }

  return {
    element,
    set(rows) {
      state.rows = rows;
      const known = new Set(options.select ? rows.map(options.key) : []);
      state.chosen = new Set([...state.chosen].filter((key) => known.has(key)));
      grid.setAttribute("aria-rowcount", rows.length + 1);
      box.classList.toggle("scrolls", rows.length > WHOLE);
      box.hidden = rows.length === 0;
      none.hidden = rows.length > 0;
      arrange();
      draw(true);
    },
    chosen: () => [...state.chosen],
    clear() { state.chosen.clear(); if (all) all.checked = false; draw(true); options.select?.([]); },
  };
}

const nameOf = (column) => (column.name ?? column.title).toLowerCase().replaceAll(" ", "-");

function startOrder(columns, { sort = "", sortKey = null }) {
  const text = ((sortKey && query()[sortKey]) || sort).toLowerCase().replaceAll(" ", "-");
  const name = text.replace(/^-/, "");
  const column = columns.find((each) => each.sort && nameOf(each) === name);
  return { column: column ?? null, largestFirst: text.startsWith("-") };
}

function headCell(column, sort) {
  const arrow = column.sort && make("span", { class: "arrow", "aria-hidden": "true" });
  const cell = make("th", { scope: "col", class: [column.kind, column.wide && "wide"] },
    column.sort ? make("button", { type: "button", class: "plain", onclick: sort }, column.title, arrow) : column.title || spoken("Actions"));
  return { cell, arrow };
}

function cellOf(column, row) {
  const value = column.value(row);
  const title = typeof value === "string" ? value : null;
  return make("td", { class: [column.kind, column.wide && "wide"], title }, value ?? "–");
}

function spacer(rows) {
  if (rows <= 0) return null;
  const cell = make("td");
  cell.style.height = `${rows * ROW_PX}px`;
  return make("tr", { class: "spacer", "aria-hidden": "true" }, cell);
}

function sized(col, width) {
  if (width) col.style.width = `${width}rem`;
  return col;
}

function compare(a, b) {
  if (a == null || b == null) return (a == null ? 0 : 1) - (b == null ? 0 : 1);
  if (typeof a === "string" || typeof b === "string") return String(a).localeCompare(String(b), "en", { numeric: true });
  return a - b;
}

/** Arrow keys go from row to row. */
function moveFocus(event, body, box) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step || event.target.matches("input, select")) return;
  const rows = [...body.querySelectorAll("tr[data-key]")];
  const current = event.target.closest("tr[data-key]");
  const next = current ? rows[rows.indexOf(current) + step] : rows.find((row) => row.offsetTop >= box.scrollTop);
  const target = next?.querySelector("a, button, input");
  if (!target) return;
  event.preventDefault();
  target.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

/** A click beside the link of a row follows it, unless something was meant or marked. */
function openRow(event, state, options) {
  if (event.target.closest("a, button, input, label") || String(getSelection())) return;
  const key = event.target.closest("tr[data-key]")?.dataset.key;
  const row = state.sorted.find((each) => String(options.key(each)) === key);
  const href = row && options.href(row);
  if (!href) return;
  const anchor = make("a", { href });
  document.body.append(anchor);
  anchor.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true, ctrlKey: event.ctrlKey, metaKey: event.metaKey, shiftKey: event.shiftKey }));
  anchor.remove();
}
