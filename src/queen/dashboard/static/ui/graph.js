// A graph from left to right: boxes with names, lines with rates. Boxes are ordinary links above
// the drawing, so that they can be reached, read and followed like all others.

import { draw, fill, make, spoken } from "../lib/dom.js";

const WIDE = 200, HIGH = 52, GAP_X = 96, GAP_Y = 16, EDGE = 10;

/**
 * `nodes` are [{ id, kind, title, note, href, state }], `edges` [{ source, target, label, kind }].
 * `kind` and `state` are classes. What goes round in a circle is drawn back to the left.
 */
export function graph(name) {
  const stage = make("div", { class: "graph-stage" });
  const element = make("div", { class: "graph", role: "region", "aria-label": name, tabindex: "0" }, stage);
  return {
    element,
    set(nodes, edges) {
      const places = layout(nodes, edges);
      const width = Math.max(...places.values().map(({ x }) => x + WIDE), 0) + EDGE;
      const height = Math.max(...places.values().map(({ y }) => y + HIGH), 0) + EDGE;
      stage.style.width = `${width}px`;
      stage.style.height = `${height}px`;
      const names = new Map(nodes.map((node) => [node.id, node.title]));
      fill(stage,
        draw("svg", { width, height, "aria-hidden": "true", class: "graph-lines" },
          edges.map((edge) => lineOf(edge, places.get(edge.source), places.get(edge.target)))),
        edges.filter(({ label }) => label).map((edge) => labelOf(edge, places.get(edge.source), places.get(edge.target))),
        make("ul", {}, nodes.map((node) => boxOf(node, places.get(node.id), edges, names))));
    },
  };
}

/** Put each node right of what flows into it; keep neighbours near each other. */
function layout(nodes, edges) {
  const layer = layersOf(nodes, edges);
  const layers = [];
  for (const node of nodes) (layers[layer.get(node.id)] ??= []).push(node.id);
  const row = new Map();
  layers.forEach((ids, at) => {
    const before = (id) => edges.filter((edge) => edge.target === id && row.has(edge.source)).map((edge) => row.get(edge.source));
    const middle = new Map(ids.map((id) => {
      const rows = before(id);
      return [id, at === 0 || rows.length === 0 ? null : rows.reduce((sum, each) => sum + each, 0) / rows.length];
    }));
    const sorted = ids.map((id, index) => [id, middle.get(id) ?? index]).sort((a, b) => a[1] - b[1]);
    let next = 0;
    for (const [id, wanted] of sorted) {
      const place = Math.max(next, at === 0 ? next : Math.round(wanted * 2) / 2);
      row.set(id, place);
      next = place + 1;
    }
  });
  return new Map(nodes.map(({ id }) => [id, { x: EDGE + layer.get(id) * (WIDE + GAP_X), y: EDGE + row.get(id) * (HIGH + GAP_Y) }]));
}

/** How far from the left each node is: one more than the furthest of what flows into it. */
function layersOf(nodes, edges) {
  const into = new Map(nodes.map(({ id }) => [id, []]));
  for (const edge of edges) into.get(edge.target)?.push(edge.source);
  const layer = new Map();
  const open = new Set();
  const depth = (id) => {
    if (layer.has(id)) return layer.get(id);
    // A circle ends where it began.
    if (open.has(id)) return -1;
    open.add(id);
    const value = Math.max(-1, ...into.get(id).map(depth)) + 1;
    open.delete(id);
    layer.set(id, value);
    return value;
  };
  nodes.forEach(({ id }) => depth(id));
  return layer;
}

function lineOf({ kind }, from, to) {
  if (!from || !to) return null;
  const x1 = from.x + WIDE, y1 = from.y + HIGH / 2, x2 = to.x - 2, y2 = to.y + HIGH / 2;
  const bend = x2 > x1 ? (x2 - x1) / 2 : 60;
  return [
    draw("path", { d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2 - 6} ${y2}`, class: ["graph-line", kind] }),
    draw("path", { d: `M${x2 - 8} ${y2 - 4.5}L${x2} ${y2}L${x2 - 8} ${y2 + 4.5}z`, class: ["graph-arrow", kind] }),
  ];
}

function labelOf({ label, kind }, from, to) {
  if (!from || !to) return null;
  // Beside the box it leads to, where lines that come from one box have parted.
  const label_ = make("span", { class: ["graph-label", kind], "aria-hidden": "true" }, label);
  label_.style.left = `${to.x - GAP_X / 2}px`;
  label_.style.top = `${(from.y + 3 * to.y) / 4 + HIGH / 2}px`;
  return label_;
}

function boxOf(node, place, edges, names) {
  const ends = (side, other) => edges.filter((edge) => edge[side] === node.id).map((edge) => `${names.get(edge[other])}${edge.label ? ` (${edge.label})` : ""}`);
  const from = ends("target", "source"), to = ends("source", "target");
  const said = `${from.length ? ` From ${from.join(", ")}.` : ""}${to.length ? ` To ${to.join(", ")}.` : ""}`;
  const inside = [make("strong", {}, node.title), make("small", {}, node.note), said && spoken(said)];
  const box = make("li", { class: ["graph-box", node.kind, node.state], title: node.title },
    node.href ? make("a", { href: node.href }, inside) : make("span", {}, inside));
  box.style.left = `${place.x}px`;
  box.style.top = `${place.y}px`;
  box.style.width = `${WIDE}px`;
  box.style.height = `${HIGH}px`;
  return box;
}
