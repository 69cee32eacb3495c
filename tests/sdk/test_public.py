"""The package as its users see it: names, imports, types."""

import asyncio
import copy
import importlib
import inspect
import pickle
import subprocess
import sys
import textwrap
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

import topics_client
from topics_client import (
    AsyncTopicsClient,
    Gap,
    GapError,
    NewRecord,
    Record,
    TopicConfig,
    TopicsClient,
    TopicsError,
    errors,
    models,
)

_PUBLIC: list[str] = vars(topics_client)["__all__"]
_MODULES = ("address", "errors", "models", "retry", "sync.client", "sync.streams", "aio.client", "aio.streams")


def test_every_public_name_is_there_and_every_model_is_public() -> None:
    public = set(_PUBLIC)
    assert {name for name in public if getattr(topics_client, name, None) is None} == set()
    assert public == set(dir(topics_client)) & public
    for module in (errors, models):
        made_here = {
            name
            for name, value in vars(module).items()
            if inspect.isclass(value) and value.__module__ == module.__name__ and not name.startswith("_")
        }
        assert made_here <= public
    assert {"TopicsClient", "AsyncTopicsClient", "ReadStream", "WatchStream", "Retry", "Address", "Event"} <= public
    with pytest.raises(AttributeError):
        _ = getattr(topics_client, "nothing")  # noqa: B009  # mypy knows it is not there
    for name in _MODULES:
        assert importlib.import_module(f"topics_client.{name}").__doc__


def test_everything_public_says_what_it_is() -> None:
    for name in _PUBLIC:
        value = getattr(topics_client, name)
        if inspect.isclass(value):
            assert value.__doc__, name
            for method, function in vars(value).items():
                if inspect.isfunction(function) and not method.startswith("_"):
                    assert function.__doc__, f"{name}.{method}"
    for base in TopicsClient.__mro__[1:-1]:
        for method, function in vars(base).items():
            if inspect.isfunction(function) and not method.startswith("_"):
                assert function.__doc__, method


def test_both_clients_have_the_same_calls() -> None:
    def calls(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(value).parameters)
            for name, value in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    assert calls(TopicsClient) == calls(AsyncTopicsClient)
    for streams in (("ReadStream", "AsyncReadStream"), ("WatchStream", "AsyncWatchStream")):
        sync, asynchronous = (calls(getattr(topics_client, name)) for name in streams)
        assert sync == asynchronous


def test_to_import_it_loads_neither_grpc_nor_protobuf() -> None:
    program = """
    import sys, topics_client
    loaded = [name for name in sys.modules if name.partition(".")[0] in ("grpc", "google", "asyncio")]
    print(loaded, topics_client.TopicsClient.__name__, "grpc" in sys.modules)
    """
    found = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert found.stdout == "[] TopicsClient True\n"


def test_what_is_generated_is_what_the_generator_makes() -> None:
    generator = Path(topics_client.__file__).parents[1] / "generate_sync.py"
    done = subprocess.run([sys.executable, str(generator), "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_errors_and_models_can_be_copied_and_sent_to_other_processes() -> None:
    gap = Gap("t", 0, 1, 2, "cap", 2, 3, 4)
    lost = GapError(gap)
    for error in (lost, errors.ConflictError("topic_full", "text", {"a": "b"}, 7)):
        for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert type(twin) is type(error)
            assert (str(twin), twin.detail, twin.retry_after_ms) == (str(error), error.detail, error.retry_after_ms)
    assert pickle.loads(pickle.dumps(lost)).gap == gap
    record = Record("t", 1, 2, 3, b'{"a":1}', False, None, None, b"")
    assert pickle.loads(pickle.dumps(record)) == record
    assert issubclass(GapError, TopicsError)
    with pytest.raises(FrozenInstanceError):
        gap.reason = "ttl"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        TopicConfig().ttl_ms = 1  # type: ignore[misc]
    assert NewRecord(1) == (1, None, None, None)


def test_a_client_needs_no_loop_to_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_URL", "topics://key-of-env@example:1234")
    for client in (TopicsClient(), AsyncTopicsClient()):
        assert (client.address.target, client.address.key) == ("example:1234", "key-of-env")
        assert "key-of-env" not in f"{client.address} {client.address!r} {vars(client)}"
        closed = client.close()
        if closed is not None:
            asyncio.run(closed)
