"""ACLs, client quotas and SCRAM credentials, as the keys, users and settings of the server give them: read-only."""

from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from topics_kafka.handlers import Context, HandlerTable, ServerContext
from topics_kafka.handlers.operations import Operation, ResourceType, allowed
from topics_kafka.protocol import ApiKey, ErrorCode, Message
from topics_service.api.access import scram
from topics_service.api.access.auth import Principal
from topics_service.api.access.users import UserRow

_CHANGE_ACCESS: Final = "access is given by the keys and users of the server"
_CHANGE_QUOTAS: Final = "limits are settings of the server and of its keys"
_CHANGE_USERS: Final = "users are made by CREATE USER and settings: other protocols need more than a salted password"
_MECHANISMS: Final = (1, 2)  # SCRAM-SHA-256, SCRAM-SHA-512


class PatternType(IntEnum):
    """Kafka's types of patterns of resource names, and of filters for them."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


_ANY_PERMISSION: Final = 1
_ALLOW: Final = 3
_ANYWHERE: Final = "*"
_CLUSTER_NAME: Final = "kafka-cluster"


class Acl(NamedTuple):
    """One permission, as tools show it."""

    resource: tuple[ResourceType, str, PatternType]
    principal: str
    operation: Operation


def handlers(server: ServerContext) -> HandlerTable:
    """The APIs of access."""
    access = AccessAdminHandlers(server)
    return {
        ApiKey.DESCRIBE_ACLS: access.describe_acls,
        ApiKey.CREATE_ACLS: access.create_acls,
        ApiKey.DELETE_ACLS: access.delete_acls,
        ApiKey.DESCRIBE_CLIENT_QUOTAS: access.describe_quotas,
        ApiKey.ALTER_CLIENT_QUOTAS: access.alter_quotas,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: access.describe_credentials,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: access.alter_credentials,
    }


class AccessAdminHandlers:
    """Handlers of the APIs about access."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    # --- ACLs

    def describe_acls(self, context: Context, version: int, request: Message) -> Message:
        """Show the scopes and prefixes of keys and users as ACLs; SECURITY_DISABLED without authentication."""
        refusal = self._refusal(context, ApiKey.DESCRIBE_ACLS)
        if refusal:
            return {**refusal, "resources": []}
        resources: dict[tuple[ResourceType, str, PatternType], list[Message]] = {}
        for acl in self._acls():
            if _matches(acl, request):
                resources.setdefault(acl.resource, []).append(
                    {
                        "principal": acl.principal,
                        "host": _ANYWHERE,
                        "operation": acl.operation,
                        "permission_type": _ALLOW,
                    }
                )
        found = [
            {"resource_type": kind, "resource_name": name, "pattern_type": pattern, "acls": acls}
            for (kind, name, pattern), acls in resources.items()
        ]
        return {"error_code": ErrorCode.NONE, "error_message": None, "resources": found}

    def _acls(self) -> Iterator[Acl]:
        authorizer = self._server.authorizer
        for principal in authorizer.known():
            name = f"User:{principal.key_id.removeprefix('user:')}"
            for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER):
                for resource in _resources(kind, principal):
                    for operation in allowed(kind, principal.scopes):
                        yield Acl(resource, name, operation)

    def create_acls(self, context: Context, version: int, request: Message) -> Message:
        """Refuse each ACL."""
        refusal = self._refusal(context, ApiKey.CREATE_ACLS) or _refused(_CHANGE_ACCESS)
        return {"results": [refusal for _ in request["creations"]]}

    def delete_acls(self, context: Context, version: int, request: Message) -> Message:
        """Refuse each filter."""
        refusal = self._refusal(context, ApiKey.DELETE_ACLS) or _refused(_CHANGE_ACCESS)
        return {"filter_results": [{**refusal, "matching_acls": []} for _ in request["filters"]]}

    def _refusal(self, context: Context, api: ApiKey) -> Message | None:
        if not context.is_allowed(api):
            return _refused("the API key may not see or change access", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if self._server.authorizer.open:
            return _refused("the server has no authentication", ErrorCode.SECURITY_DISABLED)
        return None

    # --- quotas

    def describe_quotas(self, context: Context, version: int, request: Message) -> Message:
        """Show no quotas: limits are settings."""
        if not context.is_allowed(ApiKey.DESCRIBE_CLIENT_QUOTAS):
            refusal = _refused("the API key may not see quotas", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            return {**refusal, "entries": None}
        return {"error_code": ErrorCode.NONE, "error_message": None, "entries": []}

    def alter_quotas(self, context: Context, version: int, request: Message) -> Message:
        """Refuse each quota."""
        refusal = _refused(_CHANGE_QUOTAS)
        if not context.is_allowed(ApiKey.ALTER_CLIENT_QUOTAS):
            refusal = _refused("the API key may not change quotas", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return {"entries": [{**refusal, "entity": entry["entity"]} for entry in request["entries"]]}

    # --- SCRAM credentials

    def describe_credentials(self, context: Context, version: int, request: Message) -> Message:
        """Describe the credentials of users: all have one of either mechanism, and none is ever shown."""
        if not context.is_allowed(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS):
            refusal = _refused("the API key may not see users", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            return {**refusal, "results": []}
        users = self._server.authorizer.users
        if not request["users"]:
            results = [_credentials(row) for row in users.rows()]
        else:
            results = []
            for name in dict.fromkeys(entry["name"] for entry in request["users"]):
                found = users.find(name)
                missing = _refused("there is no such user", ErrorCode.RESOURCE_NOT_FOUND)
                results.append(
                    {"user": name, **missing, "credential_infos": []} if found is None else _credentials(found[0])
                )
        return {"error_code": ErrorCode.NONE, "error_message": None, "results": results}

    def alter_credentials(self, context: Context, version: int, request: Message) -> Message:
        """Refuse each change."""
        refusal = _refused(_CHANGE_USERS)
        if not context.is_allowed(ApiKey.ALTER_USER_SCRAM_CREDENTIALS):
            refusal = _refused("the API key may not change users", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        names = dict.fromkeys(entry["name"] for entry in (*request["deletions"], *request["upsertions"]))
        return {"results": [{"user": name, **refusal} for name in names]}


def _refused(message: str, code: ErrorCode = ErrorCode.INVALID_REQUEST) -> Message:
    return {"error_code": code, "error_message": message}


def _credentials(row: UserRow) -> Message:
    verifiers = row.verifier.scram_sha_256, row.verifier.scram_sha_512
    return {
        "user": row.name,
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "credential_infos": [
            {"mechanism": mechanism, "iterations": scram.iterations(verifier)}
            for mechanism, verifier in zip(_MECHANISMS, verifiers, strict=True)
        ],
    }


def _resources(kind: ResourceType, principal: Principal) -> Iterator[tuple[ResourceType, str, PatternType]]:
    if kind is ResourceType.CLUSTER:
        yield kind, _CLUSTER_NAME, PatternType.LITERAL
    elif principal.prefixes is None:
        yield kind, _ANYWHERE, PatternType.LITERAL
    else:
        for prefix in principal.prefixes:
            yield kind, prefix, PatternType.PREFIXED


def _matches(acl: Acl, request: Message) -> bool:
    """Kafka's rule of AclBindingFilter."""
    kind, name, pattern = acl.resource
    return (
        request["resource_type_filter"] in (ResourceType.ANY, kind)
        and _matches_name(name, pattern, request["resource_name_filter"], request["pattern_type_filter"])
        and request["principal_filter"] in (None, acl.principal)
        and request["host_filter"] in (None, _ANYWHERE)
        and request["operation"] in (Operation.ANY, acl.operation)
        and request["permission_type"] in (_ANY_PERMISSION, _ALLOW)
    )


def _matches_name(name: str, pattern: PatternType, wanted: str | None, how: int) -> bool:
    if how not in (PatternType.ANY, PatternType.MATCH, pattern):
        return False
    if wanted is None or wanted == name:
        return True
    if how != PatternType.MATCH:
        return False
    return wanted.startswith(name) if pattern is PatternType.PREFIXED else name == _ANYWHERE
