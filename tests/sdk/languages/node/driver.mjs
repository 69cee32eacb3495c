/**
 * One operation of the TypeScript client, as test_behaviours.py wants it: driver.mjs OPERATION JSON.
 *
 * Prints one JSON object a line. A line on stdin ends an endless scenario. With TOPICS_HTTP it is the client for
 * browsers, over HTTP; else that for Node, over gRPC.
 */
import { readFileSync } from "node:fs";

import { connect as connectHttp } from "topics-sdk/browser";
import { connect, GrpcTopicsClient, TopicsError } from "topics-sdk/node";

/** @import { Json, ReadEvent, WatchEvent } from "topics-sdk/browser" */

const [operation = "", text = "{}"] = process.argv.slice(2);
const ask = JSON.parse(text);
const stop = new AbortController();
process.stdin.once("data", () => stop.abort());
const retry = { totalMs: 120_000 }; // more than two lost calls take
const topics = process.env.TOPICS_HTTP
  ? connectHttp(process.env.TOPICS_HTTP, { retry })
  : connect(process.env.TOPICS_ADDRESS, {
      retry,
      followOwners: !process.env.TOPICS_STAY,
      key: process.env.TOPICS_KEY ?? "",
      ...(process.env.TOPICS_CA && { tls: { ca: readFileSync(process.env.TOPICS_CA) } }),
    });

/** @type {Record<string, () => Promise<void>>} */
const operations = {
  async read() {
    const { topic, from, last, follow, tag, tag_prefix: tagPrefix, partition } = ask;
    const reading = topics.read(topic, { from, last, follow, tag, tagPrefix, partition, signal: stop.signal });
    await told(reading, () => reading.cursor);
  },

  async watch() {
    const watching = topics.watch(ask.topics, { cursor: ask.cursor ?? {}, signal: stop.signal });
    await told(watching, () => watching.cursor);
  },

  async append() {
    const records = ask.records.map((/** @type {{value: Json}} */ each) => ({ ...each, value: payload(each.value) }));
    const { firstSeq, lastSeq, deduped } = await topics.appendMany(ask.topic, records, { idempotencyKey: ask.key });
    tell({ first: firstSeq, last: lastSeq, deduped });
  },

  async produce() {
    const producer = topics.producer();
    const deliveries = [];
    for (let n = 0; n < ask.count; n++) {
      deliveries.push(await producer.send(ask.topic, { n }));
      if (ask.pause_ms) await new Promise((resolve) => setTimeout(resolve, ask.pause_ms));
    }
    await producer.close();
    tell({ stored: (await Promise.all(deliveries.map((delivery) => delivery.stored))).map(({ seq }) => seq) });
  },

  async work() {
    if (!(topics instanceof GrpcTopicsClient)) throw new Error("no worker over HTTP");
    const { queue, busy_ms = 0, fail_first = 0, backoff_ms = 10, concurrency = 1, lease_ms: leaseMs } = ask;
    const did = await topics.work(
      queue,
      async (job, signal) => {
        tell({ job: job.seq, deliveries: job.deliveries });
        await new Promise((resolve) => {
          const timer = setTimeout(resolve, busy_ms, undefined);
          signal.addEventListener("abort", () => resolve(clearTimeout(timer)));
        });
        if (signal.aborted) return tell({ lost: job.seq });
        if (job.deliveries <= fail_first) throw new Error("as it was asked for");
        tell({ done: job.seq });
      },
      { concurrency, leaseMs, backoffMs: () => backoff_ms, onError: () => {}, signal: stop.signal },
    );
    tell({ acked: did.acked, retried: did.retried, released: did.released, lost_count: did.lost });
  },
};

try {
  await operations[operation]?.();
} catch (error) {
  if (!(error instanceof TopicsError)) throw error;
  console.error(error); // for whoever reads of a test that failed
  tell({ error: error.reason, detail: error.detail, transient: error.isTransient });
} finally {
  topics.close();
  process.stdin.destroy();
}

/**
 * Tells the events to the end, and then where it is.
 * @param {AsyncIterable<ReadEvent | WatchEvent>} events
 * @param {() => unknown} cursor
 */
async function told(events, cursor) {
  try {
    for await (const event of events) tellEvent(event);
  } catch (error) {
    if (!(error instanceof TopicsError && error.reason === "canceled")) throw error;
  }
  tell({ end: cursor() });
}

/** @param {ReadEvent | WatchEvent} event */
function tellEvent(event) {
  switch (event.kind) {
    case "record": {
      const { topic, seq, tag = null, node = null, isBinary: binary, data, meta } = event;
      return tell({ topic, seq, tag, node, binary, data: Buffer.from(data).toString("base64"), meta });
    }
    case "gap":
      return tell({ gap: [event.firstSeq, event.lastSeq, event.reason] });
    case "caught_up":
      return tell({ caught_up: [event.topic, event.headSeq] });
    case "topic_deleted":
      return tell({ deleted: event.topic });
    case "advice":
  }
}

/** @param {object} line */
function tell(line) {
  console.log(JSON.stringify(line));
}

/**
 * @param {Json} value
 * @returns {Json | Uint8Array}
 */
function payload(value) {
  if (typeof value !== "object" || value === null || Array.isArray(value) || !("$bytes" in value)) return value;
  return new Uint8Array(Buffer.from(String(value.$bytes), "base64"));
}
