/** Routes of calls to a cluster: to one of the given nodes, or straight to the node that answers named as the owner. */
import type { DescMessage, DescMethodStreaming, DescMethodUnary, MessageInitShape } from "@bufbuild/protobuf";
import { Code, ConnectError, type ContextValues, type StreamResponse, type Transport, type UnaryResponse } from "@connectrpc/connect";

import { ErrorInfoSchema } from "../lib/google/rpc/error_details_pb.js";
import { EVERYTHING, Hints, keyOf, OWNER } from "./owners.js";

const MAX_OWNERS = 32;
const CONNECT_MS = 5000;
const NODE_MS = 2000; // for a connection to a node of several, before the next is tried
const IDLE_MS = 300_000;
const SWEEP_MS = 30_000;
/** What the transport says when a node is unavailable. */
const FAILED = new Set([Code.Unavailable, Code.DeadlineExceeded, Code.Aborted, Code.Internal, Code.Unknown, Code.DataLoss]);

/** A connection to one node; `node.ts` makes it. */
export interface Link {
  readonly transport: Transport;
  /** Whether a call can be sent at once. */
  isReady(): boolean;
  /** Connects, if it is not connected; resolves when it is known whether that went well. */
  connect(): Promise<boolean>;
  close(): void;
}

/** The use of a link. */
class Used {
  /** Calls under way to it as an owner. */
  calls = 0;
  used = performance.now();
  /** Since when it has been found not to be connected. */
  since: number | undefined;
  isLeft = false;

  constructor(
    readonly target: string,
    readonly link: Link,
  ) {}
}

/**
 * The transport of a client of one or more nodes. A node that can't be reached is left for the next of them. An owner is
 * called once it is connected, so one that can't be reached from here costs no call; when a call on it fails because the
 * node is unavailable, the next ones go to a given node, and that owner is not tried for half a minute.
 */
export class Routes implements Transport {
  readonly #nodes: readonly string[];
  readonly #open: (target: string) => Link;
  readonly #follows: boolean;
  readonly #links = new Map<string, Used>(); // to given nodes
  readonly #owners = new Map<string, Used>();
  readonly #left = new Set<Used>(); // calls still run on them
  readonly #hints = new Hints();
  #at = 0;
  #sweepAt = performance.now() + SWEEP_MS;
  #isClosed = false;

  /** `open` makes a link to host:port, which need not connect yet. Without `follows` all calls go to `nodes`. */
  constructor(nodes: readonly string[], open: (target: string) => Link, follows = true) {
    this.#nodes = nodes;
    this.#open = open;
    this.#follows = follows;
  }

  async unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    signal: AbortSignal | undefined,
    timeoutMs: number | undefined,
    header: HeadersInit | undefined,
    input: MessageInitShape<I>,
    contextValues?: ContextValues,
  ): Promise<UnaryResponse<I, O>> {
    const key = keyOf(method.input, input);
    const owner = this.#owner(key);
    const used = owner ?? (await this.#node(signal));
    try {
      const response = await used.link.transport.unary(method, signal, timeoutMs, header, input, contextValues);
      this.#answered(key, response.header, response.trailer);
      return response;
    } catch (thrown) {
      this.#failed(used, key, thrown, signal);
      throw thrown;
    } finally {
      if (owner) this.#end(owner);
    }
  }

  async stream<I extends DescMessage, O extends DescMessage>(
    method: DescMethodStreaming<I, O>,
    signal: AbortSignal | undefined,
    timeoutMs: number | undefined,
    header: HeadersInit | undefined,
    input: AsyncIterable<MessageInitShape<I>>,
    contextValues?: ContextValues,
  ): Promise<StreamResponse<I, O>> {
    let key = EVERYTHING;
    let sent = input;
    if (method.methodKind === "server_streaming") {
      const requests = input[Symbol.asyncIterator]();
      const { value, done } = await requests.next();
      if (!done) {
        key = keyOf(method.input, value);
        sent = only(value);
      }
    }
    const owner = this.#owner(key);
    const used = owner ?? (await this.#node(signal));
    try {
      const response = await used.link.transport.stream(method, signal, timeoutMs, header, sent, contextValues);
      return { ...response, message: this.#messages(response, used, owner, key, signal) };
    } catch (thrown) {
      this.#failed(used, key, thrown, signal);
      if (owner) this.#end(owner);
      throw thrown;
    }
  }

  /** Ends all connections. */
  close(): void {
    this.#isClosed = true;
    for (const { link } of [...this.#links.values(), ...this.#owners.values(), ...this.#left]) link.close();
    this.#owners.clear();
  }

  async *#messages<I extends DescMessage, O extends DescMessage>(
    response: StreamResponse<I, O>,
    used: Used,
    owner: Used | undefined,
    key: string,
    signal: AbortSignal | undefined,
  ): AsyncGenerator<StreamResponse<I, O>["message"] extends AsyncIterable<infer M> ? M : never> {
    let isFirst = true;
    try {
      for await (const message of response.message) {
        if (isFirst) this.#answered(key, response.header, new Headers());
        isFirst = false;
        yield message as never;
      }
      this.#answered(key, response.header, response.trailer);
    } catch (thrown) {
      this.#failed(used, key, thrown, signal);
      throw thrown;
    } finally {
      if (owner) this.#end(owner);
    }
  }

  /** A link to a given node: to the one in use, else to the next that can be reached. */
  async #node(signal: AbortSignal | undefined): Promise<Used> {
    const at = this.#at;
    const found = this.#link(at);
    if (this.#nodes.length === 1) return found;
    for (let i = 0; i < this.#nodes.length; i++) {
      const next = (at + i) % this.#nodes.length;
      const used = this.#link(next);
      if (!used.link.isReady() && !(await within(used.link.connect(), NODE_MS, signal))) continue;
      if (this.#at === at) this.#at = next;
      return used;
    }
    return found; // which says why not
  }

  #link(at: number): Used {
    const target = this.#nodes[at] as string;
    let found = this.#links.get(target);
    if (!found) this.#links.set(target, (found = new Used(target, this.#open(target))));
    return found;
  }

  /** The link to the owner of a key, with one call more on it, if it is connected. */
  #owner(key: string): Used | undefined {
    if (!this.#hints.size) return undefined;
    const now = performance.now();
    if (now > this.#sweepAt) this.#closeIdle(now, IDLE_MS);
    const target = this.#hints.find(key);
    const owner = target === undefined ? undefined : this.#owners.get(target);
    if (!owner || owner.target === this.#nodes[this.#at]) return undefined;
    if (!owner.link.isReady()) {
      void owner.link.connect();
      owner.since ??= now;
      if (now - owner.since > CONNECT_MS) this.#avoid(owner);
      return undefined;
    }
    owner.since = undefined;
    owner.used = now;
    owner.calls++;
    return owner;
  }

  #end(owner: Used): void {
    owner.calls--;
    if (owner.isLeft && !owner.calls) {
      this.#left.delete(owner);
      owner.link.close();
    }
  }

  #answered(key: string, initial: Headers, trailing: Headers): void {
    const ofAll = initial.get(OWNER);
    const ofKey = trailing.get(OWNER);
    if (ofAll) this.#learn(EVERYTHING, ofAll);
    else if (ofKey && key !== EVERYTHING) this.#learn(key, ofKey);
  }

  #failed(used: Used, key: string, thrown: unknown, signal: AbortSignal | undefined): void {
    if (signal?.aborted) return;
    const error = ConnectError.from(thrown);
    const named = error.metadata.get(OWNER); // initial and trailing metadata are one here
    const reason = error.findDetails(ErrorInfoSchema)[0]?.reason; // absent if no server of ours answered
    if (FAILED.has(error.code) && (reason === undefined || error.code === Code.Unavailable)) {
      const isOfNode = reason === undefined || reason === "SHUTTING_DOWN";
      if (isOfNode && this.#owners.get(used.target) === used) this.#avoid(used);
      if (used.target !== this.#nodes[this.#at]) this.#hints.forget(key, used.target);
      else this.#at = (this.#at + 1) % this.#nodes.length;
    }
    if (named && key !== EVERYTHING) this.#learn(key, named);
  }

  /** Remembers an owner, and connects to it in the background. */
  #learn(key: string, target: string): void {
    if (!this.#follows || this.#isClosed || this.#hints.avoids(target)) return;
    if (!this.#owners.has(target)) {
      const given = this.#nodes.indexOf(target);
      const owner = given >= 0 ? this.#link(given) : this.#opened(target);
      if (!owner) return;
      this.#owners.set(target, owner);
      owner.since = performance.now();
      void owner.link.connect();
    }
    this.#hints.learn(key, target);
  }

  /** A link to a node that was named; undefined if there can't be one. */
  #opened(target: string): Used | undefined {
    if (!/^[^\s/?#@,]+:\d{1,5}$/.test(target)) return undefined;
    if (this.#owners.size >= MAX_OWNERS) this.#closeIdle(performance.now(), 0);
    if (this.#owners.size >= MAX_OWNERS) return undefined;
    try {
      return new Used(target, this.#open(target));
    } catch {
      return undefined; // it is no address
    }
  }

  #avoid(owner: Used): void {
    this.#hints.avoid(owner.target);
    this.#leave(owner);
  }

  /** Closes the link to an owner when its calls have ended. */
  #leave(owner: Used): void {
    this.#owners.delete(owner.target);
    if (this.#links.get(owner.target) === owner) return;
    owner.isLeft = true;
    if (owner.calls) this.#left.add(owner);
    else owner.link.close();
  }

  #closeIdle(now: number, idleMs: number): void {
    this.#sweepAt = now + SWEEP_MS;
    for (const owner of [...this.#owners.values()]) {
      if (!owner.calls && now - owner.used >= idleMs) this.#leave(owner);
    }
  }
}

async function* only<T>(value: T): AsyncGenerator<T> {
  yield value;
}

/** Whether something comes true within a time, and before `signal` is aborted. */
async function within(coming: Promise<boolean>, ms: number, signal: AbortSignal | undefined): Promise<boolean> {
  if (signal?.aborted) return false;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let abort = () => {};
  const over = new Promise<boolean>((resolve) => {
    timer = setTimeout(resolve, ms, false);
    abort = () => resolve(false);
    signal?.addEventListener("abort", abort, { once: true });
  });
  try {
    return await Promise.race([coming, over]);
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", abort);
  }
}
