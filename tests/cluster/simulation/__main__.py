"""One life again, exactly: `PYTHONPATH=tests python -m cluster.simulation SEED [--steps N] [--topics] [--shards N]
[--trace]`."""

import argparse
import traceback

from cluster.simulation.life import STEPS, run


def main() -> int:
    """Run it; 1 if it fails."""
    parser = argparse.ArgumentParser(prog="python -m cluster.simulation", description="Run one life from its seed.")
    parser.add_argument("seed", type=int)
    parser.add_argument("--steps", type=int, default=STEPS, help=f"how many ({STEPS})")
    parser.add_argument("--trace", action="store_true", help="print every step")
    parser.add_argument("--topics", action="store_true", help="owners have engines")
    parser.add_argument("--shards", type=int, default=1, help="how many (1)")
    given = parser.parse_args()
    trace, failure = run(given.seed, given.steps, topics=given.topics, shards=given.shards, show=given.trace)
    print(f"trace {trace.digest}")
    if failure is None:
        for kind, times in sorted(trace.met.items()):
            print(f"{times:6} {kind}")
        return 0
    traceback.print_exception(failure.error)
    print(failure)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
