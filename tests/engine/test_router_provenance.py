"""exactly_once: what copies carry, and that no copy is made twice while it is there."""

import json
import random
from typing import Any

import pytest
from engine_support import CrashStore
from hypothesis import given
from hypothesis import strategies as st
from router_support import RouterWorld

from topics_service.engine.router.provenance import DedupMap, Provenance, joined
from topics_service.storage.memory import MemoryStore
from topics_service.storage.store import Family


@pytest.fixture
def world() -> RouterWorld:
    return RouterWorld()


def stamped(meta: bytes | None, seq: int = 7) -> bytes:
    (result,) = Provenance("r>", "src", "top_1", 3).column(None if meta is None else [meta], [seq])
    assert result is not None
    return result


STAMP = {
    "idempotency_key": "router:r>:top_1:3:7",
    "router": "r>",
    "source_topic": "src",
    "source_topic_id": "top_1",
    "source_epoch": 3,
    "source_seq": 7,
}


def test_the_stamp_has_six_members_in_this_order() -> None:
    assert list(json.loads(stamped(None))["_topics_router"].items()) == list(STAMP.items())
    assert b" " not in stamped(None)


@pytest.mark.parametrize(
    "meta",
    [
        b"{}",
        b"{ }",
        b'{"k":1}',
        b' {"k" : 1.0 , "z":{"a":[1,2]} } ',
        b'{"k":"\\u005f \\" } :::"}',
        b'{"k":1,"k":2}',
        b'{"":null}',
    ],
)
def test_what_a_client_wrote_is_kept_byte_for_byte(meta: bytes) -> None:
    result = stamped(meta)
    inner = meta.strip()[1:-1].strip()
    assert inner in result
    assert json.loads(result) == {**json.loads(meta), "_topics_router": STAMP}


@pytest.mark.parametrize(
    "meta",
    [
        b'{"_topics_router":{"router":"other"},"k":1.50}',
        b'{"k":1.50,"_topics_router":null}',
        b'{"k":1.50, "\\u005ftopics_router" : [1]}',
    ],
)
def test_a_stamp_from_before_is_replaced(meta: bytes) -> None:
    result = stamped(meta)
    assert result.count(b"topics_router") == 1
    assert b'"k":1.50' in result
    assert json.loads(result)["_topics_router"] == STAMP


def test_a_mention_of_the_name_is_no_stamp() -> None:
    assert json.loads(stamped(b'{"k":"_topics_router"}')) == {"k": "_topics_router", "_topics_router": STAMP}


def test_a_full_meta_moves_aside() -> None:
    full = {f"k{i}": i for i in range(64)}
    result = json.loads(stamped(json.dumps(full).encode()))
    assert result == {"_topics_original_meta": full, "_topics_router": STAMP}
    del full["k63"]
    assert json.loads(stamped(json.dumps(full).encode())) == {**full, "_topics_router": STAMP}
    full["_topics_router"] = 1
    result = json.loads(stamped(json.dumps(full).encode()))
    assert "_topics_original_meta" not in result
    assert result["_topics_router"] == STAMP
    nested = json.loads(stamped(b'{"_topics_original_meta":{"a":1},"_topics_router":2}'))
    assert nested == {"_topics_original_meta": {"a": 1}, "_topics_router": STAMP}


def test_what_another_decoder_let_pass_moves_aside() -> None:
    odd = b'{"\\ud800":1}'
    assert stamped(odd).startswith(b'{"_topics_original_meta":' + odd + b',"_topics_router":{')


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(("a", "_topics_router", '"', "\\", "{", "é", ":")), values), st.booleans())
def test_any_meta(meta: dict[str, Any], ascii_only: bool) -> None:
    text = json.dumps(meta, ensure_ascii=ascii_only).encode()
    assert json.loads(stamped(text)) == {**meta, "_topics_router": STAMP}


def test_a_large_meta_is_stamped_beyond_its_limit(world: RouterWorld) -> None:
    """The stamp is the server's, and no reason to stand still."""
    world.route("a", "b", guarantee="exactly_once")
    meta = b'{"k":"' + b"x" * (16 * 1024 - 8) + b'"}'
    world.append(b"1", topic="a", metas=[meta])
    world.forward()
    (copied,) = world.metas("b")
    assert copied is not None
    assert copied.startswith(meta[:-1])
    assert len(copied) > 16 * 1024


def test_copies_are_stamped_and_the_source_is_not(world: RouterWorld) -> None:
    world.route("a", "b", guarantee="exactly_once")
    world.append(b"1", b"2", topic="a", metas=[b'{"k":"v"}', None])
    world.forward()
    first, second = (json.loads(meta or b"") for meta in world.metas("b"))
    identity = world.state("a").identity
    assert first["k"] == "v"
    assert second["_topics_router"] == {
        "idempotency_key": f"router:a->b:{identity.topic_id}:{identity.epoch}:2",
        "router": "a->b",
        "source_topic": "a",
        "source_topic_id": identity.topic_id,
        "source_epoch": identity.epoch,
        "source_seq": 2,
    }
    assert world.metas("a") == [b'{"k":"v"}', None]
    assert world.state("b").bytes == 2 + sum(len(meta or b"") for meta in world.metas("b"))


def test_at_least_once_adds_nothing(world: RouterWorld) -> None:
    world.route("a", "b")
    world.append(b"1", topic="a", metas=[b'{"k":"v"}'])
    world.forward()
    assert world.metas("b") == [b'{"k":"v"}']
    assert world.rows(Family.ROUTER_COPIES) == []


# ---------------------------------------------------------------------- evidence


def again(world: RouterWorld, **config: Any) -> None:
    """Delete the router and make it again, from the beginning of its source."""
    world.unroute("a->b")
    world.route("a", "b", backfill=True, **({"guarantee": "exactly_once"} | config))
    world.forward()


def test_a_router_made_again_copies_nothing_twice(world: RouterWorld) -> None:
    world.route("a", "b", guarantee="exactly_once")
    for i in range(5):
        world.append(b"%d" % i, topic="a")
        world.forward()
    again(world)
    assert world.datas("b") == [b"0", b"1", b"2", b"3", b"4"]
    assert world.router("a->b").forwarded_total == 0, "what is passed over was not delivered"
    world.kill()
    again(world)
    world.append(b"5", topic="a")
    world.forward()
    assert world.datas("b")[4:] == [b"4", b"5"]
    assert world.router("a->b").forwarded_total == 1


def test_what_has_gone_from_the_destination_is_copied_again(world: RouterWorld) -> None:
    """DESIGN 8.2: a delete or eviction removes the evidence."""
    world.route("a", "b", guarantee="exactly_once")
    world.append(b"0", b"1", b"2", b"3", topic="a", tags=[None, b"x", None, None])
    world.forward()
    world.delete(eq=b"x", topic="b")
    world.delete(2, topic="b")
    again(world)
    assert world.datas("b") == [b"2", b"3", b"0", b"1"]
    assert world.router("a->b").forwarded_total == 2
    again(world)
    assert world.datas("b") == [b"2", b"3", b"0", b"1"], "the old rows and the new ones are read together"


def test_another_name_or_source_is_another_identity(world: RouterWorld) -> None:
    world.route("a", "b", guarantee="exactly_once")
    world.append(b"0", topic="a")
    world.forward()
    world.unroute("a->b")
    world.route("a", "b", "other", backfill=True, guarantee="exactly_once")
    world.forward()
    assert world.datas("b") == [b"0", b"0"]
    world.engine.delete_topic("a")
    world.append(b"new", topic="a")
    again(world)
    assert world.datas("b") == [b"0", b"0", b"new"], "a source made again starts another life"


def test_a_new_destination_has_no_copies(world: RouterWorld) -> None:
    world.route("a", "b", guarantee="exactly_once")
    world.append(b"0", topic="a")
    world.forward()
    world.engine.delete_topic("b")
    world.engine.sync()
    again(world)
    assert world.datas("b") == [b"0"]


def test_at_least_once_repeats(world: RouterWorld) -> None:
    world.route("a", "b")
    world.append(b"0", topic="a")
    world.forward()
    again(world, guarantee="at_least_once")
    assert world.datas("b") == [b"0", b"0"]


def test_lost_copies_of_an_ephemeral_destination_are_made_again(world: RouterWorld) -> None:
    world.put("b", durability="ephemeral")
    world.route("a", "b", guarantee="exactly_once")
    world.append(b"0", topic="a")
    world.forward()
    again(world)
    assert world.datas("b") == [b"0"]
    world.restart()
    again(world)
    assert world.datas("b") == [b"0"]


def test_copies_that_wait_for_an_fsync_are_evidence() -> None:
    world = RouterWorld(CrashStore())
    world.put("b", durability="fsync")
    world.route("a", "b", guarantee="exactly_once")
    world.append(b"0", topic="a")
    world.engine.routers.forward()
    world.engine.routers.delete("a->b")
    world.route("a", "b", backfill=True, guarantee="exactly_once")
    world.forward()
    assert world.datas("b") == [b"0"]


def test_rows_of_evidence_go_with_the_records(world: RouterWorld) -> None:
    world.put("b", cap_records=300)
    world.route("a", "b", guarantee="exactly_once")
    for i in range(1500):
        world.append(b"%d" % i, topic="a", sync=False)
        world.engine.routers.forward()
    world.engine.sync()
    world.forward()
    assert len(world.rows(Family.ROUTER_COPIES)) <= 300 + 256 + 10
    world.kill()
    for i in range(600):
        world.append(b"%d" % i, topic="a", sync=False)
        world.engine.routers.forward()
    assert len(world.rows(Family.ROUTER_COPIES)) <= 300 + 256 + 10


@pytest.mark.parametrize("seed", range(8))
def test_made_again_and_again(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is deleted in between, every live record of the source is in the destination exactly once."""
    monkeypatch.setattr("topics_service.engine.router.copies.RECORDS", 4)
    rng = random.Random(seed)
    world = RouterWorld()
    world.put("b", cap_records=rng.choice((0, 8)))
    world.route("a", "b", guarantee="exactly_once")
    for _ in range(80):
        match rng.randrange(6):
            case 0 | 1:
                count = rng.randrange(1, 7)
                tags = [rng.choice((None, b"x", b"y")) for _ in range(count)]
                world.append(*[b"."] * count, topic="a", tags=tags)
            case 2:
                world.delete(eq=rng.choice((b"x", b"y")), topic="b")
            case 3:
                world.delete(world.state("b").earliest_seq + 2, topic="b")
            case 4:
                for _ in range(rng.randrange(3)):
                    world.engine.routers.forward()
                world.engine.sync()
                if rng.random() < 0.5:
                    world.kill()
            case 5:
                world.unroute("a->b")
                world.route("a", "b", backfill=True, guarantee="exactly_once", eq=rng.choice((None, None, b"x")))
        copied = [json.loads(meta or b"")["_topics_router"]["source_seq"] for meta in world.metas("b")]
        assert len(copied) == len(set(copied)), "a copy was made twice"
    if world.state("b").config.cap_records == 0:
        again(world)
        copied = [json.loads(meta or b"")["_topics_router"]["source_seq"] for meta in world.metas("b")]
        assert sorted(copied) == world.seqs("a")


def test_rows_that_overlap() -> None:
    store = MemoryStore()
    evidence = DedupMap(store, 9, "r", 3)
    others = [
        DedupMap(store, 9, "r2", 3),
        DedupMap(store, 9, "r", 4),
        DedupMap(store, 8, "r", 3),
        DedupMap(store, 10, "r", 2),
    ]
    for one, runs in [
        (evidence, [(5, 100, 3), (10, 103, 1)]),
        (evidence, [(20, 104, 2)]),
        *[(other, [(1, 1, 50)]) for other in others],
    ]:
        batch = store.batch()
        one.put(batch, runs)
        store.write(batch)
    assert evidence.end() == 21
    assert DedupMap(store, 9, "q", 3).end() == 0
    found = [
        (first, last, len(evidence.overlapping(first, last))) for first in (1, 8, 11, 21) for last in (4, 5, 20, 99)
    ]
    assert [n for first, last, n in found if last >= first] == [0, 1, 2, 2, 2, 2, 1, 1, 1]
    batch = store.batch()
    assert evidence.prune(batch, 0, 104) == 20
    store.write(batch)
    assert evidence.overlapping(1, 19) == []
    assert evidence.end() == 21


def test_joined_runs() -> None:
    assert joined([(1, 5, 1), (2, 6, 2), (4, 9, 1), (6, 10, 1)]) == [(1, 5, 3), (4, 9, 1), (6, 10, 1)]
    assert joined([]) == []
