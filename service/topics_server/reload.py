"""SIGHUP: reload keys, users and certificates from their files, and reopen the audit log."""

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import replace

from topics_client.units import counted
from topics_net import background
from topics_server.audit import AuditFile
from topics_server.bulk_readers import BulkReaders
from topics_server.keys import from_file
from topics_server.secret_files import SecretsError
from topics_server.settings import Settings
from topics_server.tls import ServerCertificates, TlsError
from topics_server.users import from_file as users_from_file
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.audit import AuditLog

log = logging.getLogger("topics.server")


class Readers:
    """The bulk readers. They get the settings when they start, so new settings need new processes."""

    def __init__(self, settings: Settings) -> None:
        self._readers = BulkReaders(settings)
        self._wanted = settings
        self._changing = asyncio.Lock()
        self._stopping = False
        self._renewals: set[asyncio.Task[None]] = set()
        self._started = False

    def addresses(self) -> Sequence[tuple[str, int]]:
        """See BulkReaders, as for the other methods."""
        return self._readers.addresses()

    def start(self) -> None:
        self._started = True
        self._readers.start()

    def renew(self, settings: Settings) -> None:
        """End the running ones, after their calls, and start others; without waiting."""
        self._wanted = settings
        if not self._started:
            self._readers = BulkReaders(settings)
            return
        task = background.start(self._renew(settings))
        self._renewals.add(task)
        task.add_done_callback(self._renewals.discard)

    async def stop(self) -> None:
        self._stopping = True
        async with self._changing:
            await self._readers.stop()

    async def _renew(self, settings: Settings) -> None:
        async with self._changing:
            if settings is not self._wanted:  # a later call has others
                return
            await self._readers.stop()
            if not self._stopping:
                self._readers = BulkReaders(settings)
                self._readers.start()


def is_useful(settings: Settings) -> bool:
    """True if there is anything to reload."""
    kafka = settings.kafka_port and settings.kafka_tls_cert
    secrets = settings.api_keys_file or settings.sql_users_file or settings.jwt_public_key_file
    return bool(secrets or settings.cluster_secret_file or settings.audit_log or settings.tls_cert_file or kafka)


class SighupHandler:
    """Takes SIGHUP from early on to the end of the process, which it would end while no loop runs. For the main thread.

    However many come, a reload that has not begun yet is for all of them.
    """

    def __init__(self) -> None:
        self._came = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reload: Callable[[], None] = lambda: None
        signal.signal(signal.SIGHUP, self._note)

    def follow(self, reload: Callable[[], None]) -> None:
        """From now on call that, on the running loop; also for earlier ones."""
        self._loop, self._reload = asyncio.get_running_loop(), reload
        if self._came:
            self._run()

    def leave(self) -> None:
        """The loop ends; later ones are ignored."""
        self._loop = None
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _note(self, _signum: int, _frame: object) -> None:
        if not self._came:
            self._came = True
            if self._loop is not None:
                # Python runs a handler within whatever it interrupts: a request, often.
                self._loop.call_soon_threadsafe(self._run, context=Context())

    def _run(self) -> None:
        self._came = False
        self._reload()


class Reload:
    """Called on the event loop. An unreadable file keeps its old content in force, and the log says why."""

    def __init__(
        self,
        settings: Settings,
        authorizer: Authorizer,
        remove_sessions: Callable[[str], object],
        tls: ServerCertificates,
        readers: Readers,
        *,
        audit_file: AuditFile | None,
        audit_log: AuditLog | None,
    ) -> None:
        self._settings = settings
        self._authorizer = authorizer
        self._remove_sessions = remove_sessions
        self._tls = tls
        self._readers = readers
        self._audit_file = audit_file
        self._audit_log = audit_log
        self._users_wanted = 0
        self._users_task: asyncio.Task[None] | None = None

    def __call__(self) -> None:
        if self._audit_file is not None:
            self._audit_file.reopen()
        if self._settings.api_keys_file:
            self._reload_keys()
        if self._settings.sql_users_file:
            self._users_wanted += 1
            if self._users_task is None:
                self._users_task = background.start(self._reload_users())
        if self._settings.jwt_public_key_file:
            self._reload_token_key()
        if self._tls.common or self._tls.kafka:
            self._reload_certificates()

    def _reload_keys(self) -> None:
        try:
            keys = from_file(self._settings.api_keys_file)
        except SecretsError as error:
            log.error("SIGHUP: the API keys stay as they were: %s", error)
            self._audit("keys.reload", outcome="failed", reason=str(error))
            return
        old = self._settings.api_keys
        assert old is not None, "there is a file of keys"
        self._settings = replace(self._settings, api_keys=keys)
        gone = {principal.key_id for principal in old.principals - keys.principals}
        new = {principal.key_id for principal in keys.principals - old.principals}
        for key_id in gone:
            self._remove_sessions(key_id)
        self._authorizer.replace_keys(keys, keys.principals)
        self._authorizer.quotas.replace_limits(keys.limits)
        if self._settings.bulk_readers and (gone or new or keys.limits != old.limits):
            self._readers.renew(self._settings)
        log.info(
            "SIGHUP: %s, %d of them new, %d removed, %d changed",
            counted(len(keys), "API key"), len(new - gone), len(gone - new), len(new & gone),
        )  # fmt: skip
        self._audit(
            "keys.reload",
            outcome="done",
            keys=len(keys),
            added=sorted(new - gone),
            removed=sorted(gone - new),
            changed=sorted(new & gone),
        )

    async def _reload_users(self) -> None:
        """Read the users, again if more signals come meanwhile: their passwords take time, on a thread."""
        try:
            while self._users_wanted:
                self._users_wanted = 0
                await self._read_users()
        finally:
            self._users_task = None

    async def _read_users(self) -> None:
        old = self._settings.sql_users or ()
        try:
            users = await asyncio.to_thread(users_from_file, self._settings.sql_users_file, old)
        except SecretsError as error:
            log.error("SIGHUP: the users stay as they were: %s", error)
            self._audit("users.reload", outcome="failed", reason=str(error))
            return
        self._settings = replace(self._settings, sql_users=users)
        before, after = {row.name: row for row in old}, {row.name: row for row in users}
        added, removed = sorted(after.keys() - before.keys()), sorted(before.keys() - after.keys())
        changed = sorted(name for name in after.keys() & before.keys() if after[name] != before[name])
        for name in (*removed, *changed):
            self._remove_sessions(f"user:{name}")
        self._authorizer.users.replace_settings(users)
        if self._settings.bulk_readers and (added or removed or changed):
            self._readers.renew(self._settings)
        log.info(
            "SIGHUP: %s, %d of them new, %d removed, %d changed",
            counted(len(users), "user"), len(added), len(removed), len(changed),
        )  # fmt: skip
        self._audit("users.reload", outcome="done", users=len(users), added=added, removed=removed, changed=changed)

    def _reload_token_key(self) -> None:
        from topics_server.token_keys import from_file as token_key_from_file

        try:
            key = token_key_from_file(self._settings.jwt_public_key_file)
        except SecretsError as error:
            log.error("SIGHUP: the key of tokens stays as it was: %s", error)
            self._audit("token_key.reload", outcome="failed", reason=str(error))
            return
        changed = key != self._settings.jwt_secret
        if changed:
            self._settings = replace(self._settings, jwt_secret=key)
            tokens = self._settings.tokens()
            assert tokens is not None, "there is a key"
            self._authorizer.replace_tokens(tokens)
            if self._settings.bulk_readers:
                self._readers.renew(self._settings)
        log.info("SIGHUP: the key of tokens was read again and is %s", "another one" if changed else "the same")
        self._audit("token_key.reload", outcome="done", changed=changed)

    def _reload_certificates(self) -> None:
        try:
            changed = self._tls.reload()
        except TlsError as error:
            log.error("SIGHUP: the certificate stays as it was: %s", error)
            self._audit("tls.reload", outcome="failed", reason=str(error))
            return
        if changed and self._settings.bulk_readers:
            self._readers.renew(self._settings)
        log.info("SIGHUP: the certificate was read again and is %s", "another one" if changed else "the same")
        self._audit("tls.reload", outcome="done", changed=changed)

    def _audit(self, action: str, *, outcome: str, reason: str = "", **facts: object) -> None:
        if self._audit_log is not None:
            self._audit_log.write(action, facts, outcome=outcome, reason=reason)
