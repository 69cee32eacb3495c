"""The PostgreSQL server: a listening socket and its connections."""

import asyncio
import logging
import secrets
import socket
import ssl
import time
from collections import Counter
from typing import Any, Final, cast

from topics_client.units import counted
from topics_net import background
from topics_net.listener import Listener
from topics_net.rate_limited_logger import RateLimitedLogger
from topics_postgres import variables, wire
from topics_postgres.authentication import Cancel, Opened, opened, take_connection
from topics_postgres.catalog.answering import Catalogs
from topics_postgres.connection import Connection
from topics_postgres.errors import FatalError, MalformedError, PgError
from topics_postgres.session import Session
from topics_postgres.settings import PostgresSettings
from topics_postgres.statements import Splitter
from topics_service.api.access.auth import Principal
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.access.roles import Capability, has
from topics_service.api.sql.cancels import PassesOn
from topics_service.api.sql.sessions import Sessions
from topics_service.statistics import PostgresStatistics

log: Final = logging.getLogger("topics.postgres")

_CHECK_SECONDS: Final = 1.0
_MAX_PID: Final = (1 << 31) - 1
_SECRET_BYTES: Final = 4


class PostgresServer(Listener):
    """Serves the protocol of PostgreSQL on a bound TCP socket, which it owns from `start` on.

    Runs on the event loop that calls `start`, once, after the engine has recovered. With `tls`, a client must ask for
    TLS.
    """

    def __init__(
        self,
        sessions: Sessions,
        authorizer: Authorizer,
        settings: PostgresSettings,
        statistics: PostgresStatistics,
        refusals: Counter[tuple[str, str]],
        sock: socket.socket,
        *,
        tls: ssl.SSLContext | None = None,
        cancels: PassesOn | None = None,
    ) -> None:
        """`cancels` knows the other processes that serve clients, where there are others."""
        super().__init__(settings.max_connections, settings.send_seconds)
        self.sessions = sessions
        self.authorizer = authorizer
        self.settings = settings
        self.statistics = statistics
        self.refusals = refusals
        self.tls = tls
        self.started = time.time()
        self.mock_key = secrets.token_bytes(32)
        self.splitter = Splitter(variables.is_known)
        self.catalogs = Catalogs()
        self._cancels = cancels
        self._sock = sock
        self._log = RateLimitedLogger(log)
        self._sessions: dict[Connection, Session] = {}
        self._keys: dict[int, tuple[bytes, Session]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Start to listen; return at once. Raises OSError if the socket can't listen."""
        await self.listen(self._sock, lambda: Connection(self), None, log, self.settings.startup_seconds)

    async def stop(self, drain_seconds: float) -> None:
        """Accept no new connection or statement, let running ones finish for `drain_seconds`, abort the rest."""
        if self._server is None:
            self._sock.close()
            return
        self.shut_down()
        try:
            async with asyncio.timeout(drain_seconds):
                await self.empty()
        except TimeoutError:
            if drain_seconds:
                what = counted(len(self.connections), "PostgreSQL connection")
                log.warning("closing %s that did not finish within %g s", what, drain_seconds)
        finally:
            self.abort()
            self.catalogs.close()
            if self._timer is not None:
                self._timer.cancel()
        async with asyncio.timeout(1.0):
            await self.empty()

    def now(self) -> float:
        """The time of the loop's clock."""
        return asyncio.get_running_loop().time()

    # ---------------------------------------------------------------------------------- shared by the connections

    def opened(self, connection: Connection) -> bool:
        """Register a connection. Return False if there are too many."""
        if self.draining:
            return False
        if self.is_full():
            self.refuse()
            return False
        self.enter(connection)
        self.statistics.connections = len(self.connections)
        if self._timer is None:
            self._timer = background.call_later(_CHECK_SECONDS, self._check)
        return True

    def forget(self, connection: object) -> None:
        super().forget(connection)
        self.statistics.connections = len(self.connections)

    def refuse(self) -> None:
        self.statistics.closed["limit"] += 1
        self._log.warning("refusing a connection: TOPICS_PG_MAX_CONNECTIONS is reached")

    def take(self, nbytes: int) -> bool:
        """Count memory for messages that arrive; False if there is too little."""
        self.statistics.receive_bytes += nbytes
        return self.statistics.receive_bytes <= self.settings.receive_bytes

    def is_superuser(self, principal: Principal) -> bool:
        """Return whether a caller may do everything."""
        return has(principal, Capability.USERS)

    def end(self, connection: Connection, reason: str, message: str) -> None:
        """Abort a connection; count and log the reason."""
        self.statistics.closed[reason] += 1
        self._log.warning("closing the connection from %s: %s", connection.peer[0], message)
        connection.abort()

    def finish(self, connection: Connection) -> None:
        """Let a session end, after the statement under way. One that only waits ends at once."""
        session = self._sessions.get(connection)
        if session is None:
            connection.abort()
            return
        session.is_ending = True
        session.connection.interrupt(FatalError("57P01", "terminating connection: the server shuts down"))

    def lost(self, connection: Connection) -> None:
        """End the work of a client that is gone."""
        if connection.task is not None:
            connection.task.cancel()

    def _check(self) -> None:
        """Look at the deadlines of all connections. They share one timer, which stops without connections."""
        now = self.now()
        for connection in [each for each in self.connections if isinstance(each, Connection)]:
            if connection.arrival_deadline and now > connection.arrival_deadline:
                self.end(connection, "slow", "a message took too long to arrive")
            elif connection.deadline and now > connection.deadline:
                connection.deadline = 0.0
                session = self._sessions.get(connection)
                if session is None:
                    self.end(connection, "idle", "authentication took too long, or the end of the session")
                else:
                    self.statistics.closed["idle"] += 1
                    connection.interrupt(session.expired())
        self._timer = background.call_later(_CHECK_SECONDS, self._check) if self.connections else None

    # ----------------------------------------------------------------------------------------------- one connection

    async def serve(self, connection: Connection) -> None:
        """Serve a connection to its end."""
        try:
            await self._serve(connection)
        except FatalError as error:
            self.statistics.errors[error.sqlstate] += 1
            connection.send(wire.error(error, severity="FATAL"))
        except MalformedError as error:
            if not connection.is_lost:
                self.statistics.closed["malformed"] += 1
                self._log.warning("closing the connection from %s: %s", connection.peer[0], error)
                connection.send(wire.error(PgError("08P01", str(error)), severity="FATAL"))
        except MemoryError:
            self.statistics.closed["memory"] += 1
            text = "the memory for messages of clients is exhausted"
            self._log.warning("closing the connection from %s: %s", connection.peer[0], text)
            connection.send(wire.error(PgError("53200", text), severity="FATAL"))
        except OSError as error:
            self.statistics.closed["handshake"] += 1
            self._log.warning("closing the connection from %s: TLS handshake failed (%s)", connection.peer[0], error)
            connection.abort()
            return
        except asyncio.CancelledError:
            if not connection.is_lost:  # the credential is not valid any more
                self.statistics.closed["credentials"] += 1
                connection.send(
                    wire.error(PgError("28000", "the credential is no longer valid"), severity="FATAL")
                )  # fmt: skip
                connection.close()
            raise
        except Exception:
            log.exception("a session failed")
            self.statistics.closed["failed"] += 1
            connection.send(wire.error(PgError("XX000", "internal error"), severity="FATAL"))
        connection.close()

    async def _serve(self, connection: Connection) -> None:
        found = await opened(connection, self)
        if isinstance(found, Cancel):
            await self._cancel(found)
        if not isinstance(found, Opened):
            return
        is_counted = take_connection(self, found.principal)
        try:
            await self._session(connection, found)
        finally:
            if is_counted:
                self.authorizer.quotas.for_key(found.principal.key_id).leave_connection()

    async def _session(self, connection: Connection, found: Opened) -> None:
        connection.deadline = 0.0
        connection.is_authenticated = True
        self.authorizer.cancel_on_revocation(found.principal, cast("asyncio.Future[Any]", connection.task))
        pid, secret = self._new_pid(), secrets.token_bytes(_SECRET_BYTES)
        session = Session(connection, self, found, self.sessions.open(found.principal), pid)
        for name, value in found.options.items():
            try:
                session.variables.set_at_start(name, value)
            except PgError as error:
                raise FatalError(error.sqlstate, error.message, hint=error.hint) from None
        session.apply()
        self._sessions[connection] = session
        self._keys[pid] = secret, session
        try:
            connection.send(wire.AUTHENTICATED)
            for shown, value in session.variables.reported():
                connection.send(wire.parameter_status(shown, value))
            connection.send(wire.key_data(pid, secret))
            connection.send(wire.ready(b"I"))
            connection.flush()
            await session.run()
        finally:
            del self._keys[pid]
            self._sessions.pop(connection, None)

    def _new_pid(self) -> int:
        while True:
            chance = secrets.randbelow(_MAX_PID) + 1
            pid = chance if self._cancels is None else self._cancels.number(chance)
            if pid and pid not in self._keys:
                return pid

    async def _cancel(self, given: Cancel) -> None:
        """Cancel the statement of a session, if the key is right. The client gets no answer either way."""
        if not self.cancel(given.pid, given.secret) and self._cancels is not None:
            await self._cancels.pass_on(given.pid, given.secret)

    def cancel(self, pid: int, given: bytes) -> bool:
        """Cancel the statement of a session here, if the secret is right; False if the session is none of these."""
        if pid not in self._keys:
            return False
        secret, session = self._keys[pid]
        if secrets.compare_digest(secret, given):
            self.statistics.canceled += 1
            session.cancel()
        return True
