"""`PYTHONPATH=tests python -m simulation SEED [--steps N] [--trace]`: one scenario again, exactly."""

import argparse
import traceback

from simulation.scenario import ACTORS, STEPS, TABLE_ACTORS, run
from simulation.shrink import shrink


def main() -> int:
    """Run it; 1 if it fails."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description="Run one scenario from its seed.")
    parser.add_argument("seed", type=int)
    parser.add_argument("--steps", type=int, default=STEPS, help=f"how many ({STEPS})")
    parser.add_argument("--trace", action="store_true", help="print every step")
    names = sorted(actor.__name__.lower() for actor in (*ACTORS, *TABLE_ACTORS))
    parser.add_argument("--without", default="", metavar="ACTORS", help=f"leave out some of {','.join(names)}")
    parser.add_argument("--tables", action="store_true", help="with statements on tables")
    parser.add_argument("--shrink", action="store_true", help="look for fewer actors and steps that fail, too")
    given = parser.parse_args()
    without = {name for name in given.without.split(",") if name}
    if unknown := without.difference(names):
        parser.error(f"no such actors: {', '.join(sorted(unknown))}")
    if given.shrink:
        print(shrink(given.seed, given.steps, without, tables=given.tables))
        return 0
    scenario, failure = run(given.seed, given.steps, show=given.trace, without=without, tables=given.tables)
    print(f"trace {scenario.trace.digest}")
    if failure is None:
        for kind, times in sorted(scenario.trace.met.items()):
            print(f"{times:6} {kind}")
        return 0
    traceback.print_exception(failure.error)
    print(failure)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
