"""The actions of `topics lakehouse`. Imported lazily, with its dependencies, when one of them runs."""

import argparse
import logging
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any, Final

from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    NotInstalledError,
    RESTError,
    ValidationException,
)
from pyiceberg.table import Table
from sqlalchemy.exc import SQLAlchemyError

from topics_cli import output, server
from topics_cli.lakehouse.printing import print_query, print_rows
from topics_client.connection import Connection
from topics_client.errors import TopicsError, UnavailableError
from topics_client.retry import Retry
from topics_lakehouse.catalog import (
    ERRORS,
    GAPS,
    RECORDS,
    CatalogDownError,
    Positions,
    TableError,
    find_table,
    identifier,
    open_catalog,
    owned_state,
    reachable,
)
from topics_lakehouse.compact import Compaction, compact
from topics_lakehouse.config import DEFAULT_FILE, MIN_GRACE, Config, ConfigError, TopicRule, assignments, load
from topics_lakehouse.deletes import Step, sync_deletes
from topics_lakehouse.display import shown
from topics_lakehouse.history import Witness, check_history
from topics_lakehouse.hot import HotTailError
from topics_lakehouse.maintain import Maintained, Maintenance, maintain
from topics_lakehouse.progress import witnessed
from topics_lakehouse.query import HOT_RECORDS, Lakehouse, QueryError
from topics_lakehouse.rewrite import Rewritten
from topics_lakehouse.runner import RunnerLostError
from topics_lakehouse.schema import SchemaError
from topics_lakehouse.status import TopicStatus, status

_PATIENCE: Final = Retry(seconds=10)
_SETTINGS: Final = {"url": "server", "warehouse": "warehouse", "trigger": "trigger", "master": "spark.master"}
_FAILURES: Final = (
    TopicsError,
    CatalogDownError,
    TableError,
    SchemaError,
    QueryError,
    HotTailError,
    CommitFailedException,
    NoSuchTableError,
    NotInstalledError,
    RESTError,
    RunnerLostError,
    SQLAlchemyError,
    ValidationException,
    RuntimeError,  # no Java, or another reason why Spark can't start
    OSError,
    ValueError,
)


def main(arguments: argparse.Namespace) -> int:
    """The exit code (docs/cli.md), with one line on standard error where something failed."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        config = _config(arguments)
        with reachable():
            return _ACTIONS[arguments.action](arguments, config)
    except ConfigError as error:
        return server.complain("lakehouse", str(error), server.USAGE)
    except BrokenPipeError:
        raise  # the output was closed: the command line exits silently
    except _FAILURES as error:
        return _failed(error)


def _failed(error: BaseException) -> int:
    if isinstance(error, TopicsError):
        return server.complain("lakehouse", server.explained(error), server.exit_code(error))
    return server.complain("lakehouse", str(error) or type(error).__name__)


def _config(arguments: argparse.Namespace) -> Config:
    """The settings of the file, overridden by the command line."""
    overrides: dict[str, Any] = {**assignments(arguments.set)}
    for name, key in _SETTINGS.items():
        if getattr(arguments, name, None) is not None:
            overrides[key] = getattr(arguments, name)
    if arguments.config is None and not Path(DEFAULT_FILE).exists():
        names = [*arguments.topic, *([arguments.name] if arguments.action == "sync-deletes" else [])]
        if not names and arguments.action != "query":
            raise ConfigError(f"no {DEFAULT_FILE} in the working directory: give --config FILE or --topic NAME")
        overrides["topics"] = [{"name": name} for name in names] or [{"pattern": ".*"}]
    config = load(arguments.config, overrides)
    if not arguments.topic:
        return config
    return replace(config, topics=tuple(_rule(config, name) for name in dict.fromkeys(arguments.topic)))


def _rule(config: Config, topic: str) -> TopicRule:
    """The rule for a topic of the command line: that of the file, if it has one."""
    rule = config.rule(topic)
    if rule is None:
        return TopicRule(name=topic)
    return replace(rule, name=topic, pattern="", table=config.table(topic))


def _run(arguments: argparse.Namespace, config: Config) -> int:
    from topics_lakehouse.job import follow

    with shown(as_json=arguments.json) as report:
        how = {"once": arguments.once, "refill": arguments.refill}
        return 0 if follow(config, **how, report=report, started=lambda _: report.begin()) else 1


def _status(arguments: argparse.Namespace, config: Config) -> int:
    with Connection(config.address, retry=_PATIENCE) as connection:
        found = status(config, open_catalog(config), connection)
    print_rows([each.as_json() if arguments.json else _row(each) for each in found], json_lines=arguments.json)
    if not arguments.json:
        for each in found:
            for problem in each.problems:
                print(f"{each.topic}: {problem}")
    return 1 if any(each.problems for each in found) else 0


def _row(each: TopicStatus) -> dict[str, Any]:
    return {
        "topic": each.topic,
        "table": each.table,
        "lag": each.lag,
        "rows": each.rows,
        "errors": each.errors,
        "gaps": each.gaps,
        "files": each.files,
        "MiB": round(each.bytes / (1 << 20), 1),
        "snapshots": each.snapshots,
        "last commit": None if each.last_commit is None else each.last_commit.isoformat(" ", "seconds"),
        "state": "ok" if not each.problems else f"{len(each.problems)} problem{'s'[: len(each.problems) > 1]}",
    }


def _each_table(
    arguments: argparse.Namespace, config: Config, work: Callable[[str, Table], Rewritten | Maintained]
) -> int:
    """Apply `work` to the role and table of each existing table of the configured topics, and print the results. A
    failure is reported on standard error and does not stop the others."""
    catalog = open_catalog(config)
    with Connection(config.address, retry=_PATIENCE) as connection:
        found = status(config, catalog, connection)
        committed = _committed_positions(config, connection, [each.topic for each in found if each.heads is not None])
    rows, failed = [], False
    for topic, role in product([each.topic for each in found], (RECORDS, ERRORS, GAPS)):
        try:
            table = find_table(catalog, identifier(config, topic, role))
            if table is not None:
                owned_state(table, topic, role)
                check_history(table, committed)
                rows.append({"table": ".".join(table.name()), **asdict(work(role, table))})
        except CatalogDownError:
            raise
        except _FAILURES as error:
            failed = bool(_failed(error))
    print_rows(rows, json_lines=arguments.json)
    return 1 if failed else 0


def _committed_positions(config: Config, connection: Connection, topics: Sequence[str]) -> Witness:
    """Positions that tables committed to their group, if the server is available."""
    committed: dict[uuid.UUID, Positions] = {}
    with suppress(UnavailableError):
        for topic in topics:
            committed |= witnessed(connection, config.group, topic)
    return committed


def _compact(arguments: argparse.Namespace, config: Config) -> int:
    def work(role: str, table: Table) -> Rewritten:
        how = Compaction(target_bytes=config.target_file_bytes, thorough=True, ordered=role == RECORDS)
        return compact(table, how)

    return _each_table(arguments, config, work)


def _maintain(arguments: argparse.Namespace, config: Config) -> int:
    grace = config.orphan_grace_seconds if arguments.grace is None else arguments.grace
    if grace < MIN_GRACE:
        raise ConfigError(f"--grace: at least {MIN_GRACE:g} s: younger files may belong to a commit that is under way")
    how = Maintenance(
        keep_snapshots=config.keep_snapshots if arguments.keep is None else arguments.keep, orphan_grace_seconds=grace
    )
    return _each_table(arguments, config, lambda _, table: maintain(table, how))


def _sync_deletes(arguments: argparse.Namespace, config: Config) -> int:
    config = replace(config, topics=(_rule(config, arguments.name),))
    with Connection(config.address, retry=_PATIENCE) as connection, _steps(arguments) as progress:
        done = sync_deletes(
            config, open_catalog(config), connection, arguments.name, timeout=arguments.timeout, progress=progress
        )
    if arguments.json:
        output.line({**asdict(done), "heads": {str(partition): seq for partition, seq in done.heads.items()}})
    else:
        errors = f" and {done.error_rows:,} from that of errors" if done.error_rows else ""
        rows, files = output.counted(done.rows, "row"), output.counted(done.files, "file")
        print(f"{done.topic}: {rows} removed from the table{errors}, {files} rewritten")
    return 0


@contextmanager
def _steps(arguments: argparse.Namespace) -> Iterator[Callable[[Step], None]]:
    """Show the progress in a line on the terminal."""
    terminal = sys.stderr.isatty() and not arguments.json

    def show(step: Step) -> None:
        if terminal:
            part = 100 * step.done // step.total if step.total else 100
            print(f"\r{step.stage}: {part} %   ", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _query(arguments: argparse.Namespace, config: Config) -> int:
    sql = sys.stdin.read() if arguments.sql == "-" else arguments.sql
    limit = HOT_RECORDS if arguments.hot_limit is None else arguments.hot_limit
    with Lakehouse(config, hot_records=limit) as session, session.stream(sql, fresh=not arguments.table_only) as reader:
        print_query(reader, parquet=arguments.parquet, csv_text=arguments.csv, json_lines=arguments.json)
    return 0


_ACTIONS: Final[Mapping[str, Callable[[argparse.Namespace, Config], int]]] = {
    "run": _run,
    "status": _status,
    "compact": _compact,
    "maintain": _maintain,
    "sync-deletes": _sync_deletes,
    "query": _query,
}
