/** What a call fails with, in the terms of the product: docs/errors.md names every reason. */
import { Code, ConnectError } from "@connectrpc/connect";

import { ErrorInfoSchema, RetryInfoSchema } from "../lib/google/rpc/error_details_pb.js";
import { ErrorReason } from "../lib/topics/v1/errors_pb.js";

/** A code of the server's registry, such as "topic_not_found". */
export type ServerReason = Lowercase<Exclude<keyof typeof ErrorReason, "UNSPECIFIED">>;

/**
 * Why something failed: a code of the server's registry; where no server of ours answered, the status of the call
 * ("unavailable", "deadline_exceeded", ...); "canceled" when the caller's signal ended it; "outcome_unknown" for a write
 * that may or may not be stored; "lease_lost" for a job that others may have by now.
 */
export type Reason =
  | ServerReason
  | "unavailable"
  | "deadline_exceeded"
  | "canceled"
  | "outcome_unknown"
  | "lease_lost"
  | (string & {});

/** Facts about a failure beyond its reason and text. */
export interface ErrorFacts {
  /** Facts that the registry names for the reason. */
  detail?: Record<string, string>;
  /** When to try again, in milliseconds; absent where that makes no difference. */
  retryAfterMs?: number | undefined;
  /** Whether waiting may help: the server is absent, restarting or overloaded. */
  isTransient?: boolean;
  /** Whether a write that failed so may be carried out all the same. */
  mayBeDone?: boolean;
  cause?: unknown;
}

/** A call failed. Branch on `reason`, never on the message. */
export class TopicsError extends Error {
  override readonly name = "TopicsError";
  readonly reason: Reason;
  readonly detail: Record<string, string>;
  readonly retryAfterMs: number | undefined;
  readonly isTransient: boolean;
  readonly mayBeDone: boolean;

  constructor(reason: Reason, message: string, facts: ErrorFacts = {}) {
    super(`${reason}: ${message}`, facts.cause === undefined ? undefined : { cause: facts.cause });
    this.reason = reason;
    this.detail = facts.detail ?? {};
    this.retryAfterMs = facts.retryAfterMs;
    this.isTransient = facts.isTransient ?? facts.retryAfterMs !== undefined;
    this.mayBeDone = facts.mayBeDone ?? false;
  }
}

/** The code of a reason that came as a number; "internal" for one unknown here. */
export function reasonOf(reason: ErrorReason): Reason {
  return ErrorReason[reason]?.toLowerCase() ?? "internal";
}

// What the transport says of calls that broke off in the middle.
const BROKEN = new Set([Code.Unavailable, Code.DeadlineExceeded, Code.Aborted, Code.Internal, Code.Unknown, Code.Canceled, Code.DataLoss]);

/** The failure of a gRPC call. `signal` shows whether the caller ended the call. */
export function fromConnect(thrown: unknown, signal?: AbortSignal): TopicsError {
  if (thrown instanceof TopicsError) return thrown;
  if (signal?.aborted) return canceled(signal);
  const error = ConnectError.from(thrown);
  const [info] = error.findDetails(ErrorInfoSchema);
  const [retry] = error.findDetails(RetryInfoSchema);
  const delay = retry?.retryDelay;
  const retryAfterMs = delay && Number(delay.seconds) * 1000 + delay.nanos / 1e6;
  if (info) {
    const reason = info.reason.toLowerCase();
    return new TopicsError(reason, error.rawMessage, {
      detail: { ...info.metadata },
      retryAfterMs,
      mayBeDone: reason === "internal",
      cause: thrown,
    });
  }
  const code = Code[error.code] ?? "Unknown";
  return new TopicsError(code.replace(/(?<=.)[A-Z]/g, "_$&").toLowerCase(), error.rawMessage, {
    retryAfterMs,
    isTransient: BROKEN.has(error.code) || retryAfterMs !== undefined,
    mayBeDone: BROKEN.has(error.code) && !/\bECONNREFUSED\b/.test(`${error.rawMessage} ${String(error.cause)}`),
    cause: thrown,
  });
}

/** The error of a call that the caller's signal ended. */
export function canceled(signal: AbortSignal): TopicsError {
  return new TopicsError("canceled", "the caller ended the call", { mayBeDone: true, cause: signal.reason });
}
