"""Fewer actors and steps for the same failure."""

from collections.abc import Collection

from simulation.scenario import ACTORS, run


def shrink(seed: int, steps: int, without: Collection[str] = ()) -> str:
    """The command for the smallest scenario found that fails as this one does, or that it does not."""
    _, failure = run(seed, steps, without=without)
    if failure is None:
        return f"seed {seed} does not fail in {steps} steps"
    left_out, kind = set(without), type(failure.error)
    for actor in ACTORS:
        tried = left_out | {actor.__name__.lower()}
        _, found = run(seed, steps, without=tried)
        if found is not None and type(found.error) is kind:
            left_out, failure = tried, found
    names = f" --without {','.join(sorted(left_out))}" if left_out else ""
    return f"{failure.error!r}\nPYTHONPATH=tests python -m simulation {seed} --steps {failure.step}{names} --trace"
