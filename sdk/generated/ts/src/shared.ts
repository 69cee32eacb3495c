/** What both clients have. */
export { TopicsError, type ErrorFacts, type Reason, type ServerReason } from "./errors.js";
export { Producer, type Delivery, type ProducerOptions, type SendOptions } from "./producer.js";
export { Reading, Watching, type ReadOptions, type Topics, type WatchOptions } from "./reading.js";
export {
  TopicRecord,
  type Advice,
  type CaughtUp,
  type Gap,
  type GapCause,
  type Json,
  type ReadEvent,
  type TopicDeleted,
  type WatchEvent,
} from "./records.js";
export type { Retry } from "./retry.js";
export type { Appended, NewRecord } from "./wire.js";
