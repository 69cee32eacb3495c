/** The client: reads, writes and workers, over gRPC or HTTP. */
import { GrpcWire } from "./grpc.js";
import { appendOnce, newKey, Producer, type ProducerOptions } from "./producer.js";
import { Reading, type ReadOptions, type Topics, Watching, type WatchOptions } from "./reading.js";
import type { Json } from "./records.js";
import type { Retry } from "./retry.js";
import type { Appended, NewRecord, Wire } from "./wire.js";
import { type Handler, Worker, type WorkerOptions, type WorkerStatistics } from "./worker.js";

/** Options of an append. */
export interface AppendOptions {
  partition?: number;
  /** A key of one's own; one is made otherwise, so that a write whose answer was lost is not stored twice. */
  idempotencyKey?: string;
  /** Queue only: time that the jobs stay hidden, in milliseconds. */
  delayMs?: number;
  /** Queue only: how urgent they are, 0 to 9. */
  priority?: number;
  signal?: AbortSignal;
}

/** A client of one server, over the protocol of `wire`. Every failure is a TopicsError. */
export class TopicsClient<W extends Wire = Wire> {
  /** The protocol: single calls without retries. */
  readonly wire: W;
  readonly #retry: Retry | undefined;

  /** Created by `connect`. `retry` limits how long calls wait for an absent server. */
  constructor(wire: W, retry?: Retry) {
    this.wire = wire;
    this.#retry = retry;
  }

  /** Appends one record: a JSON value, or bytes, which make a binary record (not over HTTP). */
  append(topic: string, value: Json | Uint8Array, options: AppendOptions & Omit<NewRecord, "value"> = {}): Promise<Appended> {
    const { tag, node, meta, ...others } = options;
    return this.appendMany(topic, [{ value, tag, node, meta }], others);
  }

  /** Appends up to 10,000 records, all or none. Answers once they are durable for the class of the topic. */
  appendMany(topic: string, records: readonly NewRecord[], options: AppendOptions = {}): Promise<Appended> {
    const { partition = 0, idempotencyKey = newKey(), delayMs, priority, signal } = options;
    return appendOnce(this.wire, { topic, partition, records, idempotencyKey, delayMs, priority }, this.#retry, signal);
  }

  /** A producer, which batches single records. Close it. */
  producer(options: ProducerOptions = {}): Producer {
    return new Producer(this.wire, options, this.#retry);
  }

  /** Reads a topic from a cursor to the current head, or without end. */
  read(topic: string, options: ReadOptions = {}): Reading {
    return new Reading(this.wire, topic, options, this.#retry);
  }

  /** Follows many topics at once, without end. */
  watch(topics: Topics, options: WatchOptions = {}): Watching {
    return new Watching(this.wire, topics, options, this.#retry);
  }

  /** Ends the connection. */
  close(): void {
    this.wire.close();
  }
}

/** A client over gRPC, which can also work. `wire` has the generated clients, for all that there is no method for. */
export class GrpcTopicsClient extends TopicsClient<GrpcWire> {
  /** Does the jobs of a queue, until `signal` is aborted. */
  work(queue: string, handler: Handler, options: WorkerOptions = {}): Promise<WorkerStatistics> {
    return new Worker(this.wire, queue, handler, options).run();
  }
}
