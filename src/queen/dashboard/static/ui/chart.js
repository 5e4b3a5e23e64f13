// Charts over time. Drag over one to zoom in, double-click to zoom out; with the keyboard, arrow
// keys move the mark, + and - zoom around it, 0 shows all. A paused chart keeps what it shows.

import { draw, fill, icon, make, spoken } from "../lib/dom.js";
import { instant, short, timeOfDay } from "../lib/format.js";

const HEIGHT = 180, LEFT = 40, RIGHT = 10, TOP = 10, BOTTOM = 24;
const PLOT_HEIGHT = HEIGHT - TOP - BOTTOM;
const SHARES = [0, 0.5, 1];

const pen = document.createElement("canvas").getContext("2d");

/** How wide a label will be, in the letters of the page and the size of `.tick`. */
function widthOf(text, svg) {
  pen.font = `12px ${getComputedStyle(svg.isConnected ? svg : document.body).fontFamily}`;
  return pen.measureText(text).width;
}

/**
 * `title` names the chart, `unit(value)` writes a value. `set(series)` takes
 * [{ name, points: [[ms, value or null], …] }], each in order of time, at most six, and the time
 * from and to which it is drawn; without that, as far as there are values.
 */
export function chart(title, { unit = short, none = "Nothing was measured yet." } = {}) {
  const state = { series: [], held: null, hidden: new Set(), zoom: null, mark: null, drag: null, width: 640, domain: null };
  const svg = draw("svg", { height: HEIGHT, role: "img", tabindex: "0", class: "plot" });
  const tip = make("div", { class: "tip", hidden: true });
  const said = make("p", { class: "spoken", "aria-live": "polite" });
  const legend = make("ul", { class: "legend" });
  const reset = make("button", { type: "button", hidden: true, onclick: () => zoomTo(null) }, "Show all");
  const pause = make("button", { type: "button", class: "plain", onclick: () => hold(state.held == null) });
  const stage = make("div", { class: "stage" }, svg, tip);
  const element = make("figure", { class: "chart" },
    make("figcaption", {}, make("span", {}, title), legend, make("span", { class: "chart-tools" }, reset, pause)), stage, said);

  function hold(value) {
    state.held = value ? state.series : null;
    markPause();
    if (!value) paint();
  }
  function markPause() {
    const held = state.held != null;
    pause.setAttribute("aria-pressed", String(held));
    pause.title = held ? "Let new values in" : "Keep what is shown";
    fill(pause, icon(held ? "play" : "pause"), spoken(`${held ? "Resume" : "Pause"} ${title}`));
  }
  const shown = () => (state.held ?? state.series).filter((each) => !state.hidden.has(each.name));
  const times = () => [...new Set(shown().flatMap((each) => each.points.map(([at]) => at)))].sort((a, b) => a - b);

  function zoomTo(range) {
    state.zoom = range && range[1] - range[0] >= 1000 ? range : null;
    state.mark = null;
    reset.hidden = !state.zoom;
    paint();
  }

  function scale() {
    const all = times();
    const [from, to] = state.zoom ?? state.domain ?? [all[0] ?? 0, all.at(-1) ?? 1];
    const values = shown().flatMap((each) => each.points.filter(([at]) => at >= from && at <= to).map(([, value]) => value ?? 0));
    const top = niceTop(values.reduce((most, value) => Math.max(most, value), 0));
    // As wide as the widest label needs, and the gap beside it.
    const left = Math.max(LEFT, Math.ceil(Math.max(...SHARES.map((share) => widthOf(unit(top * share), svg)))) + 10);
    const wide = Math.max(50, state.width - left - RIGHT);
    return {
      from, to, top, wide, left,
      x: (at) => left + (to === from ? wide / 2 : ((at - from) / (to - from)) * wide),
      y: (value) => TOP + PLOT_HEIGHT - (value / top) * PLOT_HEIGHT,
      at: (x) => from + ((x - left) / wide) * (to - from),
    };
  }

  function paint() {
    const on = scale();
    const nothing = times().length === 0;
    fill(svg, nothing ? draw("text", { x: state.width / 2, y: HEIGHT / 2, class: "none", "text-anchor": "middle" }, none)
      : [grid(on, unit), (state.held ?? state.series).map((each, at) => state.hidden.has(each.name) ? null : lineOf(each, on, at)), markOf(on), dragOf(on)]);
    svg.setAttribute("aria-label", summary(title, state.held ?? state.series, unit));
    paintLegend();
  }

  function paintLegend() {
    fill(legend, (state.held ?? state.series).map((each, at) => make("li", {}, make("button", {
      type: "button", class: ["plain", `series-${at}`], "aria-pressed": String(!state.hidden.has(each.name)),
      onclick: () => { if (!state.hidden.delete(each.name)) state.hidden.add(each.name); paint(); },
    }, make("span", { class: "swatch", "aria-hidden": "true" }), each.name))));
  }

  function markOf(on) {
    if (state.mark == null || state.mark < on.from || state.mark > on.to) { tip.hidden = true; return null; }
    const x = on.x(state.mark);
    const rows = shown().map((each) => [each, each.points.find(([at]) => at === state.mark)?.[1]]).filter(([, value]) => value != null);
    fill(tip, make("strong", {}, instant(state.mark)), rows.map(([each, value]) => make("span", {
      class: `series-${(state.held ?? state.series).indexOf(each)}` }, make("i", { class: "swatch" }), each.name, make("b", {}, unit(value)))));
    tip.hidden = false;
    tip.classList.toggle("left", x > state.width / 2);
    tip.style.insetInlineStart = `${x}px`;
    return [draw("line", { x1: x, x2: x, y1: TOP, y2: TOP + PLOT_HEIGHT, class: "mark" }),
      rows.map(([each, value]) => draw("circle", { cx: x, cy: on.y(value), r: 3, class: `dot series-${(state.held ?? state.series).indexOf(each)}` }))];
  }

  function dragOf(on) {
    if (!state.drag) return null;
    const [from, to] = state.drag.map(on.x).sort((a, b) => a - b);
    return draw("rect", { x: from, y: TOP, width: to - from, height: PLOT_HEIGHT, class: "drag" });
  }

  const timeAt = (event) => {
    const bounds = svg.getBoundingClientRect();
    const on = scale();
    return Math.min(on.to, Math.max(on.from, on.at(event.clientX - bounds.left)));
  };
  const nearest = (at) => times().reduce((best, each) => (best == null || Math.abs(each - at) < Math.abs(best - at) ? each : best), null);

  svg.addEventListener("pointermove", (event) => {
    const at = timeAt(event);
    if (state.drag) state.drag[1] = at;
    state.mark = nearest(at);
    paint();
  });
  svg.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch" || event.button !== 0) return;
    svg.setPointerCapture(event.pointerId);
    const at = timeAt(event);
    state.drag = [at, at];
  });
  svg.addEventListener("pointerup", () => {
    const range = state.drag?.toSorted((a, b) => a - b);
    state.drag = null;
    if (range && range[1] - range[0] >= 1000) zoomTo(range);
  });
  svg.addEventListener("pointerleave", () => { if (!state.drag) { state.mark = null; paint(); } });
  svg.addEventListener("dblclick", () => zoomTo(null));
  svg.addEventListener("blur", () => { state.mark = null; paint(); });
  svg.addEventListener("keydown", (event) => {
    const all = times();
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step && all.length) {
      const at = state.mark == null ? (step > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, all.indexOf(state.mark) + step));
      state.mark = all[at];
      said.textContent = `${instant(state.mark)}: ${shown().map((each) => `${each.name} ${unit(each.points.find(([time]) => time === state.mark)?.[1])}`).join(", ")}`;
      paint();
    } else if ("+-=".includes(event.key) && all.length) {
      const on = scale();
      const middle = state.mark ?? (on.from + on.to) / 2;
      const half = ((on.to - on.from) / 2) * (event.key === "-" ? 2 : 0.5);
      const range = [Math.max(all[0], middle - half), Math.min(all.at(-1), middle + half)];
      zoomTo(range[0] <= all[0] && range[1] >= all.at(-1) ? null : range);
    } else if (event.key === "0") zoomTo(null);
    else return;
    event.preventDefault();
  });

  new ResizeObserver(([{ contentRect }]) => {
    if (contentRect.width && contentRect.width !== state.width) { state.width = contentRect.width; paint(); }
  }).observe(stage);
  markPause();
  paint();
  return {
    element,
    set(series, domain = null) {
      state.series = series.slice(0, 6);
      if (state.held != null) return;
      state.domain = domain;
      paint();
    },
  };
}

/** The next round number: 1, 2 or 5 times a power of ten. */
function niceTop(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((top) => top >= value);
}

function grid(on, unit) {
  const lines = SHARES.map((share) => {
    const y = on.y(on.top * share);
    return [draw("line", { x1: on.left, x2: on.left + on.wide, y1: y, y2: y, class: "rule" }),
      draw("text", { x: on.left - 6, y: y + 4, class: "tick", "text-anchor": "end" }, unit(on.top * share))];
  });
  const marks = [0, 1 / 3, 2 / 3, 1].map((share, at) => draw("text", {
    x: on.left + share * on.wide, y: HEIGHT - 6, class: "tick", "text-anchor": ["start", "middle", "middle", "end"][at],
  }, timeOfDay(on.from + share * (on.to - on.from)).slice(0, on.to - on.from > 600_000 ? 5 : 8)));
  return [lines, marks];
}

/** Gaps stay gaps: a line is drawn between values that follow each other, no further. */
function lineOf(series, on, at) {
  let path = "", open = false, alone = [];
  const inside = series.points.filter(([time]) => time >= on.from && time <= on.to);
  inside.forEach(([time, value], index) => {
    if (value == null) { open = false; return; }
    if (!open && inside[index + 1]?.[1] == null) alone.push([time, value]);
    path += `${open ? "L" : "M"}${on.x(time).toFixed(1)} ${on.y(value).toFixed(1)}`;
    open = true;
  });
  return [draw("path", { d: path, class: `line series-${at}` }),
    alone.map(([time, value]) => draw("circle", { cx: on.x(time), cy: on.y(value), r: 2, class: `dot series-${at}` }))];
}

function summary(title, series, unit) {
  const parts = series.map(({ name, points }) => {
    const values = points.map(([, value]) => value).filter((value) => value != null);
    return values.length ? `${name}: now ${unit(values.at(-1))}, at most ${unit(Math.max(...values))}` : `${name}: nothing`;
  });
  return `${title}. ${parts.join(". ")}`;
}
