// Elements. Whatever comes from the broker becomes text, never markup: there is no way here to
// make an element from a string.

/** Make an element. `on…` adds a listener, `class` may be a list, text stays text. */
export function make(tag, attributes = {}, ...children) {
  return dress(document.createElement(tag), attributes, flat(children).flatMap(isolated));
}

/** The same for drawings. */
export function draw(tag, attributes = {}, ...children) {
  return dress(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, flat(children).map(plain));
}

function dress(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") made[name] = value;
    else if (name === "class") made.setAttribute("class", [value].flat().filter(Boolean).join(" "));
    else made.setAttribute(name, value === true ? "" : SAID.has(name) ? plain(value) : value);
  }
  made.append(...children);
  return made;
}

const flat = (children) =>
  children.flat(Infinity).filter((child) => child != null && child !== false && child !== "");

// Attributes that somebody reads.
const SAID = new Set(["title", "aria-label", "placeholder"]);
// Characters that are not seen but act on what is: control characters but tab and line end, marks
// and overrides of direction, and those without a width.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
const RIGHT = "\\p{sc=Hebrew}\\p{sc=Arabic}\\p{sc=Syriac}\\p{sc=Thaana}\\p{sc=Nko}\\p{sc=Samaritan}\\p{sc=Mandaic}\\p{sc=Adlam}";
// From one letter that is written from the right to the last before one that is not.
const RUN = new RegExp(`([${RIGHT}](?:[[${RIGHT}][^\\p{L}\\p{N}\\n]]*[${RIGHT}])?)`, "v");

/** Text in which nothing acts unseen: U+202E stands there as \\u202e. */
export const plain = (text) => (typeof text === "string" ? text.replace(UNSEEN, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`) : text);

/** Text whose parts from right to left keep to themselves, so that they move no quote or number. */
function isolated(child) {
  if (typeof child !== "string") return [child];
  return plain(child).split(RUN).filter(Boolean).map((part) => {
    if (!RUN.test(part)) return part;
    const apart = document.createElement("bdi");
    apart.append(part);
    return apart;
  });
}

/** A name as it can be seen: quoted where it begins or ends with a blank. */
export const named = (text) => (typeof text === "string" && text !== text.trim() ? `"${text}"` : text);

/** Put these in place of what is inside an element. */
export function fill(element, ...children) {
  element.replaceChildren(...flat(children).flatMap(isolated));
  return element;
}

/** Text for screen readers only. */
export const spoken = (text) => make("span", { class: "spoken" }, text);

/** A link inside the dashboard; the router takes it over. Without an address it is plain text. */
export const link = (href, ...children) =>
  (href == null ? make("span", { title: ONLY_DOTS }, ...children.map(named)) : make("a", { href }, ...children.map(named)));

// A browser takes "." and ".." out of every path, escaped or not, and what is left names something
// else: the queue instead of its partition, all queues instead of one.
export const ONLY_DOTS = "A browser cannot address a name that is only dots; use the command line.";
export const isAddressable = (name) => name !== "." && name !== "..";

/** A path of the API from its parts, each of which may hold anything but dots alone. */
export function pathTo(...parts) {
  if (!parts.every(isAddressable)) throw new Error(ONLY_DOTS);
  return `/${parts.map(encodeURIComponent).join("/")}`;
}

/** The address of a page and its filters; null when no browser can go there. */
export const pageTo = (parts, filters = {}) => (parts.every(isAddressable) ? pathTo(...parts) + queryOf(filters) : null);

/** A query string from an object, without what is empty. */
export function queryOf(values) {
  const filled = Object.entries(values).filter(([, value]) => value != null && value !== "" && value !== false);
  const text = new URLSearchParams(filled.map(([name, value]) => [name, String(value)])).toString();
  return text ? `?${text}` : "";
}

const ICONS = {
  menu: "M3 5h14M3 10h14M3 15h14",
  search: "M9 3.5a5.5 5.5 0 1 0 0 11a5.5 5.5 0 1 0 0-11M13 13l4 4",
  pause: "M7 4v12M13 4v12",
  play: "M6 4l10 6l-10 6z",
  sun: "M10 6.5a3.5 3.5 0 1 0 0 7a3.5 3.5 0 1 0 0-7M10 1.5v2M10 16.5v2M1.5 10h2M16.5 10h2M4 4l1.4 1.4M14.6 14.6l1.4 1.4M16 4l-1.4 1.4M5.4 14.6L4 16",
  moon: "M16.5 12.2A7 7 0 0 1 7.8 3.5a7 7 0 1 0 8.7 8.7z",
  close: "M5 5l10 10M15 5l-10 10",
  right: "M8 5l5 5l-5 5",
  down: "M5 8l5 5l5-5",
  up: "M5 12l5-5l5 5",
  check: "M4 10.5l4 4l8-9",
  warn: "M10 3l8 14h-16zM10 8v4M10 14.2v.6",
  leave: "M8 4h-4v12h4M9 10h8M14 7l3 3l-3 3",
};

/** A small drawing beside words that say the same; hidden from screen readers. */
export const icon = (name) =>
  draw("svg", { class: "icon", viewBox: "0 0 20 20", "aria-hidden": "true", focusable: "false" },
    draw("path", { d: ICONS[name] }));
