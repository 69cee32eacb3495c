/** The client for Node: gRPC over HTTP/2. */
import type { SecureClientSessionOptions } from "node:http2";
import * as net from "node:net";
import type { Duplex } from "node:stream";
import * as tls from "node:tls";

import type { Interceptor } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";

import { GrpcTopicsClient } from "./client.js";
import { TopicsError } from "./errors.js";
import { GrpcWire } from "./grpc.js";
import type { Retry } from "./retry.js";
import { type Link, Routes } from "./routes.js";

/** Options of a connection over gRPC. */
export interface GrpcOptions {
  /** API key. */
  key?: string;
  /** How long calls wait for a server that is away. */
  retry?: Retry;
  /** Certificates, for an address that begins with `https://`. */
  tls?: SecureClientSessionOptions;
  /**
   * Whether calls go straight to the node of a cluster that an answer has named as the owner. Default true; otherwise all
   * go to the nodes of the address, which forward them.
   */
  followOwners?: boolean;
}

const MAX_NODES = 32;

/**
 * A client of the server at `address`: `host:port`, or a URL with `https://` for TLS. Of a cluster it can name up to 32
 * nodes, as a list or with commas, and uses the first that it reaches. Close it: it keeps the process alive.
 */
export function connect(address: string | readonly string[] = "127.0.0.1:4001", options: GrpcOptions = {}): GrpcTopicsClient {
  const { scheme, nodes } = parsed(address);
  const keyed: Interceptor = (next) => (request) => {
    if (options.key) request.header.set("authorization", `Bearer ${options.key}`);
    return next(request);
  };
  const routes = new Routes(nodes, (target) => opened(scheme, target, nodes, keyed, options), options.followOwners ?? true);
  return new GrpcTopicsClient(new GrpcWire(routes, () => routes.close()), options.retry);
}

function parsed(address: string | readonly string[]): { scheme: string; nodes: string[] } {
  const urls = (typeof address === "string" ? [address] : address).flatMap((each) => {
    const [, scheme, rest] = /^(?:([a-z]+):\/\/)?(.*)$/s.exec(each.trim()) as unknown as [string, string | undefined, string];
    return rest.split(",").map((node) => urlOf(`${scheme ?? "http"}://${node.trim()}`));
  });
  const scheme = urls[0]?.protocol;
  if (scheme === undefined || urls.some((url) => url.protocol !== scheme)) {
    throw new TopicsError("invalid_request", "the nodes of an address have the same scheme, http or https");
  }
  const port = scheme === "https:" ? 443 : 80; // of a URL without one
  const nodes = [...new Set(urls.map((url) => `${url.hostname}:${url.port || port}`))];
  if (nodes.length > MAX_NODES) throw new TopicsError("invalid_request", `an address has at most ${MAX_NODES} nodes`);
  return { scheme, nodes };
}

function urlOf(text: string): URL {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (!url || !["http:", "https:"].includes(url.protocol) || `${url.pathname}${url.search}${url.hash}${url.username}` !== "/") {
    throw new TopicsError("invalid_request", "an address is HOST:PORT, or https://HOST:PORT");
  }
  return url;
}

/** A connection to a node. One to an owner finds out sooner that its machine is gone: others would forward the call. */
function opened(scheme: string, target: string, nodes: readonly string[], keyed: Interceptor, options: GrpcOptions): Link {
  const baseUrl = `${scheme}//${target}`;
  const pings = nodes.includes(target)
    ? { pingIntervalMs: 30_000, pingTimeoutMs: 10_000 }
    : { pingIntervalMs: 11_000, pingTimeoutMs: 5000 };
  let socket: Duplex | undefined;
  const createConnection = (authority: URL, given: object) => (socket = connected(authority, given));
  const sessionManager = new Http2SessionManager(baseUrl, pings, { createConnection, ...options.tls });
  return {
    transport: createGrpcTransport({ baseUrl, sessionManager, interceptors: [keyed] }),
    isReady: () => ["open", "idle"].includes(sessionManager.state()),
    connect: async () => (await sessionManager.connect()) !== "error",
    close: () => {
      sessionManager.abort();
      socket?.destroy(); // one that still connects would keep the process alive
    },
  };
}

/** A socket, as Node makes it for HTTP/2. */
function connected(authority: URL, given: object): Duplex {
  const host = authority.hostname.replace(/^\[|\]$/g, "");
  const port = Number(authority.port || (authority.protocol === "https:" ? 443 : 80));
  if (authority.protocol !== "https:") return net.connect({ ...given, host, port });
  return tls.connect({ ALPNProtocols: ["h2"], servername: net.isIP(host) ? "" : host, ...given, host, port });
}

export { GrpcTopicsClient, TopicsClient, type AppendOptions } from "./client.js";
export { GrpcWire } from "./grpc.js";
export { Release, RetryLater, type Handler, type Job, type WorkerOptions, type WorkerStatistics } from "./worker.js";
export * from "./shared.js";
