/** Workers of a queue: jobs pushed under leases, which are extended for as long as their handlers run. */
import { type Job as WireJob } from "../lib/topics/v1/job_pb.js";
import { NackMode } from "../lib/topics/v1/queue_service_pb.js";
import { RecordKind } from "../lib/topics/v1/record_pb.js";
import { fromConnect, TopicsError } from "./errors.js";
import type { GrpcWire } from "./grpc.js";
import { TopicRecord } from "./records.js";
import { Patience, sleep } from "./retry.js";
import { SILENCE_MS, unlessSilent } from "./wire.js";

const utf8 = new TextDecoder();
const CALL_JOBS = 1000; // the server's limit of a call
const CALL_MS = 30_000;
const FLUSH_MS = 5000; // time for the last acks, and jobs in transit, at the end
const FOREVER = { totalMs: Infinity, firstMs: 50, longestMs: 2000 };

/** A job of a queue, leased to this worker. It may come more than once: the work must bear that. */
export interface Job {
  readonly record: TopicRecord;
  readonly seq: number;
  /** How often it has been delivered, this time included; from 1. */
  readonly deliveries: number;
  /** Identity of this delivery. */
  readonly leaseId: string;
}

/** Does a job. To return is to finish it; to throw is to have it tried again. `signal` says to stop: the lease is lost. */
export type Handler = (job: Job, signal: AbortSignal) => Promise<void> | void;

/** Thrown by a handler that wants its job tried again in `delayMs`, whatever the backoff. The delivery counts. */
export class RetryLater extends Error {
  override readonly name = "RetryLater";
  readonly delayMs: number;

  constructor(delayMs: number) {
    super(`again in ${delayMs} ms`);
    this.delayMs = delayMs;
  }
}

/** Thrown by a handler that gives its job back untried: the delivery does not count. */
export class Release extends Error {
  override readonly name = "Release";
  readonly delayMs: number;

  constructor(delayMs = 0) {
    super("given back");
    this.delayMs = delayMs;
  }
}

/** How a worker works. */
export interface WorkerOptions {
  /** Jobs that run at one time, at most 1000. Default 1. */
  concurrency?: number;
  /** Name of the worker, which no other must have. Default: a random one. */
  node?: string;
  /** Length of the leases in milliseconds. Default: that of the queue. */
  leaseMs?: number;
  /** How long a job rests after this many deliveries that failed, in milliseconds. Default: up to 1 s, doubled each time up to 5 min. */
  backoffMs?: (deliveries: number) => number;
  /** What handlers that run are given at the end, in milliseconds. Default 30,000. */
  drainMs?: number;
  /** Stops the worker gracefully: it takes no more jobs and finishes the running ones. */
  signal?: AbortSignal;
  /** Called with failed handlers, lost leases and lost connections. Default: console.warn. */
  onError?: (error: unknown, job?: Job) => void;
}

/** What a worker has done: `lost` are jobs that are not known to be finished, which others may do again. */
export interface WorkerStatistics {
  acked: number;
  retried: number;
  released: number;
  lost: number;
}

type Fate = Exclude<keyof WorkerStatistics, "lost">;

interface Held {
  job: Job;
  abort: AbortController;
  /** Until when the lease holds, by performance.now(). */
  until: number;
  /** True if it is lost, or its handler is done: then the answer to its ack or nack has its outcome. */
  isOver: boolean;
}

interface Outcome {
  held: Held;
  fate: Fate;
  delayMs: number;
}

/** One run of a worker. */
export class Worker {
  readonly #wire: GrpcWire;
  readonly #queue: string;
  readonly #handler: Handler;
  readonly #options: Required<Omit<WorkerOptions, "signal" | "leaseMs">>;
  readonly #stop: AbortSignal | undefined;
  readonly #statistics: WorkerStatistics = { acked: 0, retried: 0, released: 0, lost: 0 };
  readonly #held = new Set<Held>();
  readonly #waiting: Held[] = [];
  readonly #outbox: Outcome[] = [];
  readonly #over = new AbortController(); // ends the stream and every pause
  #leaseMs: number;
  #running = 0;
  #isSettling = false;
  #isStopping = false;
  #failure: TopicsError | undefined;
  #wake = () => {};

  constructor(wire: GrpcWire, queue: string, handler: Handler, options: WorkerOptions) {
    const { signal, leaseMs, ...others } = options;
    this.#wire = wire;
    this.#queue = queue;
    this.#handler = handler;
    this.#stop = signal;
    this.#leaseMs = leaseMs ?? 0;
    this.#options = {
      concurrency: 1,
      node: `worker-${Array.from(crypto.getRandomValues(new Uint32Array(2)), (part) => part.toString(36)).join("")}`,
      backoffMs: (deliveries) => Math.ceil(Math.min(1000 * 2 ** (deliveries - 1), 300_000) * (1 - 0.9 * Math.random())),
      drainMs: 30_000,
      onError: (error, job) => console.warn(`topics: ${queue}: ${job ? `job ${job.seq}: ` : ""}${String(error)}`),
      ...others,
    };
  }

  /** Works until `signal` is aborted. Throws errors that retries can't solve, such as a missing queue. */
  async run(): Promise<WorkerStatistics> {
    const asked = new Promise<void>((resolve) => {
      this.#wake = resolve;
      if (this.#stop?.aborted) resolve();
      this.#stop?.addEventListener("abort", () => resolve(), { once: true });
    });
    if (!this.#stop?.aborted) {
      const feed = this.#feed();
      const keeper = this.#keep();
      await asked;
      await this.#drain();
      this.#over.abort();
      await Promise.all([feed, keeper]);
    }
    if (this.#failure) throw this.#failure;
    return { ...this.#statistics };
  }

  #failed(error: TopicsError): void {
    this.#failure ??= error;
    this.#wake();
  }

  // ---------------------------------------------------------------- jobs in

  async #feed(): Promise<void> {
    const patience = new Patience(FOREVER);
    const signal = this.#over.signal;
    while (!this.#isStopping) {
      try {
        if (!this.#leaseMs) {
          const reply = await this.#wire.topics.getTopic({ topic: this.#queue, touch: false }, { timeoutMs: CALL_MS, signal });
          this.#leaseMs = Number(reply.state?.config?.leaseMs) || 30_000; // a log has none, and Work reports the error
        }
        await this.#receive(() => patience.renew());
        throw new TopicsError("unavailable", "the server ended the stream", { isTransient: true });
      } catch (thrown) {
        const error = fromConnect(thrown, signal);
        if (signal.aborted) return;
        if (!error.isTransient) return this.#failed(error);
        if (this.#isStopping) return;
        this.#options.onError(error);
        await this.#extend(); // the server may have taken back the stream's jobs
        await patience.wait(error, signal).catch(() => {});
      }
    }
  }

  async #receive(renew: () => void): Promise<void> {
    const { concurrency, node } = this.#options;
    const silent = new AbortController();
    const signal = AbortSignal.any([this.#over.signal, silent.signal]);
    const request = { topic: this.#queue, node, max: concurrency, leaseMs: BigInt(this.#leaseMs) };
    const frames = this.#wire.queues.work(request, { signal, timeoutMs: 0 });
    for await (const { frame } of unlessSilent(frames, SILENCE_MS, () => silent.abort())) {
      renew();
      if (frame?.kind.case === "jobs") for (const job of frame.kind.value.jobs) this.#take(job);
    }
  }

  #take(job: WireJob): void {
    const record = new TopicRecord({
      topic: this.#queue,
      partition: 0,
      seq: Number(job.seq),
      tsMs: Number(job.tsMs),
      payload: { bytes: job.data },
      isBinary: job.kind === RecordKind.BINARY,
      tag: job.tag,
      node: undefined,
      metaText: utf8.decode(job.meta),
    });
    const leased: Job = { record, seq: record.seq, deliveries: Number(job.deliveries), leaseId: job.leaseId };
    const held = { job: leased, abort: new AbortController(), until: performance.now() + this.#leaseMs, isOver: false };
    for (const other of this.#held) {
      // The lease of a job at work had ended. That of one whose outcome is on its way may have ended by it: the answer tells.
      if (other.job.seq === leased.seq && !other.isOver) this.#lose(other);
    }
    this.#held.add(held);
    if (this.#isStopping) this.#settle(held, "released", 0);
    else this.#waiting.push(held);
    this.#begin();
  }

  #begin(): void {
    while (this.#running < this.#options.concurrency) {
      const held = this.#waiting.shift();
      if (!held) return;
      if (!held.isOver) void this.#handle(held);
    }
  }

  async #handle(held: Held): Promise<void> {
    const { job } = held;
    this.#running++;
    try {
      await this.#handler(job, held.abort.signal);
      this.#settle(held, "acked", 0);
    } catch (error) {
      if (error instanceof Release) this.#settle(held, "released", error.delayMs);
      else if (error instanceof RetryLater) this.#settle(held, "retried", error.delayMs);
      else {
        if (!held.isOver) this.#options.onError(error, job);
        this.#settle(held, "retried", this.#options.backoffMs(job.deliveries));
      }
    } finally {
      this.#running--;
      this.#begin();
    }
  }

  // --------------------------------------------------------------- leases

  async #keep(): Promise<void> {
    const signal = this.#over.signal;
    while (!signal.aborted) {
      await sleep(this.#leaseMs ? this.#leaseMs / 4 : 50, signal).catch(() => {});
      if (!signal.aborted) await this.#extend();
    }
  }

  /** Extends the held leases. Those that the server does not know any more, or that have ended, are lost. */
  async #extend(): Promise<void> {
    const all = [...this.#held].filter((held) => !held.isOver);
    for (let start = 0; start < all.length; start += CALL_JOBS) {
      const batch = all.slice(start, start + CALL_JOBS);
      const sent = performance.now();
      try {
        const request = { ...this.#named(batch), leaseMs: BigInt(this.#leaseMs) };
        const timeoutMs = Math.max(this.#leaseMs / 3, 1000);
        const reply = await this.#wire.queues.extend(request, { timeoutMs, signal: this.#over.signal });
        const skipped = new Set(reply.skipped.map(Number));
        for (const held of batch) {
          if (!skipped.has(held.job.seq)) held.until = sent + this.#leaseMs;
          else if (!held.isOver) this.#lose(held);
        }
      } catch (thrown) {
        const error = fromConnect(thrown, this.#over.signal);
        if (!error.isTransient) return this.#over.signal.aborted ? undefined : this.#failed(error);
      }
    }
    const now = performance.now();
    for (const held of [...this.#held]) if (!held.isOver && held.until < now) this.#lose(held);
  }

  #lose(held: Held): void {
    if (!this.#held.delete(held)) return;
    this.#statistics.lost++;
    held.isOver = true;
    const error = new TopicsError("lease_lost", "the lease was lost; others may have the job by now");
    held.abort.abort(error);
    this.#options.onError(error, held.job);
  }

  // --------------------------------------------------------------- jobs out

  #settle(held: Held, fate: Fate, delayMs: number): void {
    if (held.isOver) return; // lost: its new holder decides
    held.isOver = true;
    this.#outbox.push({ held, fate, delayMs });
    if (!this.#isSettling) {
      this.#isSettling = true;
      queueMicrotask(() => void this.#send());
    }
  }

  /** Sends the outcomes of jobs, many in a call, retried until the server answers: leases fence each call. */
  async #send(): Promise<void> {
    const patience = new Patience(FOREVER);
    while (this.#outbox.length) {
      const batch = this.#gathered();
      const { fate, delayMs } = batch[0] as Outcome;
      const jobs = this.#named(batch.map(({ held }) => held));
      const options = { timeoutMs: CALL_MS, signal: this.#over.signal };
      try {
        const mode = fate === "released" ? NackMode.RELEASE : NackMode.RETRY;
        const reply =
          fate === "acked"
            ? await this.#wire.queues.ack(jobs, options)
            : await this.#wire.queues.nack({ ...jobs, delayMs: BigInt(delayMs), mode }, options);
        const skipped = new Set(reply.skipped.map(Number));
        patience.renew();
        for (const { held } of batch) {
          if (skipped.has(held.job.seq)) this.#lose(held);
          else if (this.#held.delete(held)) this.#statistics[fate]++;
        }
      } catch (thrown) {
        const error = fromConnect(thrown, this.#over.signal);
        this.#outbox.unshift(...batch);
        if (this.#over.signal.aborted) break;
        if (error.isTransient) await patience.wait(error, this.#over.signal).catch(() => {});
        else {
          for (const { held } of this.#outbox.splice(0)) this.#lose(held);
          this.#failed(error);
        }
      }
    }
    this.#isSettling = false;
  }

  /** The longest run of outcomes at the front of the outbox that fits into one call. */
  #gathered(): Outcome[] {
    const first = this.#outbox[0] as Outcome;
    let count = 1;
    const isAlike = (next: Outcome) => next.fate === first.fate && next.delayMs === first.delayMs;
    while (count < CALL_JOBS && this.#outbox[count] && isAlike(this.#outbox[count] as Outcome)) count++;
    return this.#outbox.splice(0, count);
  }

  #named(batch: readonly Held[]) {
    const seqs = batch.map(({ job }) => BigInt(job.seq));
    return { topic: this.#queue, node: this.#options.node, seqs, leaseIds: batch.map(({ job }) => job.leaseId) };
  }

  // -------------------------------------------------------------------- end

  async #drain(): Promise<void> {
    const ends = performance.now() + this.#options.drainMs;
    this.#isStopping = true;
    await this.#stopped(); // else each job that is settled makes room for another
    for (const held of this.#waiting.splice(0)) this.#settle(held, "released", 0);
    const isBusy = () => this.#held.size > 0 && !this.#failure;
    while (isBusy() && performance.now() < ends) await sleep(10);
    for (const held of [...this.#held]) {
      if (held.isOver) continue;
      this.#settle(held, "released", 0);
      held.abort.abort(new TopicsError("canceled", "the worker ends"));
    }
    const arrives = performance.now() + FLUSH_MS;
    while (performance.now() < arrives && (isBusy() || (!this.#failure && (await this.#stopped()) > 0))) await sleep(10);
    for (const held of [...this.#held]) this.#lose(held);
  }

  /** Makes the server send no more jobs. Returns the number of sent jobs that are not settled; 0 without an answer. */
  async #stopped(): Promise<number> {
    try {
      const request = { topic: this.#queue, node: this.#options.node };
      return Number((await this.#wire.queues.stopWork(request, { timeoutMs: FLUSH_MS })).held);
    } catch {
      return 0;
    }
  }
}
