"""What a decoder is held to whatever bytes it gets: a value or an error that it declares, soon and in little memory."""

import random
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from support.kafka_batches import varint

SECONDS: Final = 2.0
MEMORY: Final = 4 << 20
"""What a decoder may take for itself, on top of `Target.growth` times its input."""
_NUMBERS: Final = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 64) - 1)
_NASTY: Final = (
    *(
        number.to_bytes(size, order)
        for number in _NUMBERS
        for size in (1, 2, 4, 8)
        for order in ("little", "big")
        if number < 1 << 8 * size
    ),
    *(varint(number) for number in (-1, 63, 64, 1 << 31, (1 << 63) - 1)),
    *(b"\xed\xa0\x80", b"\xff\xfe", b"\xc3\xa9", b"\\ud800", b'"', b"[" * 200, b"{" * 50, b"\r\n", b"\n\n", b"%00"),
    *(b"9" * 50, b"9" * 5000, b"-", b"1e999", b"null", b"true", b",", b":", b"@", b"*", b"\0"),
)


@dataclass(frozen=True, kw_only=True)
class Target:
    """A decoder. `errors` are those it declares; `samples` valid encodings, from which the others are made.

    `covers` are the functions that it goes through, as module:name (see `test_decoders_are_all_here.py`). `again` turns
    a value into bytes: of a sample it gives the sample. `growth` bounds the memory for a byte of input, `cost`
    says how many times slower it is than others.
    """

    name: str
    decode: Callable[[bytes], Any]
    samples: Sequence[bytes]
    covers: Sequence[str]
    errors: tuple[type[Exception], ...] = ()
    again: Callable[[Any], bytes] | None = None
    growth: int = 200
    cost: int = 1

    def feed(self, data: bytes) -> Any:
        """What the decoder makes of `data`: a value, or an error. Raises AssertionError if it does worse than that."""
        tracemalloc.reset_peak()
        held, _ = tracemalloc.get_traced_memory()
        started = time.thread_time()  # not the wall clock: others may have the processor meanwhile
        try:
            made: Any = self.decode(data)
        except self.errors as error:
            made = error
        except Exception as error:
            raise AssertionError(f"{self.name} raises {error!r} for {data!r}") from error
        seconds = time.thread_time() - started
        _, peak = tracemalloc.get_traced_memory()
        assert seconds < SECONDS, f"{self.name} took {seconds:.1f} s for {data[:500]!r} ({len(data)} bytes)"
        assert peak - held < MEMORY + self.growth * len(data), (
            f"{self.name} took {peak - held} bytes for {data[:500]!r}"
        )
        return made


def mutated(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """`data` with a few bits flipped, bytes changed, put in, cut out, or with a piece of `other` in it."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(7):
            case 0 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                nasty = rng.choice(_NASTY)
                out[at : at + len(nasty)] = nasty
            case 2:
                out[at:at] = rng.choice(_NASTY)
            case 3:
                del out[at : at + rng.randrange(1, 9)]
            case 4:
                del out[at:]
            case 5:
                start = rng.randrange(len(other) + 1)
                out[at:at] = other[start : start + rng.randrange(40)]
            case _:
                out[at:at] = rng.randbytes(rng.randrange(1, 9))
    return bytes(out)


def inputs(target: Target, rng: random.Random, count: int) -> Sequence[bytes]:
    """The given number of inputs: noise, and mutations of samples and of earlier mutations."""
    pool = list(target.samples)
    made = []
    for i in range(count):
        if i % 8 == 0:
            data = rng.randbytes(rng.choice((0, 1, 3, 8, 30, 100, 1000)))
        else:
            data = mutated(rng.choice(pool), rng.choice(target.samples), rng)
            if len(pool) < 40 + len(target.samples) and len(data) < 1 << 16:
                pool.append(data)
        made.append(data)
    return made
