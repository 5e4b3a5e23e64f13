// Numbers, sizes and times as people read them. All of it is for showing; none of it is parsed
// again. Times are shown in the zone of whoever looks, with the whole instant in the tooltip.

import { make } from "./dom.js";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const one = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

/** 1234567 → "1,234,567"; nothing → "–". */
export const count = (value) => (value == null || Number.isNaN(Number(value)) ? "–" : whole.format(value));

/** 1234567 → "1.2 M", for where there is little room. */
export function short(value) {
  if (value == null || Number.isNaN(Number(value))) return "–";
  const size = Math.abs(value);
  for (const [limit, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= limit) return `${one.format(value / (unit === "k" ? 1e3 : limit))} ${unit}`;
  }
  return size < 10 && size % 1 ? one.format(value) : whole.format(value);
}

/** How many of what: "1 message", "3 messages". */
export const plural = (number, noun, many = `${noun}s`) => `${count(number)} ${Number(number) === 1 ? noun : many}`;

/** Per second. */
export function rate(value) {
  if (value == null || Number.isNaN(Number(value))) return "–";
  return `${value > 0 && value < 0.1 ? Number(value.toPrecision(1)) : short(value)}/s`;
}

/** 1536 → "1.5 KB". */
export function bytes(value) {
  if (value == null || Number.isNaN(Number(value))) return "–";
  let size = Number(value);
  for (const unit of ["B", "KB", "MB", "GB", "TB"]) {
    if (Math.abs(size) < 1024 || unit === "TB") return `${unit === "B" ? whole.format(size) : one.format(size)} ${unit}`;
    size /= 1024;
  }
  return "–";
}

/** Seconds as "450 ms", "12 s", "3 min 20 s", "2 h 5 min", "4 d 3 h". */
export function seconds(value) {
  if (value == null || Number.isNaN(Number(value))) return "–";
  const total = Math.max(0, Number(value));
  if (total === 0) return "0 s";
  if (total < 1) return total < 0.001 ? "< 1 ms" : `${Math.round(total * 1000)}\u00a0ms`;
  if (total < 60) return `${total < 10 ? one.format(total) : whole.format(total)}\u00a0s`;
  const steps = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];
  for (const [large, unit, small, rest] of steps) {
    if (total >= large) {
      const more = Math.floor((total % large) / small);
      return `${whole.format(Math.floor(total / large))}\u00a0${unit}${more ? ` ${more}\u00a0${rest}` : ""}`;
    }
  }
  return "–";
}

export const milliseconds = (value) =>
  value == null ? "–" : value > 0 && value < 10 ? `${one.format(value)}\u00a0ms` : seconds(value / 1000);

export const percent = (share) => (share == null ? "–" : `${one.format(share * 100)} %`);

const stamp = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium" });
const hour = new Intl.DateTimeFormat("sv-SE", { timeStyle: "medium" });

/** An instant: "2026-11-18 14:05:09". */
export const instant = (value) => (value ? stamp.format(new Date(value)) : "–");

/** The time of day alone. */
export const timeOfDay = (value) => (value ? hour.format(new Date(value)) : "–");

/** How long ago, or in how long: "12 s ago", "in 3 min". */
export function ago(value, now = Date.now()) {
  if (!value) return "–";
  const away = (now - new Date(value).getTime()) / 1000;
  if (Math.abs(away) < 1) return "now";
  return away > 0 ? `${seconds(Math.floor(away))} ago` : `in ${seconds(Math.floor(-away))}`;
}

/** What the broker calls those who read without a group, and how people are told. */
export const NO_GROUP = "__QUEUE_MODE__";
export const groupName = (name) => (name == null || name === NO_GROUP ? "(no group)" : name);

/** Both ends of an id: many begin alike. */
export const ends = (text, length = 24) => (text.length <= length ? text : `${text.slice(0, length / 2 - 2)}…${text.slice(1 - length / 2)}`);

/** How old counts are that the broker keeps. */
export const counted = (ageSeconds) => (ageSeconds < 1 ? "counted just now" : `counted ${seconds(Math.floor(ageSeconds))} ago`);

/** An instant as an element that says how long ago it was and, when pointed at, when. */
export function when(value) {
  if (!value) return "–";
  const iso = new Date(value).toISOString();
  return make("time", { datetime: iso, title: `${instant(value)} (${iso})` }, ago(value));
}

/** JSON made easy to read. Numbers beyond 2^53 would change on the way through the parser; such
 * text, and text that is no JSON, stays as it came. */
export function pretty(text) {
  if (/\d{16}/.test(text)) return text;
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}
