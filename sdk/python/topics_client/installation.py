"""Installation details, and the commands that install missing extras."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

DISTRIBUTION: Final = "topics-engine"
"""The name of the distribution in pyproject.toml."""

_OURS: Final = frozenset(
    {
        "pyspark_topics",
        "topics_backup",
        "topics_cli",
        "topics_client",
        "topics_cluster",
        "topics_gateway",
        "topics_kafka",
        "topics_lakehouse",
        "topics_net",
        "topics_postgres",
        "topics_proto",
        "topics_server",
        "topics_service",
        "topics_shards",
        "topics_sql",
    }
)


class MissingError(ModuleNotFoundError):
    """A module is missing. The message states the remedy; `name` is the module's name."""


@contextmanager
def needs(
    extra: str, text: str = "the extra [{extra}] is not installed ({name} is missing): {install}"
) -> Iterator[None]:
    """Guard imports of packages that only `extra` installs.

    Raises MissingError with `text` for a module of another package; `{install}` in it is the command that installs the
    extra. A missing module of topics itself is reported as an incomplete installation. Errors for standard library
    modules are not changed.
    """
    try:
        yield
    except MissingError:
        raise
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or package in sys.stdlib_module_names:
            raise
        if package in _OURS:
            what = f"{error.name} is missing, which is a part of {DISTRIBUTION} itself: the installation is not whole"
        else:
            what = text.format(extra=extra, name=error.name, install=install_line(extra))
        raise MissingError(what, name=error.name) from error


def require_hooks(owner: object, *names: str) -> None:
    """Check that `owner`, a class or object of a library, has the private members `names`, which our code overrides.

    A library may rename such a member in any release, and an override of the old name would then never be called.

    Raises ImportError for a missing member.
    """
    missing = [name for name in names if not hasattr(owner, name)]
    if missing:
        kind = owner if isinstance(owner, type) else type(owner)
        library = kind.__module__.partition(".")[0]
        members = " and ".join(f"{kind.__qualname__}.{name}" for name in missing)
        raise ImportError(f"this version of {library} has no {members}: install the version that {DISTRIBUTION} pins")


def install_line(extra: str) -> str:
    """The command that adds an extra to this installation, from its source: a clone, a wheel file or an index.

    Paths below the working directory are relative to it. WHEEL stands for a wheel file that is unknown or missing.
    """
    import shlex

    return shlex.join([_short(sys.executable or "python3"), "-m", "pip", "install", *_wanted(f"[{extra}]")])


def _wanted(extra: str) -> list[str]:
    """Return pip's requirement arguments, with the `[extra]`."""
    import json
    import os
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        text = distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:  # it lies in a folder of the path, and is not installed
        return [f"WHEEL{extra}"]
    if text is None:
        return [f"{DISTRIBUTION}{extra}"]
    origin = json.loads(text)
    url = urlsplit(origin["url"])
    if url.scheme != "file":
        version_control = f"{origin['vcs_info']['vcs']}+" if "vcs_info" in origin else ""
        return [f"{DISTRIBUTION}{extra} @ {version_control}{origin['url']}"]
    path = url2pathname(url.path)
    if not os.path.exists(path):
        return [f"WHEEL{extra}"]
    return [*(["-e"] if origin.get("dir_info", {}).get("editable") else []), f"{_short(path)}{extra}"]


def _short(path: str) -> str:
    """A path for the command line: relative if it is below the working directory."""
    import os

    near = os.path.relpath(path)
    if near.startswith(os.pardir):
        return path
    return near if near == os.curdir or os.sep in near else os.path.join(os.curdir, near)
