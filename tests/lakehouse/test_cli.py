"""`topics lakehouse` without Spark: arguments, output, exit codes, and how fast it says what it can do."""

import csv
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema

import topics_cli as cli
from support.lake_runs import LocalRunner, follow, settings
from support.spark import Server
from topics_cli import lakehouse
from topics_cli.lakehouse import actions as lakehouse_actions
from topics_client.connection import Connection
from topics_client.installation import install_line
from topics_client.retry import Retry
from topics_lakehouse import display, job, query
from topics_lakehouse.catalog import open_catalog
from topics_lakehouse.config import Config, load
from topics_lakehouse.display import shown
from topics_lakehouse.follower import Status
from topics_lakehouse.pipeline import Pipeline
from topics_proto.v1 import topics_service_pb2 as pb

Fill = Callable[..., int]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """`topics lakehouse …` in this process, in a folder of its own: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    for module in (lakehouse_actions, query):
        monkeypatch.setattr(module, "_PATIENCE", Retry(seconds=0))

    def _run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = cli.main(["lakehouse", *arguments])
        except SystemExit as end:
            code = int(end.code or 0)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return _run


@pytest.fixture
def orders(server: Server, fill: Fill, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A topic with 20 records, 15 of them in its table, and a `lakehouse.toml` about it; the topic's name."""
    topic = f"cli-{request.node.name.removeprefix('test_')[:40]}"
    (tmp_path / "lakehouse.toml").write_text(
        f'server = "{server.url}"\nwarehouse = "lake"\n'
        f'[[topics]]\nname = "{topic}"\ntable = "orders"\nschema = "id bigint, amount double, text string"\n'
    )
    fill(topic, 15, tag=lambda i: f"t{i % 3}")
    given = {"name": topic, "table": "orders", "schema": "id bigint, amount double, text string"}
    follow(settings(server, tmp_path / "lake", given))
    fill(topic, 5, first=15, tag=lambda i: f"t{i % 3}")
    return topic


@pytest.fixture
def catalog_of(tmp_path: Path) -> Callable[[], Catalog]:
    """Opens the catalog that the settings of `orders` are about."""
    return lambda: open_catalog(load(tmp_path / "lakehouse.toml"))


def _lines(text: str) -> list[str]:
    return text.splitlines()


@pytest.mark.usefixtures("orders")
def test_query_prints_a_table(run: Run) -> None:
    code, out, err = run("query", "SELECT tag, count(*) AS n, NULL AS nothing FROM orders GROUP BY 1 ORDER BY 1")
    assert (code, err) == (0, "")
    assert _lines(out) == ["tag  n  nothing", "t0   7", "t1   7", "t2   6"]
    assert _lines(run("query", "SELECT 1 AS one FROM orders WHERE false")[1]) == ["one"]


@pytest.mark.usefixtures("orders")
def test_query_in_other_formats(run: Run, tmp_path: Path) -> None:
    columns = "seq, ts, data, id, [id] AS ids, true AS yes, NULL AS nothing"
    sql = f"SELECT {columns} FROM orders WHERE seq IN (1, 20) ORDER BY 1"
    code, out, _ = run("query", "--json", sql)
    found = [json.loads(line) for line in _lines(out)]
    assert code == 0
    assert [(row["seq"], row["id"], row["ids"], row["yes"], row["nothing"]) for row in found] == [
        (1, 0, [0], True, None),
        (20, 19, [19], True, None),
    ]
    assert json.loads(found[0]["data"])["id"] == 0
    code, out, _ = run("query", "--csv", sql)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["seq"], row["ids"], row["yes"], row["nothing"]) for row in rows] == [
        ("1", "[0]", "true", ""),
        ("20", "[19]", "true", ""),
    ]
    code, out, _ = run("query", "--parquet", "out.parquet", "SELECT * FROM orders")
    assert (code, out) == (0, "")
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 20
    assert run("query", "--json", "--csv", sql)[0] == 2


@pytest.mark.usefixtures("orders")
def test_query_of_the_table_alone_or_with_a_limit(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    sql = "SELECT count(*) AS n FROM orders"
    assert _lines(run("query", "--table-only", sql)[1]) == [" n", "15"]
    code, out, err = run("query", "--hot-limit", "4", sql)
    assert (code, out) == (1, "")
    assert len(_lines(err)) == 1
    assert "5 records are not in the table yet, and a query reads at most 4" in err
    monkeypatch.setattr("sys.stdin", io.StringIO(sql))
    assert _lines(run("query", "-")[1]) == [" n", "20"]


@pytest.mark.usefixtures("orders")
def test_columns_of_one_name_are_all_there(run: Run) -> None:
    sql = "SELECT a.seq, b.seq, b.id AS seq_1 FROM orders a, orders b WHERE a.seq = 1 AND b.seq = 4"
    assert _lines(run("query", "--csv", sql)[1]) == ["seq,seq_1,seq_1_1", "1,4,3"]
    assert json.loads(run("query", "--json", sql)[1]) == {"seq": 1, "seq_1": 4, "seq_1_1": 3}


@pytest.mark.usefixtures("orders")
def test_what_goes_wrong_is_one_line(run: Run, server: Server) -> None:
    for arguments, code, text in (
        (["query", "SELECT * FROM nosuch"], 1, "nosuch"),
        (["query", "SELEKT"], 1, "syntax error"),
        (["query", "--parquet", "no/such/folder/x", "SELECT 1"], 1, "No such file"),
        (["query", "--server", "topics://127.0.0.1:1", "SELECT * FROM orders"], 3, "127.0.0.1:1"),
        (["sync-deletes", "nosuch"], 5, 'topic_not_found: topic "nosuch" does not exist'),
        (["sync-deletes", "--timeout", "0", "cli-what_goes_wrong_is_one_line"], 1, "run the pipeline"),
        (["status", "--config", "nosuch.toml"], 2, "nosuch.toml: No such file or directory"),
        (["status", "--set", "colour=red"], 2, "unknown setting colour"),
        (["status", "--set", "colour"], 2, "KEY=VALUE is wanted"),
        (["query", "--set", "catalog.uri=sqlit:///x", "SELECT 1"], 1, "Can't load plugin"),
        (["query", "--set", "catalog.uri=mysql://u:p@h/x", "SELECT 1"], 1, "not installed"),
        (["run", "--trigger", "often"], 2, "trigger"),
        (["status", "--url", "http://x"], 2, "the scheme of a server's URL is"),
    ):
        found, out, err = run(*arguments)
        assert (found, out) == (code, ""), arguments
        assert len(_lines(err)) == 1, err
        assert err.startswith("topics lakehouse: ")
        assert text in err


def test_wrong_usage(run: Run) -> None:
    assert run()[0] == 2
    assert run("dance")[0] == 2
    assert run("sync-deletes")[0] == 2
    assert run("maintain", "--grace", "-1")[0] == 2
    assert run("query", "--hot-limit", "0", "SELECT 1")[0] == 2
    code, _, err = run("status")
    assert code == 2
    assert "no lakehouse.toml in the working directory" in err


def test_status_says_what_is_wrong(run: Run, orders: str) -> None:
    code, out, _ = run("status")
    assert code == 0
    names, values = (line.split() for line in _lines(out))
    assert names[:4] == ["topic", "table", "lag", "rows"]
    assert values[:4] == [orders, "topics.orders", "5", "15"]
    assert values[-1] == "ok"
    found = json.loads(run("status", "--json")[1])
    assert (found["topic"], found["lag"], found["positions"], found["problems"]) == (orders, 5, {"0": 15}, [])
    code, out, _ = run("status", "--topic", "cli-nosuch")
    assert code == 1
    assert "cli-nosuch: the topic does not exist" in _lines(out)


def test_a_topic_of_the_command_line_keeps_what_the_file_says_of_it(run: Run, orders: str) -> None:
    code, out, _ = run("query", "--topic", orders, "SELECT sum(id)::BIGINT AS s FROM orders")
    assert (code, _lines(out)) == (0, ["  s", "190"])


def test_without_a_file_the_command_line_says_it_all(run: Run, server: Server, fill: Fill) -> None:
    fill("cli-alone", 3)
    place = ["--url", server.url, "--warehouse", "other"]
    code, out, _ = run("query", *place, "--topic", "cli-alone", "SELECT count(*) AS n FROM cli_alone")
    assert (code, _lines(out)) == (0, ["n", "3"])
    assert run("query", *place, "SELECT 1 AS one")[:2] == (0, "one\n  1\n")


def test_compact_and_maintain_tell_what_they_did(run: Run, server: Server, orders: str, tmp_path: Path) -> None:
    follow(settings(server, tmp_path / "lake", {"name": orders, "table": "orders"}))
    code, out, _ = run("compact", "--json")
    assert code == 0
    first = json.loads(_lines(out)[0])
    assert (first["table"], first["files_before"], first["files_after"]) == ("topics.orders", 2, 1)
    assert first["rows_before"] == first["rows_after"] == 20
    assert _lines(run("compact")[1])[0].split()[:2] == ["table", "files_before"]
    code, out, _ = run("maintain", "--keep", "2", "--grace", "3600", "--json")
    assert code == 0
    first = json.loads(_lines(out)[0])
    assert (first["table"], first["snapshots_expired"], first["files_deleted"]) == ("topics.orders", 1, 0)
    code, _, err = run("maintain", "--grace", "60")
    assert code == 2
    assert "younger files may belong to a commit that is under way" in err
    for each in (tmp_path / "lake").rglob("*.*"):
        os.utime(each, (time.time() - 4000,) * 2)
    assert json.loads(_lines(run("maintain", "--grace", "3600", "--json")[1])[0])["files_deleted"] > 0
    assert _lines(run("query", "SELECT count(*) AS n FROM orders")[1]) == [" n", "20"]


def test_a_table_that_is_not_ours_keeps_no_other_from_its_maintenance(
    run: Run, orders: str, catalog_of: Callable[[], Catalog]
) -> None:
    with Path("lakehouse.toml").open("a") as more:
        more.write('[[topics]]\nname = "cli-foreign"\ntable = "foreign"\n')
    catalog_of().create_table("topics.foreign", Schema())
    for action in ("compact", "maintain"):
        code, out, err = run(action, "--json")
        assert code == 1
        assert len(_lines(err)) == 1
        assert "table topics.foreign is not one of the lakehouse's" in err
        assert [each["table"] for each in map(json.loads, _lines(out))] == [
            f"topics.orders{suffix}" for suffix in ("", "_errors", "_gaps")
        ]


def test_sync_deletes_tells_what_it_did(
    run: Run, server: Server, orders: str, connection: Connection, tmp_path: Path
) -> None:
    follow(settings(server, tmp_path / "lake", {"name": orders, "table": "orders"}))
    request = pb.DeleteRecordsRequest(topic=orders, before_seq=6)
    connection.unary(connection.topics.DeleteRecords, request, repeatable=True)
    code, out, err = run("sync-deletes", orders)
    assert (code, err) == (0, "")
    assert out == f"{orders}: 5 rows removed from the table, 1 file rewritten\n"
    found = json.loads(run("sync-deletes", "--json", orders)[1])
    assert found == {"topic": orders, "heads": {"0": 20}, "rows": 0, "error_rows": 0, "files": 0}


def _run_here(monkeypatch: pytest.MonkeyPatch, result: bool | None = None) -> list[dict[str, object]]:
    """`run` without Spark; what the pipeline was started with."""
    started: list[dict[str, object]] = []

    def here(
        config: Config, *, once: bool, refill: bool, report: display.Display, started: Callable[..., None]
    ) -> bool:
        given.append({"config": config, "once": once, "refill": refill})
        pipeline = Pipeline(config, LocalRunner(), report=report, refill=refill)
        started(pipeline)
        try:
            return pipeline.once() if result is None else result
        finally:
            pipeline.close()

    given = started
    monkeypatch.setattr(job, "follow", here)
    return given


def test_run_writes_lines_where_there_is_no_terminal(run: Run, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = _run_here(monkeypatch)
    code, out, _ = run("run", "--once", "--trigger", "0.5", "--master", "local[1]")
    assert code == 0
    (line,) = _lines(out)
    assert line.startswith(f"{orders}: 5 records written, ")
    assert line.endswith("/s, lag 0")
    config = given[0]["config"]
    assert isinstance(config, Config)
    assert (config.trigger_seconds, config.spark["master"], given[0]["once"]) == (0.5, "local[1]", True)
    _run_here(monkeypatch, result=False)
    assert run("run")[0] == 1


def test_run_in_json(run: Run, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _run_here(monkeypatch)
    code, out, _ = run("run", "--once", "--json")
    (line,) = map(json.loads, _lines(out))
    assert code == 0
    assert (line["event"], line["topic"], line["records"], line["lag"]) == ("written", orders, 5, 0)
    assert line["records_per_second"] > 0


def test_lines_tell_changes_of_state_and_rates() -> None:
    out = io.StringIO()
    status = Status("a", "topics.a", heads={0: 100})
    with shown(out=out) as report:
        report.begin()
        status.state, status.reason = "waiting", "server: unavailable"
        report("waiting", status)
        report("round", status)
        status.records, status.positions, status.state, status.reason = 40, {0: 40}, "live", ""
        report("live", status)
        report("committed", status)
        report("round", status)
        report("round", status)
        status.records, status.positions = 100, {0: 100}
        report("round", status)
    lines = _lines(out.getvalue())
    assert lines[0] == "a: waiting: server: unavailable"
    assert lines[1] == "a: live"
    assert [line.partition(",")[0] for line in lines[2:]] == ["a: 40 records written", "a: 100 records written"]
    assert lines[-1].endswith("lag 0")


def test_bars_are_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    status = Status("some-topic", "topics.a", heads={0: 100}, positions={0: 20})
    with shown() as report:
        report.begin()
        report("round", status)
        status.positions, status.records = {0: 60}, 40
        report("round", status)
        status.state, status.reason = "waiting", "catalog: away"
        report("waiting", status)
    drawn = capsys.readouterr()
    assert drawn.out == ""
    assert "some-topic" in drawn.err
    assert "50 %" in drawn.err
    assert "waiting: catalog: away" in drawn.err


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nimport topics_cli as cli\n"
        "try:\n    cli.main(['lakehouse', 'query', '--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'pyspark', 'pyarrow', 'pyiceberg', 'duckdb', 'rich', 'grpc', 'topics_lakehouse'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "usage: topics lakehouse query" in done.stdout
    assert _lines(done.stdout)[-1] == "[]"


def test_a_missing_package_is_named_with_the_extra(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("pyarrow", "duckdb.thing"):
        _hide(monkeypatch, name)
        code, _, err = run("status")
        assert code == 1
        what = f"the extra [lakehouse] is not installed ({name} is missing)"
        assert err == f"topics lakehouse: {what}: {install_line('lakehouse')}\n"
    _hide(monkeypatch, "topics_lakehouse.broken")
    code, _, err = run("status")
    assert code == 1
    assert err.startswith(
        "topics lakehouse: topics_lakehouse.broken is missing, which is a part of topics-engine itself"
    )


def _hide(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    class Finder:
        def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
            if fullname == "topics_cli.lakehouse.actions":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "topics_cli.lakehouse.actions", raising=False)
    monkeypatch.delattr(lakehouse, "actions", raising=False)
