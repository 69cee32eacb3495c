"""Rounds: look up the heads of topics, write new records with one Spark job, commit topic by topic.

All that has to be kept lies in the tables: a pipeline that is killed at any moment, and restarted, anywhere, resumes
from the tables.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from pyspark_topics.inventory import TopicInfo, find_topic, find_topics
from topics_client.connection import Connection
from topics_client.errors import NotFoundError, TopicsError, UnavailableError
from topics_client.retry import Retry
from topics_lakehouse.catalog import ERRORS, RECORDS, CatalogDownError, TableError, open_catalog
from topics_lakehouse.commit import FencedError
from topics_lakehouse.config import Config, TopicRule
from topics_lakehouse.files import BROKEN, NOT_FOUND, SERVER_DOWN, STORE_DOWN, FileTask, Target, TaskFailure, TaskResult
from topics_lakehouse.follower import ABSENT, FAILED, LIVE, WAITING, Follower, Status, timed
from topics_lakehouse.history import Witness
from topics_lakehouse.progress import Progress, witnessed
from topics_lakehouse.refill import missing
from topics_lakehouse.runner import Runner, RunnerLostError
from topics_lakehouse.schema import SchemaError
from topics_lakehouse.shares import Lag, lags, share, split
from topics_lakehouse.tables import TopicTables

_log: Final = logging.getLogger(__name__)
_IDLE_SECONDS: Final = 0.05  # between looks, however short the trigger
_LOOK: Final = Retry(seconds=2)  # then the topics are said to wait

Report = Callable[[str, Status], None]
AfterCommit = Callable[[Table, str], None]
Ends = Mapping[str, Mapping[int, int]]  # heads, by topic and partition


class TopicDeletedError(Exception):
    """The topic was deleted or recreated since the round was planned."""


class TaskFailedError(Exception):
    """A range could not be written, for a reason that is neither the server's nor the catalog's absence."""


@dataclass(slots=True)
class Metrics:
    """Statistics of a pipeline since its start."""

    rounds: int = 0  # that wrote something
    records: int = 0
    bytes: int = 0
    files: int = 0
    errors: int = 0
    gaps: int = 0
    commits: int = 0  # of topics' tables
    fenced: int = 0  # commits that came after another committer's
    waits: int = 0  # times that a topic began to wait for a server or a catalog
    job_seconds: float = 0.0
    commit_seconds: float = 0.0
    lag: dict[str, int] = field(default_factory=dict)  # seqs, by topic


class Pipeline:
    """Keeps the tables of the configured topics. Used by one thread; `stop` may be called by any."""

    def __init__(
        self,
        config: Config,
        runner: Runner,
        *,
        report: Report | None = None,
        after_commit: AfterCommit | None = None,
        refill: bool = False,
    ) -> None:
        """`report(step, status)` is called for each step: written, errors, gaps and committed behind the steps of a
        topic's saga; live, waiting, failed, absent when that changes; fenced; archived; and round for each topic behind
        each round. `after_commit(table, topic)` is for maintenance and is called for each table that a round has
        changed; its exceptions are logged. With `refill` tables that were rolled back are refilled on first opening,
        and not refused.
        """
        self._refill = refill
        self._config = config
        self._runner = runner
        self._report_to = report
        self._after_commit = after_commit
        self._server = Connection(config.address, retry=_LOOK)
        self._progress = Progress(self._server, config.group)
        self._opened: Catalog | None = None
        self._followers: dict[str, Follower] = {}
        self._refused: set[TopicRule] = set()  # those that the last look was refused
        self._stop = threading.Event()
        self.metrics = Metrics()

    @property
    def statuses(self) -> list[Status]:
        """The status of each topic, by name."""
        return [self._followers[topic].status for topic in sorted(self._followers)]

    def lag(self, topic: str) -> int:
        """Seqs that the table is behind the head of the last look."""
        return self._followers[topic].status.lag

    def stop(self) -> None:
        """End `run` or `once` when the running round is committed."""
        self._stop.set()

    def close(self) -> None:
        """End the connection to the server."""
        self._server.close()

    def run(self) -> None:
        """Follow the topics until `stop`."""
        while not self._stop.is_set():
            began = time.monotonic()
            more = self.round() and any(each.lag for each in self.statuses if each.state == LIVE)
            if not more:
                self._stop.wait(max(_IDLE_SECONDS, began + self._config.trigger_seconds - time.monotonic()))

    def once(self) -> bool:
        """Write everything up to the heads that topics have now, and return; whether all topics got there.

        Waits for a server or a catalog that does not answer.
        """
        ends: Ends | None = None
        for follower in self._followers.values():
            follower.hurry()
        while not self._stop.is_set():
            if ends is None:
                infos = self._look()
                ends = None if infos is None else {info.topic: _heads(info) for info in infos}
            else:
                self.round(ends)
                if all(each.state != WAITING and not _behind(each, ends) for each in self.statuses):
                    return all(each.state == LIVE for each in self.statuses)
            if ends is None or any(each.state == WAITING for each in self.statuses):
                self._stop.wait(_IDLE_SECONDS)
        return False

    def round(self, ends: Ends | None = None) -> bool:
        """One round; whether anything was to be written. `ends` are the heads to stop at."""
        infos = self._look()
        if infos is None:
            return False
        behind: list[Lag] = []
        targets: dict[str, Target] = {}
        for info in infos:
            follower = self._followers[info.topic]
            if not follower.due():
                continue
            with self._guarded(follower):
                tables = follower.open(info)
                if follower.refilling:
                    self._fill(follower, tables)
                targets[info.topic] = tables.target(self._config)
                follower.settle(LIVE)
                behind += lags(info, tables.positions[RECORDS], None if ends is None else ends.get(info.topic, {}))
        if behind:
            tasks = self._tasks(behind, targets)
            began = time.monotonic()
            with timed(self._add_job_seconds):
                results = self._run(tasks)
            with timed(self._add_commit_seconds):
                for topic, done in _by_topic(results).items():
                    with self._guarded(self._followers[topic]):
                        self._commit(self._followers[topic], done, began)
            self.metrics.rounds += 1
        for topic, follower in self._followers.items():
            if follower.tables is not None:
                table = follower.tables.tables[RECORDS].metadata.table_uuid
                self._progress.report(topic, table, follower.tables.positions[RECORDS])
        for counted in ("records", "bytes", "files", "errors", "gaps"):
            setattr(self.metrics, counted, sum(getattr(status, counted) for status in self.statuses))
        for status in self.statuses:
            self.metrics.lag[status.topic] = status.lag
            self._report("round", status)
        return bool(behind)

    def _look(self) -> list[TopicInfo] | None:
        """The heads of the topics; None if the server is unavailable."""
        for rule in self._config.topics:
            if rule.name:
                self._follower(rule.name)
        found: dict[str, TopicInfo] = {}
        refused: dict[TopicRule, TopicsError] = {}
        try:
            for rule in self._config.topics:
                try:
                    if rule.name:
                        with suppress(NotFoundError):
                            found[rule.name] = find_topic(self._server, rule.name)
                    else:
                        for info in find_topics(self._server, pattern=rule.pattern):
                            found.setdefault(info.topic, info)
                except UnavailableError:
                    raise
                except TopicsError as error:
                    refused[rule] = error
        except UnavailableError as error:
            _log.warning("the server is unavailable: %s", error)
            for follower in self._followers.values():
                self._wait(follower, f"server: {error}")
            return None
        for name in found:
            self._follower(name)
        if refused and not self._followers:  # nothing to follow, and nothing will come
            raise next(iter(refused.values()))
        self._tell_refused(refused, found)
        for name, follower in self._followers.items():
            if name not in found and follower.rule not in refused:
                follower.forget()
                follower.settle(ABSENT, f"topic {name} does not exist")
        return list(found.values())

    def _tell_refused(self, refused: Mapping[TopicRule, TopicsError], found: Collection[str]) -> None:
        """Mark topics without access as failed; each pattern is reported once."""
        for rule, error in refused.items():
            if rule.pattern and rule not in self._refused:
                _log.error("topics of pattern %s: %s", rule.pattern, error)
        self._refused = set(refused)
        for name, follower in self._followers.items():
            if follower.rule in refused and name not in found:
                self._fail(follower, f"topic {name}: {refused[follower.rule]}")

    def _follower(self, topic: str) -> Follower:
        follower = self._followers.get(topic)
        if follower is None:
            rule = self._config.rule(topic)
            assert rule is not None
            follower = Follower(
                self._catalog, self._config, rule, topic, self._report, witness=self._witness, refill=self._refill
            )
            self._followers[topic] = follower
        return follower

    def _catalog(self) -> Catalog:
        """The catalog, opened when it is first wanted: it may be down when the pipeline starts."""
        if self._opened is None:
            self._opened = open_catalog(self._config)
        return self._opened

    def _witness(self, topic: str) -> Witness:
        return witnessed(self._server, self._config.group, topic)

    def _fill(self, follower: Follower, tables: TopicTables) -> None:
        """Read the missing records again and commit them, and update the group. Once in their life here:
        a later rollback is refused."""
        if tables.lacking:
            began = time.monotonic()
            found = missing(tables)
            tasks = list(found.tasks(self._config))
            results = self._run(tasks) if tasks else []
            self._check(follower, results)
            gaps, rows = len(found.gaps(results)), sum(each.rows for each in results)
            self._changed(follower, follower.refill(found, results, began))
            _log.warning("topic %s: %d records refilled, %d gaps reported", tables.topic, rows, gaps)
            self._report("refilled", follower.status)
        positions = {partition: tables.positions[RECORDS].get(partition, 0) for partition in follower.status.heads}
        if self._progress.commit(tables.topic, tables.tables[RECORDS].metadata.table_uuid, positions):
            follower.refilling = False

    def _tasks(self, behind: Sequence[Lag], targets: Mapping[str, Target]) -> list[FileTask]:
        chosen = share(behind, self._config.max_records)
        tasks = []
        for wanted in split(chosen, task_records=self._config.task_records, parallelism=self._runner.parallelism):
            recorded = self._tables(wanted.topic).positions.get(ERRORS, {}).get(wanted.partition, 0)
            tasks.append(FileTask(wanted, recorded, targets[wanted.topic]))
        return tasks

    def _tables(self, topic: str) -> TopicTables:
        tables = self._followers[topic].tables
        assert tables is not None
        return tables

    def _run(self, tasks: Sequence[FileTask]) -> list[TaskResult]:
        """Do the tasks in one job. If it fails as a whole, each topic gets a separate job, so that one topic can't stop
        the others.
        """
        try:
            return self._runner(self._config.address, tasks)
        except RunnerLostError:
            raise
        except Exception as error:
            topics = dict.fromkeys(task.wanted.topic for task in tasks)
            if len(topics) > 1:
                return [
                    result
                    for topic in topics
                    for result in self._run([task for task in tasks if task.wanted.topic == topic])
                ]
            _log.exception("the tasks of topic %s failed", *topics)
            failure = TaskFailure(BROKEN, f"{type(error).__name__}: {error}".partition("\n")[0])
            return [TaskResult(task.wanted, failure=failure) for task in tasks]

    def _commit(self, follower: Follower, results: Sequence[TaskResult], began: float) -> None:
        self._check(follower, results)
        self._changed(follower, follower.commit(results, began))

    def _check(self, follower: Follower, results: Sequence[TaskResult]) -> None:
        failed = next((each for each in results if each.failure is not None), None)
        if failed is not None:
            follower.discard(results)
            raise _error(failed)

    def _changed(self, follower: Follower, tables: Sequence[Table]) -> None:
        self.metrics.commits += 1
        if self._after_commit is not None:
            try:
                for table in tables:
                    self._after_commit(table, follower.status.topic)
            except Exception:
                _log.exception("maintenance of table %s failed", follower.status.table)

    @contextmanager
    def _guarded(self, follower: Follower) -> Iterator[None]:
        """Isolate the failure of one topic: it becomes the state of that topic."""
        topic = follower.status.topic
        try:
            yield
        except CatalogDownError as error:
            self._wait(follower, f"catalog: {error}")
        except UnavailableError as error:
            self._wait(follower, f"server: {error}")
        except FencedError as error:
            self.metrics.fenced += 1
            _log.warning("%s", error)
            follower.forget()
            self._report("fenced", follower.status)
        except TopicDeletedError as error:  # the next look shows the outcome
            _log.warning("%s", error)
            follower.forget()
        except (TableError, SchemaError, TopicsError, TaskFailedError) as error:
            self._fail(follower, str(error))
        except RunnerLostError:
            raise
        except Exception as error:
            _log.exception("topic %s failed", topic)
            self._fail(follower, f"{type(error).__name__}: {error}")

    def _wait(self, follower: Follower, reason: str) -> None:
        if follower.status.state != WAITING:
            self.metrics.waits += 1
            _log.warning("topic %s waits: %s", follower.status.topic, reason)
        follower.settle(WAITING, reason)

    def _fail(self, follower: Follower, reason: str) -> None:
        if (follower.status.state, follower.status.reason) != (FAILED, reason):
            _log.error("topic %s: %s", follower.status.topic, reason)
        follower.forget()
        follower.settle(FAILED, reason)

    def _report(self, step: str, status: Status) -> None:
        if self._report_to is not None:
            self._report_to(step, status)

    def _add_job_seconds(self, seconds: float) -> None:
        self.metrics.job_seconds += seconds

    def _add_commit_seconds(self, seconds: float) -> None:
        self.metrics.commit_seconds += seconds


def _error(result: TaskResult) -> Exception:
    failure = result.failure
    assert failure is not None
    text = failure.text if str(result.wanted) in failure.text else f"{result.wanted}: {failure.text}"
    if failure.kind == NOT_FOUND:
        return TopicDeletedError(text)
    if failure.kind == SERVER_DOWN:
        return UnavailableError("unavailable", text)
    return CatalogDownError(text) if failure.kind == STORE_DOWN else TaskFailedError(text)


def _by_topic(results: Sequence[TaskResult]) -> dict[str, list[TaskResult]]:
    found: dict[str, list[TaskResult]] = {}
    for each in results:
        found.setdefault(each.wanted.topic, []).append(each)
    return found


def _heads(info: TopicInfo) -> dict[int, int]:
    return {each.partition: each.head_seq for each in info.partitions}


def _behind(status: Status, ends: Ends) -> bool:
    """Return True if a healthy topic has not reached its target."""
    wanted = ends.get(status.topic, {})
    return status.state == LIVE and any(
        status.positions.get(partition, 0) < min(head, wanted.get(partition, 0))
        for partition, head in status.heads.items()
    )
