"""API keys and access rules, pure: what TOPICS_API_KEYS means, and that no RPC is without a rule."""

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, MethodDescriptor
from hypothesis import given
from hypothesis import strategies as st

from topics_proto.v1 import (
    admin_service_pb2,
    group_service_pb2,
    queue_service_pb2,
    router_service_pb2,
    sql_service_pb2,
    topics_service_pb2,
    watch_service_pb2,
)
from topics_service.api.access import rules
from topics_service.api.access.auth import (
    ALL_SCOPES,
    ANONYMOUS,
    UNRESTRICTED,
    KeyRing,
    KeySyntaxError,
    Principal,
    Scope,
    parse_keys,
    read_bearer,
)
from topics_service.api.access.authorizer import RULES, Authorizer, authorize, check_append, check_put
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import AppendRequest, Batch, ConfigInput

R, W, D, A = Scope.READ, Scope.WRITE, Scope.DELETE, Scope.ADMIN
APPEND = "topics.v1.TopicsService.Append"


def find(text: str, key: str) -> Principal | None:
    ring = parse_keys(text)
    assert ring is not None
    return ring.find(key.encode())


def rights(text: str, key: str) -> tuple[set[Scope], tuple[str, ...] | None]:
    principal = find(text, key)
    assert principal is not None
    return set(principal.scopes), principal.prefixes


# ------------------------------------------------------------------------ syntax


@pytest.mark.parametrize(
    ("entry", "scopes", "prefixes"),
    [
        ("k", set(ALL_SCOPES), None),
        ("k:", set(ALL_SCOPES), None),
        ("k::", set(ALL_SCOPES), None),
        ("k: : ", set(ALL_SCOPES), None),
        ("k:read", {R}, None),
        ("k:READ+Write", {R, W}, None),
        ("k:r+w+d+a", set(ALL_SCOPES), None),
        ("k:rw", {R, W}, None),
        ("k:del", {D}, None),
        ("k: read + + d ", {R, D}, None),
        ("k:+read+", {R}, None),
        ("k:read:", {R}, None),
        ("k::t42:", set(ALL_SCOPES), ("t42:",)),
        ("k:w:t42:|shared.| ||a:b:c", {W}, ("t42:", "shared.", "a:b:c")),
        (" \tk : r : p ", {R}, ("p",)),
    ],
)
def test_entries(entry: str, scopes: set[Scope], prefixes: tuple[str, ...] | None) -> None:
    assert rights(entry, "k") == (scopes, prefixes)
    assert rights(f",{entry} ,, other:r", "k") == (scopes, prefixes)


@pytest.mark.parametrize("text", ["", ",", ",,", " , \t,"])
def test_no_entry_is_auth_off(text: str) -> None:
    assert parse_keys(text) is None


@pytest.mark.parametrize("text", [":", ":read", " : :p", ":read,,:"])
def test_an_entry_without_a_key_still_means_auth_is_on(text: str) -> None:
    ring = parse_keys(text)
    assert ring is not None
    assert len(ring) == 0
    assert ring.find(b"") is None
    assert ring.find(b"read") is None


def test_the_last_of_equal_keys_counts() -> None:
    assert rights("k:admin,other,k:read:p", "k") == ({R}, ("p",))
    assert len(parse_keys("k:admin,other,k:read:p") or ()) == 2
    assert find("a,k:admin,k", "k") == Principal("key3", ALL_SCOPES, None)


@pytest.mark.parametrize(
    "entry",
    ["k:foo", "k:read+x", "k:+", "k: + + ", "k:+:p", "k::|", "k:r: | |", "k:read write", "k:rwd", "k:*", ":foo"],
)
def test_what_could_grant_more_than_was_meant_is_refused(entry: str) -> None:
    with pytest.raises(KeySyntaxError, match="entry 2"):
        parse_keys(f"first,{entry}")


def test_the_refusal_quotes_nothing() -> None:
    for text in ("s3cret:s3crettoo", "s3cret:s3crettoo+read:p", "s3cret:+:s3crettoo"):
        with pytest.raises(KeySyntaxError) as error:
            parse_keys(text)
        assert "s3cret" not in str(error.value)


def test_keys_are_opaque_bytes() -> None:
    assert find("a b+%&=é", "a b+%&=é") is not None
    ring = parse_keys(b"k\xff\xfe:r".decode(errors="surrogateescape"))
    assert ring is not None
    assert ring.find(b"k\xff\xfe") is not None
    assert ring.find(b"k") is None


def test_nothing_of_a_key_is_kept() -> None:
    ring = parse_keys("s3cret:read:p,s3cret2")
    assert repr(ring) == "<KeyRing of 2>"
    assert b"s3cret" not in pickle.dumps(vars(ring))


SECRETS = st.text("abK. ", min_size=0, max_size=3)
SPACE = st.sampled_from(["", " ", "\t "])
ALIASES = {
    "read": {R}, "r": {R}, "write": {W}, "w": {W}, "delete": {D}, "d": {D}, "del": {D}, "admin": {A}, "a": {A},
    "rw": {R, W},
}  # fmt: skip


@st.composite
def lists(draw: Any, words: st.SearchStrategy[str], separator: str) -> tuple[str, list[str]]:
    """A field as text, with stray separators and blanks, and the words in it."""
    chosen = draw(st.lists(words, max_size=3))
    parts = [draw(SPACE) + word + draw(SPACE) for word in chosen]
    for _ in range(draw(st.integers(0, 2)) if chosen else 0):
        parts.insert(draw(st.integers(0, len(parts))), draw(SPACE))
    return separator.join(parts), chosen


@given(st.data())
def test_a_key_has_exactly_the_rights_that_are_written(data: st.DataObject) -> None:
    written: dict[str, tuple[set[Scope], tuple[str, ...] | None]] = {}
    texts = []
    for _ in range(data.draw(st.integers(1, 4))):
        secret = data.draw(SECRETS)
        scopes, aliases = data.draw(lists(st.sampled_from(sorted(ALIASES)), "+"))
        prefixes, names = data.draw(lists(st.text("ab:.", min_size=1, max_size=3), "|"))
        cased = "".join(letter.upper() if data.draw(st.booleans()) else letter for letter in scopes)
        texts.append(data.draw(SPACE) + f"{secret}:{cased}:{prefixes}" + data.draw(SPACE))
        if secret.strip():
            granted = set().union(*(ALIASES[alias] for alias in aliases)) if aliases else set(ALL_SCOPES)
            written[secret.strip()] = granted, tuple(names) or None
    ring = parse_keys(",".join(texts))
    assert ring is not None
    assert len(ring) == len(written)
    for secret, granted in written.items():
        principal = ring.find(secret.encode())
        assert principal is not None
        assert (set(principal.scopes), principal.prefixes) == granted


@given(st.text("krwda+|:, ", max_size=24))
def test_no_text_grants_more_than_it_says(text: str) -> None:
    try:
        ring = parse_keys(text)
    except KeySyntaxError:
        return
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    assert (ring is None) == (not entries)
    last = {entry.partition(":")[0].strip(): entry for entry in entries}
    for secret, entry in last.items():
        principal = ring.find(secret.encode()) if ring else None
        if not secret:
            assert principal is None
            continue
        assert principal is not None
        _, scopes, prefixes = (*entry.split(":", 2), "", "")[:3]
        if scopes.strip():
            assert principal.scopes == set().union(
                *(ALIASES[part.strip()] for part in scopes.split("+") if part.strip())
            )
        if prefixes.strip():
            assert principal.prefixes
            assert all(prefix and prefix in prefixes for prefix in principal.prefixes)
    assert ring is None or ring.find(b"kk,") is None


# ------------------------------------------------------------------ presented keys


@pytest.mark.parametrize(
    ("header", "token"),
    [
        (None, None), (b"", None), (b"k", None), (b"Bearer", None), (b"bearer k", None), (b"BEARER k", None),
        (b"Bearer\tk", None), (b" Bearer k", None), (b"Basic k", None), (b"Bearer k", b"k"), (b"Bearer  k ", b"k"),
        (b"Bearer ", b""), (b"Bearer a b", b"a b"),
    ],
)  # fmt: skip
def test_the_scheme_is_exact(header: bytes | None, token: bytes | None) -> None:
    assert read_bearer(header) == token


def test_every_key_is_compared_also_after_a_match(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = parse_keys("a,b,c")
    assert ring is not None
    compared = []

    def compare(known: bytes, digest: bytes) -> bool:
        compared.append(known)
        return known == digest

    monkeypatch.setattr("topics_service.api.access.auth.compare_digest", compare)
    for key in (b"a", b"c", b"nope"):
        compared.clear()
        ring.find(key)
        assert len(set(compared)) == len(compared) == 3


def test_names() -> None:
    principal = Principal("key1", ALL_SCOPES, ("t42:", "é"))
    for name in ("t42:", "t42:x", "éa"):
        assert principal.allows_name(name)
    for name in ("", "t42", "t4", "T42:x", "xt42:", "e"):
        assert not principal.allows_name(name)
    assert UNRESTRICTED.allows_name("")
    assert not ANONYMOUS.allows_name("")
    assert not ANONYMOUS.allows(R)


# ------------------------------------------------------------------------- rules

MODULES = (
    topics_service_pb2, queue_service_pb2, router_service_pb2, group_service_pb2, watch_service_pb2, sql_service_pb2,
    admin_service_pb2,
)  # fmt: skip
NAMES_IN_BODIES = {
    "topics.v1.AdminService.ListBulkReaders": {"topic"},
    "topics.v1.TopicsService.PutTopic": {"config.dead_letter", "config.retain_until_acked_by"},
    "topics.v1.TopicsService.Append": {"config.dead_letter", "config.retain_until_acked_by"},
    "topics.v1.TopicsService.AppendStream": {
        "append.topic",
        "append.config.dead_letter",
        "append.config.retain_until_acked_by",
    },
    "topics.v1.GroupService.Consume": {"topic"},
    "topics.v1.GroupService.CommitPositions": {"positions.topic"},
    "topics.v1.GroupService.FetchPositions": {"topic"},
    "topics.v1.GroupService.ResetPositions": {"topics.topic"},
    "topics.v1.GroupService.DeletePositions": {"topics.topic"},
    "topics.v1.SqlService.Consume": {"topic"},
    "topics.v1.SqlService.Ack": {"topic"},
    # Not built yet: the implementation has to check these names with check_names.
    "topics.v1.RouterService.PutRouter": {"config.source", "config.dest"},
    "topics.v1.RouterService.ListRouters": {"source", "dest"},
}


def rpcs() -> Iterator[MethodDescriptor]:
    for module in MODULES:
        for service in module.DESCRIPTOR.services_by_name.values():
            yield from service.methods


def name_fields(message: Descriptor, path: str = "") -> Iterator[str]:
    for field in message.fields:
        if field.name in ("topic", "router", "source", "dest", "dead_letter", "group", "retain_until_acked_by"):
            yield path + field.name
        elif field.message_type is not None and not path.count(".") > 2:
            yield from name_fields(field.message_type, f"{path}{field.name}.")


def test_every_rpc_has_a_rule_and_every_rule_an_rpc() -> None:
    paths = {rules.NO_ROUTE, rules.NO_TOPIC_ROUTE, rules.NO_ROUTER_ROUTE, rules.NO_GROUP_ROUTE}
    assert set(RULES) == {rpc.full_name for rpc in rpcs()} | paths


@pytest.mark.parametrize("rpc", list(rpcs()), ids=lambda rpc: rpc.full_name)
def test_every_name_in_a_request_is_checked(rpc: MethodDescriptor) -> None:
    field = RULES[rpc.full_name].field
    checked = ({field} if field else set()) | NAMES_IN_BODIES.get(rpc.full_name, set())
    assert set(name_fields(rpc.input_type)) == checked


def test_an_rpc_without_a_rule_is_refused_to_everyone() -> None:
    for call in (
        lambda: authorize(UNRESTRICTED, "topics.v1.TopicsService.New", "t"),
        lambda: Authorizer(parse_keys("k")).slot("topics.v1.TopicsService.New", Principal("key1", ALL_SCOPES, None)),
    ):
        with pytest.raises(TopicsError, match="no access rule") as error:
            call()
        assert error.value.reason is Reason.FORBIDDEN


def refused(reason: Reason, call: Any) -> TopicsError:
    with pytest.raises(TopicsError) as error:
        call()
    assert error.value.reason is reason
    return error.value


def test_scope_comes_before_name() -> None:
    reader = Principal("key1", frozenset({R}), ("p",))
    assert "write" in refused(Reason.FORBIDDEN, lambda: authorize(reader, APPEND, "q")).message
    writer = Principal("key1", frozenset({W}), ("p",))
    error = refused(Reason.FORBIDDEN, lambda: authorize(writer, APPEND, "q"))
    assert "prefixes" in error.message
    assert error.detail is None
    authorize(writer, APPEND, "p")
    authorize(writer, rules.NO_ROUTE, "anything")


def test_a_config_on_a_write_that_creates_takes_admin() -> None:
    writer = Principal("key1", frozenset({W}), ("p",))
    admin = Principal("key1", frozenset({W, A}), ("p",))

    def append(topic: str = "p1", config: ConfigInput | None = None) -> AppendRequest:
        return AppendRequest(topic=topic, batch=Batch(datas=[b"1"]), config=config)

    check_append(writer, append(), exists=False)
    check_append(writer, append(config=ConfigInput()), exists=True)
    check_append(admin, append(config=ConfigInput(dead_letter="p2")), exists=False)
    for principal, request, exists, topic in (
        (writer, append(config=ConfigInput()), False, "p1"),
        (writer, append("q"), True, "q"),
        (admin, append(config=ConfigInput(dead_letter="q2")), False, "q2"),
        (admin, append(config=ConfigInput(dead_letter="q2")), True, "q2"),
    ):
        error = refused(Reason.FORBIDDEN, lambda: check_append(principal, request, exists=exists))  # noqa: B023
        assert error.detail == {"topic": topic}
    check_put(admin, ConfigInput(dead_letter="p2"))
    assert refused(Reason.FORBIDDEN, lambda: check_put(admin, ConfigInput(dead_letter=""))).detail == {"topic": ""}


# -------------------------------------------------------------------- authorizer


def test_the_gate_knows_who_calls() -> None:
    authorizer = Authorizer(parse_keys("k:read"))
    principal = authorizer.identify(APPEND, b"Bearer k")
    assert principal == Principal("key1", frozenset({R}), None)
    missing = refused(Reason.UNAUTHORIZED, lambda: authorizer.identify(APPEND, None))
    wrong = refused(Reason.UNAUTHORIZED, lambda: authorizer.identify(APPEND, b"Bearer K"))
    assert (missing.message, missing.detail) == (wrong.message, wrong.detail)
    assert Authorizer().identify(APPEND, b"nonsense") is UNRESTRICTED


def test_probes_ask_for_a_key_only_if_told_to() -> None:
    for rpc in rules.PROBES:
        assert Authorizer(parse_keys("k")).identify(rpc, None) is ANONYMOUS
        authorize(ANONYMOUS, rpc, "")
        asking = Authorizer(parse_keys("k:write"), probe_auth=True)
        refused(Reason.UNAUTHORIZED, lambda: asking.identify(rpc, None))  # noqa: B023
        authorize(asking.identify(rpc, b"Bearer k"), rpc, "")
        assert Authorizer(None, probe_auth=True).identify(rpc, None) is UNRESTRICTED


def test_slots_are_per_key_and_given_back_on_every_exit() -> None:
    authorizer = Authorizer(KeyRing([]), max_inflight=2)
    one, two = Principal("key1", ALL_SCOPES, None), Principal("key2", ALL_SCOPES, None)

    def fill_up_and_fail() -> None:
        with authorizer.slot(APPEND, one), authorizer.slot(APPEND, one):
            with authorizer.slot(APPEND, two), authorizer.slot("topics.v1.AdminService.GetHealth", one):
                pass
            error = refused(Reason.THROTTLED, lambda: authorizer.slot(APPEND, one).__enter__())
            assert error.detail == {"limit": "max_inflight_per_key", "max": 2}
            assert error.retry_after_ms
            raise ZeroDivisionError

    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            fill_up_and_fail()
    unlimited = Authorizer(KeyRing([]), max_inflight=0)
    for principal, authorizer in ((UNRESTRICTED, Authorizer(max_inflight=1)), (one, unlimited)):
        with authorizer.slot(APPEND, principal), authorizer.slot(APPEND, principal):
            pass
