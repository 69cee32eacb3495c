/** The HTTP protocol, with fetch alone: server-sent events are read from the response body. */
import { canceled, type Reason, TopicsError } from "./errors.js";
import { type Gap, type GapCause, type Json, TopicRecord, type WatchEvent } from "./records.js";
import { DEFAULT_KEY_WINDOW_MS, HEARTBEAT_MS, place, SILENCE_MS, unlessSilent } from "./wire.js";
import type { Appended, Batch, NewRecord, ReadCall, ReadFrame, WatchCall, WatchFrame, Wire } from "./wire.js";

const LONG_POLL_MS = 20_000;
const POLL_TIMEOUT_MS = LONG_POLL_MS + 20_000;
/** Bytes of one event that are taken at most: an event holds 1000 records of 1 MiB in theory, 8 MiB by its budget. */
const LONGEST_EVENT = 64 << 20;

interface JsonRecord {
  $seq: number;
  $ts: number;
  $node?: string;
  $tag?: string;
  $encoding?: "base64";
  data: Json;
  meta?: { [name: string]: Json };
}

interface JsonGap {
  gap_from: number;
  gap_to: number;
  reason: string;
  earliest_seq: number;
  head_seq: number;
}

interface JsonDiff {
  records: JsonRecord[];
  next_from_seq: number;
  head_seq: number;
  caught_up: boolean;
  tombstone: JsonGap | null;
}

interface JsonAppended {
  first_seq: number;
  last_seq: number;
  deduped: boolean;
}

interface JsonError {
  error: { code: string; message: string; detail?: { [name: string]: Json }; retry_after_ms?: number };
}

interface JsonEvent {
  topic: string;
  partition?: number;
  records?: JsonRecord[];
  to_seq?: number;
  head_seq?: number;
  code?: number;
  error?: string;
  topics?: string[];
}

/** Calls over HTTP. */
export class HttpWire implements Wire {
  readonly #base: string;
  readonly #headers: Record<string, string>;

  /** `base` is where `/v0` is; the empty text means the origin of the page. */
  constructor(base: string, key: string | undefined) {
    this.#base = base.replace(/\/$/, "");
    this.#headers = { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) };
  }

  close(): void {}

  async append(batch: Batch, timeoutMs: number, signal?: AbortSignal): Promise<Appended> {
    const { topic, partition, delayMs, priority } = batch;
    const body = {
      records: batch.records.map(newRecord),
      idempotency_key: batch.idempotencyKey,
      ...(partition && { partition }),
      ...(delayMs && { delay_ms: delayMs }),
      ...(priority && { priority }),
    };
    const path = `/v0/topics/${encodeURIComponent(topic)}?return_seqs=false`;
    const reply = await this.#called<JsonAppended>("POST", path, body, timeoutMs, signal);
    return { topic, partition, firstSeq: reply.first_seq, lastSeq: reply.last_seq, deduped: reply.deduped };
  }

  async keyWindowMs(topic: string, signal?: AbortSignal): Promise<number> {
    try {
      const path = `/v0/topics/${encodeURIComponent(topic)}?touch=false`;
      const state = await this.#called<{ config: { idempotency_window_ms: number } }>("GET", path, undefined, 30_000, signal);
      return state.config.idempotency_window_ms;
    } catch (error) {
      if (error instanceof TopicsError && error.reason === "topic_not_found") return Infinity;
      if (error instanceof TopicsError && error.reason === "forbidden") return DEFAULT_KEY_WINDOW_MS;
      throw error;
    }
  }

  async *read(call: ReadCall, signal: AbortSignal): AsyncGenerator<ReadFrame> {
    const { topic, partition } = call;
    const path = `/v0/topics/${encodeURIComponent(topic)}/diff`;
    let begin: { from_seq: number } | { last: number } =
      call.from === undefined ? { last: call.last ?? 0 } : { from_seq: call.from };
    let end = call.end;
    for (;;) {
      const body = {
        ...begin,
        limit: 1000,
        include_tags: true,
        ...(partition && { partition }),
        ...(call.follow && { wait_ms: LONG_POLL_MS }),
        ...tagMatch(call),
      };
      const page = await this.#called<JsonDiff>("POST", path, body, POLL_TIMEOUT_MS, signal);
      if (!call.follow) end ??= page.head_seq;
      const records = page.records.map((record) => recordOf(topic, partition, record));
      const events = page.tombstone ? [gapOf(topic, partition, page.tombstone), ...records] : records;
      const isLast = end !== undefined && (page.next_from_seq >= end || page.caught_up);
      const kept = end === undefined ? events : events.filter((event) => event.kind === "gap" || event.seq <= end!);
      yield { events: kept, next: end === undefined ? page.next_from_seq : Math.min(page.next_from_seq, end), head: page.head_seq, isLast };
      if (isLast) return;
      begin = { from_seq: page.next_from_seq };
    }
  }

  async *watch(call: WatchCall, signal: AbortSignal): AsyncGenerator<WatchFrame> {
    const topics: { [name: string]: object } = {};
    for (const [name, start] of call.topics) topics[name] = start === "tail" ? { tail: true } : { from_seq: start };
    const isWanted = (name: string) =>
      call.topics.has(name) || [...call.topics.keys()].some((key) => key.endsWith("*") && name.startsWith(key.slice(0, -1)));
    for (const [name, seq] of call.cursor) if (isWanted(name)) topics[name] = { from_seq: seq };
    const body = { topics, limit: 1000, heartbeat_ms: HEARTBEAT_MS, include_tags: true, ...tagMatch(call) };
    const path = `/v0/watch?lenient=${call.lenient}`;
    type Session = { stream_url: string; topics: { [name: string]: { from_seq: number } } };
    const session = await this.#called<Session>("POST", path, body, 30_000, signal);
    const begin = new Map(Object.entries(session.topics).map(([name, position]) => [name, position.from_seq]));
    yield { events: [], cursor: begin, subscribed: new Set(begin.keys()) };
    const silent = new AbortController();
    const either = AbortSignal.any([signal, silent.signal]);
    const reply = await this.#fetched("GET", session.stream_url, undefined, either, signal).catch((error: unknown) => {
      if (error instanceof TopicsError && error.reason === "not_found") throw broken("the server has forgotten the session");
      throw error;
    });
    for await (const { name, data } of unlessSilent(serverSentEvents(reply, signal), SILENCE_MS, () => silent.abort())) {
      if (name) yield watchFrame(name, JSON.parse(data) as JsonEvent);
    }
    throw broken("the server ended the stream");
  }

  async #called<T>(method: string, path: string, body: object | undefined, timeoutMs: number, signal?: AbortSignal): Promise<T> {
    const timeout = AbortSignal.timeout(timeoutMs);
    const reply = await this.#fetched(method, path, body, signal ? AbortSignal.any([signal, timeout]) : timeout, signal);
    try {
      return (await reply.json()) as T;
    } catch (thrown) {
      throw failure(thrown, signal);
    }
  }

  /** The answer, if it is a good one. `signal` ends the call, `outer` is that of the caller. */
  async #fetched(method: string, path: string, body: object | undefined, signal: AbortSignal, outer?: AbortSignal): Promise<Response> {
    const request = { method, headers: this.#headers, signal, ...(body && { body: JSON.stringify(body) }) };
    let reply: Response;
    let said: JsonError | undefined;
    try {
      reply = await fetch(this.#base + path, request);
      if (reply.ok) return reply;
      said = (await reply.json().catch(() => undefined)) as JsonError | undefined;
    } catch (thrown) {
      throw failure(thrown, outer);
    }
    if (!said?.error?.code) throw broken(`HTTP ${reply.status} ${reply.statusText}`, reply.status < 500);
    const { code, message, detail = {} } = said.error;
    const retryAfter = reply.headers.get("retry-after");
    throw new TopicsError(code as Reason, message, {
      detail: Object.fromEntries(Object.entries(detail).map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)])),
      retryAfterMs: retryAfter === null ? undefined : 1000 * Number(retryAfter),
      mayBeDone: code === "internal",
    });
  }
}

/** What broke a call that no server of ours has answered. */
function failure(thrown: unknown, outer: AbortSignal | undefined): TopicsError {
  if (thrown instanceof TopicsError) return thrown;
  if (outer?.aborted) return canceled(outer);
  const isLate = thrown instanceof DOMException && thrown.name === "TimeoutError";
  const cause = thrown instanceof Error && thrown.cause ? thrown.cause : thrown;
  const mayBeDone = !/\bECONNREFUSED\b/.test(String(cause));
  return new TopicsError(isLate ? "deadline_exceeded" : "unavailable", String(cause), { isTransient: true, mayBeDone, cause: thrown });
}

function broken(message: string, isFinal = false): TopicsError {
  return new TopicsError("unavailable", message, { isTransient: !isFinal, mayBeDone: true });
}

/** The events of a stream; one without a name is a heartbeat. */
async function* serverSentEvents(reply: Response, outer: AbortSignal): AsyncGenerator<{ name: string; data: string }> {
  if (!reply.body) throw broken("the answer has no body");
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      text += value;
      if (text.length > LONGEST_EVENT) throw broken("an event is too large");
      const events = text.split("\n\n");
      text = events.pop() ?? "";
      for (const event of events) {
        const lines = event.split("\n");
        const field = (name: string) =>
          lines.filter((line) => line.startsWith(`${name}: `)).map((line) => line.slice(name.length + 2)).join("\n");
        yield { name: field("event"), data: field("data") };
      }
    }
  } catch (thrown) {
    throw failure(thrown, outer);
  } finally {
    await reader.cancel().catch(() => {});
  }
}

function watchFrame(name: string, event: JsonEvent): WatchFrame {
  const { topic, partition = 0, head_seq: headSeq = 0 } = event;
  const key = place(topic, partition);
  switch (name) {
    case "record": {
      const events = (event.records ?? []).map((record) => recordOf(topic, partition, record));
      return { events, cursor: new Map([[key, event.to_seq ?? 0]]) };
    }
    case "tombstone":
      return { events: [gapOf(topic, partition, event as unknown as JsonGap)], cursor: new Map() };
    case "caught-up":
      return { events: [{ kind: "caught_up", topic, partition, headSeq }], cursor: new Map() };
    case "topic-deleted":
      return { events: [{ kind: "topic_deleted", topic, partition, headSeq }], cursor: new Map() };
    case "error":
      return { events: adviceOf(event), cursor: new Map() };
    default:
      return { events: [], cursor: new Map() };
  }
}

/** Topics that are paced, or are not followed; anything else ends the stream, and the watch continues with another. */
function adviceOf(event: JsonEvent): WatchEvent[] {
  if (event.code !== 429) throw broken(event.error ?? `error ${event.code}`);
  return [{ kind: "advice", reason: "throttled", message: event.error ?? "", topics: event.topics ?? [] }];
}

function recordOf(topic: string, partition: number, record: JsonRecord): TopicRecord {
  const isBinary = record.$encoding === "base64";
  return new TopicRecord({
    topic,
    partition,
    seq: record.$seq,
    tsMs: record.$ts,
    payload: isBinary ? { bytes: fromBase64(record.data as string) } : { json: record.data },
    isBinary,
    tag: record.$tag,
    node: record.$node,
    metaText: record.meta ? JSON.stringify(record.meta) : "",
  });
}

function newRecord({ value, tag, node, meta }: NewRecord): object {
  if (value instanceof Uint8Array) throw new TopicsError("invalid_request", "binary records can't be written over HTTP");
  return { data: value, ...(tag !== undefined && { tag }), ...(node !== undefined && { node }), ...(meta && { meta }) };
}

function gapOf(topic: string, partition: number, gap: JsonGap): Gap {
  return {
    kind: "gap",
    topic,
    partition,
    firstSeq: gap.gap_from,
    lastSeq: gap.gap_to,
    reason: gap.reason as GapCause,
    earliestSeq: gap.earliest_seq,
    headSeq: gap.head_seq,
  };
}

function tagMatch({ tag, tagPrefix }: { tag: string | undefined; tagPrefix: string | undefined }): object {
  if (tag !== undefined) return { filter: ["tag", "Eq", tag] };
  return tagPrefix === undefined ? {} : { filter: ["tag", "Glob", `${tagPrefix}*`] };
}

function fromBase64(text: string): Uint8Array {
  return Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
}
