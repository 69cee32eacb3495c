/** The client for browsers, and for anything else that has only `fetch`: over HTTP. */
import { TopicsClient } from "./client.js";
import { HttpWire } from "./http.js";
import type { Retry } from "./retry.js";

/** Options of a connection over HTTP. */
export interface HttpOptions {
  /** API key. A page should not have one that may do more than its reader may. */
  key?: string;
  retry?: Retry;
}

/** A client of the server at `base`, such as "http://127.0.0.1:4000"; by default the origin of the page. */
export function connect(base = "", options: HttpOptions = {}): TopicsClient {
  return new TopicsClient(new HttpWire(base, options.key), options.retry);
}

export { TopicsClient, type AppendOptions } from "./client.js";
export * from "./shared.js";
