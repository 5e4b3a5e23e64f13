// The dashboard: find out who is looking, draw the frame, show the page of the address.

import { fill, make } from "./lib/dom.js";
import * as api from "./lib/api.js";
import * as router from "./lib/router.js";
import * as session from "./lib/session.js";
import * as theme from "./lib/theme.js";
import { watch } from "./lib/live.js";
import { frame } from "./ui/frame.js";
import { logIn } from "./ui/login.js";
import { failure, head, notFound, waiting } from "./ui/parts.js";
import { startSearch } from "./ui/search.js";

// The broker is asked so often whether it is back; a page is loaded anew at most so often.
const ASK_MS = 1000, BEGIN_MS = 3000, RELOAD_MS = 15_000;
const RELOADED = "queen.reloaded";

let leaving = null;
let drawn = null;

/** Show the log-in in place of everything. */
function showLogIn() {
  leaving?.abort();
  drawn = null;
  fill(document.body, logIn(session.whyEnded(), begin));
}

/** Show the page of the address. */
async function showPage() {
  if (!drawn) return;
  leaving?.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const found = router.find(location.pathname);
  drawn.mark(found?.page);
  const root = make("div", { class: "page" }, waiting());
  drawn.show(root);
  setTitle(found?.page.title ?? "Not found");
  if (!found) { fill(root, notFound("There is no such page.")); return; }
  try {
    const module = await found.page.load().catch(() => null);
    if (signal.aborted) return;
    if (!module) { waitForScript(found.page, root, signal); return; }
    fill(root);
    await module.show(viewOf(found, root, signal));
  } catch (error) {
    if (!signal.aborted) fill(root, head(found.page.title), failure(error, showPage));
  }
}

/** The script of a page did not come: say so, and open the page once the broker answers. All is
 * loaded anew then, because some browsers do not ask twice for a script that has failed; but not
 * at every turn, should the script itself be what is wrong. */
function waitForScript(page, root, signal) {
  const text = "The broker cannot be reached. The page opens by itself when it answers.";
  fill(root, head(page.title), failure(new api.ApiError(0, null, text), showPage));
  watch(async () => {
    await api.get("/api/v1/whoami", { signal });
    if (Date.now() - Number(sessionStorage.getItem(RELOADED) ?? 0) < RELOAD_MS) return;
    sessionStorage.setItem(RELOADED, String(Date.now()));
    location.reload();
  }, ASK_MS, signal);
}

const setTitle = (text) => { document.title = `${text} · Queen`; };

function viewOf({ page, params }, root, signal) {
  let problem = null;
  const shown = async (work) => {
    try {
      await work();
      problem?.remove();
      problem = null;
    } catch (error) {
      if (signal.aborted || api.isAbort(error)) return;
      const note = failure(error);
      if (problem) problem.replaceWith(note); else root.prepend(note);
      if (!root.querySelector("h1")) root.prepend(head(page.title));
      problem = note;
      throw error;
    }
  };
  return {
    page, params, root, signal,
    query: router.query(),
    setQuery: router.setQuery,
    title: setTitle,
    may: session.may,
    live: (work, everyMs = 5000) => watch(() => shown(work), everyMs, signal),
  };
}

/** Ask the server who is looking; then draw, or ask for a token. */
async function begin() {
  try {
    session.setCaller(await api.get("/api/v1/whoami"));
  } catch (error) {
    if (error.status === 401) { showLogIn(); return; }
    fill(document.body, make("main", { class: "alone" }, failure(error, begin)));
    if ([0, 503].includes(error.status)) setTimeout(begin, BEGIN_MS);
    return;
  }
  drawn = frame();
  fill(document.body, drawn.skip, drawn.element);
  await showPage();
}

theme.start(() => drawn?.mark(router.find(location.pathname)?.page));
session.onEnd(showLogIn);
session.watchIdleness();
startSearch();
router.start(showPage);
begin();
