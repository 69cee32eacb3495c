/** Reads and watches that resume when the connection breaks. */
import { fromConnect, TopicsError } from "./errors.js";
import { behind, type ReadEvent, type TopicDeleted, type WatchEvent } from "./records.js";
import { Patience, type Retry } from "./retry.js";
import { place, placed, type ReadCall, type ReadFrame, type WatchCall, type WatchFrame, type Wire } from "./wire.js";

/** Options of a read. */
export interface ReadOptions {
  /** Partition to read. Default 0. */
  partition?: number;
  /** Cursor, exclusive: records with a greater seq come. Default 0: from the earliest that is kept. */
  from?: number;
  /** Instead of `from`: the number of records before the head. */
  last?: number;
  /** Whether to wait for new records at the head instead of ending there. Default false. */
  follow?: boolean;
  /** Only records of this tag. */
  tag?: string;
  /** Only records whose tag begins so. */
  tagPrefix?: string;
  /** Ends the iteration, with TopicsError (canceled). */
  signal?: AbortSignal;
}

/** What to watch. */
export interface WatchOptions {
  /** Where an earlier watch was; wins over where topics begin. */
  cursor?: { readonly [place: string]: number };
  tag?: string;
  tagPrefix?: string;
  /** Leaves out topics that are not there instead of failing. Default false. */
  lenient?: boolean;
  /** Ends the iteration, with TopicsError (canceled). */
  signal?: AbortSignal;
}

/** Topics to watch: a name, several, or each with its start. A name that ends in `*` is a prefix. */
export type Topics = string | readonly string[] | { readonly [name: string]: number | "tail" };

/** Frames of one stream after the other, for as long as more are asked for, each dealt with before the next is asked for. */
async function* resumed<Frame>(
  open: (signal: AbortSignal) => AsyncIterable<Frame>,
  retry: Retry | undefined,
  outer: AbortSignal | undefined,
): AsyncGenerator<Frame> {
  const patience = new Patience(retry);
  for (;;) {
    const ended = new AbortController();
    const signal = outer ? AbortSignal.any([outer, ended.signal]) : ended.signal;
    try {
      for await (const frame of open(signal)) {
        patience.renew();
        yield frame;
      }
      throw new TopicsError("unavailable", "the server ended the stream", { isTransient: true });
    } catch (thrown) {
      await patience.wait(fromConnect(thrown, outer), outer);
    } finally {
      ended.abort();
    }
  }
}

/**
 * A read of one partition: records and, where retention took some, a Gap. What was handed out counts as dealt with: to
 * iterate again, also after an error, is to continue after it.
 */
export class Reading implements AsyncIterable<ReadEvent> {
  readonly #wire: Wire;
  readonly #retry: Retry | undefined;
  readonly #signal: AbortSignal | undefined;
  readonly #call: ReadCall;
  #isDone = false;

  constructor(wire: Wire, topic: string, options: ReadOptions, retry: Retry | undefined) {
    const { partition = 0, from, last, follow = false, tag, tagPrefix, signal } = options;
    this.#wire = wire;
    this.#retry = retry;
    this.#signal = signal;
    const begin = last === undefined ? (from ?? 0) : from;
    this.#call = { topic, partition, from: begin, last, end: undefined, follow, tag, tagPrefix };
  }

  /** The `from` to resume with; undefined while it is unknown, for a read of the `last` records. */
  get cursor(): number | undefined {
    return this.#call.from;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<ReadEvent, void> {
    const call = this.#call;
    if (this.#isDone) return;
    for await (const frame of resumed((signal) => this.#open(signal), this.#retry, this.#signal)) {
      if (!call.follow) call.end ??= frame.head;
      for (const event of frame.events) {
        call.from = event.kind === "gap" ? behind(event) : event.seq;
        call.last = undefined;
        yield event;
      }
      call.from = frame.next;
      call.last = undefined;
      if (frame.isLast) {
        this.#isDone = true;
        return;
      }
    }
  }

  #open(signal: AbortSignal): AsyncIterable<ReadFrame> {
    return this.#wire.read({ ...this.#call }, signal);
  }
}

/**
 * A watch of many topics, without an end unless all are deleted. What was handed out counts as dealt with: `cursor`,
 * given to another watch, resumes right there.
 */
export class Watching implements AsyncIterable<WatchEvent> {
  readonly #wire: Wire;
  readonly #retry: Retry | undefined;
  readonly #options: WatchOptions;
  readonly #topics: Map<string, number | "tail">;
  readonly #cursor: Map<string, number>;
  #began = false;

  constructor(wire: Wire, topics: Topics, options: WatchOptions, retry: Retry | undefined) {
    this.#wire = wire;
    this.#retry = retry;
    this.#options = options;
    const names = typeof topics === "string" ? [topics] : topics;
    this.#topics = new Map(isList(names) ? names.map((name) => [name, 0]) : Object.entries(names));
    this.#cursor = new Map(Object.entries(options.cursor ?? {}));
    if (!this.#topics.size) throw new TopicsError("invalid_request", "a watch takes at least one topic");
  }

  /** The last seq handed out of each topic, or of `topic@N` for a partition N above 0. */
  get cursor(): { [place: string]: number } {
    return Object.fromEntries(this.#cursor);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<WatchEvent, void> {
    if (!this.#topics.size) return;
    for await (const frame of resumed((signal) => this.#open(signal), this.#retry, this.#options.signal)) {
      if (frame.subscribed) yield* this.#subscribed(frame.subscribed);
      for (const event of frame.events) {
        if (event.kind === "record") this.#cursor.set(place(event.topic, event.partition), event.seq);
        if (event.kind === "gap") this.#cursor.set(place(event.topic, event.partition), behind(event));
        if (event.kind === "topic_deleted") this.#departed(place(event.topic, event.partition));
        yield event;
      }
      for (const [name, seq] of frame.cursor) this.#cursor.set(name, seq);
      if (!this.#topics.size) return;
    }
  }

  #open(signal: AbortSignal): AsyncIterable<WatchFrame> {
    const { tag, tagPrefix, lenient = false } = this.#options;
    const call: WatchCall = { topics: this.#topics, cursor: this.#cursor, tag, tagPrefix, lenient: lenient || this.#began };
    return this.#wire.watch(call, signal);
  }

  /** A topic deleted while no stream was open is reported as if within a stream. */
  *#subscribed(there: ReadonlySet<string>): Generator<TopicDeleted> {
    const prefixes = [...this.#topics.keys()].filter((name) => name.endsWith("*"));
    const isWanted = (name: string) => this.#topics.has(name) || prefixes.some((prefix) => name.startsWith(prefix.slice(0, -1)));
    const gone = [...this.#cursor].filter(([name]) => !there.has(name) && isWanted(name));
    for (const [name, headSeq] of gone) {
      this.#departed(name);
      if (this.#began) yield { kind: "topic_deleted", ...placed(name), headSeq };
    }
    this.#began = true;
    for (const name of this.#topics.keys()) {
      if (name.endsWith("*")) this.#topics.set(name, 0); // topics that it adds later are followed from their first record
      else if (!there.has(name)) this.#topics.delete(name);
    }
  }

  #departed(name: string): void {
    this.#cursor.delete(name);
    this.#topics.delete(name);
  }
}

function isList(names: Exclude<Topics, string>): names is readonly string[] {
  return Array.isArray(names);
}
