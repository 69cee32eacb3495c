/**
 * The scenario of facts.json with the generated TypeScript package: one step after the other, each with its facts.
 *
 * Environment: TOPICS_ADDRESS, TOPICS_KEY (every scope), TOPICS_READER_KEY (read alone), TOPICS_FACTS (the file). The
 * server is fresh and takes two topics.
 */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, test } from "node:test";

import { ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import {
  ErrorInfoSchema,
  QueueService,
  RetryInfoSchema,
  TopicsService,
  TopicType,
  WatchService,
} from "topics-sdk";

/** @typedef {Record<string, unknown>} Facts */
/** @typedef {{seq: bigint, data: Uint8Array}} Seen */

const CALL_MS = 20_000;
const baseUrl = `http://${env("TOPICS_ADDRESS")}`;
const sessionManager = new Http2SessionManager(baseUrl);
const transport = createGrpcTransport({ baseUrl, sessionManager, defaultTimeoutMs: CALL_MS });
const topics = createClient(TopicsService, transport);
const queues = createClient(QueueService, transport);
const watches = createClient(WatchService, transport);
const keyed = bearer(env("TOPICS_KEY"));
const reader = bearer(env("TOPICS_READER_KEY"));

after(() => sessionManager.abort());

/** @type {Record<string, () => Promise<Facts>>} */
const steps = {
  async create() {
    const request = { topic: "events", config: { capRecords: 3n } };
    const put = await topics.putTopic(request, keyed);
    const again = await topics.putTopic(request, keyed);
    return {
      created: put.created,
      created_again: again.created,
      type: put.config?.type,
      cap_records: Number(put.config?.capRecords),
      partitions: put.partitionCount,
    };
  },

  async append() {
    const tags = ["odd", "even", "odd", "even", undefined];
    const records = tags.map((tag, i) => ({ data: bytes(`{"n": ${i + 1}}`), tag }));
    const request = { topic: "events", records, idempotencyKey: "import-1" };
    const first = await topics.append(request, keyed);
    const again = await topics.append(request, keyed);
    return {
      seqs: first.seqs.map(Number),
      deduped: first.deduped,
      again_seqs: again.seqs.map(Number),
      again_deduped: again.deduped,
      head: Number(again.headSeq),
    };
  },

  async gap() {
    const page = await topics.diff({ topic: "events", includeTags: true }, keyed);
    return {
      gap_from: Number(page.tombstone?.gapFrom),
      gap_to: Number(page.tombstone?.gapTo),
      reason: page.tombstone?.reason,
      missed: Number(page.tombstone?.missedEstimate),
      seqs: seqs(page.records),
      tags: page.records.map((record) => record.tag ?? null),
      data: data(page.records),
      next: Number(page.nextFromSeq),
      caught_up: page.caughtUp,
    };
  },

  async delete() {
    const match = { rule: { case: /** @type {const} */ ("eq"), value: "even" } };
    const deleted = await topics.deleteRecords({ topic: "events", match }, keyed);
    const page = await topics.diff({ topic: "events", fromSeq: 2n }, keyed);
    return {
      deleted: Number(deleted.deleted),
      left: Number(deleted.count),
      seqs: seqs(page.records),
      gap: page.tombstone !== undefined,
    };
  },

  async watch() {
    /** @type {Record<string, bigint>} */
    const cursor = {};
    /** @type {Facts} */
    const seen = {};
    /** @type {Seen[]} */
    let records = [];
    const subscription = { topics: { events: { fromSeq: 2n } } };
    // A stream that is left early would keep its timer, and with it the process, until the deadline.
    for await (const { frame } of watches.watch({ subscription }, { ...keyed, timeoutMs: 0 })) {
      assert.ok(frame);
      Object.assign(cursor, frame.cursor);
      if (frame.kind.case === "subscribed") {
        seen.from = Number(frame.kind.value.topics.events?.fromSeq);
      } else if (frame.kind.case === "caughtUp") {
        seen.backlog = seqs(records);
        seen.caught_up = Number(frame.kind.value.headSeq);
        records = [];
        await topics.append({ topic: "events", records: [{ data: bytes('{"n": 6}') }] }, keyed);
      } else if (frame.kind.case === "records") {
        records.push(...frame.kind.value.records);
        if (seen.caught_up !== undefined) break; // live: leaving the loop ends the stream
      }
    }
    return { ...seen, live: seqs(records), live_data: data(records), cursor: Number(cursor.events) };
  },

  async queue() {
    await topics.putTopic({ topic: "jobs", config: { type: TopicType.QUEUE } }, keyed);
    await topics.append({ topic: "jobs", records: [{ data: bytes("1") }, { data: bytes("2") }] }, keyed);
    const claim = async () => (await queues.claim({ topic: "jobs", node: "worker", max: 10 }, keyed)).claimed;
    /** @param {{seq: bigint, leaseId: string} | undefined} job */
    const held = (job) => {
      assert.ok(job);
      return { topic: "jobs", node: "worker", seqs: [job.seq], leaseIds: [job.leaseId] };
    };
    const claimed = await claim();
    const acked = await queues.ack(held(claimed[0]), keyed);
    const nacked = await queues.nack(held(claimed[1]), keyed);
    const again = await claim();
    const stale = await queues.ack(held(claimed[1]), keyed);
    const last = await queues.ack(held(again[0]), keyed);
    return {
      claimed: claimed.map((job) => Number(job.seq)),
      deliveries: claimed.map((job) => Number(job.deliveries)),
      acked: Number(acked.acked),
      nacked: Number(nacked.nacked),
      again: again.map((job) => Number(job.seq)),
      again_deliveries: again.map((job) => Number(job.deliveries)),
      stale_acked: Number(stale.acked),
      stale_skipped: stale.skipped.map(Number),
      last_acked: Number(last.acked),
      ready: Number(last.ready),
      in_flight: Number(last.inFlight),
    };
  },

  error: () => refused(topics.getTopic({ topic: "nowhere" }, keyed)),

  retry: () => refused(topics.putTopic({ topic: "one-too-many" }, keyed)),

  no_key: () => refused(topics.listTopics({})),

  wrong_key: () => refused(topics.listTopics({}, bearer("a-wrong-key"))),

  async no_scope() {
    const listed = await topics.listTopics({}, reader);
    const names = listed.topics.map((topic) => topic.topic);
    const failure = await refused(topics.append({ topic: "events", records: [{ data: bytes("7") }] }, reader));
    return { reads: names.join() === "events,jobs", ...failure };
  },

  async repeatable() {
    const { putTopic, getTopic, diff, bulkDiff, append, appendStream } = TopicsService.method;
    const methods = [putTopic, getTopic, diff, bulkDiff, append, appendStream];
    return Object.fromEntries(methods.map((method) => [method.name, method.idempotency !== 0]));
  },
};

test("scenario", { timeout: 3 * CALL_MS }, async (t) => {
  /** @type {Record<string, Facts>} */
  const expected = JSON.parse(readFileSync(env("TOPICS_FACTS"), "utf8"));
  assert.deepEqual(Object.keys(steps), Object.keys(expected));
  for (const [name, step] of Object.entries(steps)) {
    await t.test(name, async () => assert.deepEqual(await step(), expected[name]));
  }
});

/**
 * What the error of a call says.
 * @param {Promise<unknown>} call
 * @returns {Promise<Facts>}
 */
async function refused(call) {
  const error = await call.then(() => assert.fail("it was not refused"), ConnectError.from);
  const [info] = error.findDetails(ErrorInfoSchema);
  const [retry] = error.findDetails(RetryInfoSchema);
  const delay = retry?.retryDelay;
  return {
    status: Number(error.code),
    reason: info?.reason,
    domain: info?.domain,
    detail: info?.metadata,
    retry_ms: delay ? Number(delay.seconds) * 1000 + delay.nanos / 1e6 : null,
  };
}

/** @param {string} key */
function bearer(key) {
  return { headers: { authorization: `Bearer ${key}` } };
}

/** @param {string} text */
function bytes(text) {
  return new TextEncoder().encode(text);
}

/** @param {Seen[]} records */
function seqs(records) {
  return records.map((record) => Number(record.seq));
}

/** @param {Seen[]} records */
function data(records) {
  return records.map((record) => new TextDecoder().decode(record.data));
}

/**
 * @param {string} name
 * @returns {string}
 */
function env(name) {
  const value = process.env[name];
  assert.ok(value, `${name} is not set: run it through pytest tests/sdk/languages/test_typescript.py`);
  return value;
}
