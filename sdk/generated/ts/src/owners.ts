/** The owners of topics, groups and tables in a cluster, as answers name them. */
import type { DescMessage } from "@bufbuild/protobuf";

import { ExecuteRequestSchema } from "../lib/topics/v1/sql_service_pb.js";

/**
 * The metadata that names an owner, as host:port: initial metadata that of everything, trailing metadata that of calls
 * on the same topic, partition and group.
 */
export const OWNER = "x-topics-owner";

/** The key of calls that may concern several nodes. */
export const EVERYTHING = "";
const SQL = "sql"; // all tables are in one place
const MAX_HINTS = 10_000;
const MAX_AVOIDED = 64;
const AVOID_MS = 30_000;

/** The topic, partition and group that a call names: calls with the same key have the same owner. */
export function keyOf(schema: DescMessage, request: object): string {
  if (schema.typeName === ExecuteRequestSchema.typeName) return SQL;
  const { topic, partition, group, groupId } = request as { [field: string]: unknown };
  const has = (name: string, type: string) => schema.field[name]?.fieldKind === "scalar" && typeof (request as never)[name] === type;
  const named = has("topic", "string") ? topic : "";
  const grouped = has("group", "string") ? group : has("groupId", "string") ? groupId : "";
  if (!named && !grouped) return EVERYTHING;
  return JSON.stringify([named, has("partition", "number") ? partition : 0, grouped]);
}

/** The owner of each key, for the keys used last, and the nodes that are not to be used for a while. */
export class Hints {
  readonly #owners = new Map<string, string>();
  readonly #avoided = new Map<string, number>();

  get size(): number {
    return this.#owners.size;
  }

  /** The owner to use for a key; undefined if it is unknown or to be avoided. */
  find(key: string): string | undefined {
    const owner = this.#owners.get(key);
    if (owner !== undefined) this.learn(key, owner); // it was used last
    const target = owner ?? this.#owners.get(EVERYTHING);
    return target === undefined || this.avoids(target) ? undefined : target;
  }

  learn(key: string, target: string): void {
    this.#owners.delete(key);
    this.#owners.set(key, target);
    if (this.#owners.size > MAX_HINTS) removeFirst(this.#owners);
  }

  /** Forgets the owner of a key, and of everything if it is this one. */
  forget(key: string, target: string): void {
    this.#owners.delete(key);
    if (this.#owners.get(EVERYTHING) === target) this.#owners.delete(EVERYTHING);
  }

  /** Whether a node is not to be used now. */
  avoids(target: string): boolean {
    const until = this.#avoided.get(target);
    if (until !== undefined && performance.now() >= until) this.#avoided.delete(target);
    return this.#avoided.has(target);
  }

  /** Leaves a node alone for half a minute. */
  avoid(target: string): void {
    this.#avoided.delete(target);
    this.#avoided.set(target, performance.now() + AVOID_MS);
    if (this.#avoided.size > MAX_AVOIDED) removeFirst(this.#avoided);
  }
}

function removeFirst(map: Map<string, unknown>): void {
  for (const key of map.keys()) {
    map.delete(key);
    return;
  }
}
