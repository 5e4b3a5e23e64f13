// Addresses. The path names the page and the thing, the query holds filters, so that whatever is
// on the screen can be sent to somebody as a link. Links inside the dashboard are followed
// without loading it anew.

import { PAGES } from "../pages.js";

let show = () => {};

/** Parts in braces become parameters. */
function match(pattern, path) {
  const wanted = pattern.split("/"), given = path.split("/");
  if (wanted.length !== given.length) return null;
  const params = {};
  for (let at = 0; at < wanted.length; at += 1) {
    if (wanted[at].startsWith("{")) {
      try { params[wanted[at].slice(1, -1)] = decodeURIComponent(given[at]); } catch { return null; }
    } else if (wanted[at] !== given[at]) return null;
  }
  return params;
}

/** Return the page of an address and what its path names; null when there is none. */
export function find(path) {
  for (const page of PAGES) {
    const params = match(page.path, path);
    if (params) return { page, params };
  }
  return null;
}

export const query = () => Object.fromEntries(new URLSearchParams(location.search));

/** Go somewhere. */
export function go(href, { replace = false } = {}) {
  if (href !== location.pathname + location.search) history[replace ? "replaceState" : "pushState"](null, "", href);
  show();
}

/** Change filters in the address; what is empty leaves it. The page is not drawn again. */
export function setQuery(changes) {
  const params = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value == null || value === "" || value === false) params.delete(name);
    else params.set(name, String(value));
  }
  const text = params.toString();
  history.replaceState(null, "", location.pathname + (text ? `?${text}` : ""));
}

export function start(showPage) {
  show = showPage;
  addEventListener("popstate", () => show());
  document.addEventListener("click", (event) => {
    const anchor = event.target.closest?.("a[href]");
    if (!anchor || event.defaultPrevented || event.button !== 0) return;
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    if (anchor.origin !== location.origin || anchor.target || anchor.hasAttribute("download")) return;
    if (anchor.getAttribute("href").startsWith("#") || !find(anchor.pathname)) return;
    event.preventDefault();
    go(anchor.pathname + anchor.search);
  });
  show();
}
