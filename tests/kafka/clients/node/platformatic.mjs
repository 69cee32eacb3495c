// Commands in @platformatic/kafka. Its streams always have a group; `read` takes one of its own.
import { readFileSync } from "node:fs";
import { Admin, ConfigResourceTypes, Consumer, IncrementalAlterConfigOperationTypes, Producer } from "@platformatic/kafka";
import { numbered, packed, places, serve, unpacked, until } from "./commands.mjs";

let reads = 0;

function base({ conn, patience = 1 }) {
  return {
    clientId: "suite",
    bootstrapBrokers: conn.bootstrap.split(','),
    sasl: conn.user === undefined ? undefined : { mechanism: "PLAIN", username: conn.user, password: conn.password },
    tls: conn.ca === undefined ? undefined : { ca: [readFileSync(conn.ca)] },
    retries: patience,
    retryDelay: 100,
    timeout: 10000,
  };
}

async function withAdmin(facts, ask) {
  const admin = new Admin(base(facts));
  try {
    return await ask(admin);
  } finally {
    await admin.close();
  }
}

const createTopic = (facts) =>
  withAdmin(facts, async (admin) => {
    const configs = Object.entries(facts.configs ?? {}).map(([name, value]) => ({ name, value }));
    await admin.createTopics({ topics: [facts.topic], partitions: facts.partitions, replicas: 1, configs });
  });

const describeTopic = (facts) =>
  withAdmin(facts, async (admin) => {
    const found = await admin.metadata({ topics: [facts.topic], forceUpdate: true, autocreateTopics: false });
    return { partitions: found.topics.get(facts.topic).partitionsCount };
  });

const createPartitions = ({ topic, total, ...facts }) =>
  withAdmin(facts, (admin) => admin.createPartitions({ topics: [{ name: topic, count: total, assignments: null }] }));

const describeConfigs = (facts) =>
  withAdmin(facts, async (admin) => {
    const resources = [{ resourceType: ConfigResourceTypes.TOPIC, resourceName: facts.topic }];
    const [found] = await admin.describeConfigs({ resources });
    return Object.fromEntries(found.configs.map(({ name, value }) => [name, value]));
  });

const alterConfigs = (facts) =>
  withAdmin(facts, async (admin) => {
    const configOperation = IncrementalAlterConfigOperationTypes.SET;
    const configs = Object.entries(facts.configs).map(([name, value]) => ({ name, value, configOperation }));
    const resources = [{ resourceType: ConfigResourceTypes.TOPIC, resourceName: facts.topic, configs }];
    await admin.incrementalAlterConfigs({ resources });
  });

const deleteRecords = ({ topic, partition, offset, ...facts }) =>
  withAdmin(facts, async (admin) => {
    await admin.deleteRecords({ topics: [{ name: topic, partitions: [{ partition, offset: BigInt(offset) }] }] });
  });

const deleteTopic = (facts) => withAdmin(facts, (admin) => admin.deleteTopics({ topics: [facts.topic] }));

const TIMES = { earliest: -2n, latest: -1n, max: -3n };

const offsets = ({ topic, partition, at, ...facts }) =>
  withAdmin(facts, async (admin) => {
    const timestamp = typeof at === "number" ? BigInt(at) : TIMES[at];
    const partitions = [{ partitionIndex: partition, timestamp }];
    const [found] = await admin.listOffsets({ topics: [{ name: topic, partitions }] });
    return Number(found.partitions[0].offset);
  });

const committed = (facts) =>
  withAdmin(facts, async (admin) => {
    const [found] = await admin.listConsumerGroupOffsets({ groups: [facts.group] });
    const topic = found.topics.find(({ name }) => name === facts.topic);
    const known = (topic?.partitions ?? []).filter(({ committedOffset }) => committedOffset >= 0n);
    return Object.fromEntries(known.map((p) => [p.partitionIndex, Number(p.committedOffset)]));
  });

const commit = (facts) =>
  withAdmin(facts, (admin) => {
    const partitionOffsets = Object.entries(facts.offsets).map(([partition, offset]) => ({
      partition: Number(partition),
      offset: BigInt(offset),
    }));
    const topics = [{ name: facts.topic, partitionOffsets }];
    return admin.alterConsumerGroupOffsets({ groupId: facts.group, topics });
  });

const groups = (facts) => withAdmin(facts, async (admin) => [...(await admin.listGroups()).keys()]);

const describeGroup = (facts) =>
  withAdmin(facts, async (admin) => {
    const found = (await admin.describeGroups({ groups: [facts.group] })).get(facts.group);
    return { state: found.state.toLowerCase().replaceAll("_", ""), members: found.members.size };
  });

const deleteGroup = (facts) => withAdmin(facts, (admin) => admin.deleteGroups({ groups: [facts.group] }));

async function send(facts, records) {
  const producer = new Producer({ ...base(facts), autocreateTopics: false });
  try {
    const messages = records.map((item) => ({
      topic: facts.topic,
      key: unpacked(item.key) ?? undefined,
      value: unpacked(item.value) ?? undefined,
      partition: item.partition,
      headers: new Map((item.headers ?? []).map(([name, data]) => [Buffer.from(name), unpacked(data)])),
      timestamp: item.timestamp == null ? undefined : BigInt(item.timestamp),
    }));
    const reply = await producer.send({
      messages,
      acks: facts.acks,
      compression: facts.codec ?? "none",
      idempotent: facts.idempotent ?? false,
    });
    return places(records, (reply.offsets ?? []).map(({ partition, offset }) => [partition, Number(offset)]));
  } finally {
    await producer.close();
  }
}

/** Sends so many a time, for records that are made to last. */
async function sendMany(facts) {
  const found = [];
  const records = numbered(facts.count, facts.partitions);
  for (let i = 0; i < records.length; i += 100) {
    found.push(...(await send({ ...facts, patience: 200 }, records.slice(i, i + 100))));
  }
  return found;
}

const record = (message) => ({
  partition: message.partition,
  offset: Number(message.offset),
  timestamp: Number(message.timestamp),
  key: packed(message.key),
  value: packed(message.value),
  headers: [...message.headers].map(([name, data]) => [name.toString(), packed(data)]),
});

async function read(facts) {
  const { topic } = facts;
  const asked = Object.entries(facts.start).map(([partition, at]) => [Number(partition), at]);
  const start = new Map();
  const ends = new Map();
  for (const [partition, at] of asked) {
    start.set(partition, at === "earliest" ? await offsets({ ...facts, partition, at }) : at);
    ends.set(partition, await offsets({ ...facts, partition, at: "latest" }));
  }
  const consumer = new Consumer({ ...base(facts), groupId: `reads-${process.pid}-${reads++}`, maxWaitTime: 200 });
  try {
    const stream = await consumer.consume({
      topics: [topic],
      mode: "manual",
      fallbackMode: facts.reset === undefined ? "fail" : facts.reset,
      autocommit: false,
      offsets: [...start].map(([partition, offset]) => ({ topic, partition, offset: BigInt(offset) })),
    });
    const records = [];
    let failure = null;
    stream.on("data", (message) => start.has(message.partition) && records.push(record(message)));
    stream.on("error", (error) => (failure = error));
    const position = (partition) => Number(stream.offsetsToFetch.get(`${topic}:${partition}`) ?? start.get(partition));
    const reached = () => failure !== null || [...ends].every(([partition, end]) => position(partition) >= end);
    await until(reached, facts.seconds ?? 30, () => `end: ${records.length} records`);
    if (failure !== null) throw failure;
    return { records, ends: Object.fromEntries([...start.keys()].map((p) => [p, position(p)])) };
  } finally {
    await consumer.close(true);
  }
}

async function consume(facts) {
  const protocol =
    facts.protocol === "consumer"
      ? { groupProtocol: "consumer" }
      : { sessionTimeout: 10000, heartbeatInterval: 500, groupInstanceId: facts.instance };
  const consumer = new Consumer({ ...base(facts), groupId: facts.group, maxWaitTime: 200, ...protocol });
  const records = [];
  try {
    const stream = await consumer.consume({
      topics: [facts.topic],
      mode: "committed",
      fallbackMode: "earliest",
      autocommit: false,
    });
    let failure = null;
    const last = new Map();
    stream.on("error", (error) => (failure = error));
    stream.on("data", (message) => {
      records.push(record(message));
      last.set(message.partition, message);
    });
    const enough = () => failure !== null || records.length >= facts.count;
    await until(enough, facts.seconds ?? 30, () => `only ${records.length} records`);
    if (failure !== null) throw failure;
    for (const message of last.values()) await message.commit();
    await stream.close();
  } finally {
    await consumer.close(true);
  }
  return records;
}

async function transaction(facts) {
  const producer = new Producer({ ...base(facts), retries: 0, transactionalId: facts.id, idempotent: true });
  try {
    const open = await producer.beginTransaction();
    await open.abort();
  } finally {
    await producer.close();
  }
}

function refusal(error) {
  if (error.code === "PLT_KFK_AUTHENTICATION") return 58;
  if (error.message.startsWith("Unknown topic")) return 3;
  if (Number.isInteger(error.apiCode)) return error.apiCode;
  for (const inner of error.errors ?? []) {
    const code = refusal(inner);
    if (code !== null) return code;
  }
  return error.cause ? refusal(error.cause) : null;
}

await serve(
  {
    alter_configs: alterConfigs,
    commit,
    committed,
    consume,
    create_partitions: createPartitions,
    create_topic: createTopic,
    delete_group: deleteGroup,
    delete_records: deleteRecords,
    delete_topic: deleteTopic,
    describe_configs: describeConfigs,
    describe_group: describeGroup,
    describe_topic: describeTopic,
    groups,
    offsets,
    produce: (facts) => send(facts, facts.records),
    produce_many: sendMany,
    read,
    transaction,
  },
  refusal,
);
