"""What happened: lines to read, a hash to compare two runs by, and how often each kind of thing was met."""

from collections import Counter, deque
from hashlib import blake2b

LAST_LINES = 40


class Trace:
    """`show` prints every line; else the last ones are kept for a failure."""

    def __init__(self, *, show: bool = False) -> None:
        self.met: Counter[str] = Counter()
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self.step = 0
        self._show = show
        self._hash = blake2b(digest_size=16)

    def tell(self, text: str) -> None:
        """A line of the trace."""
        line = f"{self.step:5} {text}"
        self._hash.update(line.encode() + b"\n")
        self.last.append(line)
        if self._show:
            print(line)

    def meet(self, kind: str, times: int = 1) -> None:
        """A thing that a run has to have met, see `coverage`."""
        if times:
            self.met[kind] += times

    @property
    def digest(self) -> str:
        """The same for the same run."""
        return self._hash.hexdigest()
