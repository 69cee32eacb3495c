"""The Kafka clients that the suites run with: how each is started and what it can't do, from its own documentation."""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from support.kafka_clients import Client
from support.missing import without

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests/kafka/clients"
BUILD = ROOT / "build/kafka-clients"
EVERY_CODEC = ("none", "gzip", "snappy", "lz4", "zstd")
SETUP = "`make build/kafka-clients/.built`"


@dataclass(frozen=True)
class Kind:
    """A client. `lacks` are the commands and abilities that it does not have."""

    name: str
    argv: tuple[str, ...]
    needs: tuple[Path | str, ...] = ()
    """Programs (text) and built files (paths) without which it can't be run."""
    codecs: tuple[str, ...] = EVERY_CODEC
    protocols: tuple[str, ...] = ("range",)
    lacks: frozenset[str] = frozenset()

    def missing(self) -> str:
        """Why it can't be run here, if so."""
        for need in self.needs:
            if isinstance(need, str) and shutil.which(need) is None:
                return f"{need} is not installed"
            if isinstance(need, Path) and not need.exists():
                return f"{self.name} is not built: {SETUP}"
        return ""

    def start(self, connection: Mapping[str, str], directory: Path, mark: str = "") -> Client:
        """A process of it, with its log in the directory."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        return Client(self.name, self.argv, connection, directory / f"{self.name}{mark}.log", env)


def _python(program: str) -> tuple[str, ...]:
    return sys.executable, str(PROGRAMS / "python" / program)


_JAVA = BUILD / "java"
_NODE = PROGRAMS / "node"
_HEAP = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

KINDS = {
    kind.name: kind
    for kind in (
        Kind("confluent-kafka", _python("confluent.py"), protocols=("range", "cooperative", "consumer")),
        Kind(
            "kafka-python",
            _python("kafka_python.py"),
            codecs=("none", "gzip"),  # the others need libraries of their own
            protocols=("range", "cooperative"),
            lacks=frozenset({"null header", "null key and value", "at max", "describe_configs unknown", "login error"}),
        ),
        Kind(
            "aiokafka",
            _python("aio.py"),
            protocols=("range", "sticky"),
            lacks=frozenset(
                {
                    "commit",
                    "delete_group",
                    "describe unknown",  # its Metadata asks for creation
                    "describe_group",
                    "login error",  # it says that it can't connect
                    "null header",
                    "null key and value",
                    "at max",
                }
            ),
        ),
        Kind(
            "kcat",
            _python("kcat.py"),
            needs=("kcat",),
            lacks=frozenset(
                {
                    "admin",
                    "binary header",
                    "describe unknown",
                    "null key and value",
                    "places",
                    "records of a group",
                    "static",
                    "timestamp",
                    "transaction",
                    "at max",
                    "many",
                    "member",
                }
            ),
        ),
        Kind(
            "kafkajs",
            ("node", str(_NODE / "kafkajs.mjs")),
            needs=("node", _NODE / "node_modules"),
            codecs=("none", "gzip"),
            lacks=frozenset({"member", "null header", "at max", "out of range", "static", "at nothing"}),
        ),
        Kind(
            "platformatic",
            ("node", str(_NODE / "platformatic.mjs")),
            needs=("node", _NODE / "node_modules"),
            codecs=("none", "gzip", "snappy", "lz4"),  # zstd needs Node 22
            protocols=("range", "consumer"),
            lacks=frozenset({"member", "null header", "out of range"}),
        ),
        Kind(
            "java",
            ("java", *_HEAP, "-cp", f"{_JAVA / 'classes'}:{_JAVA / 'lib'}/*", "Main"),
            needs=("java", _JAVA / ".built"),
            protocols=("range", "cooperative", "consumer"),
        ),
        Kind(
            "franz-go",
            (str(BUILD / "go/suite"),),
            needs=(BUILD / "go/suite",),
            protocols=("range", "cooperative", "consumer"),
            lacks=frozenset({"at nothing"}),
        ),
    )
}


def able(ability: str) -> list[str]:
    """The clients that don't lack it."""
    return [name for name, kind in KINDS.items() if ability not in kind.lacks]


WITH_ADMIN = able("admin")
"""The clients that can create topics."""


_TOOLS = BUILD / "tools"
TOOLS = Kind(
    "Kafka's tools",
    ("java", *_HEAP, "-cp", f"{_TOOLS / 'classes'}:{_TOOLS / 'lib'}/*", "Tools"),
    needs=("java", _TOOLS / "classes/Tools.class"),
)
"""Kafka's command line tools in one process."""


def runnable(kind: Kind) -> Kind:
    """The kind itself; skips the test if it can't be run here (TOPICS_ALL_CLIENTS=1: fails it)."""
    if reason := kind.missing():
        without(reason)
    return kind


def usable(name: str) -> Kind:
    """The client of that name; skips the test if it can't be run here (TOPICS_ALL_CLIENTS=1: fails it)."""
    return runnable(KINDS[name])
