"""`topics verify`: an audit of one data directory, offline or while a server holds it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from topics_service.engine.verify import Audit, Problem
from topics_service.engine.verify.shards import Catalog, check
from topics_service.storage import damagedfiles, shardfiles
from topics_service.storage import verify as storage
from topics_service.storage.store import StoreError, StoreOpenError

_TOTALS: Final = ("topics", "partitions", "records", "routers", "groups", "tables", "rows")


class Report(Struct, kw_only=True):
    """Result of a verification. `live`: a server held the directory, and its state at one moment was checked.

    `opened` is False when the directory can't be opened at all: then there is one problem, and nothing was looked at.
    """

    problems: int = 0
    live: bool = False
    opened: bool = False
    topics: int = 0
    partitions: int = 0
    records: int = 0
    routers: int = 0
    groups: int = 0
    tables: int = 0
    rows: int = 0


def verify(
    path: Path,
    tell: Callable[[Problem], None],
    *,
    deep: bool = False,
    begun: Callable[[int], Callable[[int], None]] = lambda _: lambda _: None,
    read: Callable[[Catalog], None] = lambda _: None,
) -> Report:
    """Check the data directory `path`, with all its shards, and change nothing in it. Blocks until everything was read.

    `tell` is called with each problem as it is found. `begun` is called with the approximate number of records and
    returns a function that is called with the number of further records read; `read` with the topics of a shard, if it
    could be read to its end. Raises NotADirectoryError when `path` is no data directory at all.
    """
    report = Report()

    def count(problem: Problem) -> None:
        report.problems += 1
        tell(problem)

    try:
        shards = shardfiles.directories(path)
    except StoreError as error:
        count(Problem(kind="unreadable", text=str(error), file=error.file))
        return report
    if shards:
        return _verify_shards(shards, tell, deep=deep, begun=begun)
    if not path.is_dir() or not is_database(path):
        raise NotADirectoryError(20, "there is no data directory", str(path))
    try:
        with storage.opened(path) as source:
            report.opened, report.live = True, source.live
            for text in damagedfiles.damaged_files(path):
                count(Problem(kind="unreadable", text=text, file=damagedfiles.named_file(text)))
            audit = Audit(source, count, deep=deep)
            audit.begin()
            audit.progress = begun(audit.expected)
            audit.run()
            read(audit.catalog())
            for name in _TOTALS:
                setattr(report, name, getattr(audit.totals, name))
    except StoreOpenError as error:
        text = f"a server would not start: {error}"
        count(Problem(kind="unreadable", text=text, file=damagedfiles.named_file(text)))
    except StoreError as error:
        text = f"the check could not continue: {error}"
        count(Problem(kind="unreadable", text=text, file=damagedfiles.named_file(text)))
    return report


def _verify_shards(
    paths: Sequence[Path],
    tell: Callable[[Problem], None],
    *,
    deep: bool,
    begun: Callable[[int], Callable[[int], None]],
) -> Report:
    """Check one shard after the other, and that they agree; while a server holds them, each is of its own moment."""
    whole = Report(opened=True)
    catalogs: list[Catalog] = []
    for shard, path in enumerate(paths):

        def count(problem: Problem, shard: int = shard) -> None:
            tell(replace(problem, text=f"shard {shard}: {problem.text}"))

        try:
            report = verify(path, count, deep=deep, begun=begun, read=catalogs.append)
        except NotADirectoryError:
            count(Problem(kind="missing", text=f"there is no database in {path}"))
            report = Report(problems=1)
        whole.problems += report.problems
        whole.live |= report.live
        whole.opened &= report.opened
        for name in _TOTALS:
            setattr(whole, name, getattr(whole, name) + getattr(report, name))
    if len(catalogs) == len(paths) and not whole.live:
        unlike: list[Problem] = []
        check(catalogs, unlike.append)
        whole.problems += len(unlike)
        for problem in unlike:
            tell(problem)
    return whole


def is_database(path: Path) -> bool:
    """True if any file of a database is in the directory, even if others are lost."""
    patterns = ("CURRENT", "IDENTITY", "MANIFEST-*", "*.sst", "OPTIONS-*")
    return any(True for pattern in patterns for _ in path.glob(pattern))
