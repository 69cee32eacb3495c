// Commands in KafkaJS. Its consumers always have a group; `read` takes one of its own and seeks.
import { readFileSync } from "node:fs";
import kafkajs from "kafkajs";
import { numbered, packed, places, Refused, serve, unpacked, until } from "./commands.mjs";

const { CompressionTypes, ConfigResourceTypes, Kafka, logLevel, Partitioners } = kafkajs;
const CODECS = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP };
let reads = 0;

function kafka({ conn, patience = 2 }) {
  return new Kafka({
    brokers: conn.bootstrap.split(','),
    clientId: "suite",
    logLevel: logLevel.NOTHING,
    sasl: conn.user === undefined ? undefined : { mechanism: "plain", username: conn.user, password: conn.password },
    ssl: conn.ca === undefined ? undefined : { ca: [readFileSync(conn.ca)] },
    retry: { initialRetryTime: 50, maxRetryTime: 500, retries: patience },
  });
}

async function withAdmin(facts, ask) {
  const admin = kafka(facts).admin();
  try {
    await admin.connect();
    return await ask(admin);
  } finally {
    await admin.disconnect();
  }
}

const createTopic = (facts) =>
  withAdmin(facts, async (admin) => {
    const configEntries = Object.entries(facts.configs ?? {}).map(([name, value]) => ({ name, value }));
    const topic = { topic: facts.topic, numPartitions: facts.partitions, replicationFactor: 1, configEntries };
    if (!(await admin.createTopics({ topics: [topic] }))) throw new Refused(36, "it exists");
  });

const describeTopic = (facts) =>
  withAdmin(facts, async (admin) => {
    const { topics } = await admin.fetchTopicMetadata({ topics: [facts.topic] });
    return { partitions: topics[0].partitions.length };
  });

const createPartitions = ({ topic, total, ...facts }) =>
  withAdmin(facts, async (admin) => {
    await admin.createPartitions({ topicPartitions: [{ topic, count: total }] });
  });

const describeConfigs = (facts) =>
  withAdmin(facts, async (admin) => {
    const resources = [{ type: ConfigResourceTypes.TOPIC, name: facts.topic }];
    const found = await admin.describeConfigs({ resources, includeSynonyms: false });
    return Object.fromEntries(found.resources[0].configEntries.map((e) => [e.configName, e.configValue]));
  });

const alterConfigs = (facts) =>
  withAdmin(facts, async (admin) => {
    const configEntries = Object.entries(facts.configs).map(([name, value]) => ({ name, value }));
    const resources = [{ type: ConfigResourceTypes.TOPIC, name: facts.topic, configEntries }];
    await admin.alterConfigs({ resources, validateOnly: false });
  });

const deleteRecords = ({ topic, partition, offset, ...facts }) =>
  withAdmin(facts, async (admin) => {
    await admin.fetchTopicOffsets(topic); // it knows nothing of topics that it was not asked about
    await admin.deleteTopicRecords({ topic, partitions: [{ partition, offset: String(offset) }] });
  });

const deleteTopic = (facts) => withAdmin(facts, (admin) => admin.deleteTopics({ topics: [facts.topic] }));

const offsets = ({ topic, partition, at, ...facts }) =>
  withAdmin(facts, async (admin) => {
    if (typeof at === "number") {
      const found = await admin.fetchTopicOffsetsByTimestamp(topic, at);
      return Number(found.find((p) => p.partition === partition).offset);
    }
    const found = (await admin.fetchTopicOffsets(topic)).find((p) => p.partition === partition);
    return Number(at === "earliest" ? found.low : found.high);
  });

const committed = (facts) =>
  withAdmin(facts, async (admin) => {
    const [found] = await admin.fetchOffsets({ groupId: facts.group, topics: [facts.topic] });
    const known = found.partitions.filter(({ offset }) => offset !== "-1");
    return Object.fromEntries(known.map(({ partition, offset }) => [partition, Number(offset)]));
  });

const commit = (facts) =>
  withAdmin(facts, (admin) => {
    const partitions = Object.entries(facts.offsets).map(([p, offset]) => ({
      partition: Number(p),
      offset: String(offset),
    }));
    return admin.setOffsets({ groupId: facts.group, topic: facts.topic, partitions });
  });

const groups = (facts) =>
  withAdmin(facts, async (admin) => (await admin.listGroups()).groups.map(({ groupId }) => groupId));

const describeGroup = (facts) =>
  withAdmin(facts, async (admin) => {
    const [found] = (await admin.describeGroups([facts.group])).groups;
    return { state: found.state.toLowerCase(), members: found.members.length };
  });

const deleteGroup = (facts) => withAdmin(facts, async (admin) => void (await admin.deleteGroups([facts.group])));

async function send(facts, records) {
  const producer = kafka(facts).producer({
    idempotent: facts.idempotent ?? false,
    maxInFlightRequests: facts.idempotent ? 1 : undefined,
    createPartitioner: Partitioners.DefaultPartitioner,
  });
  try {
    await producer.connect();
    const messages = records.map((item) => {
      const headers = {};
      for (const [name, data] of item.headers ?? []) (headers[name] ??= []).push(unpacked(data));
      const timestamp = item.timestamp == null ? undefined : String(item.timestamp);
      return { key: unpacked(item.key), value: unpacked(item.value), partition: item.partition, headers, timestamp };
    });
    const replies = await producer.send({
      topic: facts.topic,
      acks: facts.acks,
      compression: CODECS[facts.codec ?? "none"],
      messages,
    });
    return places(records, facts.acks === 0 ? [] : replies.map((r) => [r.partition, Number(r.baseOffset)]));
  } finally {
    await producer.disconnect();
  }
}

/** Sends so many a time, for records that are made to last. */
async function sendMany(facts) {
  const found = [];
  const records = numbered(facts.count, facts.partitions);
  for (let i = 0; i < records.length; i += 100) {
    found.push(...(await send({ ...facts, patience: 100 }, records.slice(i, i + 100))));
  }
  return found;
}

function record(partition, message) {
  const headers = Object.entries(message.headers ?? {}).flatMap(([name, data]) =>
    (Array.isArray(data) ? data : [data]).map((one) => [name, packed(one)]),
  );
  return {
    partition,
    offset: Number(message.offset),
    timestamp: Number(message.timestamp),
    key: packed(message.key),
    value: packed(message.value),
    headers,
  };
}

async function read(facts) {
  const { topic } = facts;
  const start = new Map();
  const ends = new Map();
  await withAdmin(facts, async (admin) => {
    for (const { partition, low, high } of await admin.fetchTopicOffsets(topic)) {
      const asked = facts.start[partition];
      if (asked === undefined) continue;
      start.set(partition, asked === "earliest" ? Number(low) : asked);
      ends.set(partition, Number(high));
    }
  });
  const consumer = kafka(facts).consumer({ groupId: `reads-${process.pid}-${reads++}`, maxWaitTimeInMs: 200 });
  const positions = new Map(start);
  const records = [];
  consumer.on(consumer.events.END_BATCH_PROCESS, ({ payload }) => {
    if (positions.has(payload.partition)) positions.set(payload.partition, Number(payload.lastOffset) + 1);
  });
  try {
    await consumer.connect();
    await consumer.subscribe({ topics: [topic], fromBeginning: facts.reset !== "latest" });
    await consumer.run({
      autoCommit: false,
      eachBatch: async ({ batch: { partition, messages } }) => {
        if (start.has(partition)) records.push(...messages.map((message) => record(partition, message)));
      },
    });
    for (const [partition, offset] of start) consumer.seek({ topic, partition, offset: String(offset) });
    const reached = () => [...ends].every(([partition, end]) => positions.get(partition) === end);
    await until(reached, facts.seconds ?? 30, () => JSON.stringify([[...positions], [...ends], records.length]));
  } finally {
    await consumer.disconnect();
  }
  return { records, ends: Object.fromEntries(positions) };
}

async function consume(facts) {
  const consumer = kafka(facts).consumer({
    groupId: facts.group,
    maxWaitTimeInMs: 200,
    sessionTimeout: 10000,
    heartbeatInterval: 500,
  });
  const records = [];
  try {
    await consumer.connect();
    await consumer.subscribe({ topics: [facts.topic], fromBeginning: true });
    await consumer.run({ eachMessage: async ({ partition, message }) => void records.push(record(partition, message)) });
    await until(() => records.length >= facts.count, facts.seconds ?? 30, () => `only ${records.length} records`);
  } finally {
    await consumer.disconnect();
  }
  return records;
}

async function transaction(facts) {
  const producer = kafka(facts).producer({
    transactionalId: facts.id,
    maxInFlightRequests: 1,
    idempotent: true,
    createPartitioner: Partitioners.DefaultPartitioner,
  });
  try {
    await producer.connect();
    await producer.transaction();
  } finally {
    await producer.disconnect();
  }
}

function refusal(error) {
  for (let at = error; at; at = at.originalError ?? at.cause) {
    if (at.name === "KafkaJSSASLAuthenticationError") return 58;
    if (at.errors?.length) return refusal(at.errors[0]);
    if (at.groups?.length && at.groups[0].errorCode) return at.groups[0].errorCode;
    if (Number.isInteger(at.code)) return at.code;
  }
  return null;
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
