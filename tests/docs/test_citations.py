"""References from code and pages to documents: each names a section that exists, and none a document that does not."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CITED = re.compile(r"(?:docs/contract\.md|\[contract\]\(contract\.md\)),?((?:(?: and| to)? \d+(?:\.\d+)?)+)")
ABSENT = re.compile(r"\bSPEC\b|\b[\w-]+-facts\.md|\bdesign\.md|\bstyle\.md|(?<![/(\w-])contract\.md")
OUR_OWN = ("docs/contract.md", "mkdocs.yml", "CHANGELOG.md", "tests/docs/test_citations.py")


def _texts() -> dict[str, str]:
    names = subprocess.run(
        ["git", "ls-files", "*.py", "*.pyi", "*.md", "*.proto", "*.toml", "*.yml", "Makefile", ":!sdk/generated"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    return {name: (ROOT / name).read_text() for name in names if name not in OUR_OWN and (ROOT / name).exists()}


def test_cited_sections_of_the_contract_exist() -> None:
    contract = (ROOT / "docs/contract.md").read_text()
    sections = set(re.findall(r"^#{2,3} (\d+(?:\.\d+)?)", contract, re.MULTILINE))
    cited = [
        (name, number)
        for name, text in _texts().items()
        for found in CITED.finditer(text)
        for number in re.findall(r"\d+(?:\.\d+)?", found[1])
    ]
    assert len(cited) > 70
    assert not [(name, number) for name, number in cited if number not in sections]


def test_sections_of_the_contract_are_numbered_in_order() -> None:
    contract = (ROOT / "docs/contract.md").read_text()
    found = [tuple(map(int, n.split("."))) for n in re.findall(r"^#{2,3} (\d+(?:\.\d+)?)\.? ", contract, re.MULTILINE)]
    assert found == sorted(set(found))
    referred = re.findall(r"\((\d+\.\d+)\)|\bsee (\d+\.\d+)", contract)
    assert {tuple(map(int, (inside or after).split("."))) for inside, after in referred} <= set(found)


def test_no_absent_document_is_cited() -> None:
    absent = [(name, found[0]) for name, text in _texts().items() for found in ABSENT.finditer(text)]
    assert not absent, absent


@pytest.mark.parametrize("page", ["architecture.md", "contributing.md", "guarantees.md"])
def test_files_that_a_page_names_exist(page: str) -> None:
    """A page names a file by the end of its path, such as `engine/log.py`."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    ends = {path[start:] for path in listed for start in _starts(path)}
    named = re.findall(r"`([\w/]+\.(?:py|ts|go|proto|sh))`", (ROOT / "docs" / page).read_text())
    assert len(named) > 20
    assert not set(named) - ends


def _starts(path: str) -> list[int]:
    return [0, *(found.end() for found in re.finditer("/", path))]
