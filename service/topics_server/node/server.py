"""One node of a cluster: start-up, main loop and shutdown in the order they happen."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from topics_client.units import counted
from topics_cluster import formats, identity, objects
from topics_cluster.bucket import Bucket, BucketError
from topics_cluster.coordinator import Addresses, Coordinator, CoordinatorError, Node, Session, boottime
from topics_cluster.etcd import EtcdCoordinator
from topics_cluster.formats import FormatError
from topics_cluster.forwarded import ForwardedCalls, ForwardedRequests
from topics_cluster.identity import Identity, IdentityError
from topics_cluster.probe import UnfitStoreError, probe
from topics_cluster.s3 import S3Bucket
from topics_cluster.store import ShardStore
from topics_cluster.takeover import Ownership
from topics_cluster.trust import Secret, Signer, Verifier
from topics_gateway.app import create_app, create_probes
from topics_gateway.transport import HttpServer
from topics_net import background
from topics_server.errors import StartError
from topics_server.listeners import announce, announce_kafka, gateway_settings, grpc_port, http_server, start_grpc
from topics_server.node.admin import NodeAdmin
from topics_server.node.bulk import NodeBulk, bulk_reader
from topics_server.node.composition import NodeComposition
from topics_server.node.doors import GrpcDoor, HttpDoor, KafkaDoor, PostgresDoor, SplicedDoors, broker_id
from topics_server.node.links import PeerTls, read_secrets
from topics_server.node.peers import PeerHandlers, is_refused
from topics_server.node.polls import Polls
from topics_server.node.probes import NodeProbes
from topics_server.node.shard import NodeParts, NodeShard
from topics_server.node.shard_term import ShardTerm
from topics_server.node.shards import Shards
from topics_server.node.term import SoleTerm, Term
from topics_server.node.views import Views
from topics_server.ports import advertised_address, bind, bracketed
from topics_server.reload import Readers, Reload, SighupHandler
from topics_server.resources import Resources
from topics_server.secret_files import SecretsError
from topics_server.serving import Serving
from topics_server.settings import Settings
from topics_service import __version__
from topics_service.api.audit import AuditLog
from topics_service.api.grpc.admin_servicer import BulkReaders
from topics_service.api.grpc.calls import Calls, Services
from topics_service.api.grpc.guard import caller
from topics_service.api.grpc.server import GrpcPort, create_admin_calls, create_calls
from topics_service.api.observers import Observers
from topics_service.engine.clock import Clock
from topics_service.engine.errors import TopicsError
from topics_service.engine.placement import Place
from topics_service.statistics import NodeStatistics
from topics_service.storage import shardfiles
from topics_service.storage.store import StoreError

log: Final = logging.getLogger("topics.cluster")

_RETRY_SECONDS: Final = 1.0

Connect = Callable[[Settings], tuple[Bucket, Coordinator]]
"""Opens the object store and the coordinator of the settings. Raises ValueError."""


def connect(settings: Settings) -> tuple[Bucket, Coordinator]:
    """Open those of the settings; see `Connect`."""
    bucket = S3Bucket(f"{settings.cluster_store}/{settings.cluster}")
    return bucket, EtcdCoordinator(settings.cluster_etcd.split(","), settings.cluster)


class NodeServer(Serving):
    """A node of a cluster, with the doors of a server: HTTP, gRPC and, if its port is set, Kafka.

    Used as a Server is. It is ready once it is caught up with each of its shards, or owns it.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        connect: Connect,
        clock: Clock | None = None,
        hangups: SighupHandler | None = None,
    ) -> None:
        """`clock` replaces the system's clock; `hangups` are the SIGHUPs to follow."""
        super().__init__(settings, clock, hangups)
        self._connect = connect
        self._running: _Running | None = None

    @property
    def statistics(self) -> NodeStatistics:
        """The figures of the node, from `startup` on."""
        assert self._running is not None, "the node has not started"
        return self._running.statistics

    async def _until_ready(self) -> None:
        assert self._running is not None
        await self._running.wait()

    def open(self) -> None:
        """Open files and sockets. Blocks; raises StartError."""
        self._resources = Resources.open(self._settings, opens_store=False)

    async def startup(self) -> None:
        """Listen, join the cluster, and begin to follow. Raises StartError; `shutdown` undoes a partial start."""
        assert self._resources is not None, "open() comes first"
        try:
            secret = Secret(read_secrets(self._settings.cluster_secret_file))
            bucket, coordinator = self._connect(self._settings)
        except (SecretsError, ValueError) as error:
            raise StartError(str(error)) from None
        self._ports = self._running = _Running(self._resources, self._clock, secret, bucket, coordinator)
        if self._hangups is not None:
            self._hangups.follow(self._running.reload)
        await self._running.listen()
        await self._running.join(self._stop)

    async def shutdown(self) -> None:
        """Hand the shard over, drain, and leave the cluster."""
        if self._running is not None:
            await self._running.stop()
        if self._hangups is not None:
            self._hangups.leave()

    def close(self) -> None:
        """Close what `open` has opened."""
        if self._resources is None:
            return
        self._resources.close(is_sound=True)
        self._resources = None
        if self._stopped_at:
            log.info("stopped after %.1f s", time.monotonic() - self._stopped_at)


class _Running:
    """All parts of a node that listens."""

    def __init__(
        self, resources: Resources, clock: Clock, secret: Secret, bucket: Bucket, coordinator: Coordinator
    ) -> None:
        self._resources = resources
        self._settings = settings = resources.settings
        self._clock = clock
        self._secret = secret
        self._bucket = bucket
        self._coordinator = coordinator
        self._session: Session | None = None
        self._composition: NodeComposition | None = None
        self.http_port = self.grpc_port = 0
        self.statistics = NodeStatistics()
        self._views = Views()
        self._authorizer = settings.authorizer()
        self._audit = AuditLog(resources.audit_file.write) if resources.audit_file is not None else None
        traces = resources.traces
        observers = Observers(*traces.observers, *(() if self._audit is None else (self._audit.observe,)))
        self._probes = NodeProbes(self.statistics, observers, lambda: self.is_ready)
        self._tls = PeerTls(settings)
        parts = NodeParts(
            resources=resources,
            clock=clock,
            bucket=bucket,
            coordinator=coordinator,
            views=self._views,
            authorizer=self._authorizer,
            signer=Signer(secret),
            tls=self._tls,
            probes=self._probes,
            statistics=self.statistics,
            polls=Polls(),
        )
        self._grpc: GrpcPort = grpc_port(resources)
        self._http: HttpServer | None = None
        self.kafka = KafkaDoor(resources, lambda: self.shards[0].place.owner())
        self.postgres = PostgresDoor(resources, lambda: self.shards[0].place.owner())
        self.shards = Shards(
            parts,
            make_term=self._make_term,
            connections=SplicedDoors(self.kafka, self.postgres),
            set_serving=self._grpc.set_serving,
        )
        self._admin = NodeAdmin(
            settings.cluster,
            settings.node_name,
            bucket=bucket,
            coordinator=coordinator,
            views=self._views,
            shards=self.shards,
        )
        self._own_calls = create_admin_calls(
            self._probes, authorizer=self._authorizer, cluster=self._admin, observer=traces.grpc
        )
        self.reload = self._reload()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def kafka_port(self) -> int:
        """The port of Kafka; 0 if there is none."""
        return self.kafka.port

    @property
    def pg_port(self) -> int:
        """The port of PostgreSQL; 0 if there is none."""
        return self.postgres.port

    @property
    def is_ready(self) -> bool:
        """See Shards."""
        return self.shards.is_ready

    async def wait(self) -> None:
        """Return once the node is ready, or has failed to start."""
        if self._session is not None:
            ready = background.start(_set(self.shards.was_ready))
            await asyncio.wait((ready, *self.shards.lives), return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()

    # ------------------------------------------------------------- start

    async def listen(self) -> None:
        """Open the doors: calls are held until there is an owner. Raises StartError."""
        settings, host = self._settings, bracketed(self._settings.node_host)
        first = self.shards[0]  # the only one, as far as is known
        self._grpc_door = door = GrpcDoor(first.place, first.grpc, self._own_calls, first.reads, self.statistics)
        # The port is known only once it is bound, and others sign for it.
        grpc_verifier, http_verifier = Verifier(self._secret, ""), Verifier(self._secret, "")
        services = Services()
        services.add_generic_rpc_handlers([PeerHandlers(self.shards.find), *self._own_calls.handlers])
        calls = Calls(services, (ForwardedCalls(grpc_verifier, self._audit), door))
        self.grpc_port = await start_grpc(self._grpc, settings, calls)
        grpc_verifier.audience = f"{host}:{self.grpc_port}"
        probes = create_probes(self._probes, gateway_settings(settings), self._authorizer)
        self._http_door = HttpDoor(first.place, first.http, probes, first.reads, self.statistics)
        self._http = http_server(self._resources, ForwardedRequests(self._http_door, http_verifier, self._audit))
        self.http_port = self._http.port
        http_verifier.audience = f"{host}:{self.http_port}"
        await self._http.start()
        await self.kafka.pass_on()
        announce(settings, self.http_port, self.grpc_port)
        if self.kafka.port:
            announce_kafka(settings, self.kafka.port)

    async def join(self, stop: asyncio.Event) -> None:
        """Register, and run the replicas in the background. Waits for store and coordinator until `stop`.

        Raises StartError.
        """
        settings, host = self._settings, bracketed(self._settings.node_host)
        me = Node(
            name=settings.node_name,
            addresses=self._addresses(host),
            zone=settings.cluster_zone,
            version=__version__,
            formats=(objects.READABLE[0], objects.newest()),
            capacity=settings.cluster_capacity,
            number=broker_id(settings),
        )
        session: Session | None = None
        while self._session is None:
            try:
                if not me.cluster:
                    found = await self._identity()
                    await asyncio.to_thread(self._lay_out, found.shards)
                    me = replace(me, cluster=found.id, shards=found.shards)
                if me.shards > 1 and self._composition is None:
                    me = await self._compose(me, host)
                await self._check_others(me)
                session = session or await self._coordinator.session(settings.cluster_lease_seconds)
                await session.register(me)
                await self._check_format()  # after it, see `formats.finalize`
                self._session = session
            except (BucketError, CoordinatorError) as error:
                log.warning("can't join the cluster, trying again: %s", error)
                if await _is_set_within(stop, _RETRY_SECONDS):
                    return
        assert session is not None, "it was registered"
        self.shards.begin(me, session, settings.cluster_followers)
        self._tasks = [background.start(self._measure(session))]
        if self._composition is not None:
            self._serve_shards(self._composition)
            await self.postgres.serve_shards(self._composition)
        self.postgres.announce()
        log.info("node %s of the cluster %s at %s", me.name, settings.cluster, me.addresses.grpc)

    def _addresses(self, host: str) -> Addresses:
        """The addresses of this node at its host, but for that of calls on shards."""
        port, advertised = self.kafka.port, ""
        if port:
            name, number = advertised_address(self._settings, port)
            advertised = f"{bracketed(name)}:{number}"
        return Addresses(
            http=f"{host}:{self.http_port}",
            grpc=f"{host}:{self.grpc_port}",
            kafka=f"{host}:{port}" if port else "",
            kafka_advertised=advertised,
            postgres=f"{host}:{self.postgres.port}" if self.postgres.port else "",
        )

    # ----------------------------------------------------- several shards

    async def _compose(self, me: Node, host: str) -> Node:
        """Take calls on shards; return the node with the address of that. Raises StartError."""
        settings = self._settings
        sock = bind(settings.host, settings.cluster_port, "TOPICS_CLUSTER_PORT")
        me = replace(me, addresses=replace(me.addresses, shards=f"{host}:{sock.getsockname()[1]}"))
        composition = NodeComposition(
            self._resources,
            me,
            secret=self._secret,
            tls=self._tls,
            views=self._views,
            places=lambda: {shard.number: shard.place for shard in self.shards},
            replica=lambda number: self.shards[number].reads,
            is_ready=lambda: self.shards.is_ready,
            authorizer=self._authorizer,
            statistics=self.statistics,
        )
        try:
            await composition.open(sock)
        except OSError as error:
            raise StartError(f"TOPICS_CLUSTER_PORT: {error}") from None
        self._composition = composition
        return me

    def _serve_shards(self, composition: NodeComposition) -> None:
        """Let the doors serve all shards from now on; that of Kafka once all topics are known."""
        self.shards.on_view = composition.heard
        for shard in self.shards:
            shard.place.on_change = composition.moved
        composition.heard()
        bulk = NodeBulk(
            composition.api, self._views, composition.shard_of, self.shards.find, statistics=self.statistics
        )
        calls = create_calls(
            composition.api,
            authorizer=self._authorizer,
            bulk_readers=bulk.readers,
            bulk_topics=bulk.topics,
            cluster=self._admin,
            observer=self._resources.traces.grpc,
        )
        settings = gateway_settings(self._settings)
        app = create_app(composition.api, settings, self._authorizer.cancelling(), calls)
        self._http_door.serve(self._resources.traces.app(app))
        self._grpc_door.serve(calls)
        if self.kafka.port:
            self._tasks.append(background.start(self._serve_kafka(composition)))

    async def _serve_kafka(self, composition: NodeComposition) -> None:
        try:
            await self.kafka.serve_shards(composition, await composition.kafka())
        except (OSError, TopicsError):
            log.exception("Kafka is not served")

    async def _identity(self) -> Identity:
        """The identity of the cluster. Raises StartError unless the store is fit for clusters, and holds this one."""
        try:
            await probe(self._bucket)
            found = await identity.load(self._bucket)
        except (UnfitStoreError, IdentityError) as error:
            raise self._store_error(error) from None
        return found

    def _lay_out(self, shards: int) -> None:
        """Make the data directory one of that number of shards. Raises StartError if it is one of another number."""
        path = self._settings.data_path
        try:
            found = shardfiles.count_of(path)
            if shards > 1 and found is None and not (path / "CURRENT").exists():
                shardfiles.create(path, shards)
                return
        except (StoreError, OSError) as error:
            raise StartError(f"{path} can't be used: {error}") from None
        if found is None and shards > 1:
            raise StartError(
                f"{path} has the topics of a single server, or of a cluster with one shard, and this one has {shards}: "
                "give the node another directory"
            )
        if found is not None and (found != shards or shards == 1):
            raise StartError(
                f"{path} is laid out for {counted(found, 'shard')}, and the cluster has {shards}: give the node "
                "another directory"
            )

    async def _check_format(self) -> None:
        """Raise StartError if the log has a format that is not for this release."""
        try:
            await formats.written(self._bucket)
        except FormatError as error:
            raise self._store_error(error) from None

    def _store_error(self, error: object) -> StartError:
        return StartError(f"TOPICS_CLUSTER_STORE {self._settings.cluster_store}/{self._settings.cluster}: {error}")

    async def _check_others(self, me: Node) -> None:
        """Raise StartError if another node lives that has the name or the number, is of another cluster with the same
        name, or knows of another number of shards. A node's number counts where there are several shards."""
        for other in (await self._coordinator.view()).nodes.values():
            is_strange = other.cluster not in ("", me.cluster)
            is_split = other.shards != me.shards
            # At the address that this node has bound lived its former life; other ports may be new.
            is_namesake = other.name == me.name and other.addresses.grpc != me.addresses.grpc
            is_twin = other.number == me.number and other.name != me.name and me.shards > 1
            is_wrong = is_strange or is_namesake or is_split or is_twin
            if not is_wrong or await is_refused(other.addresses.grpc):
                continue
            if is_strange:
                raise StartError(
                    f"the node {other.name} at {other.addresses.grpc} is of another cluster with the name "
                    f"{self._settings.cluster}: give each cluster in this etcd its own TOPICS_CLUSTER, and all nodes "
                    "of one cluster the same TOPICS_CLUSTER_STORE"
                )
            if is_split:
                raise StartError(
                    f"the node {other.name} at {other.addresses.grpc} knows the cluster to have {other.shards} shards, "
                    f"and {identity.NAME} says {me.shards}: it must not be replaced"
                )
            if is_twin:
                raise StartError(
                    f"the node {other.name} at {other.addresses.grpc} has the number {me.number} as well: "
                    "TOPICS_KAFKA_NODE_ID must be another one on each node, or unset"
                )
            raise StartError(
                f"another node with the name {me.name} lives at {other.addresses.grpc}: TOPICS_CLUSTER_NODE must be "
                "unique"
            )

    def _make_term(self, shard: NodeShard, store: ShardStore, ownership: Ownership) -> Term:
        assert self._session is not None
        composition, count = self._composition, len(self.shards)
        if composition is None:
            return SoleTerm(
                self._resources,
                self._clock,
                store,
                ownership,
                bucket=self._bucket,
                session=self._session,
                authorizer=self._authorizer,
                cluster=self._admin,
                bulk_readers=lambda topic, partition: self._bulk_readers(shard),
                zones=self._views.shards_in,
                statistics=self.statistics,
            )
        term = ShardTerm(
            self._resources.for_shard(shard.number, count),
            self._clock,
            store,
            ownership,
            bucket=self._bucket,
            session=self._session,
            authorizer=self._authorizer,
            statistics=self.statistics,
            place=Place(shard.number, count),
            lag=composition.lag,
            elsewhere=composition.elsewhere(shard.number),
            enter=composition.enter,
            leave=composition.leave,
        )
        composition.connect(term.core)
        return term

    def _bulk_readers(self, shard: NodeShard) -> BulkReaders:
        """The followers, to callers that they know: users of CREATE USER are known to the owner only."""
        if self._authorizer.users.is_stored(caller()):
            return BulkReaders()
        nodes = self._views.view.nodes
        ready = [name for name, each in shard.followers.standings.items() if each.caught_up and name in nodes]
        return BulkReaders([bulk_reader(nodes[name]) for name in ready])

    async def _measure(self, session: Session) -> None:
        """Keep the figures that change with time."""
        while True:
            self.statistics.lease_seconds = session.valid_until - boottime()
            self.statistics.nodes = len(self._views.view.nodes)
            for shard in self.shards:
                shard.measure()
            await asyncio.sleep(_RETRY_SECONDS / 4)

    def _reload(self) -> Callable[[], None]:
        reload = Reload(
            self._settings,
            self._authorizer,
            self._remove_sessions,
            self._resources.certificates,
            Readers(self._settings),
            audit_file=self._resources.audit_file,
            audit_log=self._audit,
        )

        def run() -> None:
            reload()
            path = self._settings.cluster_secret_file
            try:
                self._secret.replace(read_secrets(path))
            except SecretsError as error:
                log.error("SIGHUP: the secret of the cluster stays as it was: %s", error)
            else:
                log.info("SIGHUP: the secret of the cluster was read again")

        return run

    def _remove_sessions(self, key_id: str) -> None:
        if self._composition is not None:
            self._composition.api.watches.remove_sessions(key_id)
        for shard in self.shards:
            if shard.place.term is not None:
                shard.place.term.core.api.watches.remove_sessions(key_id)

    # -------------------------------------------------------------- stop

    async def stop(self) -> None:
        """Hand over, then close the doors, and leave the cluster."""
        self._probes.draining = True
        failure: BaseException | None = None
        try:
            await self.shards.stop()
        except Exception as error:
            failure = error
        self._grpc.set_serving(False)
        for task in self._tasks:
            task.cancel()
        composition = self._composition
        if composition is not None:
            composition.drain()
        if self._session is not None:
            with contextlib.suppress(CoordinatorError):
                await self._session.close()
        seconds = self._settings.drain_seconds
        stops = [self._grpc.stop(seconds), self.kafka.close(seconds), self.postgres.close(seconds)]
        if self._http is not None:
            stops.append(self._http.stop(seconds))
        await asyncio.gather(*stops)
        if composition is not None:
            await composition.close()
        await self.shards.close()
        self._authorizer.passwords.close()
        await self._coordinator.close()
        await self._bucket.close()
        if failure is not None:
            raise failure


async def _set(event: asyncio.Event) -> None:
    await event.wait()


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return await event.wait()
    return False
