"""`topics groups`."""

from support.http import Api

from .runner import Cli


def commit(api: Api, group: str, **positions: int) -> None:
    """Commit positions by topic."""
    body = {"positions": [{"topic": topic, "from_seq": seq} for topic, seq in positions.items()]}
    api.send("POST", f"/v0/groups/{group}/commit", body).raise_for_status()


def test_groups_and_their_lag(topics: Cli, api: Api) -> None:
    assert topics("groups").err == "no groups\n"
    for topic in ("a", "b"):
        api.write(topic, [{"data": i} for i in range(5)])
    commit(api, "readers", a=2, b=5)
    commit(api, "others", a=0)
    assert topics("groups").cells == [
        ["GROUP", "STATE", "MEMBERS", "POSITIONS", "LAG"],
        ["others", "Empty", "0", "1", "5"],
        ["readers", "Empty", "0", "2", "3"],
    ]
    assert topics("groups", "--json").rows[1] == {
        "group": "readers",
        "state": "Empty",
        "members": 0,
        "positions": 2,
        "lag": 3,
    }
    assert topics("groups", "readers", "--no-headers").cells == [["a", "0", "2", "5", "3"], ["b", "0", "5", "5", "0"]]
    only = topics("groups", "readers", "--topic", "a", "--json").row
    assert only == {"topic": "a", "partition": 0, "from_seq": 2, "head_seq": 5, "lag": 3}
    assert topics("groups", "readers", "--topic", "nope").err == "no positions\n"


def test_positions_move_and_go(topics: Cli, api: Api) -> None:
    for topic in ("a", "b"):
        api.write(topic, [{"data": i} for i in range(5)])
    commit(api, "movers", a=2, b=2)
    heads = {topic: api.state(topic)["head_seq"] for topic in ("a", "b")}
    moved = topics("groups", "movers", "--reset", 1, "--json").rows
    assert {row["topic"]: row["lag"] for row in moved} == {topic: head - 1 for topic, head in heads.items()}
    assert topics("groups", "movers", "--reset", "latest", "--topic", "b", "--json").row["lag"] == 0
    assert [row["from_seq"] for row in topics("groups", "movers", "--reset", "earliest", "--json").rows] == [0, 0]
    assert topics("groups", "movers", "--reset", 0, "--no-headers").cells[0][2] == "0"
    assert "invalid_request" in topics("groups", "movers", "--reset", 10**6, code=1).err
    assert "give --yes" in topics("groups", "movers", "--delete", code=2).err
    assert topics("groups", "movers", "--delete", "--yes", "--json").row == {"group": "movers", "deleted": True}
    ran = topics("groups", "movers", "--delete", "--yes", "--json", code=5)
    assert (ran.row, "group_not_found" in ran.err) == ({"group": "movers", "deleted": False}, True)
    assert "group_not_found" in topics("groups", "movers", code=5).err


def test_wrong_usage(topics: Cli) -> None:
    for arguments in (["--reset", "1"], ["--reset", "0"], ["--delete"], ["--topic", "a"]):
        assert "GROUP is required" in topics("groups", *arguments, code=2).err
    assert "'x' is not earliest, latest, a seq or a time" in topics("groups", "g", "--reset", "x", code=2).err
    assert "mutually exclusive" in topics("groups", "g", "--reset", "0", "--delete", code=2).err
