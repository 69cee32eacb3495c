"""Journals of group members, and their check: owners of partitions over time, and processed records.

A journal has a JSON array a line, `[event, seconds, fact]`: `assigned`, `revoked`, `lost` with partitions; `records`
with `[partition, offset]` pairs; `committing`, `committed` with positions by partition; `refused`; `leaving`, `left`,
`failed`.
"""

import itertools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

_CLOCK_SECONDS = 0.002  # how finely the clients read the clock


class Event(NamedTuple):
    """A line of a journal."""

    at: float
    member: str
    what: str
    fact: Any


@dataclass
class Journal:
    """The journal of one member. `killed_at` is set when its process is killed."""

    path: Path
    killed_at: float = math.inf

    @property
    def member(self) -> str:
        """Its name."""
        return self.path.name

    def events(self) -> list[Event]:
        """What is in it so far; a torn last line is left out."""
        if not self.path.exists():
            return []
        lines = self.path.read_text().split("\n")[:-1]
        return [Event(at, self.member, what, fact[0] if fact else None) for what, at, *fact in map(json.loads, lines)]

    def owned(self) -> set[int]:
        """The partitions that it owns now, as far as it knows."""
        owned: set[int] = set()
        for event in self.events():
            if event.what == "assigned":
                owned |= set(event.fact or ())
            elif event.what in ("revoked", "lost"):
                owned -= set(event.fact or ())
            elif event.what in ("leaving", "failed"):
                owned = set()
        return owned

    def failure(self) -> str:
        """The reason why the member ended, if it did."""
        return next((str(event.fact) for event in self.events() if event.what == "failed"), "")


class Tenure(NamedTuple):
    """A time for which a member owned a partition."""

    start: float
    end: float
    member: str


def tenures(journals: Iterable[Journal]) -> dict[int, list[Tenure]]:
    """Owners over time, by partition in the order of the starts."""
    found: dict[int, list[Tenure]] = {}
    for journal in journals:
        held: dict[int, float] = {}

        def end(partitions: Iterable[int], at: float, held: dict[int, float] = held, who: str = journal.member) -> None:
            for partition in [partition for partition in partitions if partition in held]:
                found.setdefault(partition, []).append(Tenure(held.pop(partition), at, who))

        for event in journal.events():
            if event.what == "assigned":
                for partition in event.fact or ():
                    held.setdefault(partition, event.at)
            elif event.what in ("revoked", "lost"):
                end(event.fact or (), event.at)
            elif event.what in ("leaving", "failed"):
                end(list(held), event.at)
        end(list(held), journal.killed_at)
    return {partition: sorted(some) for partition, some in found.items()}


@dataclass
class Outcome:
    """What the journals prove."""

    processed: dict[int, set[int]] = field(default_factory=dict)
    """Offsets by partition."""
    again: int = 0
    """Records that were processed more than once."""
    errors: list[str] = field(default_factory=list)
    """Double ownership, and records in the wrong order or from the wrong position."""


def judge(journals: list[Journal]) -> Outcome:
    """Check ownership and order. A member that gets a partition has to resume at a position that was committed, or in
    the course of a commit when its member was stopped; within its tenure it has to see every record in order.
    """
    outcome = Outcome()
    owners = tenures(journals)
    for partition, some in owners.items():
        for before, after in itertools.pairwise(some):
            if after.start < before.end - _CLOCK_SECONDS:
                outcome.errors.append(f"two owners of {partition}: {before} and {after}")
    events = sorted(event for journal in journals for event in journal.events() if event.what in _STEPS)
    allowed: dict[int, set[int]] = {}
    expected: dict[tuple[int, str], int] = {}
    for event in events:
        if event.what == "assigned":
            for partition in event.fact or ():
                expected.pop((partition, event.member), None)
        elif event.what == "records":
            for partition, offset in event.fact:
                wanted = expected.get((partition, event.member))
                starts = allowed.setdefault(partition, {0}) if wanted is None else {wanted}
                if offset not in starts:
                    outcome.errors.append(f"{event.member} got {partition}:{offset} at {event.at}, not one of {starts}")
                expected[partition, event.member] = offset + 1
                seen = outcome.processed.setdefault(partition, set())
                outcome.again += offset in seen
                seen.add(offset)
        else:
            for text, offset in event.fact.items():
                positions = allowed.setdefault(int(text), {0})
                if event.what == "committed":
                    positions.clear()
                positions.add(offset)
    return outcome


_STEPS = ("assigned", "records", "committing", "committed")
