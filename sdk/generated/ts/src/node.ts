/** The client for Node: gRPC over HTTP/2. */
import type { SecureClientSessionOptions } from "node:http2";

import type { Interceptor } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";

import { GrpcTopicsClient } from "./client.js";
import { GrpcWire } from "./grpc.js";
import type { Retry } from "./retry.js";

/** Options of a connection over gRPC. */
export interface GrpcOptions {
  /** API key. */
  key?: string;
  /** How long calls wait for a server that is away. */
  retry?: Retry;
  /** Certificates, for an address that begins with `https://`. */
  tls?: SecureClientSessionOptions;
}

/** A client of the server at `address`: `host:port`, or a URL with `https://` for TLS. Close it: it keeps the process alive. */
export function connect(address = "127.0.0.1:4001", options: GrpcOptions = {}): GrpcTopicsClient {
  const baseUrl = address.includes("://") ? address : `http://${address}`;
  const pings = { pingIntervalMs: 30_000, pingTimeoutMs: 10_000 };
  const sessionManager = new Http2SessionManager(baseUrl, pings, options.tls);
  const keyed: Interceptor = (next) => (request) => {
    if (options.key) request.header.set("authorization", `Bearer ${options.key}`);
    return next(request);
  };
  const transport = createGrpcTransport({ baseUrl, sessionManager, interceptors: [keyed] });
  return new GrpcTopicsClient(new GrpcWire(transport, () => sessionManager.abort()), options.retry);
}

export { GrpcTopicsClient, TopicsClient, type AppendOptions } from "./client.js";
export { GrpcWire } from "./grpc.js";
export { Release, RetryLater, type Handler, type Job, type WorkerOptions, type WorkerStatistics } from "./worker.js";
export * from "./shared.js";
