"""A collector of traces, and a server that sends it its spans."""

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

sys.path.append(str(Path(__file__).parents[1]))
from support.collector import Collector, tracing
from support.server import ServerProcess
from support.waiting import poll

SECRET = "sekret-of-the-tracing-tests"
KEYS = {"authorization": f"Bearer {SECRET}"}


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture(scope="session")
def traced(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with keys and all protocols, that traces."""
    env = tracing(
        collector.endpoint,
        OTEL_EXPORTER_OTLP_HEADERS="api-key=collector-sekret",
        OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=test",
        TOPICS_API_KEYS=SECRET,
        TOPICS_LOG_FORMAT="json",
    )
    with ServerProcess(tmp_path_factory.mktemp("traced"), env=env, kafka=True) as server:
        poll(lambda: _ready(server), 20, "readiness")
        yield server


def _ready(server: ServerProcess) -> bool:
    return httpx.get(f"{server.base}/v0/ready", headers=KEYS, trust_env=False, verify=False).status_code == 200


@pytest.fixture(scope="session")
def secret() -> str:
    """The API key of `traced`."""
    return SECRET


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with default settings and a Kafka port."""
    with ServerProcess(tmp_path_factory.mktemp("plain"), kafka=True) as server:
        yield server
