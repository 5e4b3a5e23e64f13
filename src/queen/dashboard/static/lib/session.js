// Who is looking. The token is kept in this tab's sessionStorage and sent as a Bearer header.
//
// Not in a cookie: a browser adds cookies to requests that other pages cause, and this server
// trusts no cookie anywhere. Not in localStorage: it would outlive the tab. What sessionStorage
// gives up is that script in this page could read the token; the page's policy lets no script in
// but the broker's own, and nothing of the broker's data ever becomes markup.
//
// A session ends with the tab, by signing out, when the server refuses the token, and when nobody
// has touched the page for half an hour.

const KEY = "queen.token";
const TOUCHED = "queen.touched";
const IDLE_MS = 30 * 60 * 1000;

let me = null;
let ended = () => {};
let reason = "";

export const token = () => sessionStorage.getItem(KEY);

export function keep(text) {
  sessionStorage.setItem(KEY, text);
  touch();
}

/** What the server says of the caller: subject, role, namespaces, authenticated. */
export const caller = () => me;
export function setCaller(found) { me = found; }

const RANK = { "read-only": 1, "read-write": 2, admin: 3 };

/** Whether the caller has at least this role. The server checks again whatever this says. */
export const may = (role) => (RANK[me?.role] ?? 0) >= RANK[role];

/** End the session and show the log-in, with the reason. */
export function end(why = "") {
  sessionStorage.removeItem(KEY);
  sessionStorage.removeItem(TOUCHED);
  me = null;
  reason = why;
  ended();
}

export const whyEnded = () => reason;
export function onEnd(callback) { ended = callback; }

function touch() { if (token()) sessionStorage.setItem(TOUCHED, String(Date.now())); }

const idleMs = () => Date.now() - Number(sessionStorage.getItem(TOUCHED) ?? Date.now());

/** Watch for hands on the page; a token that nobody has used for long is forgotten. */
export function watchIdleness(idleLimitMs = IDLE_MS) {
  let last = 0;
  const noted = () => {
    check();
    if (Date.now() - last > 1000) { last = Date.now(); touch(); }
  };
  const check = () => {
    if (token() && idleMs() > idleLimitMs) end("Signed out: nobody used this tab for half an hour.");
  };
  check();
  for (const kind of ["pointerdown", "keydown", "wheel", "focus"]) addEventListener(kind, noted, { passive: true });
  document.addEventListener("visibilitychange", check);
  setInterval(check, 15_000);
}
