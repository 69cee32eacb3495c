/** Bounds of what the client remembers of owners, with links that only look like some. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema } from "topics-sdk/google/rpc/error_details_pb.js";
import { AppendRequestSchema, GetTopicRequestSchema, ListTopicsRequestSchema, TopicsService } from "topics-sdk/topics/v1/topics_service_pb.js";
import { ConsumeRequestSchema, GetGroupRequestSchema } from "topics-sdk/topics/v1/group_service_pb.js";
import { ExecuteRequestSchema, SqlServiceConsumeRequestSchema } from "topics-sdk/topics/v1/sql_service_pb.js";
import { WatchRequestSchema } from "topics-sdk/topics/v1/watch_service_pb.js";

import { EVERYTHING, Hints, keyOf } from "./node_modules/topics-sdk/client/owners.js";
import { Routes } from "./node_modules/topics-sdk/client/routes.js";
import { connect, TopicsError } from "topics-sdk/node";

const SEED = "seed:1";
const getTopic = TopicsService.method.getTopic;
const bulkDiff = TopicsService.method.bulkDiff;

/** Links by target, each with its calls; answers name `owner` in their trailing metadata. */
class Nodes {
  links = /** @type {Map<string, any>} */ (new Map());
  owner = "";
  failure = /** @type {Error | undefined} */ (undefined);

  /** @param {string} target */
  open = (target) => {
    const link = { calls: 0, isClosed: false, isUp: true };
    const answer = () => {
      link.calls++;
      if (this.failure && target !== SEED) throw this.failure;
      return { header: new Headers(), trailer: new Headers(this.owner && target === SEED ? { "x-topics-owner": this.owner } : {}) };
    };
    const transport = {
      unary: async () => ({ ...answer(), stream: false, message: {} }),
      stream: async () => ({ ...answer(), stream: true, message: items() }),
    };
    const made = Object.assign(link, { transport, isReady: () => link.isUp, connect: async () => link.isUp, close: () => { link.isClosed = true; } });
    this.links.set(target, made);
    return /** @type {any} */ (made);
  };

  get openNow() {
    return [...this.links].filter(([target, link]) => target !== SEED && !link.isClosed).map(([target]) => target);
  }
}

async function* items() {
  yield {};
  yield {};
}

/** @param {Routes} routes @param {string} topic */
const ask = (routes, topic) => routes.unary(getTopic, undefined, undefined, undefined, { topic });

/** @param {Routes} routes @param {string} topic */
const open = (routes, topic) => routes.stream(bulkDiff, undefined, undefined, undefined, (async function* () { yield { topic }; })());

test("keys", () => {
  assert.equal(keyOf(AppendRequestSchema, { topic: "t", partition: 2 }), keyOf(GetTopicRequestSchema, { topic: "t", partition: 2 }));
  assert.equal(keyOf(AppendRequestSchema, { topic: "t" }), keyOf(AppendRequestSchema, { topic: "t", partition: 0 }));
  const keys = [
    keyOf(AppendRequestSchema, { topic: "t" }),
    keyOf(AppendRequestSchema, { topic: "t", partition: 1 }),
    keyOf(GetGroupRequestSchema, { group: "g" }),
    keyOf(ConsumeRequestSchema, { group: "g", topic: "t" }),
    keyOf(ExecuteRequestSchema, { sql: "SELECT 1" }),
    EVERYTHING,
  ];
  assert.equal(new Set(keys).size, keys.length);
  assert.equal(keyOf(SqlServiceConsumeRequestSchema, { groupId: "g", topic: "t" }), keys[3]);
  assert.equal(keyOf(ListTopicsRequestSchema, { prefix: "t" }), EVERYTHING);
  assert.equal(keyOf(WatchRequestSchema, {}), EVERYTHING);
});

test("hints are bounded, and those in use are kept", () => {
  const hints = new Hints();
  for (let n = 0; n < 30_000; n++) {
    hints.learn(`t${n}`, "a:1");
    hints.avoid(`b:${n}`);
    assert.equal(hints.find("t0"), "a:1");
  }
  assert.equal(hints.size, 10_000);
  assert.equal(hints.find("t1"), undefined);
  assert.equal(hints.avoids("b:29999"), true);
  assert.equal(hints.avoids("b:1"), false);
});

test("the second call goes to the owner, and back to the seed when that fails", async () => {
  const nodes = new Nodes();
  const routes = new Routes([SEED], nodes.open);
  nodes.owner = "a:1";
  await ask(routes, "t");
  await ask(routes, "t");
  assert.deepEqual([nodes.links.get(SEED).calls, nodes.links.get("a:1").calls], [1, 1]);
  nodes.failure = new Error("gone");
  await assert.rejects(ask(routes, "t"));
  await ask(routes, "t");
  await ask(routes, "t");
  assert.deepEqual([nodes.links.get(SEED).calls, nodes.links.get("a:1").calls], [3, 2]);
  assert.equal(nodes.links.get("a:1").isClosed, true);
});

test("what an owner says that is not available", async () => {
  for (const [reason, isAvoided] of /** @type {const} */ ([["NOT_READY", false], ["SHUTTING_DOWN", true], ["", true]])) {
    const nodes = new Nodes();
    const routes = new Routes([SEED], nodes.open);
    nodes.owner = "a:1";
    await ask(routes, "one");
    await ask(routes, "other");
    const details = reason ? [{ desc: ErrorInfoSchema, value: { reason } }] : [];
    nodes.failure = new ConnectError("away", Code.Unavailable, undefined, details);
    await assert.rejects(ask(routes, "one"));
    nodes.failure = undefined;
    const before = nodes.links.get("a:1").calls;
    nodes.owner = "";
    await ask(routes, "one");
    assert.equal(nodes.links.get("a:1").calls, before);
    await ask(routes, "other");
    assert.equal(nodes.links.get("a:1").calls, before + (isAvoided ? 0 : 1), reason);
  }
});

test("links to owners are bounded; those with a call stay", async () => {
  const nodes = new Nodes();
  const routes = new Routes([SEED], nodes.open);
  for (let n = 0; n < 100; n++) {
    nodes.owner = `a:${n}`;
    await ask(routes, `t${n}`);
    if (n === 0) await open(routes, "t0"); // and not read to its end
    assert.ok(nodes.openNow.length <= 32);
  }
  assert.ok(nodes.links.size > 33, "others made room");
  assert.ok(nodes.openNow.includes("a:0"));
  routes.close();
  assert.deepEqual(nodes.openNow, []);
});

test("a link that failed is closed when its streams have ended", async () => {
  const nodes = new Nodes();
  const routes = new Routes([SEED], nodes.open);
  nodes.owner = "a:1";
  await ask(routes, "t");
  const { message } = await open(routes, "t");
  const reading = message[Symbol.asyncIterator]();
  await reading.next();
  nodes.failure = new Error("gone");
  await assert.rejects(ask(routes, "t"));
  assert.equal(nodes.links.get("a:1").isClosed, false);
  await reading.next();
  await reading.next();
  assert.equal(nodes.links.get("a:1").isClosed, true);
});

test("an owner that is not connected is not waited for", async () => {
  const nodes = new Nodes();
  const routes = new Routes([SEED], nodes.open);
  nodes.owner = "a:1";
  await ask(routes, "t");
  nodes.links.get("a:1").isUp = false;
  await ask(routes, "t");
  assert.deepEqual([nodes.links.get(SEED).calls, nodes.links.get("a:1").calls], [2, 0]);
});

test("what names no node is not connected to", async () => {
  const nodes = new Nodes();
  const routes = new Routes([SEED], nodes.open);
  for (const owner of ["nonsense", ":1", "a:b", "a:1,b:1", "http://a:1", "u@a:1", SEED]) {
    nodes.owner = owner;
    await ask(routes, "t");
  }
  assert.deepEqual([...nodes.links.keys()], [SEED]);
});

test("without followOwners all calls stay", async () => {
  const nodes = new Nodes();
  const routes = new Routes([SEED], nodes.open, false);
  nodes.owner = "a:1";
  for (let n = 0; n < 3; n++) await ask(routes, "t");
  assert.deepEqual([...nodes.links.keys()], [SEED]);
});

test("addresses", () => {
  for (const address of ["a:1,b:2", ["a:1", "b:2"], "http://a:1", "https://a:1,b:2", "[::1]:4001", ["https://a:1", "https://b:1"]]) connect(address).close();
  for (const address of ["https://a:1/path", ["http://a:1", "https://b:1"], "ftp://a:1", "a:1,", "a:99999", "https://key@a:1", [], Array.from({ length: 33 }, (_, n) => `h${n}:1`)]) {
    assert.throws(() => connect(address), TopicsError, String(address));
  }
});
