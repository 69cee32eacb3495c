/** When something is tried again. */
import { canceled, type TopicsError } from "./errors.js";

/** Pauses between attempts: each up to twice the one before, with full jitter, never less than a server asks for. */
export interface Retry {
  /** Time of retries without progress, in milliseconds; 0 means one attempt. Default 60,000. */
  totalMs?: number;
  /** Longest first pause, in milliseconds. Default 50. */
  firstMs?: number;
  /** Longest pause, in milliseconds. Default 5000. */
  longestMs?: number;
}

/** The remaining time of retries without progress. */
export class Patience {
  readonly #retry: Required<Retry>;
  #ends: number | undefined;
  #pause = 0;

  constructor(retry: Retry = {}) {
    this.#retry = { totalMs: 60_000, firstMs: 50, longestMs: 5000, ...retry };
  }

  /** Notes progress: the time starts again with the next failure. */
  renew(): void {
    this.#ends = undefined;
  }

  /** Waits before another attempt. Throws `error` if it is not transient or the time would be up. */
  async wait(error: TopicsError, signal?: AbortSignal): Promise<void> {
    if (!error.isTransient) throw error;
    const now = performance.now();
    if (this.#ends === undefined) {
      this.#ends = now + this.#retry.totalMs;
      this.#pause = this.#retry.firstMs;
    }
    const pause = Math.max(Math.random() * this.#pause, error.retryAfterMs ?? 0);
    this.#pause = Math.min(2 * this.#pause, this.#retry.longestMs);
    if (now + pause > this.#ends) throw error;
    await sleep(pause, signal);
  }
}

/** Waits the given milliseconds. Throws TopicsError (canceled) as soon as `signal` is aborted. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const abort = () => {
      clearTimeout(timer);
      reject(canceled(signal as AbortSignal));
    };
    if (signal?.aborted) return reject(canceled(signal));
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, ms);
    signal?.addEventListener("abort", abort, { once: true });
  });
}
