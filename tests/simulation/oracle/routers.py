"""What routers have forwarded: each slice is compared with what it should have made of its source."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from simulation.oracle.topics import History, TopicModel, back, keep, prune
from support.log_model import LogState, Rec, demand, matches, read
from topics_service.engine.errors import TopicsError
from topics_service.engine.router.hops import MAX_HOPS
from topics_service.engine.router.rings import EndHops
from topics_service.engine.router.router import PutRouterRequest, Router, RouterConfig
from topics_service.storage.block import Block

if TYPE_CHECKING:
    from simulation.world import World

_UNFINISHED = ("topic_full", "record_too_large", "throttled")
_STAMP_BYTES = 500  # more than a stamp ever has
Place = tuple[int, int]
Standing = tuple[RouterConfig, int, int, int, int]  # config, numbers of source and destination, cursor, forwarded


class Routers:
    """Every call of routers, checked, and each slice whoever asks for it. `standing` is as written last, by name."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.standing: Mapping[str, Standing] = {}
        self.history: History[Mapping[str, Standing]] = [(0, {})]

    # -------------------------------------------------------------------- calls

    def put(self, request: PutRouterRequest) -> None:
        """Make a router or change it."""
        world = self._world
        world.look()
        old, given = self.standing.get(request.router), request.config
        expected = self._refusal(request)
        reply, ticket = world.call(lambda: world.engine.routers.put(request), *expected)
        demand(not expected or expected == _UNFINISHED, f"a router is taken that is {expected}")
        demand(reply.created == (old is None), "a router is made, or is not")
        router = world.engine.routers.find(request.router)
        assert router is not None
        demand(router.config == given, "a router has another config than was asked for")
        source, dest = world.topics.by_name[given.source], world.topics.by_name[given.dest]
        cursor, forwarded = source.log.view.head, 0
        if old is None:
            cursor = source.log.view.earliest - 1 if request.backfill else cursor
        else:
            _, _, _, at, forwarded = self.standing[request.router]
            cursor = at if old[1] == source.number else cursor
        demand(router.cursor == cursor, f"{router.name} stands at {router.cursor} of its source, not at {cursor}")
        if old is None or old[0] != given:
            self._stand(router.name, (given, source.number, dest.number, cursor, forwarded))
        world.owe(ticket, world.w if old is None else None, f"the router {router.name}")
        world.trace.meet("a router made" if old is None else "a router changed")

    def _refusal(self, request: PutRouterRequest) -> tuple[str, ...]:
        """The code that a PUT is refused with; or those that it may be, where the old source has to be worked off."""
        given, old = request.config, self.standing.get(request.router)
        if given.source == given.dest:
            return ("invalid_request",)
        ends = [self._world.topics.find(name) for name in (given.source, given.dest)]
        if any(topic is not None and len(topic.logs) > 1 for topic in ends):
            return ("invalid_request",)
        others = [each[0] for name, each in self.standing.items() if name != request.router]
        if any(other.dest == given.dest and other.source != given.source for other in others):
            return ("topic_exists_incompatible",)
        same = old is not None and (old[0].source, old[0].dest) == (given.source, given.dest)
        if not given.allow_cycle and not (same and old is not None and not old[0].allow_cycle):
            at, above = given.source, set[str]()
            while at not in above:
                above.add(at)
                at = next((other.source for other in others if other.dest == at), at)
            if given.dest in above:
                return ("router_cycle",)
        return _UNFINISHED if old is not None and old[0].source != given.source else ()

    def delete(self, name: str) -> None:
        """Delete a router."""
        world = self._world
        reply, ticket = world.call(lambda: world.engine.routers.delete(name))
        demand(reply.deleted == (name in self.standing), "a router was there, or was not")
        if reply.deleted:
            self.removed([name])
            world.owe(ticket, world.w, f"the router {name} is deleted")

    def removed(self, names: list[str]) -> None:
        """These were deleted."""
        self.standing = {name: each for name, each in self.standing.items() if name not in names}
        keep(self.history, self._world.w, self.standing)

    def touching(self, topic: TopicModel) -> list[str]:
        """The routers that have the topic as an end."""
        return sorted(name for name, each in self.standing.items() if topic.number in each[1:3])

    # ------------------------------------------------------------------- slices

    def hook(self) -> None:
        """The engine is new: see each of its slices."""
        forwarding = self._world.engine.routers.forwarding
        step = forwarding.step

        def checked(router: Router, ends: EndHops | None = None) -> bool:
            world = self._world
            source = world.topics.by_name[router.config.source]
            world.look(source)
            dest = world.topics.by_name[router.config.dest]
            demand((source.number, dest.number) == self.standing[router.name][1:3], "a router has changed its ends")
            shown, before, head = source.log.view, router.cursor, dest.log.written.head
            goes_round = 0 if ends is None else ends.source.at(before + 1)[0]
            stalls = world.disk.refused
            error: TopicsError | None = None
            more: bool | None = None
            try:
                more = step(router, ends)
                return more
            except TopicsError as refused:
                error = refused
                world.trace.meet(f"a router stopped: {refused.reason.code}")
                raise
            finally:
                if router.cursor != before:
                    self._check(router, source, dest, shown, before, head, goes_round)
                elif error is None:
                    demand(before >= shown.head or world.disk.fuse == 0, "a slice that does nothing")
                if more is not None:
                    demand(more == (router.cursor < shown.head), "a slice that does not know whether there is more")
                code = None if error is None else error.reason.code
                if code == "throttled" and world.disk.refused == stalls:
                    is_full = not goes_round and ends is not None and ends.dest.is_full
                    demand(is_full, "a router waits, and its destination has room for copies that go round")
                elif code in ("topic_full", "record_too_large"):
                    self._check_stop(router, shown, dest)

        forwarding.step = checked  # type: ignore[method-assign]

    def _check(
        self, router: Router, source: TopicModel, dest: TopicModel, shown: LogState, before: int, head: int, hops: int
    ) -> None:
        world = self._world
        cursor, log = router.cursor, world.log(dest)
        config, _, _, at, forwarded = self.standing[router.name]
        demand(at == before, f"{router.name} stands at {before}, but was left at {at}")
        demand(
            before < cursor <= shown.head, f"{router.name} goes from {before} to {cursor}, its source to {shown.head}"
        )
        gained = log.state.head - head
        state = dest.log.written.expired(dest.config.ttl_ms, world.now, world.hold(dest, 0))
        lost = _lost(shown, before, cursor)
        if hops >= MAX_HOPS:
            demand(not gained, "a record goes round for ever")
            world.trace.meet("a record that has gone round often enough")
        elif lost:
            demand(gained == lost == cursor - before, f"{lost} seqs were lost, and {gained} of {cursor - before} burnt")
            dest.log.commit(state.burnt(lost), world.w, log, dest.config)
            world.trace.meet("a loss that was forwarded")
        else:
            made = self._made(router, source, state)
            wanted = [rec for rec in shown.between(before, cursor) if _passes(config, rec)]
            recs = [rec for rec in wanted if rec.seq not in made]
            world.trace.meet("a copy that was there already", len(wanted) - len(recs))
            demand(shown.gap_within(before, cursor) is None, "a slice goes over a loss")
            demand(gained == len(recs), f"{gained} copies of {len(recs)} records of {source.name} in {dest.name}")
            if recs:
                ts = max(world.now, state.last_ts)
                copies = [
                    self._copy(router, source, rec, log.blocks.records(head + 1 + i), head + 1 + i, ts)
                    for i, rec in enumerate(recs)
                ]
                dest.log.commit(state.appended(copies, dest.config, world.hold(dest, 0)), world.w, log, dest.config)
                world.trace.meet("a record forwarded", len(copies))
        forwarded += gained
        demand(router.forwarded == forwarded, "forwarded_total is not what was forwarded")
        self._stand(router.name, (config, source.number, dest.number, cursor, forwarded))

    def _check_stop(self, router: Router, shown: LogState, dest: TopicModel) -> None:
        """It stands just before a record, live and wanted, that the destination has no room for."""
        rec, config, hold = shown.live.get(router.cursor + 1), dest.config, self._world.hold(dest, 0)
        if rec is None or not _passes(router.config, rec):
            demand(False, f"a router has stopped at {router.cursor}, and no record that it copies is next")
            return
        state = dest.log.written.expired(config.ttl_ms, self._world.now, hold)
        held = [each for each in state.live.values() if config.discard == "reject" or each.seq > (hold or 0)]
        nbytes = sum(each.size for each in held) + rec.size
        full = config.cap_records and len(held) + 1 > config.cap_records
        # The stamp of a copy that is made exactly once has some 200 bytes of its own.
        stamped = _STAMP_BYTES if router.config.guarantee == "exactly_once" else 0
        full = full or (config.cap_bytes and nbytes + stamped > config.cap_bytes)
        demand(bool(full), f"a router has stopped, and there is room for {rec} in {config}")

    def _copy(self, router: Router, source: TopicModel, rec: Rec, block: object, seq: int, ts: int) -> Rec:
        assert isinstance(block, Block)
        config, i = router.config, seq - block.base_seq
        found = read(block, i)
        expected = replace(
            rec, seq=seq, ts=ts, meta=found.meta,
            tag=rec.tag if config.preserve_tag else None, node=rec.node if config.preserve_node else None,
        )  # fmt: skip
        if found != expected:
            demand(False, f"a copy of {rec} is {found}")
        if config.guarantee != "exactly_once":
            demand(found.meta == rec.meta, "a copy has another meta")
            return found
        meta = json.loads(found.meta or b"{}")
        stamp = meta.pop("_topics_router")
        kept = json.loads(rec.meta or b"{}")
        kept.pop("_topics_router", None)
        demand(meta == kept, f"a stamped copy lost what it had: {found.meta!r} of {rec.meta!r}")
        expected_stamp = (router.name, source.name, source.topic_id, source.number, rec.seq)
        told = tuple(
            stamp[f"{each}"] for each in ("router", "source_topic", "source_topic_id", "source_epoch", "source_seq")
        )
        demand(told == expected_stamp, f"a copy is stamped {told}")
        return replace(found, origin=(router.name, source.number, rec.seq))

    def _made(self, router: Router, source: TopicModel, dest: LogState) -> set[int]:
        """The seqs of the source that the destination has copies of, made exactly once by a router of this name."""
        if router.config.guarantee != "exactly_once":
            return set()
        mine = (router.name, source.number)
        return {rec.origin[2] for rec in dest.live.values() if rec.origin is not None and rec.origin[:2] == mine}

    # ------------------------------------------------------------------ crashes

    def prune(self, synced: int) -> None:
        """See Topics."""
        prune(self.history, synced)

    def back(self, w: int, heads: Mapping[Place, int]) -> None:
        """After a crash: where they stood then."""
        standing = {}
        for name, (config, source, dest, cursor, forwarded) in back(self.history, w).items():
            standing[name] = (config, source, dest, min(cursor, heads[source, 0]), forwarded)
        self.standing = standing
        self.history = [(0, standing)]
        self.check()

    def check(self) -> None:
        """The engine has these routers, and they stand there."""
        found = {
            router.name: (router.config, router.source.number, router.dest.number, router.cursor, router.forwarded)
            for router in self._world.engine.routers._routers.values()
        }
        if found != self.standing:
            demand(False, f"the routers are {found}, not {self.standing}")
        for router in self._world.engine.routers._routers.values():
            shown = self._world.topics.by_name[router.config.source].log.view
            demand(router.lag == max(0, shown.head - router.cursor), f"{router.name} is not {router.lag} seqs behind")

    def _stand(self, name: str, standing: Standing) -> None:
        self.standing = {**self.standing, name: standing}
        keep(self.history, self._world.w, self.standing)


def _passes(config: RouterConfig, rec: Rec) -> bool:
    return matches(config.filter, rec.tag)


def _lost(s: LogState, cursor: int, end: int) -> int:
    """How many seqs right behind the cursor were lost, and not deleted by a client."""
    floor = max(s.cap, s.ttl, s.trim)
    at = cursor + 1
    while at <= end and (at <= floor or any(first <= at <= last for first, last, _ in s.gaps)):
        at += 1
    return at - 1 - cursor
