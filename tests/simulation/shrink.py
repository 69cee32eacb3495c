"""Fewer actors and steps for the same failure."""

from collections.abc import Collection

from simulation.scenario import ACTORS, COMMAND, TABLE_ACTORS, options, run


def shrink(seed: int, steps: int, without: Collection[str] = (), *, tables: bool = False) -> str:
    """The command for the smallest scenario found that fails as this one does, or that it does not."""
    _, failure = run(seed, steps, without=without, tables=tables)
    if failure is None:
        return f"seed {seed} does not fail in {steps} steps"
    left_out, kind = set(without), type(failure.error)
    for actor in (*ACTORS, *TABLE_ACTORS) if tables else ACTORS:
        tried = left_out | {actor.__name__.lower()}
        _, found = run(seed, steps, without=tried, tables=tables)
        if found is not None and type(found.error) is kind:
            left_out, failure = tried, found
    names = f" --without {','.join(sorted(left_out))}" if left_out else ""
    return f"{failure.error!r}\n{COMMAND} {seed} --steps {failure.step}{names} {options(tables)}--trace"
