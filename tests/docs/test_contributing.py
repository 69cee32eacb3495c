"""The checklists of docs/contributing.md: each names files that exist, and those of its example are all of them."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/contributing.md").read_text()
SOURCES = (
    "service", "gateway_http", "gateway_kafka", "gateway_postgres", "sql", "spark_connector", "sdk/python",
    "proto/topics", "docs_site",
)  # fmt: skip
NO_KAFKA_API = (":!gateway_kafka/topics_kafka/handlers", ":!gateway_kafka/topics_kafka/registry.py")
KAFKA_BEYOND_HANDLERS = {"API_VERSIONS", "FETCH", "PRODUCE"} | {
    "ALTER_CONFIGS", "DELETE_TOPICS", "DESCRIBE_CONFIGS", "METADATA",
}  # fmt: skip
"""Kafka APIs that other modules name: for the order of requests on a connection, and for the given names of spans."""
MADE = (
    "sdk/python/topics_client/sync/",
    "service/topics_service/engine/reasons.py",
    "gateway_kafka/topics_kafka/protocol/schema.json",
)


def _checklist(title: str) -> tuple[str, set[str]]:
    """The example of a checklist, and the files that it names."""
    section = PAGE.partition(f"### {title}\n")[2].partition("\n### ")[0]
    example = re.search(r"^Example: `(\w+)`", section, re.MULTILINE)
    assert example is not None, title
    return example[1], set(re.findall(r"`([\w.]+/[\w./]+)`", section))


def _mentioning(name: str) -> set[str]:
    """The written source files that contain a name, in any case."""
    found = subprocess.run(
        ["git", "grep", "-ilwE", f"\\w*{name}\\w*", "--", *SOURCES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {path for path in found.stdout.split() if not path.startswith(MADE)}


def _rows(title: str) -> list[str]:
    """The files of the table of a checklist: those that every such change touches."""
    section = PAGE.partition(f"### {title}\n")[2].partition("\n### ")[0]
    return re.findall(r"^\| `([\w./]+)` \|", section, re.MULTILINE)


@pytest.mark.parametrize(
    ("title", "max_files"), [("A field of a topic's configuration", 5), ("A gap reason", 5), ("An error code", 3)]
)
def test_a_change_touches_few_files(title: str, max_files: int) -> None:
    assert 0 < len(_rows(title)) <= max_files


@pytest.mark.parametrize(
    "title", ["A field of a topic's configuration", "A gap reason", "An error code", "A call", "A setting"]
)
def test_a_checklist_names_every_file_that_its_example_touches(title: str) -> None:
    example, listed = _checklist(title)
    assert {path for path in listed if not path.startswith("docs/")} == _mentioning(example)
    pages = [path for path in listed if path.startswith("docs/")]
    assert pages
    for page in pages:
        assert example in (ROOT / page).read_text().lower(), page


def test_a_kafka_api_is_a_key_a_row_and_a_handler() -> None:
    example, listed = _checklist("A Kafka API")
    assert len(listed) <= 4
    assert {path for path in listed if not path.startswith("docs/")} == _mentioning(example)
    assert example.replace("_", "").lower() in (ROOT / "docs/kafka.md").read_text().lower()
    found = subprocess.run(
        ["git", "grep", "-ohE", r"ApiKey\.[A-Z_]+", "--", "service", "gateway_kafka/topics_kafka", *NO_KAFKA_API],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert {name.removeprefix("ApiKey.") for name in found.stdout.split()} == KAFKA_BEYOND_HANDLERS


def test_the_checklist_of_a_command() -> None:
    example, listed = _checklist("A command")
    for path in listed:
        assert example in (ROOT / path).read_text(), path


def test_every_folder_of_tests_is_named() -> None:
    folders = {path.parent.relative_to(ROOT).parts[1] for path in (ROOT / "tests").glob("*/**/test_*.py")}
    named = set(re.findall(r"`tests/(\w+)", PAGE))
    assert folders - {"soak"} <= named


def test_the_levels_are_those_of_the_linter() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    layers = re.search(r'type = "layers"\nlayers = \[\n(.*?)\n\]', text, re.DOTALL)
    assert layers is not None
    expected = [set(re.findall(r"\w+", line)) for line in layers[1].splitlines()]
    rows = re.findall(r"^\| \d \| (.*?) \|", PAGE, re.MULTILINE)
    assert [set(re.findall(r"`(\w+)`", row)) for row in rows] == expected
