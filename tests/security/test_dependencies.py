"""What the server is built of is what was chosen: each package, direct or not, in one version.

Whether those have known flaws only a database of advisories can say, and none can be had offline: see docs/security.md.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
BUILD_TOOLS = {"pip", "setuptools", "wheel"}  # of the environment itself


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    """constraints.txt: each line is NAME==VERSION."""
    lines = [line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    found = [re.fullmatch(r"([A-Za-z0-9._-]+)==([^;\s]+)", line) for line in lines if line]
    assert all(found), [line for line, match in zip(filter(None, lines), found, strict=True) if match is None]
    pairs = [(plain(match[1]), match[2]) for match in found if match is not None]
    assert len(dict(pairs)) == len(pairs), "a package is pinned twice"
    return dict(pairs)


def closure(requirements: Iterable[str], extras: Iterable[str] = ()) -> Iterator[str]:
    """The packages that these need here, and what those need."""
    for text in requirements:
        need = Requirement(text)
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield plain(need.name)
            yield from closure(distribution(need.name).requires or (), need.extras)


def test_what_is_installed_is_what_is_pinned() -> None:
    ours = plain(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"])
    installed = {plain(each.metadata["Name"]): each.version for each in distributions()}
    others = {name: version for name, version in installed.items() if name not in BUILD_TOOLS | {ours}}
    assert {name: (version, pins().get(name)) for name, version in others.items() if pins().get(name) != version} == {}


def test_all_that_the_server_needs_is_pinned() -> None:
    """And is there, so that the test above has seen it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    direct = [*project["dependencies"], *project["optional-dependencies"]["server"]]
    needed = set(closure(direct))
    assert len(needed) > len(direct)
    assert needed <= pins().keys()
