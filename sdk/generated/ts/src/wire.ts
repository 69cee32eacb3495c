/** The calls of a client on a protocol of the server: gRPC and HTTP answer alike. */
import type { Json, ReadEvent, WatchEvent } from "./records.js";

/** A record to write. */
export interface NewRecord {
  /** Any JSON value, or bytes, which make a binary record. */
  value: Json | Uint8Array;
  tag?: string | undefined;
  node?: string | undefined;
  meta?: { [name: string]: Json } | undefined;
}

/** A batch to write. */
export interface Batch {
  topic: string;
  partition: number;
  records: readonly NewRecord[];
  idempotencyKey: string;
  /** Queue only: time that the jobs stay hidden, in milliseconds. */
  delayMs?: number | undefined;
  /** Queue only: how urgent they are, 0 to 9. */
  priority?: number | undefined;
}

/** Where a batch was stored. */
export interface Appended {
  readonly topic: string;
  readonly partition: number;
  readonly firstSeq: number;
  readonly lastSeq: number;
  /** True if the answer is that of an earlier write with the same key. */
  readonly deduped: boolean;
}

/** What to read of one partition. */
export interface ReadCall {
  topic: string;
  partition: number;
  /** Cursor, exclusive; undefined while it is not known, for a read that begins `last` records before the head. */
  from: number | undefined;
  last: number | undefined;
  /** Last seq to read, inclusive; undefined means the head of the moment. */
  end: number | undefined;
  follow: boolean;
  tag: string | undefined;
  tagPrefix: string | undefined;
}

/** A part of a read. */
export interface ReadFrame {
  events: ReadEvent[];
  /** Cursor behind the frame. */
  next: number;
  head: number;
  isLast: boolean;
}

/** What to watch. */
export interface WatchCall {
  /** Where each topic or prefix begins: a seq to begin behind, or "tail". */
  topics: ReadonlyMap<string, number | "tail">;
  /** Cursors to resume from; each takes precedence over `topics`. */
  cursor: ReadonlyMap<string, number>;
  tag: string | undefined;
  tagPrefix: string | undefined;
  /** Leaves out topics that are not there. */
  lenient: boolean;
}

/** A part of a watch. */
export interface WatchFrame {
  events: WatchEvent[];
  /** Places behind the frame, of the topics that moved. */
  cursor: ReadonlyMap<string, number>;
  /** Only in the first frame of a stream: the topics that are followed. */
  subscribed?: ReadonlySet<string>;
}

/** One protocol of a server. Every failure is a TopicsError. */
export interface Wire {
  append(batch: Batch, timeoutMs: number, signal?: AbortSignal): Promise<Appended>;
  /** Milliseconds for which a topic remembers the key of a write; Infinity if the topic does not exist. */
  keyWindowMs(topic: string, signal?: AbortSignal): Promise<number>;
  read(call: ReadCall, signal: AbortSignal): AsyncIterable<ReadFrame>;
  watch(call: WatchCall, signal: AbortSignal): AsyncIterable<WatchFrame>;
  close(): void;
}

/** Milliseconds for which a topic remembers a key by default. */
export const DEFAULT_KEY_WINDOW_MS = 120_000;
/** Silence after which a heartbeat comes on a watch, and the silence that is a break, in milliseconds. */
export const HEARTBEAT_MS = 15_000;
export const SILENCE_MS = 3 * HEARTBEAT_MS;

/** The key of a partition in a cursor. */
export function place(topic: string, partition: number): string {
  return partition ? `${topic}@${partition}` : topic;
}

/** The topic and the partition that a key of a cursor names. */
export function placed(name: string): { topic: string; partition: number } {
  const at = name.lastIndexOf("@");
  return at < 0 ? { topic: name, partition: 0 } : { topic: name.slice(0, at), partition: Number(name.slice(at + 1)) };
}

/**
 * The items of a stream, where `silenceMs` without one is a break: `abort` is called, which must end the stream.
 */
export async function* unlessSilent<T>(items: AsyncIterable<T>, silenceMs: number, abort: () => void): AsyncGenerator<T> {
  let timer = setTimeout(abort, silenceMs);
  try {
    for await (const item of items) {
      clearTimeout(timer);
      yield item;
      timer = setTimeout(abort, silenceMs);
    }
  } finally {
    clearTimeout(timer);
  }
}
