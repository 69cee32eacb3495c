"""`topics bench`: benchmark a server with generated records."""

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from topics_cli import output, server
from topics_cli.sending import MAX_RECORDS
from topics_cli.types import positive, seconds, size

if TYPE_CHECKING:
    from topics_cli.types import Commands
    from topics_client import TopicsClient

_MAX_RECORDS: Final = 100_000_000
_MAX_SIZE: Final = 1 << 20
_MAX_PRODUCERS: Final = 64
_LATENCY_APPENDS: Final = 1000
_LATENCY_SHARE: Final = 0.25  # of --seconds
_NAMES: Final = ("phase", "records", "seconds", "records_per_s", "mb_per_s", "p50_ms", "p99_ms", "max_ms")
_HEADINGS: Final = ("phase", "records", "seconds", "records/s", "MB/s", "p50 ms", "p99 ms", "max ms")
_PHASES: Final = """\
phases: append (with the batching producer), latency (one record at a time, each acknowledged before the next), read
and watch (all appended records). All phases run unless --latency, --read or --watch select some; append always runs
first.
"""


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "bench",
        help="benchmark a server",
        description="Append records to a new topic, read them, watch them, and delete the topic. Rates are those of "
        "the client and the server together.",
        epilog=_PHASES,
    )
    parser.add_argument(
        "--records", type=positive, default=100_000, metavar="N", help="number of records (default: 100000)"
    )
    parser.add_argument("--size", type=size, default=200, metavar="BYTES", help="size of each record (default: 200)")
    parser.add_argument("--batch", type=positive, default=1000, metavar="N", help="records per write (default: 1000)")
    parser.add_argument("--producers", type=positive, default=1, metavar="N", help="appending processes (default: 1)")
    parser.add_argument(
        "--durability", choices=("ephemeral", "memory", "disk", "fsync"), help="of the topic (default: disk)"
    )
    parser.add_argument("--topic", metavar="NAME", help="name of the new topic (default: bench-...)")
    parser.add_argument("--seconds", type=seconds, default=60.0, metavar="S", help="limit per phase (default: 60)")
    for name in ("latency", "read", "watch"):
        parser.add_argument(f"--{name}", action="store_true", help=f"run the {name} phase, and only selected phases")
    output.add_arguments(parser)
    server.add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the benchmark, and clean up even when interrupted."""
    return server.run_command("bench", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    for name, maximum in (("records", _MAX_RECORDS), ("size", _MAX_SIZE), ("producers", _MAX_PRODUCERS)):
        if getattr(arguments, name) > maximum:
            raise server.UsageError(f"--{name} must be at most {maximum:,}")
    topic = arguments.topic or f"bench-{uuid4().hex[:12]}"
    chosen = [name for name in ("latency", "read", "watch") if getattr(arguments, name)] or ["latency", "read", "watch"]
    rows = []
    with server.client(arguments) as client, _topic(client, topic, arguments.durability):
        rows.append(_append(arguments, topic))
        phases = {"latency": _latency, "read": _read, "watch": _watch}
        rows += [phases[name](client, topic, arguments) for name in chosen]
    output.rows(arguments, rows, {name: None if name == "phase" else _number for name in _NAMES}, _HEADINGS)
    return 0


def _number(value: float | None) -> output.Measure | None:
    return None if value is None else output.Measure(f"{value:,.{2 if isinstance(value, float) else 0}f}")


@contextmanager
def _topic(client: "TopicsClient", topic: str, durability: Any) -> Iterator[None]:
    """Create a topic, and delete it at the end of the context. Raises ValueError if it exists."""
    from topics_client.errors import NotFoundError, TopicsError
    from topics_client.models import TopicConfig

    try:
        client.get_topic(topic, touch=False)
    except NotFoundError:
        pass
    else:
        raise ValueError(f"{topic} already exists, and the benchmark would delete it at the end")
    try:
        if durability is not None:
            client.put_topic(topic, TopicConfig(durability=durability))
        yield
    finally:
        try:
            client.delete_topic(topic)
        except TopicsError as error:
            output.note(f"topics bench: could not delete the topic {topic}: {error}")


def record_text(number: int, length: int) -> bytes:
    """A unique JSON record of `length` bytes, or the minimum needed."""
    head = b'{"n":%d,"text":"' % number
    return head + b"x" * (length - len(head) - 2) + b'"}'


def _append(arguments: argparse.Namespace, topic: str) -> dict[str, Any]:
    address = server.address(arguments)
    job = (str(address), address.key, arguments.timeout, topic, arguments.size, arguments.batch, arguments.seconds)
    share, rest = divmod(arguments.records, arguments.producers)
    parts = [share + (number < rest) for number in range(arguments.producers)]
    if len(parts) == 1:
        done = [produce(*job, 0, parts[0])]
    else:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        with ProcessPoolExecutor(len(parts), mp_context=get_context("spawn")) as pool:  # gRPC does not survive a fork
            starts = [sum(parts[:number]) for number in range(len(parts))]
            futures = [pool.submit(produce, *job, start, part) for start, part in zip(starts, parts, strict=True)]
            done = [future.result() for future in futures]
    begin, end = min(each[1] for each in done), max(each[2] for each in done)
    return _row("append", sum(each[0] for each in done), end - begin, arguments.size)


def produce(
    url: str,
    key: str | None,
    timeout: float,
    topic: str,
    length: int,
    batch: int,
    max_seconds: float,
    start: int,
    count: int,
) -> tuple[int, float, float]:
    """Append `count` records within `max_seconds`. Returns the number appended, and the start and end times."""
    from topics_client import RawJson, TopicsClient
    from topics_client.producer.api import Producer

    with TopicsClient(url, key=key, timeout=timeout) as client:
        client.ready()  # connect first
        begin, last, number = time.time(), None, start
        with Producer(client.connection, max_batch_records=min(batch, MAX_RECORDS)) as producer:
            for number in range(start, start + count):
                last = producer.append(topic, RawJson(record_text(number, length)))
                if number % 1000 == 0 and time.time() - begin > max_seconds:
                    break
            producer.flush()
        if last is None:
            return 0, begin, begin
        last.result()
        return number - start + 1, begin, time.time()


def _latency(client: "TopicsClient", topic: str, arguments: argparse.Namespace) -> dict[str, Any]:
    from topics_client import RawJson

    times = []
    begin = time.perf_counter()
    for number in range(min(_LATENCY_APPENDS, arguments.records)):
        before = time.perf_counter()
        client.append(topic, RawJson(record_text(number, arguments.size)))
        times.append(time.perf_counter() - before)
        if time.perf_counter() - begin > arguments.seconds * _LATENCY_SHARE:
            break
    return _row("latency", len(times), time.perf_counter() - begin, arguments.size, times)


def _read(client: "TopicsClient", topic: str, arguments: argparse.Namespace) -> dict[str, Any]:
    count = 0
    begin = time.perf_counter()
    with client.read(topic) as stream:
        for batch in stream.batches():
            count += len(batch)
            if time.perf_counter() - begin > arguments.seconds:
                break
    return _row("read", count, time.perf_counter() - begin, arguments.size)


def _watch(client: "TopicsClient", topic: str, arguments: argparse.Namespace) -> dict[str, Any]:
    head = client.get_topic(topic, touch=False).head_seq
    count = 0
    begin = time.perf_counter()
    with client.watch(topic) as stream:
        for batch in stream.batches():
            count += len(batch)
            if batch[-1].seq >= head or time.perf_counter() - begin > arguments.seconds:
                break
    return _row("watch", count, time.perf_counter() - begin, arguments.size)


def _row(phase: str, count: int, taken: float, length: int, times: "list[float] | None" = None) -> dict[str, Any]:
    each = len(record_text(0, length))
    row: dict[str, Any] = {
        "phase": phase,
        "records": count,
        "seconds": round(taken, 4),
        "records_per_s": round(count / taken),
        "mb_per_s": round(count * each / taken / 1e6, 3),
    }
    if times:
        ordered = sorted(times)
        for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99), ("max_ms", 1.0)):
            row[name] = round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1e3, 3)
    return row
