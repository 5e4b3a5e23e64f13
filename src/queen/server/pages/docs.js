// The page to try the API. It shows what the served document says and sends requests to this
// server only. Whatever comes from the document or from an answer becomes text, never markup.

const METHODS = ["get", "head", "post", "put", "patch", "delete"];
const PREFIX = /^\/api\/v1(?=\/)/;
const MAX_SHOWN = 200_000;
const MAX_DEPTH = 6;

let spec = null;
let operations = [];
let sending = null;

const byId = (id) => document.getElementById(id);

/** Make an element; strings among its children become text. */
function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "value") made.value = value;
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children.flat(Infinity).filter((one) => one != null && one !== false));
  return made;
}

// ---- reading the document ----

function resolve(node) {
  if (!node || !node.$ref) return node;
  const target = node.$ref.slice(2).split("/").reduce((at, part) => at[part], spec);
  const { $ref, ...more } = node;
  return { ...resolve(target), ...more };
}

function listOperations() {
  return Object.entries(spec.paths).flatMap(([path, methods]) =>
    METHODS.filter((method) => methods[method]).map((method) => ({
      method, path, ...methods[method],
      key: `${method} ${path} ${methods[method].summary} ${methods[method].tags}`.toLowerCase(),
    })));
}

function typeName(schema) {
  const one = resolve(schema) ?? {};
  if (one.enum) return one.enum.map((value) => JSON.stringify(value)).join(" | ");
  if ("const" in one) return JSON.stringify(one.const);
  const choices = one.anyOf ?? one.oneOf;
  if (choices) return [...new Set(choices.map(typeName))].join(" | ");
  if (one.type === "array") return `${typeName(one.items ?? {})}[]`;
  if (one.type === "object" && one.title) return one.title;
  const type = Array.isArray(one.type) ? one.type.join(" | ") : one.type;
  return (one.format ? `${type} (${one.format})` : type) ?? "any";
}

function limits(schema) {
  const one = resolve(schema);
  const found = [];
  if (one.minimum != null && one.maximum != null) found.push(`${one.minimum} to ${one.maximum}`);
  else if (one.minimum != null) found.push(`at least ${one.minimum}`);
  else if (one.maximum != null) found.push(`at most ${one.maximum}`);
  if (one.maxItems != null) found.push(`at most ${one.maxItems} items`);
  if (one.default !== undefined && one.default !== null) found.push(`default ${JSON.stringify(one.default)}`);
  return found.join(", ");
}

/** The object schemas inside a schema, through arrays and choices. */
function shapes(schema) {
  const one = resolve(schema) ?? {};
  if (one.properties) return [one];
  if (one.items) return shapes(one.items);
  return (one.anyOf ?? one.oneOf ?? []).flatMap(shapes);
}

// ---- texts: paragraphs, `code` and **bold** are all that descriptions use ----

function inline(text) {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*)/).map((part) => {
    if (part.startsWith("`") && part.length > 2) return make("code", {}, part.slice(1, -1));
    if (part.startsWith("**") && part.length > 4) return make("strong", {}, part.slice(2, -2));
    return part;
  });
}

const paragraphs = (text) =>
  (text ?? "").split(/\n\n+/).filter(Boolean).map((one) => make("p", {}, inline(one)));

// ---- the list of operations ----

function showList() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = operations.filter((one) => words.every((word) => one.key.includes(word)));
  const current = location.hash.slice(1);
  byId("operations").replaceChildren(...spec.tags.map(({ name }) => {
    const inside = found.filter((one) => one.tags.includes(name));
    if (!inside.length) return "";
    return make("section", {}, make("h2", {}, name), make("ul", {}, inside.map((one) =>
      make("li", {}, make("a", {
        href: `#${one.operationId}`,
        "aria-current": one.operationId === current ? "page" : null,
      }, method(one.method), make("span", {}, one.summary, make("span", { class: "path" }, one.path.replace(PREFIX, ""))))))));
  }));
  byId("none").hidden = found.length > 0;
}

const method = (name) => make("span", { class: `method ${name}` }, name.toUpperCase());

// ---- one operation ----

function showPage() {
  sending?.abort();
  const main = byId("main");
  const operation = operations.find((one) => one.operationId === location.hash.slice(1));
  document.title = operation ? `${operation.summary} · Queen API` : "Queen API";
  main.replaceChildren(...(operation ? operationPage(operation) : overviewPage()));
  main.scrollTop = 0;
  showList();
  document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest" });
}

function overviewPage() {
  return [
    make("h1", {}, `${spec.info.title} API`),
    ...paragraphs(spec.info.description),
    ...spec.tags.flatMap(({ name }) => [
      make("h2", {}, name),
      make("ul", { class: "overview" }, operations.filter((one) => one.tags.includes(name)).map((one) =>
        make("li", {}, make("a", { href: `#${one.operationId}` }, method(one.method),
          make("span", { class: "route" }, one.path), make("span", {}, one.summary))))),
    ]),
  ];
}

function operationPage(operation) {
  const form = make("form", { novalidate: true });
  const inputs = (operation.parameters ?? []).map((param) => paramRow(resolve(param)));
  const body = bodyField(operation);
  const output = make("section", { "aria-live": "polite" });
  const send = make("button", { class: "main", type: "submit" }, "Send");
  const cancel = make("button", { type: "button", hidden: true, onclick: () => sending?.abort() }, "Cancel");
  const copy = make("button", { type: "button" }, "Copy as curl");
  const current = () => requestOf(operation, inputs, body);
  const guarded = (work) => async (event) => {
    event.preventDefault();
    try { await work(current()); }
    catch (error) { output.replaceChildren(make("p", { class: "problem" }, error.message)); }
  };
  form.addEventListener("submit", guarded((request) => run(request, output, send, cancel)));
  copy.addEventListener("click", guarded(async (request) => {
    // A page that is neither HTTPS nor local may not write to the clipboard.
    if (!navigator.clipboard) {
      output.replaceChildren(make("h2", {}, "As curl"), make("pre", { tabindex: "0" }, curlOf(request)));
      return;
    }
    await navigator.clipboard.writeText(curlOf(request));
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy as curl"; }, 1500);
  }));
  form.append(
    ...(inputs.length ? [make("h2", {}, "Parameters"), ...inputs.map((one) => one.row)] : []),
    ...(body ? body.parts : []),
    make("div", { class: "actions" }, send, cancel, copy,
      make("span", { class: "hint" }, "Ctrl+Enter sends")));
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  return [
    make("h1", {}, operation.summary),
    make("p", { class: "route" }, method(operation.method), operation.path,
      make("span", { class: "badge" }, `role: ${operation["x-role"]}`)),
    ...paragraphs(operation.description.replace(/\n*Role: `\w+`\.$/, "")),
    form, output,
    ...(body ? bodySchema(operation) : []),
    make("h2", {}, "Answers"),
    ...Object.entries(operation.responses).map(([status, one]) => answerDetails(status, resolve(one))),
  ];
}

function paramRow(param) {
  const id = `param-${param.in}-${param.name}`;
  const schema = resolve(param.schema);
  const choices = schema.enum ?? (schema.type === "boolean" ? [true, false] : null);
  const input = choices
    ? make("select", { id }, make("option", { value: "" }, schema.default != null ? `(${schema.default})` : ""),
      choices.map((one) => make("option", { value: String(one) }, String(one))))
    : make("input", {
      id, value: param.example ?? "", spellcheck: "false", autocomplete: "off",
      placeholder: schema.default != null ? String(schema.default) : "",
      inputmode: schema.type === "integer" ? "numeric" : null,
      required: param.required,
    });
  const row = make("div", { class: "param" },
    make("label", { for: id }, param.name, param.required && make("span", { class: "needed" }, " *"),
      make("small", {}, `${param.in}, ${choices ? schema.type ?? "choice" : typeName(schema)}`)),
    input, make("p", {}, inline(param.description ?? ""), limits(schema) ? ` (${limits(schema)})` : ""));
  return { param, input, row };
}

function bodyField(operation) {
  const content = operation.requestBody?.content;
  if (!content) return null;
  const json = content["application/json"];
  const others = Object.keys(content).filter((one) => one !== "application/json");
  const text = make("textarea", {
    id: "body", spellcheck: "false", value: json?.example ? JSON.stringify(json.example, null, 2) : "",
  });
  const note = others.length ? make("p", { class: "hint" }, `Also taken, but not from this page: ${others.join(", ")}`) : "";
  return { text, parts: [make("h2", {}, make("label", { for: "body" }, "Body"),
    operation.requestBody.required ? "" : make("span", { class: "hint" }, " may be left empty")), text, note] };
}

function bodySchema(operation) {
  const schema = operation.requestBody.content["application/json"]?.schema;
  return schema ? [make("h2", {}, "Body, field by field"), ...fieldLists(schema, 0)] : [];
}

function answerDetails(status, response) {
  const content = Object.entries(response.content ?? {});
  const headers = Object.entries(response.headers ?? {});
  return make("details", {},
    make("summary", {}, make("span", { class: "code" }, status), inline(response.description)),
    headers.map(([name, one]) => make("p", { class: "hint" }, "Header ", make("code", {}, name), `: ${one.description}`)),
    content.map(([type, one]) => [
      make("p", { class: "hint" }, type, " · ", make("code", {}, typeName(one.schema)),
        one.schema.description ? ` ${one.schema.description}` : ""),
      ...fieldLists(one.schema, 0),
    ]),
    content.length ? "" : make("p", { class: "hint" }, "No body."));
}

function fieldLists(schema, depth) {
  if (depth > MAX_DEPTH) return [];
  return shapes(schema).map((shape) => make("div", {},
    depth === 0 && shape.description ? make("p", { class: "hint" }, inline(shape.description)) : "",
    make("ul", { class: "fields" }, Object.entries(shape.properties).map(([name, one]) =>
      field(name, one, shape.required?.includes(name), depth)))));
}

function field(name, schema, required, depth) {
  const one = resolve(schema);
  const line = [
    make("span", { class: "name" }, name, required && make("span", { class: "needed", title: "always there" }, " *")),
    make("span", { class: "type" }, typeName(schema)),
    make("span", { class: "about" }, inline(describe(one)), limits(one) ? ` (${limits(one)})` : ""),
  ];
  if (!shapes(schema).length || depth >= MAX_DEPTH) return make("li", {}, line);
  // What is inside is made when it is opened: schemas may contain themselves.
  const inside = make("details", {}, make("summary", {}, line));
  inside.addEventListener("toggle", () => inside.append(...fieldLists(schema, depth + 1)), { once: true });
  return make("li", {}, inside);
}

const describe = (schema) => schema.description
  ?? (schema.anyOf ?? []).map((one) => resolve(one).description).find(Boolean) ?? "";

// ---- sending ----

function requestOf(operation, inputs, body) {
  let path = operation.path;
  const query = [];
  for (const { param, input } of inputs) {
    if (param.in === "path") {
      if (!input.value) { input.focus(); throw new Error(`Fill in ${param.name}.`); }
      path = path.replace(`{${param.name}}`, encodeURIComponent(input.value));
    } else if (input.value !== "") {
      query.push(`${encodeURIComponent(param.name)}=${encodeURIComponent(input.value)}`);
    }
  }
  const request = {
    method: operation.method.toUpperCase(),
    url: path + (query.length ? `?${query.join("&")}` : ""),
    headers: {},
  };
  if (body && body.text.value.trim()) {
    request.body = body.text.value;
    request.headers["Content-Type"] = "application/json";
  }
  return request;
}

async function run(request, output, send, cancel) {
  const headers = { ...request.headers };
  const token = byId("token").value.trim();
  if (token) headers.Authorization = `Bearer ${token}`;
  const controller = new AbortController();
  sending = controller;
  send.disabled = true;
  cancel.hidden = false;
  output.replaceChildren(make("p", { class: "hint" }, "Waiting for the answer…"));
  const started = performance.now();
  try {
    const response = await fetch(request.url, {
      ...request, headers, signal: controller.signal, credentials: "omit", cache: "no-store",
    });
    const data = await response.arrayBuffer();
    showAnswer(output, response, data, performance.now() - started);
    output.scrollIntoView({ block: "nearest" });
  } catch (error) {
    const reason = error.name === "AbortError" ? "Cancelled." : `No answer: ${error.message}`;
    output.replaceChildren(make("p", { class: "problem" }, reason));
  } finally {
    send.disabled = false;
    cancel.hidden = true;
    if (sending === controller) sending = null;
  }
}

function showAnswer(output, response, data, elapsedMs) {
  const headers = [...response.headers].map(([name, value]) => `${name}: ${value}`).join("\n");
  output.replaceChildren(make("h2", {}, "Answer"), make("div", { class: "answer" },
    make("div", { class: "status" },
      make("span", { class: response.ok ? "good" : "bad" }, `${response.status} ${response.statusText}`),
      make("span", { class: "hint" }, `${elapsedMs.toFixed(1)} ms`),
      make("span", { class: "hint" }, `${data.byteLength.toLocaleString("en")} bytes`)),
    make("details", {}, make("summary", {}, "Headers"), make("pre", {}, headers)),
    data.byteLength ? make("pre", { tabindex: "0" }, pretty(response, data)) : make("p", { class: "hint" }, "No body.")));
}

function pretty(response, data) {
  const type = response.headers.get("content-type") ?? "";
  if (!/^(text\/|application\/json)/.test(type)) return `${type}, ${data.byteLength} bytes`;
  const text = new TextDecoder().decode(data);
  let shown = text;
  // Numbers beyond 2^53 would change on their way through JSON.parse; such answers stay as they came.
  if (type.startsWith("application/json") && !/\d{16}/.test(text)) {
    try { shown = JSON.stringify(JSON.parse(text), null, 2); } catch { /* shown as it came */ }
  }
  return shown.length > MAX_SHOWN ? `${shown.slice(0, MAX_SHOWN)}\n… cut` : shown;
}

function curlOf(request) {
  const quote = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
  const parts = ["curl -i", request.method === "HEAD" ? "-I" : `-X ${request.method}`, quote(location.origin + request.url)];
  for (const [name, value] of Object.entries(request.headers)) parts.push(`-H ${quote(`${name}: ${value}`)}`);
  // The token itself stays out of the clipboard.
  if (byId("token").value.trim()) parts.push('-H "Authorization: Bearer $QUEEN_TOKEN"');
  if (request.body) parts.push(`--data-binary ${quote(request.body)}`);
  return parts.join(" \\\n  ");
}

// ---- start ----

async function start() {
  const response = await fetch("/api/v1/openapi.json", { credentials: "omit" });
  spec = await response.json();
  operations = listOperations();
  byId("version").textContent = spec.info.version;
  byId("search").addEventListener("input", showList);
  // The part after # names the operation; a jump inside the page must not change it.
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("main").focus();
  });
  addEventListener("hashchange", showPage);
  addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select");
    if (event.key === "/" && !typing) {
      event.preventDefault();
      byId("search").focus();
    } else if (event.key === "Escape" && event.target === byId("search")) {
      byId("search").value = "";
      showList();
    }
  });
  showPage();
}

start().catch((error) => {
  byId("main").replaceChildren(make("p", { class: "problem" }, `The document cannot be loaded: ${error.message}`));
});
