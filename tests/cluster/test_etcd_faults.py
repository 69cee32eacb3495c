"""An etcd that is slow, away, emptied or compacted, that holds entries of others, and that asks who one is."""

import asyncio
import base64
import logging
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from cluster.entries import ONE, TWO, owner, until

from support import waiting
from support.etcd import Etcd
from support.rough_proxy import RoughProxy
from support.tls_proxy import certificate
from topics_cluster.coordinator import CoordinatorError, CoordinatorRefusedError, Session, View, boottime
from topics_cluster.etcd import EtcdCoordinator

Opened = Callable[..., EtcdCoordinator]


@pytest.fixture
async def opened() -> AsyncIterator[Opened]:
    """Opens coordinators, each on the addresses given, all of one cluster."""
    made: list[EtcdCoordinator] = []
    cluster = uuid.uuid4().hex

    def one(*addresses: str) -> EtcdCoordinator:
        made.append(EtcdCoordinator(addresses, cluster, request_seconds=1.0))
        return made[-1]

    yield one
    for each in made:
        await each.close()


@pytest.fixture
def own_etcd(tmp_path: Path) -> Any:
    """An etcd that the test may take away."""
    with Etcd(tmp_path / "etcd") as etcd:
        yield etcd


async def passed(session: Session, *, within: float = 10.0) -> None:
    """Wait until the session's lease is not known to hold."""
    await waiting.until(lambda: session.valid_until <= boottime(), within)


async def holds(session: Session) -> None:
    """Wait until the session's lease holds."""
    await waiting.until(lambda: session.valid_until > boottime())


def nobody(view: View) -> bool:
    return not view.nodes


async def test_an_etcd_that_returns_with_its_data(own_etcd: Etcd, opened: Opened) -> None:
    first, second = opened(own_etcd.address), opened(own_etcd.address)
    session = await first.session(2)
    await session.register(ONE)
    await session.claim(0, None, owner("one", 1))
    following = asyncio.create_task(until(second, lambda view: view.wanted == {0: "two"}))
    own_etcd.stop()
    with pytest.raises(CoordinatorError, match=own_etcd.address):
        await second.view()
    with pytest.raises(CoordinatorError):
        await second.session(2)
    await passed(session)
    await asyncio.to_thread(own_etcd.start)
    await holds(session)
    view = await until(second, lambda view: "one" in view.nodes)
    if 0 in view.owners:  # the lease may have outlived the etcd
        assert view.owners == {0: owner("one", 1)}
    await second.want(0, "two")
    assert (await following).wanted == {0: "two"}


async def test_an_etcd_that_returns_empty(own_etcd: Etcd, opened: Opened) -> None:
    first, second = opened(own_etcd.address), opened(own_etcd.address)
    for number in range(50):
        await first.want(1, str(number))  # so that it had seen more revisions than it will see soon
    session = await first.session(2)
    await session.register(ONE)
    await session.claim(0, None, owner("one", 1))
    await until(second, lambda view: 0 in view.owners)
    following = asyncio.create_task(until(second, lambda view: view.wanted == {0: "two"}))
    own_etcd.empty()
    await asyncio.to_thread(own_etcd.start)
    view = await until(second, lambda view: "one" in view.nodes and not view.wanted)
    assert view.owners == {}  # who may own the shard is for its log to say
    assert session.valid_until < boottime()
    assert await session.claim(0, None, owner("one", 1))
    assert session.valid_until > boottime()
    await second.want(0, "two")
    assert (await following).owners == {0: owner("one", 1)}


async def test_a_node_that_was_cut_off_has_lost_its_claim(etcd: Etcd, opened: Opened) -> None:
    with RoughProxy(etcd.address, 1) as proxy:
        proxy.calm()
        first, second = opened(proxy.target), opened(etcd.address)
        session, other = await first.session(2), await second.session(2)
        await session.register(ONE)
        await session.claim(0, None, owner("one", 1))
        following = asyncio.create_task(until(first, lambda view: view.owners == {0: owner("one", 3)}))
        await asyncio.sleep(0)
        proxy.refuse()
        valid_until = session.valid_until
        view = await until(second, nobody)
        assert boottime() > valid_until  # it knew earlier than all others
        assert view.owners == {}
        assert await other.claim(0, None, owner("two", 2))
        await other.give_up(0, owner("two", 2))
        proxy.cut()
        await until(second, lambda view: "one" in view.nodes)
        assert session.valid_until < boottime()  # since another may have written in between
        assert await session.claim(0, None, owner("one", 3))
        await holds(session)
        await following


async def test_a_lease_is_not_trusted_while_no_answer_comes(etcd: Etcd, opened: Opened) -> None:
    with RoughProxy(etcd.address, 1) as proxy:
        proxy.calm()
        session = await opened(proxy.target).session(2)
        await session.register(ONE)
        proxy.swallow()  # etcd gets the renewals, and the node does not know
        await passed(session)
        proxy.cut()
        await holds(session)


async def test_an_etcd_that_hangs(own_etcd: Etcd, opened: Opened) -> None:
    coordinator = opened(own_etcd.address)
    session = await coordinator.session(2)
    await session.register(ONE)
    own_etcd.pause()
    begun = boottime()
    with pytest.raises(CoordinatorError, match=r"no answer in time|DEADLINE"):
        await session.claim(0, None, owner("one", 1))
    assert boottime() - begun < 3
    await passed(session)
    own_etcd.resume()
    await holds(session)
    await until(coordinator, lambda view: "one" in view.nodes)


async def test_the_members_are_asked_in_turn(etcd: Etcd, own_etcd: Etcd, opened: Opened) -> None:
    own_etcd.stop()
    session = await opened(own_etcd.address, etcd.address).session(2)
    await session.register(ONE)
    await until(opened(own_etcd.address, etcd.address), lambda view: "one" in view.nodes)
    with pytest.raises(ValueError, match="no member"):
        opened()


async def test_a_compaction_does_not_stop_a_watch(own_etcd: Etcd, opened: Opened) -> None:
    coordinator = opened(own_etcd.address)
    following = asyncio.create_task(until(coordinator, lambda view: view.wanted == {0: "end"}))
    for number in range(20):
        await coordinator.want(0, str(number))
    revision = (await coordinator.view()).revision
    own_etcd.stop()
    await asyncio.to_thread(own_etcd.start)
    _call(own_etcd, "kv/compaction", revision=revision, physical=True)
    await coordinator.want(0, "end")
    await following


async def test_entries_that_cannot_be_read_are_as_none(
    etcd: Etcd, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = opened(etcd.address)
    prefix = coordinator._prefix
    for key, value in {
        "nodes/one": "{",
        "nodes/two": '{"name":"two","addresses":{"http":"","grpc":""},"new":[1]}',
        "owner/0": '{"node":1}',
        "owner/1": "\xff",
        "owner/x": "{}",
        "want/x": "a",
        "later/kind": "{}",
    }.items():
        _call(etcd, "kv/put", key=_text(prefix + key), value=_text(value))
    with caplog.at_level(logging.WARNING, "topics.cluster"):
        view = await coordinator.view()
    assert (set(view.nodes), view.owners, view.wanted) == ({"two"}, {}, {})
    assert {str(record.args[0]) for record in caplog.records if isinstance(record.args, tuple)} == {
        str((prefix + key).encode()) for key in ("nodes/one", "owner/0", "owner/1")
    }
    session = await coordinator.session(2)
    assert await session.claim(0, None, owner("one", 1))
    assert (await coordinator.view()).owners == {0: owner("one", 1)}


async def test_an_etcd_with_users(own_etcd: Etcd, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("root", "node"):
        _call(own_etcd, "auth/user/add", name=name, password=f"{name}-secret")
    _call(own_etcd, "auth/user/grant", user="root", role="root")
    _call(own_etcd, "auth/role/add", name="nodes")
    every = {"permType": "READWRITE", "key": _text("/topics/"), "range_end": _text("/topics0")}
    _call(own_etcd, "auth/role/grant", name="nodes", perm=every)
    _call(own_etcd, "auth/user/grant", user="node", role="nodes")
    _call(own_etcd, "auth/enable")
    monkeypatch.setenv("ETCDCTL_USER", "node:wrong")
    with pytest.raises(CoordinatorRefusedError) as error:
        await opened(own_etcd.address).session(2)
    assert "wrong" not in str(error.value)
    monkeypatch.delenv("ETCDCTL_USER")
    with pytest.raises(CoordinatorRefusedError, match="user name"):
        await until(opened(own_etcd.address), nobody)
    monkeypatch.setenv("ETCDCTL_USER", "node:node-secret")
    coordinator = opened(own_etcd.address)
    session = await coordinator.session(2)
    await session.register(ONE)
    await until(coordinator, lambda view: "one" in view.nodes)
    own_etcd.stop()
    await asyncio.to_thread(own_etcd.start)  # which forgets its tokens
    await coordinator.want(0, "one")
    await until(coordinator, lambda view: view.wanted == {0: "one"})
    await holds(session)


async def test_an_etcd_with_certificates(tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    chain, key = certificate(tmp_path)
    with Etcd(tmp_path / "etcd", certificate=(chain, key)) as etcd:
        monkeypatch.setenv("ETCDCTL_CACERT", str(tmp_path / "not-there"))
        with pytest.raises(CoordinatorRefusedError, match="ETCDCTL_CACERT: "):
            await opened(etcd.address).view()
        monkeypatch.setenv("ETCDCTL_CACERT", str(chain))
        with pytest.raises(CoordinatorError):  # it asks for a certificate of the client
            await opened(etcd.address).view()
        monkeypatch.setenv("ETCDCTL_CERT", str(chain))
        monkeypatch.setenv("ETCDCTL_KEY", str(key))
        coordinator = opened(etcd.address)
        session = await coordinator.session(2)
        await session.register(TWO)
        assert set((await coordinator.view()).nodes) == {"two"}


async def test_certificates_that_change(tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    chain, key = certificate(tmp_path)
    for name, path in {"CACERT": chain, "CERT": chain, "KEY": key}.items():
        monkeypatch.setenv(f"ETCDCTL_{name}", str(path))
    with Etcd(tmp_path / "etcd", certificate=(chain, key)) as etcd:
        coordinator = opened(etcd.address)
        session = await coordinator.session(2)
        await session.register(TWO)
        watching = asyncio.create_task(until(coordinator, lambda view: view.wanted == {0: "two"}))
        await until(coordinator, lambda view: "two" in view.nodes)
        key.unlink()  # a moment in which not all files are there
        etcd.stop()
        await passed(session)
        certificate(tmp_path)
        await asyncio.to_thread(etcd.start)
        await holds(session)
        await coordinator.want(0, "two")
        assert set((await watching).nodes) == {"two"}


async def test_a_password_that_changes(
    tmp_path: Path, own_etcd: Etcd, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    _call(own_etcd, "auth/user/add", name="root", password="one")
    _call(own_etcd, "auth/user/grant", user="root", role="root")
    _call(own_etcd, "auth/enable")
    password = tmp_path / "password"
    password.write_text("one\n")
    monkeypatch.setenv("ETCDCTL_USER", "root")
    monkeypatch.setenv("ETCDCTL_PASSWORD", "not this one")
    monkeypatch.setenv("ETCDCTL_PASSWORD_FILE", str(password))
    coordinator = opened(own_etcd.address)
    session = await coordinator.session(2)
    await session.register(TWO)
    _call(own_etcd, "auth/user/changepw", _as="one", name="root", password="two")
    with pytest.raises(CoordinatorRefusedError):
        await coordinator.view()
    password.write_text("two\n")
    await holds(session)
    assert set((await coordinator.view()).nodes) == {"two"}


def _text(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _call(etcd: Etcd, method: str, _as: str = "", **body: Any) -> None:
    """Call etcd, as root with the password `_as` if it is given."""
    headers = {}
    if _as:
        credentials = {"name": "root", "password": _as}
        answer = requests.post(f"{etcd.url}/v3/auth/authenticate", json=credentials, timeout=20)
        headers = {"Authorization": answer.json()["token"]}
    requests.post(f"{etcd.url}/v3/{method}", json=body, headers=headers, timeout=20).raise_for_status()
