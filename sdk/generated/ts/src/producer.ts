/** Writes: batched, each stored once however often it has to be sent. */
import { fromConnect, TopicsError } from "./errors.js";
import type { Json } from "./records.js";
import { Patience, type Retry } from "./retry.js";
import { type Appended, type Batch, type NewRecord, place, type Wire } from "./wire.js";

const ATTEMPT_MS = 30_000;
const LEAST_ATTEMPT_MS = 1000;
/** What a server says only of a write whose key it does not know: had it been stored, it would have said so. */
const PROVES_ABSENCE = new Set(["invalid_request", "topic_full"]);

/** The answer to a write, retried while that can't store it twice. */
export async function appendOnce(wire: Wire, batch: Batch, retry?: Retry, signal?: AbortSignal): Promise<Appended> {
  const patience = new Patience(retry);
  let lost: TopicsError | undefined; // error of the first attempt with an unknown outcome
  let lostAt = 0;
  for (;;) {
    const began = Date.now(); // the server's time continues while this machine sleeps
    try {
      const timeoutMs = lost ? leftMs(lostAt, await wire.keyWindowMs(batch.topic, signal), lost) : ATTEMPT_MS;
      return await wire.append(batch, Math.min(timeoutMs, ATTEMPT_MS), signal);
    } catch (thrown) {
      const error = fromConnect(thrown, signal);
      if (lost && !error.isTransient && error.reason !== "outcome_unknown" && !PROVES_ABSENCE.has(error.reason)) {
        throw unknown(error);
      }
      if (!lost && error.isTransient && error.mayBeDone) {
        lost = error;
        lostAt = began;
      }
      await patience.wait(error, signal).catch((last: unknown) => {
        throw lost && last === error && error.isTransient ? unknown(lost) : last;
      });
    }
  }
}

/** Remaining time to retry a write that was lost at `lostAt`. Throws once its topic may have forgotten the key. */
function leftMs(lostAt: number, windowMs: number, lost: TopicsError): number {
  const left = lostAt + windowMs - Date.now();
  if (left < LEAST_ATTEMPT_MS) throw unknown(lost);
  return left;
}

function unknown(cause: TopicsError): TopicsError {
  return new TopicsError("outcome_unknown", "the answer to a write was lost: look whether it is stored before you write it again", { cause });
}

/** An idempotency key that no other write has; randomUUID is not there in pages without TLS. */
export function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** How a producer works. */
export interface ProducerOptions {
  /** Records in one batch, at most 10,000. Default 1000. */
  batchRecords?: number;
  /** Bytes in one batch, as estimated. Default 1 MiB. */
  batchBytes?: number;
  /** Records that wait or are on their way, for all topics; `send` waits for room beyond them. Default 10,000. */
  maxPending?: number;
}

/** What a record is sent with. */
export interface SendOptions {
  tag?: string;
  node?: string;
  meta?: { [name: string]: Json };
  partition?: number;
}

/** A record on its way. */
export interface Delivery {
  /** Where it was stored; rejects with TopicsError. Whoever does not look learns of a failure by `flush` and `close`. */
  readonly stored: Promise<{ topic: string; partition: number; seq: number }>;
}

interface Pending {
  record: NewRecord;
  bytes: number;
  resolve: (seq: number) => void;
  reject: (error: TopicsError) => void;
}

interface Lane {
  topic: string;
  partition: number;
  waiting: Pending[];
  isSending: boolean;
}

/**
 * Sends records in batches, those of a partition in order: one batch is in flight, and records sent meanwhile form the
 * next. After a failure the next batches are still sent.
 */
export class Producer {
  readonly #wire: Wire;
  readonly #retry: Retry | undefined;
  readonly #options: Required<ProducerOptions>;
  readonly #lanes = new Map<string, Lane>();
  readonly #rooms: (() => void)[] = [];
  #pending = 0;
  #failure: TopicsError | undefined;
  #isClosed = false;

  constructor(wire: Wire, options: ProducerOptions, retry: Retry | undefined) {
    this.#wire = wire;
    this.#retry = retry;
    this.#options = { batchRecords: 1000, batchBytes: 1 << 20, maxPending: 10_000, ...options };
  }

  /** Hands over a record, once there is room for it; waits for that, not for the answer. */
  async send(topic: string, value: Json | Uint8Array, options: SendOptions = {}): Promise<Delivery> {
    const { partition = 0, tag, node, meta } = options;
    while (this.#pending >= this.#options.maxPending) await new Promise<void>((resolve) => this.#rooms.push(resolve));
    if (this.#isClosed) throw new TopicsError("canceled", "the producer is closed");
    const bytes = (value instanceof Uint8Array ? value.length : JSON.stringify(value).length) + 64;
    const lane = this.#lane(topic, partition);
    const stored = new Promise<number>((resolve, reject) => {
      lane.waiting.push({ record: { value, tag, node, meta }, bytes, resolve, reject });
    }).then((seq) => ({ topic, partition, seq }));
    stored.catch(() => {}); // reported by flush as well
    this.#pending++;
    if (!lane.isSending) {
      lane.isSending = true;
      queueMicrotask(() => void this.#run(lane)); // records of the same turn share the batch
    }
    return { stored };
  }

  /** Waits until all that was sent is answered. Throws the first failure since the last time. */
  async flush(): Promise<void> {
    while (this.#pending) await new Promise<void>((resolve) => this.#rooms.push(resolve));
    const failure = this.#failure;
    this.#failure = undefined;
    if (failure) throw failure;
  }

  /** Takes nothing more, and flushes. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await this.flush();
  }

  #lane(topic: string, partition: number): Lane {
    const key = place(topic, partition);
    let lane = this.#lanes.get(key);
    if (!lane) this.#lanes.set(key, (lane = { topic, partition, waiting: [], isSending: false }));
    return lane;
  }

  async #run(lane: Lane): Promise<void> {
    while (lane.waiting.length) {
      const batch = this.#taken(lane.waiting);
      const { topic, partition } = lane;
      const records = batch.map((pending) => pending.record);
      try {
        const call = { topic, partition, records, idempotencyKey: newKey() };
        const { firstSeq } = await appendOnce(this.#wire, call, this.#retry);
        batch.forEach((pending, i) => pending.resolve(firstSeq + i));
      } catch (thrown) {
        const error = fromConnect(thrown);
        this.#failure ??= error;
        for (const pending of batch) pending.reject(error);
      }
      this.#pending -= batch.length;
      for (const resolve of this.#rooms.splice(0)) resolve();
    }
    lane.isSending = false;
    this.#lanes.delete(place(lane.topic, lane.partition));
  }

  /** The next batch, taken from the waiting records. */
  #taken(waiting: Pending[]): Pending[] {
    let bytes = 0;
    let count = 0;
    for (const pending of waiting) {
      bytes += pending.bytes;
      if (count && (count >= this.#options.batchRecords || bytes > this.#options.batchBytes)) break;
      count++;
    }
    return waiting.splice(0, count);
  }
}
