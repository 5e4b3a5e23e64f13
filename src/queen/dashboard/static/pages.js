// Every page: its address, its name, and the module that shows it.
//
// To add a page:
//
// 1. Add its address to `PAGES` in `queen/dashboard/files.py` and a line here. A page with a
//    `group` stands in the navigation; one without is reached by links. `words` are found by
//    search beside the title.
// 2. Write `pages/<name>.js` that exports `show(view)`. It is called when somebody comes to the
//    address and returns nothing; what it draws goes into `view.root`.
//
//      view.params          what stands in braces in the path, decoded
//      view.query           the filters in the address, as they were when the page was opened
//      view.setQuery({…})   change filters in the address without drawing the page again
//      view.root            the element to fill; empty
//      view.signal          aborted when somebody leaves; give it to every request
//      view.live(work, ms)  do `work` now and every so often; returns a function that does it at
//                           once. A failure is shown and `work` is tried again later.
//      view.title(text)     what stands in the tab
//      view.may(role)       "read-write" or "admin": draw no action that would be refused
//
//    Read with `lib/api.js`. Draw with `lib/dom.js` (text is always text) and the parts in `ui/`:
//    `parts.js` (page head, cards, badges, key/value lists, empty and error states), `table.js`,
//    `chart.js`, `tabs.js`, `dialog.js` (confirm with numbers before anything destructive),
//    `toast.js`, `payload.js`. Put what only this page needs into `style/pages.css`.
// 3. A page that shows things that have names tells search about them in `ui/search.js`.
// 4. Open it, act on it and look at it in `tests/browser`.

export const GROUPS = ["", "Log", "Streams", "Server"];

export const PAGES = [
  { path: "/", title: "Overview", group: "", words: "problems health rates latency home", load: () => import("./pages/overview.js") },
  { path: "/queues", title: "Queues", group: "Log", words: "depth create configure", load: () => import("./pages/queues.js") },
  { path: "/queues/{queue}", title: "Queue", under: "/queues", load: () => import("./pages/queue.js") },
  { path: "/messages", title: "Messages", group: "Log", words: "browse payload push find", load: () => import("./pages/messages.js") },
  { path: "/messages/{partition}/{message}", title: "Message", under: "/messages", load: () => import("./pages/message.js") },
  { path: "/groups", title: "Groups", group: "Log", words: "consumers lag seek pause", load: () => import("./pages/groups.js") },
  { path: "/groups/{group}", title: "Group", under: "/groups", load: () => import("./pages/group.js") },
  { path: "/dead-letters", title: "Dead letters", group: "Log", words: "dlq errors redrive failed", load: () => import("./pages/dead-letters.js") },
  { path: "/schedules", title: "Schedules", group: "Log", words: "timers delay later cron", load: () => import("./pages/schedules.js") },
  { path: "/streams", title: "Streams", group: "Streams", words: "windows tumbling sliding session", load: () => import("./pages/streams.js") },
  { path: "/streams/{stream}", title: "Stream", under: "/streams", load: () => import("./pages/stream.js") },
  { path: "/pipelines", title: "Pipelines", group: "Streams", words: "spark batch late", load: () => import("./pages/pipelines.js") },
  { path: "/pipelines/{pipeline}", title: "Pipeline", under: "/pipelines", load: () => import("./pages/pipeline.js") },
  { path: "/stream-broker", title: "Stream broker", group: "Streams", words: "redis entries pending claim xadd", load: () => import("./pages/stream-broker.js") },
  { path: "/stream-broker/{stream}", title: "Stream of entries", under: "/stream-broker", load: () => import("./pages/entries.js") },
  { path: "/map", title: "Map", group: "Streams", words: "flow graph lineage edges", load: () => import("./pages/map.js") },
  { path: "/spool", title: "Spool", group: "Server", words: "outage quarantine buffer qos", load: () => import("./pages/spool.js") },
  { path: "/system", title: "System", group: "Server", words: "servers workers postgresql settings tokens audit", load: () => import("./pages/system.js") },
];
