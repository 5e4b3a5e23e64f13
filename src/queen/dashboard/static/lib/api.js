// The admin API. Every page reads and acts through this; there is no other way to the broker.

import { ONLY_DOTS } from "./dom.js";
import { end, token } from "./session.js";

const TIMEOUT_MS = 30_000;

/** What the server refused, or that it could not be reached (`status` 0). */
export class ApiError extends Error {
  constructor(status, body, fallback) {
    super(body?.error ?? body?.message ?? fallback);
    this.name = "ApiError";
    this.status = status;
    this.code = body?.code ?? "";
  }
}

export async function send(method, path, { body, signal, raw = false, type } = {}) {
  // Whatever made the path: a request that the browser would turn into another one is not sent.
  if (new URL(path, location.origin).pathname !== path.split("?")[0]) throw new Error(ONLY_DOTS);
  const headers = {};
  const secret = token();
  if (secret) headers.Authorization = `Bearer ${secret}`;
  if (body !== undefined) headers["Content-Type"] = type ?? "application/json";
  const limits = [AbortSignal.timeout(TIMEOUT_MS), ...(signal ? [signal] : [])];
  let response;
  try {
    response = await fetch(path, {
      method, headers, credentials: "omit", cache: "no-store", signal: AbortSignal.any(limits),
      body: body === undefined ? undefined : type ? body : JSON.stringify(body),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    const slow = error.name === "TimeoutError";
    throw new ApiError(0, null, slow ? "The broker did not answer within 30 s." : "The broker cannot be reached.");
  }
  if (response.ok) {
    if (raw) return response.text();
    return response.status === 204 ? null : response.json();
  }
  const problem = await response.json().catch(() => null);
  if (response.status === 401 && secret) end("The server no longer takes this token.");
  throw new ApiError(response.status, problem, `${method} ${path}: ${response.status}`);
}

export const get = (path, options) => send("GET", path, options);
export const getText = (path, options) => send("GET", path, { ...options, raw: true });
export const post = (path, body = {}, options) => send("POST", path, { ...options, body });
export const put = (path, body = {}, options) => send("PUT", path, { ...options, body });
export const patch = (path, body = {}, options) => send("PATCH", path, { ...options, body });
export const remove = (path, body, options) => send("DELETE", path, { ...options, body });

/** Whether an error only says that a newer view has taken over. */
export const isAbort = (error) => error?.name === "AbortError";
