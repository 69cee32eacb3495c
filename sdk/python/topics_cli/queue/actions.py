"""The actions of `topics queue`, loaded when one of them is run."""

import argparse
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, cast

from topics_cli import output, server
from topics_cli.lines import Source, chunks
from topics_cli.queue.jobtext import Handle, claimed_line, handle_of_argument, handle_of_line, view_line
from topics_cli.recordtext import value_line
from topics_client import TopicsClient
from topics_client.errors import ConflictError, NotFoundError
from topics_client.models import Job, JobView, Settled, TopicInfo

_MAX_JOBS: Final = 1000  # jobs in a call (TOPICS_MAX_CLAIM)
_SHOWN: Final = 60  # characters of a job's data in a table


def _this_node(arguments: argparse.Namespace) -> str:
    """The node of all commands on this machine, so that one can ack the jobs that another claimed."""
    return arguments.node or f"cli@{socket.gethostname()}"[:128]


def _claim(arguments: argparse.Namespace) -> int:
    node = _this_node(arguments)
    with server.client(arguments) as client:
        jobs = client.claim(arguments.queue, node, max=min(arguments.max, _MAX_JOBS), lease_ms=arguments.lease)
    output.raw_lines(claimed_line(job, node) for job in jobs)
    if not jobs and not arguments.json:
        output.note(f"{arguments.queue} has no ready job")
    return 0


@dataclass
class _Settling:
    """Settles jobs from arguments or lines of standard input, in batches."""

    arguments: argparse.Namespace
    call: Callable[[str, list[Job]], Settled]
    waiting: list[Handle] = field(default_factory=list)
    done: int = 0
    skipped: list[int] = field(default_factory=list)

    def run(self) -> None:
        """Settle all jobs. Raises TopicsError, UsageError, and ValueError for an invalid line, after settling the jobs
        before it."""
        node = _this_node(self.arguments)
        if self.arguments.job:
            try:
                self.waiting = [handle_of_argument(each, node) for each in self.arguments.job]
            except ValueError as error:
                raise server.UsageError(str(error)) from None
        elif sys.stdin is None or sys.stdin.isatty():
            raise server.UsageError("JOB is required, or the output of topics queue claim on standard input")
        else:
            self._read_lines(node)
        self._settle()

    def _read_lines(self, node: str) -> None:
        source = cast(Source, sys.stdin.buffer)
        for first, group in chunks(source):
            for number, line in enumerate(group, first):
                try:
                    if line is None:
                        raise ValueError("it is too long")
                    if line.strip():
                        self.waiting.append(handle_of_line(line, self.arguments.queue, node))
                except ValueError as error:
                    self._settle()
                    raise ValueError(f"line {number}: {error}") from None
            self._settle()  # the wait for the next may be long, and leases end

    def _settle(self) -> None:
        by_node: dict[str, list[Job]] = {}
        for each in self.waiting:
            job = Job(self.arguments.queue, each.seq, each.lease_id, 0, 0, b"", False, None, 0, b"")
            by_node.setdefault(each.node, []).append(job)
        self.waiting = []
        for node, jobs in by_node.items():
            for first in range(0, len(jobs), _MAX_JOBS):
                settled = self.call(node, jobs[first : first + _MAX_JOBS])
                self.done += settled.done
                self.skipped += settled.skipped


def _settled(arguments: argparse.Namespace, name: str, call: Callable[[str, list[Job]], Settled]) -> int:
    work, ended = _Settling(arguments, call), False
    try:
        work.run()
        ended = True
    finally:  # report the jobs done so far, even after an error
        if arguments.json and (ended or work.done):
            output.line({"topic": arguments.queue, name: work.done, "skipped": work.skipped})
        elif work.done or (ended and not work.skipped):
            print(f"{arguments.queue}: {work.done} {name}")
    if not work.skipped:
        return 0
    seqs = ", ".join(map(str, work.skipped[:10])) + (", …" if len(work.skipped) > 10 else "")
    jobs = output.counted(len(work.skipped), "job")
    text = f"{jobs} skipped, not (any more) held under this lease and node: {seqs}; other workers may get them"
    return server.complain(f"queue {arguments.action}", text)


def _ack(arguments: argparse.Namespace) -> int:
    with server.client(arguments) as client:
        return _settled(arguments, "acked", lambda node, jobs: client.ack(arguments.queue, node, jobs))


def _nack(arguments: argparse.Namespace) -> int:
    def call(node: str, jobs: list[Job]) -> Settled:
        return client.nack(
            arguments.queue, node, jobs, delay_ms=arguments.delay, release=arguments.release, reason=arguments.reason
        )

    with server.client(arguments) as client:
        return _settled(arguments, "nacked", call)


def _extend(arguments: argparse.Namespace) -> int:
    def call(node: str, jobs: list[Job]) -> Settled:
        return client.extend(arguments.queue, node, jobs, arguments.lease)

    with server.client(arguments) as client:
        return _settled(arguments, "extended", call)


def _stats(arguments: argparse.Namespace) -> int:
    shown: dict[str, Callable[[Any], object] | None] = dict.fromkeys(
        (
            "topic", "ready", "in_flight", "delayed", "exhausted", "dead_lettered", "lease_ms", "max_deliveries",
            "dead_letter",
        )
    )  # fmt: skip
    shown["lease_ms"] = output.duration
    headings = ("queue", *list(shown)[1:6], "lease", "max_deliveries", "dead_letter")
    with server.client(arguments) as client:
        if not output.rows(arguments, _counts(client, arguments), shown, headings) and not arguments.json:
            output.note("no queues; create one with topics create NAME --type queue")
    return 0


def _counts(client: TopicsClient, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in arguments.queue or (each.topic for each in client.list_topics() if each.type == "queue"):
        try:
            found = client.get_topic(name, touch=False)
        except NotFoundError:
            if arguments.queue:
                raise
            continue  # deleted since
        yield _count(found)


def _count(found: TopicInfo) -> dict[str, Any]:
    if found.queue is None:
        raise ConflictError("not_a_queue", f'topic "{found.topic}" is not a queue', {"topic": found.topic})
    return {
        "topic": found.topic,
        "ready": found.queue.ready,
        "in_flight": found.queue.in_flight,
        "delayed": found.queue.delayed,
        "exhausted": found.queue.exhausted,
        "dead_lettered": found.queue.dead_lettered,
        "lease_ms": found.config.lease_ms,
        "max_deliveries": found.config.max_deliveries,
        "dead_letter": found.config.dead_letter,
    }


def _jobs(arguments: argparse.Namespace) -> int:
    with server.client(arguments) as client:
        found = islice(client.list_jobs(arguments.queue, arguments.state), arguments.limit or None)
        if arguments.json:
            output.raw_lines(map(view_line, found))
            return 0
        due = {"in_flight": ("node", "left"), "delayed": ("due",)}.get(arguments.state, ())
        views = list(found)
        failed = ("failed",) if any(view.attempts for view in views) else ()
        headings = ("seq", "age", "deliveries", "priority", "tag", *due, *failed, "data")
        cells = [_cells(view, arguments.state, tells_failures=bool(failed)) for view in views]
    output.table(headings, cells, headers=not arguments.no_headers, color=output.colored(arguments))
    if not cells:
        output.note(f"{arguments.queue} has no {arguments.state} jobs")
    return 0


def _cells(view: JobView, state: str, *, tells_failures: bool) -> list[object]:
    record = view.record
    due: list[object] = []
    if state == "in_flight":
        due = [view.node, output.until(view.deadline_ts_ms)]
    elif state == "delayed":
        due = [output.until(view.ready_at_ts_ms)]
    if tells_failures:
        due.append(_short(_last_failure(view)))
    data = _short(value_line(record)[: 4 * _SHOWN].decode(errors="replace"))
    return [record.seq, output.age(record.ts_ms), view.deliveries, view.priority, record.tag, *due, data]


def _last_failure(view: JobView) -> str:
    """The worker of the last failure, and the first line of its reason."""
    if not view.attempts:
        return ""
    last = view.attempts[-1]
    why = last.reason.strip().partition("\n")[0]
    return f"{last.node}: {why}" if why else last.node


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _redrive(arguments: argparse.Namespace) -> int:
    with server.client(arguments) as client:
        moved = client.redrive(arguments.queue, tag=arguments.tag, tag_prefix=arguments.tag_prefix, max=arguments.max)
    if arguments.json:
        output.line({"topic": arguments.queue, "redriven": moved})
    else:
        print(f"{arguments.queue}: {moved} redriven")
    return 0


ACTIONS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "claim": _claim,
    "ack": _ack,
    "nack": _nack,
    "extend": _extend,
    "stats": _stats,
    "jobs": _jobs,
    "redrive": _redrive,
}
