"""Valid configurations, and the errors of invalid ones."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from topics_lakehouse.config import ConfigError, assignments, load

_FILE = """
server = "topics://${KEY}@10.0.0.1:4001"
namespace = "lake.raw"
trigger = "500ms"
target_file_size = "64MB"
keep_snapshots = 30
orphan_grace = "2d"
on_recreate = "archive"

[catalog]
type = "rest"
uri = "http://127.0.0.1:8181"
warehouse = "s3://lake"
credential = "admin:${SECRET}"
s3.region = "us-east-1"
s3.path-style-access = true

[spark]
master = "spark://127.0.0.1:7077"
spark.executor.memory = "1g"

[[topics]]
name = "shop.orders"
table = "orders"
schema = "id bigint, amount decimal(10, 2)"
on_recreate = "fail"

[[topics]]
pattern = "web-.*"
[topics.schema]
event = "string"
at = "timestamp"
small = "tinyint"
"""


def test_every_setting(tmp_path: Path) -> None:
    file = tmp_path / "lakehouse.toml"
    file.write_text(_FILE)
    config = load(file, environment={"KEY": "k3y", "SECRET": "s3cret"})
    assert (config.address.host, config.address.key) == ("10.0.0.1", "k3y")
    assert (config.namespace, config.trigger_seconds, config.target_file_bytes) == ("lake.raw", 0.5, 64 << 20)
    assert (config.keep_snapshots, config.orphan_grace_seconds) == (30, 172800.0)
    assert config.catalog == {
        "type": "rest",
        "uri": "http://127.0.0.1:8181",
        "warehouse": "s3://lake",
        "credential": "admin:s3cret",
        "s3.region": "us-east-1",
        "s3.path-style-access": "true",
    }
    assert config.spark == {"master": "spark://127.0.0.1:7077", "spark.executor.memory": "1g"}
    orders, web = config.topics
    assert orders.columns == pa.schema({"id": pa.int64(), "amount": pa.decimal128(10, 2)})
    assert web.columns == pa.schema({"event": pa.string(), "at": pa.timestamp("us", "UTC"), "small": pa.int32()})
    assert (orders.on_recreate, web.on_recreate) == ("fail", "archive")
    assert config.table("shop.orders") == "orders"
    assert config.table("web-a.b") == "web_a_b"
    assert (config.rule("web-x"), config.rule("shop.orders"), config.rule("my-web-x")) == (web, orders, None)
    assert not any(secret in repr(config) for secret in ("k3y", "s3cret"))


def test_defaults_make_a_catalog_in_a_folder(tmp_path: Path) -> None:
    config = load(None, {"topics": ["orders"], "warehouse": str(tmp_path / "a b")})
    assert config.warehouse == f"file://{tmp_path}/a b"
    assert config.catalog["uri"] == f"sqlite:///{tmp_path}/a b/catalog.db"
    assert (config.namespace, config.topics[0].on_recreate) == ("topics", "fail")


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "lakehouse.toml").write_text('topics = ["orders"]\nwarehouse = "lake"')
    assert load(tmp_path / "lakehouse.toml").warehouse == f"file://{tmp_path}/lake"


def test_overrides_win(tmp_path: Path) -> None:
    (tmp_path / "lakehouse.toml").write_text('topics = ["orders"]\ntrigger = 5\n[catalog]\nname = "one"')
    config = load(tmp_path / "lakehouse.toml", {"trigger": "100ms", "catalog.name": "two"})
    assert (config.trigger_seconds, config.catalog_name) == (0.1, "two")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "topics: at least one"),
        ({"topics": []}, "topics: at least one"),
        ({"topics": [{}]}, r"topics\[0\].name: either a name or a pattern"),
        ({"topics": [{"name": "a", "pattern": "b"}]}, r"topics\[0\].name: either a name or a pattern"),
        ({"topics": ["a", {"pattern": "("}]}, r"topics\[1\].pattern: "),
        ({"topics": [{"pattern": "a", "table": "t"}]}, r"topics\[0\].table: the topics of a pattern"),
        ({"topics": [{"name": "a", "table": "a b"}]}, r"topics\[0\].table: 'a b'"),
        ({"topics": [{"name": "a.b"}, {"name": "a-b"}]}, r"topics\[1\].table: a_b is the table of topic a.b already"),
        ({"topics": [{"name": "a", "schema": "id bigit"}]}, r"topics\[0\].schema: bigit is not a type"),
        ({"topics": [{"name": "a", "schema": "seq bigint"}]}, r"topics\[0\].schema: column seq: every table has one"),
        ({"topics": [{"name": "a", "schema": "id int, ID int"}]}, r"topics\[0\].schema: column id is there twice"),
        ({"topics": [{"name": "a", "schema": 5}]}, r"topics\[0\].schema: columns are"),
        ({"topics": [{"name": "a", "on_recreate": "drop"}]}, r"topics\[0\].on_recreate: 'drop' is none of fail, arch"),
        ({"topics": [{"name": "a", "on_delete": 1}]}, r"unknown setting topics\[0\].on_delete"),
        ({"topics": ["a"], "triger": 1}, "unknown setting triger"),
        ({"topics": ["a"], "trigger": "soon"}, "trigger: can't be 'soon'"),
        ({"topics": ["a"], "trigger": -1}, "trigger: can't be -1"),
        ({"topics": ["a"], "task_records": 0}, "task_records: a whole number of at least 1"),
        ({"topics": ["a"], "target_file_size": "1kB"}, "target_file_size: a whole number of at least 65536"),
        ({"topics": ["a"], "server": "http://x"}, "server: "),
        ({"topics": ["a"], "key": "${NOT_THERE}"}, "key: the environment has no NOT_THERE"),
        ({"topics": ["a"], "namespace": "a b"}, "namespace: 'a b'"),
        ({"topics": ["a"], "warehouse": "s3://bucket"}, "catalog.uri: wanted"),
        ({"topics": ["a"], "warehouse": "50%"}, "warehouse: file://.*/50%: a folder with"),
        ({"topics": ["a"], "warehouse": "file:///a?b"}, r"warehouse: file:///a\?b: a folder with"),
        ({"topics": ["a"], "catalog": {"warehouse": "a#b"}}, "warehouse: file://.*/a#b: a folder with"),
        ({"topics": ["a"], "trigger": float("inf")}, "trigger: can't be inf"),
        ({"topics": ["a"], "trigger": "99999999h"}, "trigger: 0 to "),
        ({"topics": ["a"], "task_records": float("inf")}, "task_records: can't be inf"),
        ({"topics": ["a"], "task_records": float("nan")}, "task_records: can't be nan"),
        ({"topics": ["a"], "task_records": "99999999999999G"}, "task_records: a whole number"),
        ({"topics": ["a"], "orphan_grace": "10m"}, "orphan_grace: 3600 to "),
        ({"topics": ["a"], "catalog": "x"}, "catalog: a table"),
        ({"topics": ["a"], "catalog": {"type": "rest", "uri": "http://x"}, "warehouse": "w"}, "warehouse: with a cat"),
        ({"topics": ["a"], "catalog": {"name": ["x"]}}, "catalog.name: a text"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], told: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=told):
        load(None, given, environment={})


def test_a_folder_that_can_not_be_named_in_a_url_is_found_in_what_leads_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "50%").mkdir()
    monkeypatch.chdir(tmp_path / "50%")
    with pytest.raises(ConfigError, match="50%/warehouse: a folder with"):
        load(None, {"topics": ["a"]})


def test_no_error_shows_what_may_be_a_secret() -> None:
    with pytest.raises(ConfigError, match="key: a text is wanted, not a int") as wrong:
        load(None, {"topics": ["a"], "key": 13579})
    assert "13579" not in str(wrong.value)
    with pytest.raises(ConfigError, match="KEY=VALUE is wanted") as wrong:
        assignments(["group=x", "s3cret"])
    assert "s3cret" not in str(wrong.value)
    assert assignments(["a.b = c=d ", "e="]) == {"a.b": "c=d", "e": ""}


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.toml: No such file"):
        load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("topics = [")
    with pytest.raises(ConfigError, match=r"bad.toml: "):
        load(tmp_path / "bad.toml")
    (tmp_path / "odd.toml").write_text('topics = ["a"]\nodd = 1')
    with pytest.raises(ConfigError, match=r"odd.toml: unknown setting odd"):
        load(tmp_path / "odd.toml")
