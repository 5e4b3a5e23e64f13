// Live updates: a page says what to read again and how often; this decides when.
//
// The next read is planned when the last one has ended, so a slow broker is never asked twice at
// once. What takes long is asked for less often, so that many who look cost a broker little. A
// hidden tab asks nothing. After a failure the pause doubles, up to a minute. Pausing holds every
// page until it is let go.

const LONGEST_MS = 60_000;
// A pause is at least this many times as long as the read before it.
const PAUSE_SHARE = 40;
// And no longer than this for that reason.
const LONGEST_SLOW_MS = 15_000;

let paused = false;
let watchers = new Set();
const listeners = new Set();
let state = { failed: null, at: null };

export const isPaused = () => paused;
/** When something was last read, and the error if that failed. */
export const lastRead = () => state;

export function setPaused(value) {
  paused = value;
  for (const watcher of watchers) watcher.plan(0);
  tell();
}

/** Be told when pausing, reading or failing changes what the frame shows. */
export function onChange(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}
const tell = () => listeners.forEach((listener) => listener());

class Watcher {
  constructor(work, everyMs, signal) {
    Object.assign(this, { work, everyMs, signal, failures: 0, timer: null, running: false, first: true });
    signal.addEventListener("abort", () => { clearTimeout(this.timer); watchers.delete(this); });
  }

  plan(delayMs) {
    clearTimeout(this.timer);
    // The first look is taken even when paused: a page that was just opened shows something.
    if (this.signal.aborted || this.running || (!this.first && (paused || document.hidden))) return;
    this.timer = setTimeout(() => this.run(), delayMs);
  }

  async run() {
    this.running = true;
    const began = performance.now();
    try {
      await this.work();
      this.failures = 0;
      state = { failed: null, at: Date.now() };
    } catch (error) {
      if (this.signal.aborted) return;
      this.failures += 1;
      state = { failed: error, at: state.at };
    } finally {
      this.running = false;
      this.first = false;
    }
    tell();
    const slowMs = Math.min(PAUSE_SHARE * (performance.now() - began), LONGEST_SLOW_MS);
    const pauseMs = Math.max(this.everyMs, slowMs);
    this.plan(Math.min(pauseMs * 2 ** this.failures, Math.max(LONGEST_MS, this.everyMs)));
  }
}

/** Do `work` now and again every so often until the signal is aborted. Returns a function that
 * asks for it at once. */
export function watch(work, everyMs, signal) {
  const watcher = new Watcher(work, everyMs, signal);
  watchers.add(watcher);
  watcher.plan(0);
  return () => { watcher.first = true; watcher.plan(0); };
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) for (const watcher of watchers) watcher.plan(0);
});
