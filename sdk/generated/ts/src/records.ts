/** Items of readers: records, and gaps in place of lost ones. */
import { GapReason, RecordKind } from "../lib/topics/v1/record_pb.js";
import type { PackedColumn, Record as Row, RecordColumns, Tombstone } from "../lib/topics/v1/record_pb.js";

/** Any JSON value. */
export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

const utf8 = new TextDecoder();
const toUtf8 = new TextEncoder();

/** Payload of a record: its bytes as they were written, or over HTTP the JSON value that came in their place. */
export type Payload = { bytes: Uint8Array } | { json: Json };

interface RecordFields {
  topic: string;
  partition: number;
  seq: number;
  tsMs: number;
  payload: Payload;
  isBinary: boolean;
  tag: string | undefined;
  node: string | undefined;
  metaText: string;
}

/** A stored record. Numbers of 64 bits are `number`: seqs stay below 2^53. */
export class TopicRecord {
  readonly kind = "record";
  readonly topic: string;
  readonly partition: number;
  /** Position in the log of the partition, from 1. */
  readonly seq: number;
  /** Time of the commit, in milliseconds since the epoch. */
  readonly tsMs: number;
  /** Whether the payload is any bytes rather than one JSON text. */
  readonly isBinary: boolean;
  readonly tag: string | undefined;
  readonly node: string | undefined;
  readonly #payload: Payload;
  readonly #meta: string;

  constructor(fields: RecordFields) {
    this.topic = fields.topic;
    this.partition = fields.partition;
    this.seq = fields.seq;
    this.tsMs = fields.tsMs;
    this.isBinary = fields.isBinary;
    this.tag = fields.tag;
    this.node = fields.node;
    this.#payload = fields.payload;
    this.#meta = fields.metaText;
  }

  /** Payload as bytes: as written over gRPC; over HTTP, JSON values are serialised again. */
  get data(): Uint8Array {
    return "bytes" in this.#payload ? this.#payload.bytes : toUtf8.encode(JSON.stringify(this.#payload.json));
  }

  /** The JSON value of the payload; the bytes of a binary record. */
  get value(): Json | Uint8Array {
    return this.isBinary ? this.data : this.json<Json>();
  }

  /** The JSON value of the payload, taken for a `T`: nothing checks that it is one. Throws SyntaxError for bytes. */
  json<T>(): T {
    const value: unknown = "json" in this.#payload ? this.#payload.json : JSON.parse(utf8.decode(this.#payload.bytes));
    return value as T;
  }

  /** Time of the commit. */
  get time(): Date {
    return new Date(this.tsMs);
  }

  /** Headers that the writer gave. */
  get meta(): { [name: string]: Json } {
    return this.#meta ? (JSON.parse(this.#meta) as { [name: string]: Json }) : {};
  }
}

/** Why a range of seqs can no longer be read. */
export type GapCause = Lowercase<keyof typeof GapReason>;

/** Records that retention took before they were read. Deletes leave none. */
export interface Gap {
  readonly kind: "gap";
  readonly topic: string;
  readonly partition: number;
  /** The lost range, inclusive at both ends. */
  readonly firstSeq: number;
  readonly lastSeq: number;
  readonly reason: GapCause;
  readonly earliestSeq: number;
  readonly headSeq: number;
}

/** One topic of a watch is drained: from here on records come as they are written. */
export interface CaughtUp {
  readonly kind: "caught_up";
  readonly topic: string;
  readonly partition: number;
  readonly headSeq: number;
}

/** One topic of a watch was deleted; the others continue. */
export interface TopicDeleted {
  readonly kind: "topic_deleted";
  readonly topic: string;
  readonly partition: number;
  readonly headSeq: number;
}

/** A message of the server about the watch itself: topics that are paced under load, or not followed. */
export interface Advice {
  readonly kind: "advice";
  readonly reason: string;
  readonly message: string;
  readonly topics: readonly string[];
}

export type ReadEvent = TopicRecord | Gap;
export type WatchEvent = TopicRecord | Gap | CaughtUp | TopicDeleted | Advice;

/** Records that came one by one. */
export function recordsOfRows(topic: string, partition: number, rows: readonly Row[]): TopicRecord[] {
  return rows.map(
    (row) =>
      new TopicRecord({
        topic,
        partition,
        seq: Number(row.seq),
        tsMs: Number(row.tsMs),
        payload: { bytes: row.data },
        isBinary: row.kind === RecordKind.BINARY,
        tag: row.tag,
        node: row.node,
        metaText: utf8.decode(row.meta),
      }),
  );
}

/** Records that came as columns. */
export function recordsOfColumns(topic: string, partition: number, columns: RecordColumns): TopicRecord[] {
  const count = columns.runCount.reduce((sum, length) => sum + length, 0);
  const data = packed(columns.data, count);
  const tag = texts(columns.tag, count);
  const node = texts(columns.node, count);
  const meta = texts(columns.meta, count);
  const times = expanded(columns.timeTsMs, columns.timeCount, 0n);
  const seqs = expanded(columns.runFirstSeq, columns.runCount, 1n);
  const isBinary = (i: number) => (columns.kinds.length ? columns.kinds[i] : columns.kind) === RecordKind.BINARY;
  return seqs.map(
    (seq, i) =>
      new TopicRecord({
        topic,
        partition,
        seq,
        tsMs: times[i] ?? 0,
        payload: { bytes: data(i) },
        isBinary: isBinary(i),
        tag: tag(i),
        node: node(i),
        metaText: meta(i) ?? "",
      }),
  );
}

/** The numbers that runs stand for: each run begins at its first and grows by `step`. */
function expanded(firsts: readonly bigint[], counts: readonly number[], step: bigint): number[] {
  const numbers: number[] = [];
  counts.forEach((count, run) => {
    const first = Number(firsts[run]);
    for (let i = 0; i < count; i++) numbers.push(first + i * Number(step));
  });
  return numbers;
}

/** What gives the value of each record of a column; one without offsets has the same value for all. */
function packed(column: PackedColumn | undefined, count: number): (i: number) => Uint8Array {
  const data = column?.data ?? new Uint8Array();
  const packedOffsets = column?.offsets;
  if (!packedOffsets?.length) return () => data;
  const view = new DataView(packedOffsets.buffer, packedOffsets.byteOffset, packedOffsets.byteLength);
  if (packedOffsets.byteLength !== 4 * (count + 1)) throw new RangeError("a column does not fit its records");
  return (i) => data.subarray(view.getUint32(4 * i, true), view.getUint32(4 * i + 4, true));
}

function texts(column: PackedColumn | undefined, count: number): (i: number) => string | undefined {
  if (!column) return () => undefined;
  const value = packed(column, count);
  const absent = new Set(column.absent);
  return (i) => (absent.has(i) ? undefined : utf8.decode(value(i)));
}

/** The range of a tombstone. */
export function gapOf(topic: string, partition: number, tombstone: Tombstone): Gap {
  return {
    kind: "gap",
    topic,
    partition,
    firstSeq: Number(tombstone.gapFrom),
    lastSeq: Number(tombstone.gapTo),
    reason: (GapReason[tombstone.reason] ?? "UNSPECIFIED").toLowerCase() as GapCause,
    earliestSeq: Number(tombstone.earliestSeq),
    headSeq: Number(tombstone.headSeq),
  };
}

/** The cursor after a gap. */
export function behind(gap: Gap): number {
  return gap.reason === "recreated" ? Math.max(gap.earliestSeq - 1, 0) : gap.lastSeq;
}
