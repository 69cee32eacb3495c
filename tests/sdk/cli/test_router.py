"""`topics router`."""

import json

from support.http import Api, fresh

from .runner import Cli


def test_a_router_from_its_making_to_its_end(topics: Cli, api: Api) -> None:
    source, dest = api.make("source"), fresh("dest")
    name = f"{source}->{dest}"
    assert topics("router", "create", source, dest).out == f"{name}: created\n"
    api.write(source, [{"data": 1}, {"data": 2}])
    assert topics("router", "info", name, "--json").row == {
        "router": name,
        "source": source,
        "dest": dest,
        "preserve_node": True,
        "preserve_tag": True,
        "filter": None,
        "allow_cycle": False,
        "guarantee": "at_least_once",
        "forwarded_total": 2,
        "lag_records": 0,
        "last_error": None,
    }
    assert topics("router", "create", source, dest).out == f"{name}: already exists, configuration updated\n"
    assert ["last", "error", "-"] in topics("router", "info", name).cells
    assert topics("router", "ls", name).cells == [
        ["ROUTER", "SOURCE", "DEST", "GUARANTEE", "FORWARDED", "LAG"],
        [name, source, dest, "at_least_once", "2", "0"],
    ]
    assert "give --yes" in topics("router", "rm", name, code=2).err
    assert topics("router", "rm", name, "--yes").out == f"{name}: removed\n"
    error = topics("router", "rm", name, "--yes", code=5).err
    assert error == f"topics router rm: router_not_found: {name} does not exist (use --if-exists to ignore this)\n"
    gone = topics("router", "rm", name, "--yes", "--if-exists", "--json").row
    assert gone == {"router": name, "deleted": False}
    assert "router_not_found" in topics("router", "info", name, code=5).err
    assert api.state(dest)["count"] == 2, "copies stay"


def test_every_option_of_a_router(topics: Cli, api: Api) -> None:
    source, dest = api.make("source"), api.make("dest")
    api.write(source, [{"data": 1, "tag": "eu:1", "node": "n"}, {"data": 2, "tag": "us:1"}])
    flags = ("--backfill", "--exactly-once", "--no-preserve-node", "--no-preserve-tag", "--allow-cycle")
    row = topics("router", "create", source, dest, "--name", "mine", "--tag-prefix", "eu:", *flags, "--json").row
    assert row == {"router": "mine", "created": True, "source": source, "dest": dest}
    found = api.client.get("/v0/routers/mine").json()
    assert found["filter"] == ["tag", "Glob", "eu:*"] == topics("router", "info", "mine", "--json").row["filter"]
    assert (found["preserve_node"], found["preserve_tag"], found["allow_cycle"]) == (False, False, True)
    assert (found["guarantee"], found["forwarded_total"]) == ("exactly_once", 1)
    topics("router", "create", source, dest, "--name", "other", "--tag", "us:1")
    assert topics("router", "info", "other", "--json").row["filter"] == ["tag", "Eq", "us:1"]
    rows = topics("router", "ls", "--source", source, "--json").rows
    listed = api.client.get("/v0/routers", params={"source": source}).json()["routers"]
    assert rows == listed
    assert [row["router"] for row in rows] == ["mine", "other"]
    assert topics("router", "ls", "--dest", "elsewhere", "--json").rows == []
    assert topics("router", "ls", "--dest", "elsewhere").err == "no such routers\n"


def test_what_is_refused(topics: Cli, api: Api) -> None:
    first, second, third = api.make("a"), api.make("b"), api.make("c")
    topics("router", "create", first, second)
    assert "router_cycle" in topics("router", "create", second, first, code=1).err
    assert "topic_exists_incompatible" in topics("router", "create", third, second, code=1).err
    missing = fresh("missing")
    assert "topic_not_found" in topics("router", "create", third, missing, "--no-create-dest", code=5).err
    assert "invalid_request" in topics("router", "create", third, missing, "--name", "a b", code=1).err
    assert (
        "not allowed with" in topics("router", "create", first, second, "--tag", "a", "--tag-prefix", "b", code=2).err
    )
    assert json.loads(api.get(missing).text)["error"]["code"] == "topic_not_found"
