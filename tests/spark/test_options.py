"""The options of a read, without Spark and without a server."""

import pickle
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pyspark_topics.offsets import EARLIEST, LATEST, Boundary
from pyspark_topics.options import READ_OPTIONS, ColumnOptions, OptionError, ReadOptions, settled

GIVEN = {"url": "topics://127.0.0.1:4001", "subscribe": "orders"}


def parse(**more: str) -> ReadOptions:
    return ReadOptions.parse(GIVEN | more)


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOPICS_API_KEY", raising=False)
    options = ReadOptions.parse(GIVEN)
    assert (options.address.target, options.address.key) == ("127.0.0.1:4001", None)
    assert (options.topics, options.pattern) == (("orders",), "")
    assert options.starting == Boundary("startingOffsets", EARLIEST)
    assert options.ending == Boundary("endingOffsets", LATEST)
    assert options.columns == ColumnOptions(meta=True, data=True, kind=False, gaps=False, data_schema=None)
    assert options.fail_on_data_loss
    assert (options.min_partitions, options.max_records_per_partition) == (0, 500_000)
    assert (options.nodes, options.tag, options.tag_prefix, options.push_filters) == ((), None, None, False)
    assert ReadOptions.parse(GIVEN, streaming=True).starting.default == LATEST


def test_names_are_compared_without_case_and_values_are_read() -> None:
    options = ReadOptions.parse(
        {
            "URL": "topics://127.0.0.1:4001",
            "SUBSCRIBE": "a, b,,c",
            "FailOnDataLoss": "FALSE",
            "minpartitions": "7",
            "maxRecordsPerPartition": "10",
            "includemeta": "false",
            "includeKind": "true",
            "includeGaps": "true",
            "includeData": "false",
            "nodes": "n1,n2",
            "tag": "",
        }
    )
    assert options.topics == ("a", "b", "c")
    assert not options.fail_on_data_loss
    assert (options.min_partitions, options.max_records_per_partition) == (7, 10)
    assert options.columns == ColumnOptions(meta=False, data=False, kind=True, gaps=True)
    parts = options.parts(tags=False, meta=True, data=False)
    assert (parts.nodes, parts.tag_eq, parts.tag_prefix) == (("n1", "n2"), "", None)
    assert (parts.tags, parts.meta, parts.data) == (False, True, False)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"subscribed": "x"}, ["unknown option subscribed", "subscribePattern"]),
        ({"subscribePattern": ".*"}, ["subscribe", "subscribePattern"]),
        ({"subscribe": " , "}, ["subscribe"]),
        ({"failOnDataLoss": "yes"}, ["failOnDataLoss", "yes"]),
        ({"minPartitions": "0"}, ["minPartitions", "'0'"]),
        ({"minPartitions": "many"}, ["minPartitions", "many"]),
        ({"maxRecordsPerPartition": "-1"}, ["maxRecordsPerPartition"]),
        ({"tag": "a", "tagPrefix": "b"}, ["tag", "tagPrefix"]),
        ({"url": "http://x"}, ["url"]),
        ({"topics.url": "topics://other:1"}, ["url", "topics.url", "differ"]),
        ({"startingOffsets": "earlest"}, ["startingOffsets", "earlest"]),
        ({"startingOffsets": '{"orders": '}, ["startingOffsets", "JSON"]),
        ({"startingOffsets": "[]"}, ["startingOffsets", "object"]),
        ({"startingOffsets": '{"orders": -3}'}, ["startingOffsets", "orders", "-3"]),
        ({"startingOffsets": '{"orders": true}'}, ["startingOffsets", "orders"]),
        ({"startingOffsets": '{"orders": {"x": 1}}'}, ["startingOffsets", "orders", "'x'"]),
        ({"startingOffsets": '{"orders": {"0": 1, "0": 2}}'}, ["startingOffsets", "twice"]),
        ({"startingTimestamp": "yesterday"}, ["startingTimestamp", "yesterday"]),
        ({"endingOffsetsByTimestamp": "latest"}, ["endingOffsetsByTimestamp"]),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, ["startingOffsets", "startingTimestamp"]),
        ({"startingTimestamp": "2000", "endingTimestamp": "1000"}, ["endingTimestamp is before startingTimestamp"]),
        ({"maxRecordsPerTrigger": "5"}, ["maxRecordsPerTrigger", "streaming"]),
    ],
)
def test_what_is_wrong_is_named(more: dict[str, str], words: list[str]) -> None:
    with pytest.raises(OptionError) as caught:
        parse(**more)
    for word in words:
        assert word in str(caught.value)


def test_a_stream_has_no_end() -> None:
    assert ReadOptions.parse(GIVEN | {"maxRecordsPerTrigger": "5"}, streaming=True).topics == ("orders",)
    with pytest.raises(OptionError, match="endingOffsets is for batch reads"):
        ReadOptions.parse(GIVEN | {"endingOffsets": "latest"}, streaming=True)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("startingOffsets", " Latest ", Boundary("startingOffsets", LATEST)),
        ("startingOffsets", '{"a": 5, "b": {"0": -2, "1": 7}}', {"a": 5, "b": {0: -2, 1: 7}}),
        ("startingTimestamp", "1700000000123", datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)),
        ("startingTimestamp", "2023-11-14T22:13:20", datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        ("startingTimestamp", "2023-11-14T23:13:20+01:00", datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
    ],
)
def test_a_boundary_is_read(name: str, value: str, expected: object) -> None:
    found = parse(**{name: value}).starting
    if isinstance(expected, Boundary):
        assert found == expected
    elif isinstance(expected, datetime):
        assert found.default == expected
    else:
        assert found.by_topic == expected
    by_time = parse(endingOffsetsByTimestamp='{"orders": {"0": 1700000000000}}').ending
    assert by_time == Boundary("endingOffsetsByTimestamp", LATEST, {"orders": {0: 1700000000000}}, times=True)


def test_the_key_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    options = parse(apiKey="sekret")
    assert options.address.key == "sekret"
    assert pickle.loads(pickle.dumps(options)) == options
    assert "sekret" not in repr(options)
    in_url = {"url": "topics://sekret@127.0.0.1:70000", "subscribe": "orders"}
    for wrong in ({"apiKey": "sekret", "minPartitions": "x"}, {"apiKey": "sekret", "nope": "1"}, in_url):
        with pytest.raises(OptionError) as caught:
            ReadOptions.parse(GIVEN | wrong)
        assert "sekret" not in str(caught.value)
        assert caught.value.__cause__ is None


@pytest.mark.parametrize("key", ["sekret\n", "sek\tret", "s\u00e9kret"])
def test_a_key_that_can_be_none_is_told_and_not_shown(key: str) -> None:
    with pytest.raises(OptionError, match="a key is printable ASCII") as caught:
        parse(apiKey=key)
    assert key.strip() not in str(caught.value)


def test_the_environment_of_the_driver_goes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_URL", "topics+tls://driver:9?ca=/x/ca.pem")
    monkeypatch.setenv("TOPICS_API_KEY", "sekret")
    given = settled({"subscribe": "orders"})
    monkeypatch.setenv("TOPICS_URL", "topics://executor:1")
    monkeypatch.delenv("TOPICS_API_KEY")
    address = ReadOptions.parse(given).address
    assert (address.target, address.tls, address.ca_file, address.key) == ("driver:9", True, "/x/ca.pem", "sekret")
    assert ReadOptions.parse(settled({"topics.url": "h:5", "topics.apiKey": "k", "subscribe": "a"})).address.key == "k"


def test_every_option_is_in_the_docs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    assert [name for name in READ_OPTIONS if f"`{name}`" not in text] == []
