// The loop of a client program: a JSON command a line on stdin, a JSON reply a line on stdout.
import { createInterface } from "node:readline";

export const packed = (data) => (data === null || data === undefined ? null : Buffer.from(data).toString("base64"));
export const unpacked = (text) => (text === null || text === undefined ? null : Buffer.from(text, "base64"));

/** A refusal by the broker, with Kafka's error code. */
export class Refused extends Error {
  constructor(code, message) {
    super(message);
    this.refusal = code;
  }
}

/** The records of `produce_many`: value i, in partition i modulo `partitions`. */
export const numbered = (count, partitions) =>
  Array.from({ length: count }, (_, i) => ({
    partition: i % partitions,
    key: null,
    value: Buffer.from(String(i)).toString("base64"),
    headers: [],
  }));

/** Calls `done` until it gives something true; throws after `seconds`. */
export async function until(done, seconds, what) {
  const deadline = Date.now() + seconds * 1000;
  while (!done()) {
    if (Date.now() > deadline) throw new Error(`not within ${seconds} s: ${what()}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** Groups records by topic partition and gives each its offset, from the base offset of each partition. */
export function places(records, bases) {
  const next = new Map(bases);
  return records.map(({ partition }) => {
    const offset = next.get(partition);
    if (offset === undefined || offset < 0) return null;
    next.set(partition, offset + 1);
    return [partition, offset];
  });
}

/** Answers commands until stdin ends. `refusal` gives the error code of an error of the client, or null. */
export async function serve(commands, refusal) {
  for await (const line of createInterface({ input: process.stdin })) {
    const facts = JSON.parse(line);
    let reply;
    try {
      reply = { ok: (await commands[facts.do](facts)) ?? null };
    } catch (error) {
      console.error(error);
      reply = { error: { code: error.refusal ?? refusal(error) ?? null, message: String(error) } };
    }
    process.stdout.write(JSON.stringify(reply) + "\n");
  }
  process.exit(0);
}
