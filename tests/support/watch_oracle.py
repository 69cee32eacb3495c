"""The check that a watcher gets the results of `diff` from its cursor, at moments that never go backwards.

A watcher does not know when the server read a frame's content, so all possible states of the server's side are kept: a
frame is right if it is the next one of any of them. What is passed over in silence moves a state too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from support.log_model import Lost, Rec
from support.watch_model import Mark, Reading, Subject, Version


class Records(NamedTuple):
    """Frames as all protocols tell them."""

    from_seq: int
    to_seq: int
    head: int
    records: tuple[Rec, ...]


class Tombstone(NamedTuple):
    lost: Lost
    earliest: int
    head: int


class CaughtUp(NamedTuple):
    head: int


class Deleted(NamedTuple):
    head: int | None
    """None on a protocol that does not say."""


Frame = Records | Tombstone | CaughtUp | Deleted


class At(NamedTuple):
    """The watch follows a life of the topic, and has not read what is older than version `v` of it.

    `stale` is the cursor before the tombstone that came last; `foreign` means that the cursor is of an earlier life.
    """

    life: int
    v: int
    cursor: int
    stale: int | None = None
    live: bool = False
    opening: bool = False
    foreign: bool = False


class Leaving(NamedTuple):
    """The topic has ended, and that has to be reported first."""

    life: int
    cursor: int


class Gone(NamedTuple):
    """That was reported, and no more frames follow."""

    life: int
    cursor: int


class Waits(NamedTuple):
    """A pattern brings in the next life, of this number or higher. `cursor` was that in the one before."""

    life: int
    cursor: int = 0


State = At | Leaving | Gone | Waits


class MissingError(AssertionError):
    """A frame that no state gives."""


class Place:
    """What one stream may tell next of one topic."""

    def __init__(
        self,
        subject: Subject,
        reading: Reading,
        states: Iterable[State],
        shown: Callable[[Rec], Rec],
        *,
        pattern: bool,
        masks: bool,
    ) -> None:
        """`shown`: a record as in the stream; `masks`: the protocol reports a stale cursor on opening as such;
        `pattern`: topics come back when they are created again.
        """
        self.subject = subject
        self.reading = reading
        self.states = frozenset(states)
        self._shown = shown
        self._pattern = pattern
        self._masks = masks
        if not self.states:
            raise MissingError(f"{subject.name} can't be followed: {self.describe()}")

    def take(self, frame: Frame) -> None:
        """The stream has given `frame`."""
        found = {after for state in self.reach() for after in self._gives(state, frame)}
        if not found:
            raise MissingError(f"{self.subject.name}: {frame} from {self.describe()}")
        self.states = frozenset(found)

    def stands(self, cursor: int | None) -> None:
        """The stream says where it is in this topic; None: the topic is not in its map."""
        if cursor is not None and all(_cursor(state) == cursor for state in self.states):
            return
        found = {state for state in self.reach() if _cursor(state) in (cursor, -1)}
        if not found:
            raise MissingError(f"{self.subject.name}: stands at {cursor}, from {self.describe()}")
        self.states = frozenset(found)

    def settled(self) -> bool:
        """True if everything was reported; the server stands still. If so, what comes later is read from now on."""
        last = len(self.subject.lives) - 1
        alive = self.subject.alive is not None
        kept: set[State] = set()
        done = False
        for state in self.states:
            reached = self.reach((state,))
            done = done or any(self._is_done(end, last, alive=alive) for end in reached)
            if any(self._tells(step) for step in reached):
                kept.add(state)  # it may be on its way
            else:  # what is passed in silence need not have been looked at yet
                kept |= {step for step in reached if self._is_newest(step)}
        self.states = frozenset(kept)
        return done

    def _is_newest(self, state: State) -> bool:
        return not isinstance(state, At) or state.v == len(self.subject.lives[state.life].versions) - 1

    def describe(self) -> str:
        """For a failure: the states, and what the topic was since."""
        lines = [f"states {sorted(map(str, self.states))} reading {self.reading}"]
        for i, life in list(enumerate(self.subject.lives))[-4:]:
            lines.append(f"life {i}: {len(life.versions)} versions, {life.low=} {life.ending=} {life.ended=}")
            seen = [state.v for state in self.states if isinstance(state, At) and state.life == i]
            at = min(seen, default=len(life.versions))
            for v in range(max(0, at - 8), min(at + 8, len(life.versions))):
                version = life.versions[v]
                lines.append(
                    f"  {v}: head {version.head} live {list(version.live)} cap {version.cap} ttl {version.ttl}"
                    f" trim {version.trim} gaps {version.gaps} {version.config}"
                )
        return "\n".join(lines)

    @property
    def may_be_ephemeral(self) -> bool:
        """Whether the topic may keep its records in memory only, as far as this stream has read."""
        lives = self.subject.lives
        return any(
            lives[state.life].versions[state.v].config.durability == "ephemeral"
            for state in self.states
            if isinstance(state, At)
        )

    def reach(self, states: Iterable[State] | None = None) -> set[State]:
        """The states that can be reached without a frame."""
        found = set(self.states if states is None else states)
        todo = list(found)
        while todo:
            for after in self._silent(todo.pop()):
                if after not in found:
                    found.add(after)
                    todo.append(after)
        return found

    # ------------------------------------------------------------------ internals

    def _is_done(self, state: State, last: int, *, alive: bool) -> bool:
        if isinstance(state, At):
            life = self.subject.lives[state.life]
            at_end = state.life == last and alive and state.v == len(life.versions) - 1
            return at_end and state.live and state.cursor == life.now.head and not state.foreign
        if isinstance(state, Waits):
            return state.life > last or not alive
        return isinstance(state, Gone)

    def _silent(self, state: State) -> Iterator[State]:
        if isinstance(state, Waits):
            for i in range(state.life, len(self.subject.lives)):
                yield At(i, 0, 0)
        if not isinstance(state, At):
            return
        life = self.subject.lives[state.life]
        if state.v + 1 < len(life.versions):
            yield state._replace(v=state.v + 1)
        version = life.versions[state.v]
        if state.foreign:
            return
        for end in self._ends(state, version):
            if end <= state.cursor <= version.head:
                if end < version.head or state.live:
                    yield state._replace(stale=None, opening=False)
            elif version.lost(state.cursor, end) is None:
                page = version.read(state.cursor, end, self.reading)
                if not page.taken:
                    for cursor in {page.minimum, page.next}:
                        yield state._replace(cursor=cursor, stale=None, opening=False)

    def _ends(self, state: At, version: Version) -> Iterable[int]:
        """How far the watch may see: to the head, or for a strong one to what an fsync may have covered."""
        if not self.reading.strong or version.config.durability == "ephemeral":
            return (version.head,)
        life = self.subject.lives[state.life]
        heads = {older.head for older in life.versions[: state.v + 1] if older.head > state.cursor}
        return {0, *heads, version.head}

    def _tells(self, state: State) -> bool:
        """Whether a frame can come next."""
        if isinstance(state, Leaving):
            return True
        if not isinstance(state, At):
            return False
        life = self.subject.lives[state.life]
        version = life.versions[state.v]
        if life.ending or state.foreign or state.cursor > version.head:
            return True
        if state.cursor == version.head:
            return not state.live
        if version.lost(state.cursor, version.head) is not None:
            return True
        return bool(version.read(state.cursor, version.head, self.reading).taken)

    def _gives(self, state: State, frame: Frame) -> Iterator[State]:
        """The states behind `state` and the frame."""
        if isinstance(frame, Deleted):
            yield from self._ends_with(state, frame)
        elif isinstance(state, At):
            version = self.subject.lives[state.life].versions[state.v]
            if isinstance(frame, CaughtUp):
                if frame.head == state.cursor == version.head and not state.live and not state.foreign:
                    yield state._replace(live=True, stale=None, opening=False)
            elif frame.head == version.head:
                for end in self._ends(state, version):
                    after = self._reads(state, version, end, frame)
                    if after is not None:
                        yield after

    def _reads(self, state: At, version: Version, end: int, frame: Records | Tombstone) -> At | None:
        cursor = version.head + 1 if state.foreign else state.cursor
        lost = version.lost(cursor, end)
        if isinstance(frame, Tombstone):
            if lost is None or frame.earliest != version.earliest:
                return None
            at = version.earliest - 1 if lost.reason == "recreated" else lost.last
            if self._masks and state.opening and lost.reason in ("cap", "ttl", "mixed"):
                lost = lost._replace(reason="from_seq_too_old")
            if frame.lost != lost:
                return None
            return At(state.life, state.v, at, stale=state.cursor)
        if lost is not None or frame.from_seq != (cursor if state.stale is None else state.stale):
            return None
        page = version.read(cursor, end, self.reading)
        if not page.taken or not page.minimum <= frame.to_seq <= page.next:
            return None
        if tuple(map(self._shown, page.taken)) != frame.records:
            return None
        return At(state.life, state.v, frame.to_seq)

    def _ends_with(self, state: State, frame: Deleted) -> Iterator[State]:
        if not isinstance(state, At | Leaving):
            return
        life = self.subject.lives[state.life]
        head = frame.head
        if isinstance(state, At):
            known = head == life.now.head
        else:  # the session knows the head of what it followed last, or no more than how far it had come
            heads = {old.head for later in self.subject.lives[state.life :] for old in later.versions}
            known = head is not None and (head in heads or state.cursor <= head <= max(heads))
        if life.ending and (head is None or known):
            yield (Waits(state.life + 1, state.cursor) if self._pattern else Gone(state.life, state.cursor))


def _cursor(state: State) -> int | None:
    """The cursor in the map of the stream; None: it has none, -1: it has any or none."""
    return -1 if isinstance(state, Waits) else state.cursor


def started(subject: Subject, mark: Mark, cursor: int) -> list[State]:
    """Where a watch of the topic stands that was opened after `mark` with this cursor."""
    return [At(i, low, cursor, opening=True) for i, low in subject.since(mark)]


def seen(subject: Subject, mark: Mark, cursor: int, head: int, earliest: int) -> list[State]:
    """The same, when the server said where the log stood."""
    return [
        At(i, v, cursor, opening=True)
        for i, low in subject.since(mark)
        for v, version in enumerate(subject.lives[i].versions)
        if v >= low and (version.head, version.earliest) == (head, earliest)
    ]


def resumed(
    subject: Subject,
    mark: Mark,
    states: Iterable[State],
    cursors: Mapping[str, int] | None,
    *,
    original: int | None,
) -> set[State]:
    """Where the stream of a session stands that was opened after `mark` with an id from when it stood in `states`.

    The id says which life its cursors are of. `cursors` None: there was no id. `original` is where the session began in
    the topic, None if that was not there at first.
    """
    found: set[State] = set()
    for state in states:
        at = None if cursors is None else cursors.get(subject.name)
        if isinstance(state, Waits):
            again = at is not None or (original is not None and state.life > 0)  # its end may be reported once more
            if at is None:
                found.add(state)
                found.update(At(i, low, 0, opening=True) for i, low in subject.since(mark) if i >= state.life)
            if again:
                ended = Leaving(state.life - 1, state.cursor if at is None else at)
                found |= resumed(subject, mark, (ended,), None, original=original)
            continue
        at = state.cursor if at is None else at
        for i, low in subject.since(mark):
            if i == state.life:
                foreign = isinstance(state, At) and state.foreign
                found.add(At(i, low, at, opening=True, foreign=foreign))
                if at == original:  # it may have been ahead of the log
                    found.add(At(i, low, at, opening=True, foreign=True))
            elif i > state.life:
                found.add(At(i, low, at, opening=True, foreign=True))
        if subject.may_be_absent(mark):
            found.add(Leaving(state.life, at))
    return found
