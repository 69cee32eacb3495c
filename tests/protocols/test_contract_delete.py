"""Deletes of records on a real server over HTTP: selectors, what they match, what readers see of it."""

from protocols.cases.steps import U64

from support.http import NOT_INTEGERS, Api, fresh, ok, path, refused


def test_delete_types(api: Api, topic: str) -> None:
    matches = (
        "[]", '["tag"]', '["tag","Eq"]', '["tag","Eq","x","y"]', '["node","Eq","x"]', '["Tag","Eq","x"]',
        '["tag","eq","x"]',
        '["tag","GLOB","x*"]', '["tag","Regex","x"]', '["tag","Glob","x"]', '["tag","Glob","*x"]', '["tag","Glob",""]',
        '["tag","Glob",5]', '["tag","Eq",null]', '["tag","Eq",["x"]]', "5", "true", '{"tag":"x"}', '[["tag","Eq","x"]]',
    )  # fmt: skip
    absent = fresh()
    bodies = [*(f'{{"before_seq":{text}}}' for text in NOT_INTEGERS), *(f'{{"match":{text}}}' for text in matches)]
    bodies += [f'{{"before_seq":0,"match":{text}}}' for text in matches]
    bodies += ["{}", '{"before_seq":null}', '{"match":null}', '{"before_seq":null,"match":null}', '{"Match":"x"}']
    for body in bodies:
        refused(api.send("POST", path(topic, "/delete"), body), 400, "invalid_request")
        refused(api.send("POST", path(absent, "/delete"), body), 400, "invalid_request")  # before existence
    for body in ('{"before_seq":0,"match":null}', '{"before_seq":null,"match":"x"}', '{"match":["tag","Glob","*"]}'):
        assert ok(api.send("POST", path(topic, "/delete"), body))["deleted"] == 0
        assert refused(api.send("POST", path(absent, "/delete"), body), 404, "topic_not_found")["detail"] == {
            "topic": absent
        }


def test_only_the_last_star_is_special(api: Api) -> None:
    name = api.make()
    ok(api.write(name, [{"data": 0, "tag": tag} for tag in ("a*b", "a*bc", "aXb", "a*", "*", "")]))
    assert api.rm(name, match="a*")["deleted"] == 1
    assert api.rm(name, match=["tag", "Eq", "*"])["deleted"] == 1
    assert api.rm(name, match=["tag", "Glob", "a*b*"])["deleted"] == 2
    assert api.rm(name, match="")["deleted"] == 1
    assert [r["$seq"] for r in api.read(name)["records"]] == [3]


def test_a_delete_does_not_wake_readers_for_nothing(api: Api) -> None:
    name = api.make()
    ok(api.write(name, [{"data": 1, "tag": "x"}, {"data": 2}]))
    api.rm(name, match="x")
    page = api.read(name)
    assert ([r["$seq"] for r in page["records"]], page["tombstone"], page["earliest_seq"]) == ([2], None, 2)
    api.rm(name, before_seq=U64)
    page = api.read(name)
    assert (page["records"], page["next_from_seq"], page["earliest_seq"], page["tombstone"]) == ([], 2, 3, None)
    assert api.append(name, 3)["seqs"] == [3]
