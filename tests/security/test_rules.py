"""The access rules as a whole: none is missing or too weak, and the page lists them all."""

import re
from pathlib import Path

from protocols.conftest import RPCS

from topics_kafka.registry import APIS
from topics_service.api.access.auth import Scope
from topics_service.api.access.authorizer import PROBES, RULES

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
SCOPES = {
    "read": {Scope.READ},
    "write": {Scope.WRITE},
    "read and write": {Scope.READ, Scope.WRITE},
    "delete": {Scope.DELETE},
    "admin": {Scope.ADMIN},
}


def test_every_rpc_has_a_rule_and_no_other_has() -> None:
    ours = {name for name in RULES if name.startswith("topics.v1.")}
    assert ours == {rpc.full_name for rpc in RPCS}


def test_only_probes_take_no_scope() -> None:
    free = {name for name, rule in RULES.items() if not rule.scopes and name.startswith("topics.v1.")}
    statements = {"topics.v1.SqlService.Execute", "topics.v1.SqlService.Subscribe"}
    assert free == PROBES | statements, "each statement has capabilities that it needs"
    early = {3, 10, 17, 18, 36, 60, 75}  # Metadata, FindCoordinator, SASL, ApiVersions, cluster, topics and partitions
    assert {key for key, api in APIS.items() if not api.rule.scopes} == early


def test_what_names_a_topic_router_or_group_is_checked_for_its_prefix() -> None:
    """A request with such a field has a rule that names it; others check the names in their bodies themselves.

    So do those of SQL, to which a topic may be given by its alias.
    """
    for rpc in RPCS:
        if rpc.containing_service.name == "SqlService":
            continue
        fields = {"topic", "router", "group"} & set(rpc.input_type.fields_by_name)
        if fields and not rpc.name.startswith("List"):
            assert RULES[rpc.full_name].field in fields, rpc.full_name


def test_what_is_about_every_topic_takes_a_key_of_every_topic() -> None:
    assert {name.rpartition(".")[2] for name, rule in RULES.items() if rule.whole} == {
        "CreateCheckpoint",
        "ReleaseCheckpoint",
        "MoveShard",
        "DrainNode",
        "SetShardZone",
    }


def test_the_page_says_the_same() -> None:
    section = PAGE.read_text().partition("## Scopes of calls")[2].partition("\n## ")[0]
    rows = {cells[1].strip(): cells[3] for line in section.splitlines() if len(cells := line.split("|")) > 3}
    for scope, needs in SCOPES.items():
        told = set(re.findall(r"`([\w.]+)`", rows[scope]))
        found = {_told(name) for name, rule in RULES.items() if rule.scopes == needs and "." in name}
        assert told == found, scope


def _told(name: str) -> str:
    """The name on the page: with the service where others have a call of the same name."""
    _, service, call = name.rsplit(".", 2)
    return f"{service}.{call}" if service == "SqlService" else call
