"""ls, info, create, set, rm and delete, as a person and as a script meet them."""

import argparse
import os
import pty
import subprocess
import time
from typing import Any

import pytest

from support.http import Api, fresh
from support.server import TOPICS
from support.waiting import poll
from topics_cli import config, types
from topics_cli.output import age, duration, size
from topics_client.models import TopicConfig
from topics_service.engine.model import TopicConfig as EngineConfig

from .runner import Cli, environment


def at_a_terminal(cli: Cli, *arguments: str, typed: bytes) -> tuple[int, str]:
    """(exit code, all that it showed) of a command whose questions are answered so."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [TOPICS, *arguments],
        env=environment(cli.url, {}),
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as running:
        os.close(theirs)
        os.write(ours, typed)
        shown = running.communicate(timeout=30)[0].decode()
    os.close(ours)
    return running.returncode, shown


# ls


def test_ls(topics: Cli, api: Api) -> None:
    stem = fresh("ls")
    api.put(f"{stem}-a", partition_count=2)
    api.write(f"{stem}-a", [{"data": "x" * 1534}], partition=1)
    api.put(f"{stem}-q", type="queue", durability="fsync")
    api.write(f"{stem}-q", [{"data": 1}])
    assert topics("ls", stem).cells == [
        ["TOPIC", "TYPE", "PARTITIONS", "RECORDS", "SIZE"],
        [f"{stem}-a", "log", "2", "1", "1.5KiB"],
        [f"{stem}-q", "queue", "1", "1", "1B"],
    ]
    assert topics("ls", stem, "-q").out == f"{stem}-a\n{stem}-q\n"
    first, second = topics("ls", "-l", stem, "--no-headers").cells
    assert first[5:7] == ["disk", "-"], "partition 0 was never written to"
    assert (second[5], second[7:]) == ("fsync", ["1", "0"])
    summaries = topics("ls", stem, "--json").rows
    listed = api.client.get("/v0/topics", params={"prefix": stem}).json()["topics"]
    for ours, theirs in zip(summaries, listed, strict=True):
        assert ours.items() >= theirs.items()
    assert [row["type"] for row in summaries] == ["log", "queue"]
    states = topics("ls", stem, "-l", "--json").rows
    counts = {"ready": 1, "in_flight": 0, "delayed": 0, "exhausted": 0, "dead_lettered": 0}
    assert states[1]["queue"] == counts


def test_ls_of_nothing_says_so_beside_the_output(topics: Cli) -> None:
    ran = topics("ls", "no-such-prefix")
    assert (ran.out, ran.err) == ("", "no topics start with 'no-such-prefix'\n")
    assert topics("ls", "no-such-prefix", "--json")[1:] == ("", "")


def test_ls_reads_all_pages(topics: Cli, api: Api) -> None:
    stem = fresh("many")
    for number in range(1100):
        api.put(f"{stem}-{number:04}").raise_for_status()
    assert topics("ls", "-q", stem).out.splitlines() == [f"{stem}-{number:04}" for number in range(1100)]


# info


def test_info_as_json_is_what_http_says(topics: Cli, api: Api) -> None:
    for given in ({}, {"partition_count": 3}, {"type": "queue", "priority": -5, "dead_letter": "x", "ttl_ms": 5}):
        name = api.make("info", **given)
        ours = topics("info", name, "--json").row
        theirs: dict[str, Any] = api.client.get(f"/v0/topics/{name}", params={"touch": "false"}).json()
        del theirs["performance"]
        several = {"partition": 0, "partition_count": 1} | theirs
        if "queue" in theirs:  # HTTP has the members of the contract
            several["queue"] |= {"delayed": 0, "exhausted": 0}
        assert ours == several
    wide = api.make("info", partition_count=2)
    api.write(wide, [{"data": 1}, {"data": 2}], partition=1)
    assert topics("info", wide, "--partition", 1, "--json").row["head_seq"] == 2
    assert topics("info", wide, "--partition", 2, code=5).err.startswith("topics info: partition_not_found: ")


def test_info_for_people(topics: Cli, api: Api) -> None:
    name = api.make("info", ttl_ms=604_800_000, cap_bytes=10 << 30, retain_until_acked_by=["a", "b"])
    lines = [line.split(maxsplit=1) for line in topics("info", name).out.splitlines() if line]
    assert ["records", "0"] in lines
    assert ["written", "never"] in lines
    assert ["ttl_ms", "604800000 (7d)"] in lines
    assert ["cap_bytes", "10737418240 (10GiB)"] in lines
    assert ["retain_until_acked_by", "a,b"] in lines
    wide, queue = api.make("info", partition_count=2), api.make("info", type="queue")
    api.write(wide, [{"data": 1}], partition=1)
    text = topics("info", wide, queue).out
    assert "partitions" in text
    table = [line.split()[:5] for line in text.partition("PARTITION ")[2].splitlines()[1:3]]
    assert table == [["0", "0", "1", "0", "0B"], ["1", "1", "1", "1", "1B"]]
    assert "dead_lettered" in text


# create and set


def test_every_field_of_a_configuration_has_a_flag_and_a_name() -> None:
    assert {*config.FIELDS, "durable"} == set(EngineConfig.__struct_fields__)
    assert list(config.FIELDS) == list(TopicConfig.__dataclass_fields__)


def test_create_takes_every_field(topics: Cli, api: Api) -> None:
    name = fresh("made")
    flags = (
        "--type queue --ttl 1d --cap-records 5 --cap-bytes 2MiB --discard reject --durability fsync --priority -7 "
        "--no-auto-priority --no-auto-create --idempotency-window 3s --no-dedupe-node --lease-ms 4000 "
        "--claim-jitter 20ms --max-deliveries 3 --dead-letter dead --leases-durable --retain-until-acked-by a,b"
    )
    assert topics("create", name, *flags.split()).out == f"{name}: created, 1 partition\n"
    assert api.client.get(f"/v0/topics/{name}").json()["config"] == {
        "type": "queue",
        "ttl_ms": 86_400_000,
        "cap_records": 5,
        "cap_bytes": 2 << 20,
        "discard": "reject",
        "durable": True,
        "durability": "fsync",
        "priority": -7,
        "auto_priority": False,
        "auto_create": False,
        "idempotency_window_ms": 3000,
        "dedupe_node": False,
        "lease_ms": 4000,
        "claim_jitter_ms": 20,
        "max_deliveries": 3,
        "dead_letter": "dead",
        "leases_durable": True,
        "retain_until_acked_by": ["a", "b"],
    }
    again = topics("create", name, *flags.split(), "--json").row
    assert again["created"] is False
    assert again["config"] == topics("info", name, "--json").row["config"]


def test_create_leaves_what_is_there_as_it_is(topics: Cli, api: Api) -> None:
    name = api.make("there", cap_records=7)
    assert topics("create", name, "--partitions", 2).out == f"{name}: 1 partition added, 2 in total\n"
    assert topics("create", name, "--partitions", 2).out == f"{name}: already exists, 2 partitions\n"
    error = topics("create", name, "--cap-records", 8, "--ttl", "1s", code=1).err
    assert f"{name} already exists, with ttl_ms=0, cap_records=7" in error
    assert f"topics set {name} ttl_ms=1000 cap_records=8" in error
    assert api.state(name)["config"]["cap_records"] == 7
    assert "topic_exists_incompatible" in topics("create", name, "--partitions", 1, code=1).err
    assert "already exists, with type=log" in topics("create", name, "--type", "queue", code=1).err
    assert "at least 1" in topics("create", name, "--partitions", 0, code=2).err


def test_create_twice_with_what_the_server_clamps_is_the_same(topics: Cli) -> None:
    name = fresh("clamped")
    for expected in ("created", "already exists"):
        arguments = ("--type", "queue", "--lease", "1ms", "--priority", "5000")
        assert topics("create", name, *arguments).out == f"{name}: {expected}, 1 partition\n"


def test_set_changes_only_what_is_named_and_tells_both(topics: Cli, api: Api) -> None:
    name = api.make("set", cap_records=7, ttl_ms=1000, discard="reject", retain_until_acked_by=["g"])
    assert topics("set", name, "cap_records=9", "--ttl", "2s").out == (
        f"{name}: ttl_ms 1000 -> 2000\n{name}: cap_records 7 -> 9\n"
    )
    kept = api.state(name)["config"]
    assert (kept["discard"], kept["retain_until_acked_by"]) == ("reject", ["g"])
    assert topics("set", name, "cap_records=9").out == f"{name}: no changes\n"
    row = topics("set", name, "cap-records=", "discard=", "dedupe_node=off", "lease=9s", "--json").row
    assert row["changed"] == {
        "cap_records": {"before": 9, "after": 0},
        "discard": {"before": "reject", "after": "old"},
        "dedupe_node": {"before": True, "after": False},
        "lease_ms": {"before": 30000, "after": 9000},
    }
    assert row["config"] == api.state(name)["config"]
    assert topics("set", name, "retain_until_acked_by=a,b").out == f"{name}: retain_until_acked_by g -> a,b\n"
    assert topics("set", name, "retain_until_acked_by=").out == f"{name}: retain_until_acked_by a,b -> none\n"
    assert topics("set", name, "priority=-5000").out == f"{name}: priority none -> -1000\n"


def test_set_can_be_tried(topics: Cli, api: Api) -> None:
    name = api.make("set", cap_records=7)
    assert topics("set", name, "cap_records=9", "--dry-run").out == f"{name}: cap_records 7 -> would be 9\n"
    assert topics("set", name, "cap_records=", "--dry-run").out == f"{name}: cap_records 7 -> would be the default\n"
    assert api.state(name)["config"]["cap_records"] == 7


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nope=1"], 2, "unknown field 'nope'; known fields: type, ttl_ms, cap_records"),
        (["cap_records"], 2, "'cap_records' is not FIELD=VALUE"),
        (["cap_records=many"], 2, "cap_records: 'many' is not a number"),
        (["ttl=5 parsecs"], 2, "ttl_ms: '5 parsecs' is not a time"),
        (["dedupe_node=maybe"], 2, "dedupe_node: 'maybe' is not true or false"),
        (["ttl=1", "ttl_ms=2"], 2, "ttl_ms is given twice"),
        (["partitions=3"], 2, "topics create TOPIC --partitions N"),
        ([], 2, "nothing to change"),
        (["type=queue"], 1, "topic_exists_incompatible"),
        (["dead_letter=a b"], 1, "invalid_request"),
    ],
)
def test_what_set_refuses(topics: Cli, api: Api, arguments: list[str], code: int, message: str) -> None:
    name = api.make("refused", cap_records=7)
    assert message in topics("set", name, *arguments, code=code).err
    assert api.state(name)["config"]["cap_records"] == 7


def test_set_of_what_is_not_there(topics: Cli, api: Api) -> None:
    assert "topic_not_found" in topics("set", "nope", "cap_records=1", code=5).err
    assert api.get("nope").status_code == 404


# rm and delete


def test_rm(topics: Cli, api: Api) -> None:
    first, second, full = api.make("rm"), api.make("rm"), api.make("rm")
    api.write(full, [{"data": 1}])
    api.send("PUT", f"/v0/routers/{first}", {"source": first, "dest": second}).raise_for_status()
    assert "give --yes" in topics("rm", first, code=2).err
    assert api.get(first).status_code == 200
    assert topics("rm", first, "-y").out == f"{first}: deleted, with the routers {first}\n"
    ran = topics("rm", "--yes", "--if-empty", "nope", full, second, code=5, lines=2)
    assert ran.out == f"{second}: deleted\n"
    assert [line.split(": ")[1] for line in ran.err.splitlines()] == ["topic_not_found", "topic_not_empty"]
    rows = topics("rm", "-y", "--if-exists", "--json", "nope", full).rows
    assert rows == [
        {"topic": "nope", "deleted": False, "routers_removed": []},
        {"topic": full, "deleted": True, "routers_removed": []},
    ]
    assert api.get(full).status_code == 404


@pytest.mark.parametrize(("typed", "code"), [(b"y\n", 0), (b"YES\n", 0), (b"n\n", 1), (b"\n", 1), (b"\x04", 1)])
def test_rm_asks_at_a_terminal(topics: Cli, api: Api, typed: bytes, code: int) -> None:
    name = api.make("asked")
    api.write(name, [{"data": 1}])
    ended, shown = at_a_terminal(topics, "rm", name, "nope", "--if-exists", typed=typed)
    assert ended == code, shown
    assert shown.startswith(f"permanently delete {name} with 1 record (1B)? [y/N] ")
    assert api.get(name).status_code == (404 if code == 0 else 200)


def test_delete_records(topics: Cli, api: Api) -> None:
    name = api.make("del", partition_count=2)
    for partition in (0, 1):
        api.write(name, [{"data": i, "tag": f"t{i}"} for i in range(10)], partition=partition)
    assert "give --yes" in topics("delete", name, "--before-seq", 3, code=2).err
    assert topics("delete", name, "--before-seq", 3, "-y").out == f"{name}: 2 records deleted, 8 records left\n"
    row = topics("delete", name, "--tag", "t5", "--partition", 1, "-y", "--json").row
    assert (row["partition"], row["deleted"], row["count"], row["head_seq"]) == (1, 1, 9, 10)
    row = topics("delete", name, "--tag-prefix", "t", "--before-seq", 5, "-y", "--json").row
    assert (row["deleted"], row["earliest_seq"]) == (2, 5)
    assert topics("delete", name, "--older-than", "1h", "-y", "--json").row["deleted"] == 0
    written = time.time()
    poll(lambda: time.time() > written + 0.03)
    assert topics("delete", name, "--older-than", "5ms", "-y", "--json").row["deleted"] == 6
    assert topics("delete", name, "--partition", 1, "--all", "-y").out == f"{name}: 9 records deleted, 0 records left\n"


def test_what_delete_refuses(topics: Cli, api: Api) -> None:
    name = api.make("del")
    api.write(name, [{"data": 1}])
    for arguments in ([], ["--all", "--tag", "x"]):
        assert "select records with" in topics("delete", name, *arguments, "-y", code=2).err
    assert "not allowed with" in topics("delete", name, "--tag", "a", "--tag-prefix", "b", "-y", code=2).err
    assert "partition_not_found" in topics("delete", name, "--all", "--partition", 3, "-y", code=5).err
    assert "topic_not_found" in topics("delete", "nope", "--all", "-y", code=5).err
    code, shown = at_a_terminal(topics, "delete", name, "--all", typed=b"n\n")
    assert (code, shown) == (1, f"permanently delete all records of {name}? [y/N] nothing was deleted\n")
    assert api.state(name)["count"] == 1


# Values


@pytest.mark.parametrize(
    ("text", "ms"),
    [("0", 0), ("250", 250), ("500ms", 500), ("1.5s", 1500), ("30s", 30_000), ("2 h", 7_200_000), ("1W", 604_800_000)],
)
def test_times(text: str, ms: int) -> None:
    assert types.milliseconds(text) == ms


@pytest.mark.parametrize(
    ("text", "count"),
    [("7", 7), ("1k", 1024), ("1kB", 1000), ("2MiB", 2 << 20), ("0.5g", 1 << 29), ("3tb", 3 * 10**12)],
)
def test_sizes(text: str, count: int) -> None:
    assert types.size(text) == count


@pytest.mark.parametrize("text", ["", "-1", "1.5", "x", "1e3", "9" * 20, "٣", "1 parsec", "1.s", "+1", " 1"])
def test_what_is_no_time_and_no_size(text: str) -> None:
    for read in (types.milliseconds, types.size, types.whole):
        with pytest.raises(argparse.ArgumentTypeError, match="is "):
            read(text)


def test_sizes_and_times_for_people() -> None:
    sizes = [0, 999, 1000, 1023, 1536, 10 << 10, (1 << 20) - 1, 5 << 40, 1 << 60]
    shown = ["0B", "999B", "1.0KiB", "1.0KiB", "1.5KiB", "10KiB", "1.0MiB", "5.0TiB", "1024PiB"]
    assert [size(count) for count in sizes] == shown
    times = [0, 999, 1000, 119_999, 120_000, 7_199_999, 7_200_000, 172_799_999, 172_800_000]
    assert [duration(ms) for ms in times] == ["0ms", "999ms", "1s", "119s", "2m", "119m", "2h", "47h", "2d"]
    assert (size(None), duration(None), age(None)) == (None, None, None)
    assert age(int(time.time() * 1000) + 5000) == "0ms", "a clock that goes behind"
