// How far back charts go. The choice stands in the address.

import { query, setQuery } from "../lib/router.js";
import { field } from "./parts.js";

// A little less than an hour has a value for each minute; the broker joins them beyond that.
const MARGIN_MS = 30_000;
const HOURS = [["0.25", "last 15 minutes"], ["1", "last hour"], ["6", "last 6 hours"], ["24", "last day"], ["168", "last week"]];

/** A list to choose from. `parameter()` is for a URL, `span()` for a chart. */
export function range(changed) {
  const chosen = HOURS.some(([hours]) => hours === query().hours) ? query().hours : "1";
  const { element, input } = field("Time", { id: "hours", choices: HOURS, value: chosen, oninput: () => { setQuery({ hours: input.value === "1" ? "" : input.value }); changed(); } });
  const start = () => Date.now() - Number(input.value) * 3_600_000 + MARGIN_MS;
  return { element, span: () => [start(), Date.now()], parameter: () => `from=${encodeURIComponent(new Date(start()).toISOString())}` };
}

/** Values of one field over time, oldest first. */
export const series = (name, rows, time, value) =>
  ({ name, points: rows.map((row) => [Date.parse(row[time]), row[value] ?? null]).sort((a, b) => a[0] - b[0]) });
