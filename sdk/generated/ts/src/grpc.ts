/** The gRPC protocol, over any transport of Connect. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import { type Client, createClient, type Transport } from "@connectrpc/connect";

import { QueueService } from "../lib/topics/v1/queue_service_pb.js";
import { type AppendRecordSchema, RecordKind } from "../lib/topics/v1/record_pb.js";
import type { Frame, StreamError } from "../lib/topics/v1/stream_pb.js";
import { TopicsService } from "../lib/topics/v1/topics_service_pb.js";
import { WatchService } from "../lib/topics/v1/watch_service_pb.js";
import { fromConnect, reasonOf } from "./errors.js";
import { type Advice, gapOf, type ReadEvent, recordsOfColumns, recordsOfRows, type WatchEvent } from "./records.js";
import { DEFAULT_KEY_WINDOW_MS, HEARTBEAT_MS, SILENCE_MS, unlessSilent } from "./wire.js";
import type { Appended, Batch, NewRecord, ReadCall, ReadFrame, WatchCall, WatchFrame, Wire } from "./wire.js";

const toUtf8 = new TextEncoder();

/** Calls over gRPC. The generated clients have the calls that this class lacks. */
export class GrpcWire implements Wire {
  readonly topics: Client<typeof TopicsService>;
  readonly queues: Client<typeof QueueService>;
  readonly watches: Client<typeof WatchService>;
  readonly #close: () => void;

  /** `close` ends the connections of the transport. */
  constructor(transport: Transport, close: () => void = () => {}) {
    this.topics = createClient(TopicsService, transport);
    this.queues = createClient(QueueService, transport);
    this.watches = createClient(WatchService, transport);
    this.#close = close;
  }

  close(): void {
    this.#close();
  }

  async append(batch: Batch, timeoutMs: number, signal?: AbortSignal): Promise<Appended> {
    const { topic, partition, idempotencyKey, delayMs = 0, priority = 0 } = batch;
    const records = batch.records.map(newRecord);
    const request = { topic, partition, records, idempotencyKey, delayMs: BigInt(delayMs), priority, returnSeqs: false };
    const reply = await this.#called((options) => this.topics.append(request, options), timeoutMs, signal);
    return { topic, partition, firstSeq: Number(reply.firstSeq), lastSeq: Number(reply.lastSeq), deduped: reply.deduped };
  }

  async keyWindowMs(topic: string, signal?: AbortSignal): Promise<number> {
    try {
      const reply = await this.#called((options) => this.topics.getTopic({ topic, touch: false }, options), 30_000, signal);
      return Number(reply.state?.config?.idempotencyWindowMs ?? DEFAULT_KEY_WINDOW_MS);
    } catch (thrown) {
      const error = fromConnect(thrown, signal);
      if (error.reason === "topic_not_found") return Infinity;
      if (error.reason === "forbidden") return DEFAULT_KEY_WINDOW_MS; // the key may write only
      throw error;
    }
  }

  async *read(call: ReadCall, signal: AbortSignal): AsyncGenerator<ReadFrame> {
    const { topic, partition, follow } = call;
    const begin = call.from === undefined ? { last: call.last ?? 0 } : { fromSeq: BigInt(call.from) };
    const endSeq = call.end === undefined ? undefined : BigInt(call.end);
    const filter = tagMatch(call);
    const request = { topic, partition, follow, ...begin, includeTags: true, ...(endSeq !== undefined && { endSeq }), ...filter };
    try {
      for await (const frame of this.topics.bulkDiff(request, { signal, timeoutMs: 0 })) {
        const events: ReadEvent[] = frame.tombstone ? [gapOf(topic, partition, frame.tombstone)] : [];
        if (frame.records) events.push(...recordsOfColumns(topic, partition, frame.records));
        yield { events, next: Number(frame.nextFromSeq), head: Number(frame.headSeq), isLast: frame.done };
      }
    } catch (thrown) {
      throw fromConnect(thrown);
    }
  }

  async *watch(call: WatchCall, signal: AbortSignal): AsyncGenerator<WatchFrame> {
    const topics = Object.fromEntries([...call.topics].map(([name, start]) => [name, started(start)]));
    const cursor = Object.fromEntries([...call.cursor].map(([name, seq]) => [name, BigInt(seq)]));
    const options = { limit: 1000, heartbeatMs: BigInt(HEARTBEAT_MS), includeTags: true, ...tagMatch(call) };
    const request = { subscription: { topics, cursor, ...options }, lenient: call.lenient };
    const silent = new AbortController();
    const either = AbortSignal.any([signal, silent.signal]);
    try {
      const frames = this.watches.watch(request, { signal: either, timeoutMs: 0 });
      for await (const { frame } of unlessSilent(frames, SILENCE_MS, () => silent.abort())) {
        if (frame) yield watchFrame(frame);
      }
    } catch (thrown) {
      throw fromConnect(thrown);
    }
  }

  async #called<T>(
    call: (options: { timeoutMs: number; signal?: AbortSignal }) => Promise<T>,
    timeoutMs: number,
    signal: AbortSignal | undefined,
  ): Promise<T> {
    try {
      return await call(signal ? { timeoutMs, signal } : { timeoutMs });
    } catch (thrown) {
      throw fromConnect(thrown, signal);
    }
  }
}

function newRecord(record: NewRecord): MessageInitShape<typeof AppendRecordSchema> {
  const { value, tag, node, meta } = record;
  const isBinary = value instanceof Uint8Array;
  return {
    data: isBinary ? value : toUtf8.encode(JSON.stringify(value)),
    kind: isBinary ? RecordKind.BINARY : RecordKind.JSON,
    ...(tag !== undefined && { tag }),
    ...(node !== undefined && { node }),
    ...(meta && { meta: toUtf8.encode(JSON.stringify(meta)) }),
  };
}

function started(start: number | "tail"): { tail: boolean } | { fromSeq: bigint } {
  return start === "tail" ? { tail: true } : { fromSeq: BigInt(start) };
}

function tagMatch({ tag, tagPrefix }: { tag: string | undefined; tagPrefix: string | undefined }) {
  if (tag !== undefined) return { filter: { rule: { case: "eq" as const, value: tag } } };
  if (tagPrefix !== undefined) return { filter: { rule: { case: "prefix" as const, value: tagPrefix } } };
  return {};
}

function watchFrame(frame: Frame): WatchFrame {
  const cursor = new Map(Object.entries(frame.cursor).map(([name, seq]) => [name, Number(seq)]));
  const events: WatchEvent[] = [];
  switch (frame.kind.case) {
    case "subscribed":
      return { events, cursor, subscribed: new Set(Object.keys(frame.kind.value.topics)) };
    case "records": {
      const { topic, partition, records } = frame.kind.value;
      events.push(...recordsOfRows(topic, partition, records));
      break;
    }
    case "tombstone": {
      const { topic, partition, tombstone } = frame.kind.value;
      if (tombstone) events.push(gapOf(topic, partition, tombstone));
      break;
    }
    case "caughtUp":
    case "topicDeleted": {
      const { topic, partition, headSeq } = frame.kind.value;
      const kind = frame.kind.case === "caughtUp" ? "caught_up" : "topic_deleted";
      events.push({ kind, topic, partition, headSeq: Number(headSeq) });
      if (kind === "topic_deleted") cursor.clear();
      break;
    }
    case "error":
      if (!frame.kind.value.terminal) events.push(advice(frame.kind.value)); // a terminal one is the status of the call
      break;
    default:
  }
  return { events, cursor };
}

function advice(error: StreamError): Advice {
  return { kind: "advice", reason: reasonOf(error.reason), message: error.message, topics: error.topics };
}
