"""Documentation that can be checked is: settings, error codes, routes of the table, links between pages."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from topics_proto.v1 import errors_pb2
from topics_server.setting_kinds import shown_default
from topics_server.settings import Settings
from topics_service.engine.errors import Reason
from topics_service.engine.model import TopicConfig

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])


def _rows(page: str) -> list[list[str]]:
    """The cells of every table row of a page."""
    lines = (ROOT / "docs" / page).read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]


def test_every_setting_is_documented_with_its_default_and_meaning() -> None:
    documented = {row[0].strip("`"): row[1:] for row in _rows("configuration.md") if row[0].startswith("`TOPICS_")}
    expected = {}
    for setting in fields(Settings):
        default = shown_default(setting)
        default = default if default in ("", "off") else f"`{default}`"
        expected[setting.metadata["env"]] = [default, setting.metadata["help"]]
    assert documented == expected


def test_every_topic_config_field_is_documented() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text().partition("## A topic's configuration")[2]
    documented = set(re.findall(r"^\| (.*?) \|", text, re.MULTILINE))
    names = {name for cell in documented for name in re.findall(r"`(\w+)`", cell)}
    assert names == set(TopicConfig.__struct_fields__)


def test_every_error_reason_is_documented_with_its_statuses() -> None:
    documented = {row[0].strip("`"): (row[1], row[2], row[3] == "yes") for row in _rows("errors.md")}
    expected = {
        reason.code: (str(reason.value.http_status), reason.value.grpc_status, reason.value.retryable)
        for reason in Reason
    }
    assert documented == expected


def test_the_proto_registry_says_the_same_as_the_engine() -> None:
    rules = [value.GetOptions().Extensions[errors_pb2.rule] for value in errors_pb2.ErrorReason.DESCRIPTOR.values[1:]]
    registry = {rule.code: (rule.http_status, rule.grpc_status, rule.retryable) for rule in rules}
    for reason in Reason:
        spec = reason.value
        assert registry[spec.code] == (spec.http_status, spec.grpc_status, spec.retryable)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_named_files_exist(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
    for named in re.findall(r"`((?:tests|service|gateway_http|docs|proto|sdk)/[\w./-]+)`", text):
        assert (ROOT / named).exists(), f"{page.name} names {named}"
    for file, test in re.findall(r"`(tests/[\w./-]+\.py)::(\w+)`", text):
        assert f"def {test}(" in (ROOT / file).read_text(), f"{page.name} names {file}::{test}"


@pytest.mark.parametrize(("page", "rows"), [("guarantees.md", 30), ("bugs.md", 25)])
def test_every_promise_and_every_bug_names_its_test(page: str, rows: int) -> None:
    lines = (ROOT / "docs" / page).read_text().splitlines()
    heads = [i for i, line in enumerate(lines) if re.match(r"\|.*\| (?:proof|guarded by) \|$", line)]
    named = 0
    for head in heads:
        for line in lines[head + 2 :]:
            if not line.startswith("|"):
                break
            assert "`tests/" in line.rstrip("| ").rpartition("|")[2], f"{page} proves nothing of: {line}"
            named += 1
    assert named >= rows
