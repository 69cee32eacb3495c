"""Resume cursors after a stream's last frames, by short tokens, for event ids too small for all cursors."""

import re
import secrets
from array import array
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

_NAME_WEIGHT: Final = 300  # bytes of a name in the dictionaries of a journal
_CHANGE_WEIGHT: Final = 12
_FRAME_WEIGHT: Final = 8
_MAX_WEIGHT: Final = 1 << 20  # of one journal
_SHARE: Final = 8  # and at most 1/8 of all
_TOKEN: Final = re.compile(r"place_(?P<key>[A-Za-z0-9_-]{16})_(?P<mark>[0-9]{1,19})")

MAX_IN_ID: Final = 64
"""Maximum number of cursors spelled out in an id: 64 take at most 27 KB, which fits into a request head."""


class Journal:
    """Resume cursors of one stream after each of its last frames, as the oldest ones and the changes of each frame."""

    __slots__ = ("_changed", "_ends", "_first", "_last", "_names", "_numbers", "_seqs", "_start", "key", "wid")

    def __init__(self, wid: str, cursors: Mapping[str, int], id_prefix: bytes = b"") -> None:
        """`wid` is the session of the stream, `cursors` its present resume cursors; see `new_id` for `id_prefix`."""
        self.key = new_id(12, id_prefix)
        self.wid = wid
        self._first = 0  # the mark of _start
        self._start = dict(cursors)
        self._last = dict(cursors)
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._ends = array("Q")  # number of changes up to each frame
        self._changed = array("I")  # twice the number of a name, plus 1 if the name was removed
        self._seqs = array("Q")

    @property
    def weight(self) -> int:
        """Approximate size in bytes."""
        names = len(self._start) + len(self._names)
        return names * _NAME_WEIGHT + len(self._changed) * _CHANGE_WEIGHT + len(self._ends) * _FRAME_WEIGHT

    def note(self, cursors: Mapping[str, int]) -> int:
        """Record the resume cursors; returns their mark, the previous one if nothing changed."""
        last = self._last
        moved = [(name, seq) for name, seq in cursors.items() if last.get(name) != seq]
        for name, seq in moved:
            last[name] = seq
            self._changed.append(2 * self._number(name))
            self._seqs.append(seq)
        gone = last.keys() - cursors.keys() if len(last) > len(cursors) else ()
        for name in gone:
            del last[name]
            self._changed.append(2 * self._number(name) + 1)
            self._seqs.append(0)
        if moved or gone:
            self._ends.append(len(self._changed))
        return self._first + len(self._ends)

    def at(self, mark: int) -> dict[str, int] | None:
        """Return the resume cursors of a mark; None if it was dropped or never issued."""
        frames = mark - self._first
        if not 0 <= frames <= len(self._ends):
            return None
        return self._after(frames)

    def trim(self) -> None:
        """Drop the older half."""
        frames = (len(self._ends) + 1) // 2
        if not frames:
            return
        end = self._ends[frames - 1]
        self._start = self._after(frames)
        self._first += frames
        self._ends = array("Q", (other - end for other in self._ends[frames:]))
        names, self._names, self._numbers = self._names, [], {}
        self._changed = array("I", (2 * self._number(names[each >> 1]) + (each & 1) for each in self._changed[end:]))
        self._seqs = self._seqs[end:]

    def _after(self, frames: int) -> dict[str, int]:
        cursors, end = self._start.copy(), self._ends[frames - 1] if frames else 0
        for each, seq in zip(self._changed[:end], self._seqs[:end], strict=True):
            if each & 1:
                del cursors[self._names[each >> 1]]
            else:
                cursors[self._names[each >> 1]] = seq
        return cursors

    def _number(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._names)
            self._names.append(name)
        return number


class Journals:
    """Journals of all streams, in at most `max_bytes` in total: the least recently used is dropped first."""

    def __init__(self, max_bytes: int, id_prefix: bytes = b"") -> None:
        """`id_prefix` is the number of this one of several processes, which tokens begin with."""
        self._max_bytes = max_bytes
        self._id_prefix = id_prefix
        self._weight = 0
        self._weights: OrderedDict[str, int] = OrderedDict()
        self._journals: dict[str, Journal] = {}
        self._keys_by_session: dict[str, set[str]] = {}

    @property
    def weight(self) -> int:
        """Approximate size in bytes."""
        return self._weight

    def note(self, wid: str, journal: Journal | None, cursors: Mapping[str, int]) -> tuple[Journal, str]:
        """Record the resume cursors of a session's stream; returns its journal from now on, and their token.

        `journal` is the stream's present journal, if any.
        """
        if journal is None or journal.key not in self._journals:
            journal = Journal(wid, cursors, self._id_prefix)
            self._journals[journal.key] = journal
            self._keys_by_session.setdefault(wid, set()).add(journal.key)
        mark = journal.note(cursors)
        if journal.weight > min(_MAX_WEIGHT, self._max_bytes // _SHARE):
            journal.trim()
        self._weigh(journal)
        return journal, f"place_{journal.key}_{mark}"

    def recall(self, token: str) -> tuple[str, dict[str, int]] | None:
        """Look up the session and the resume cursors of a token; None if it has expired or is invalid."""
        found = _TOKEN.fullmatch(token)
        journal = None if found is None else self._journals.get(found["key"])
        if found is None or journal is None:
            return None
        cursors = journal.at(int(found["mark"]))
        return None if cursors is None else (journal.wid, cursors)

    def forget(self, wid: str) -> None:
        """Drop the journals of a removed session."""
        for key in list(self._keys_by_session.get(wid, ())):
            self._drop(key)

    def _weigh(self, journal: Journal) -> None:
        weight = journal.weight
        self._weight += weight - self._weights.pop(journal.key, 0)
        self._weights[journal.key] = weight
        while self._weight > self._max_bytes and len(self._journals) > 1:
            self._drop(next(iter(self._weights)))

    def _drop(self, key: str) -> None:
        wid = self._journals.pop(key).wid
        self._weight -= self._weights.pop(key)
        keys = self._keys_by_session[wid]
        keys.remove(key)
        if not keys:
            del self._keys_by_session[wid]


def is_token(text: str) -> bool:
    """Return True if a text has the form of a token. The base64 of a JSON object begins with another letter."""
    return _TOKEN.fullmatch(text) is not None


def process_of(token: str, size: int) -> int | None:
    """Return the number of the process that a token of one of several is of; None for what is no token.

    `size` is the number of its bytes.
    """
    found = _TOKEN.fullmatch(token)
    return None if found is None else process_in(found["key"], size)


def new_id(size: int, prefix: bytes = b"") -> str:
    """Return an unguessable id of that many bytes, of which the first are `prefix`: the number of a process."""
    raw = prefix + secrets.token_bytes(size - len(prefix))
    return urlsafe_b64encode(raw).decode().rstrip("=")


def process_in(new: str, size: int) -> int:
    """Return the number that a `new_id` begins with, in `size` bytes; some number for other texts of its letters."""
    return int.from_bytes(urlsafe_b64decode(new[:8])[:size], "big")
