"""No decoder without a target: what is called like one, or takes bytes apart, is looked for in the source.

Each is covered by a target of `targets/`, or it is in `ELSEWHERE` with what tries it instead.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from fuzz.targets import TARGETS

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = {
    "topics_service": ROOT / "service",
    "topics_server": ROOT / "service",
    "topics_backup": ROOT / "service",
    "topics_cluster": ROOT / "service",
    "topics_shards": ROOT / "service",
    "topics_net": ROOT / "service",
    "topics_gateway": ROOT / "gateway_http",
    "topics_kafka": ROOT / "gateway_kafka",
    "topics_postgres": ROOT / "gateway_postgres",
    "topics_sql": ROOT / "sql",
    "topics_client": ROOT / "sdk" / "python",
    "topics_cli": ROOT / "sdk" / "python",
}
NAMES: Final = (
    "decode",
    "parse",
    "unpack",
    "inflate",
    "deserialize",
    "from_text",
    "from_file",
    "from_json",
    "unescape",
)
"""What the name of a decoder begins with, after an underscore or not; or it is one of these and more."""
TAKING_APART: Final = frozenset(
    {
        "unpack", "unpack_from", "iter_unpack", "deserialize", "b64decode", "urlsafe_b64decode", "a2b_base64", "loads",
        "decompressobj", "decompress_into", "decompress_raw_into", "Decoder",
    }
)  # fmt: skip
"""Calls that a decoder makes; of `msgspec` also `json.decode`, `msgpack.decode` and `convert`."""
_KAFKA: Final = "tests/kafka/protocol/test_malformed.py"
_BATCHES: Final = "tests/kafka/records/test_fuzz.py"
_WIRE: Final = "tests/fuzz/test_wire.py"
_HTTP: Final = "tests/fuzz/test_http_api.py"
_CHANNEL: Final = "tests/shards/test_channel.py"
_VERIFY: Final = "tests/corruption/test_damaged_rows.py"
_TRUSTED: Final = "what its own server or file says"
ELSEWHERE: Final = {
    # by module, or by module:function; the place of the tests, or the reason why none are needed
    "topics_service.api.access.hosts": "tests/security/test_browsers.py",
    "topics_service.storage.checksummed": "tests/corruption/test_small_files.py",
    "topics_service.storage.tablelist": "tests/corruption/test_damaged_tables.py",
    "topics_service.storage.tablemend": "tests/corruption/test_damaged_tables.py",
    "topics_service.storage.tables": "tests/corruption/test_damaged_tables.py",
    "topics_kafka.protocol": _KAFKA,
    "topics_kafka": "tests/kafka",
    "topics_service.storage.recordbatch": _BATCHES,
    "topics_service.storage.block": "its layouts; `block` goes through them",
    "topics_service.storage.kafkablock:inflated_size": _BATCHES,
    "topics_service.storage.keys": "its layouts; `key of a row` goes through them",
    "topics_service.engine.blocks:inflate": "tests/engine/test_packed_records.py",
    "topics_service.engine.router.copies:inflate": "a protocol without code",
    "topics_service.engine.verify": _VERIFY,
    "topics_service.engine.repair": "tests/corruption/test_repair_rows.py",
    "topics_service.engine.queue.schedule": _VERIFY,
    "topics_service.storage.holding:is_held": "what the kernel says of a lock",
    "topics_service.storage.repair_swap:finish": "what `pending` has read",
    "topics_backup.log": "tests/backup",
    "topics_service.engine.replica:_decoded": "the decoders it is given have targets of their own",
    "topics_service.api.grpc": _WIRE,
    "topics_service.api.sql.reader": "a protocol without code",
    "topics_service.api.sql.system:_json": "it encodes",
    "topics_server.users:from_file": "`users` goes through its entries",
    "topics_server.users:from_text": "`users` goes through its entries",
    "topics_server.token_keys": "`public key of tokens` goes through it",
    "topics_server.bulk_reader": "what the server writes to its own child",
    "topics_backup.repository": "manifests, by `manifest of a backup`",
    "topics_postgres.copying": "`postgres copy` goes through it",
    "topics_postgres.decoding": "`postgres values` goes through it",
    "topics_postgres.wire": "`postgres messages` goes through it",
    "topics_postgres.session": "tests/postgres/test_hostile.py",
    "topics_postgres.quick": "tests/postgres/test_quick.py",
    "topics_postgres.catalog.database:read": "DuckDB reads; tests/postgres/test_catalog.py",
    "topics_postgres.catalog.objects": "rows of the server itself",
    "topics_sql.reader:parse_live": "it goes through `parse`",
    "topics_service.api.sql.systempages": "what nodes tell each other, by a call of a shard",
    "topics_postgres.transfer": "tests/postgres/test_psycopg.py",
    "topics_shards.wire.client": _CHANNEL,
    "topics_shards.wire.server": _CHANNEL,
    "topics_shards.wire.origin": "`call of a shard` goes through it",
    "topics_shards.wire.carriers:_of_choice": "tests/shards/test_methods.py",
    "topics_shards.wire.carriers": "its layouts; `call of a shard` goes through them",
    "topics_cluster.etcd": _TRUSTED,
    "topics_cluster.identity": _TRUSTED,
    "topics_net.sliced_protocol": _WIRE,
    "topics_gateway.transport": _WIRE,
    "topics_gateway": _HTTP,
    "topics_client": _TRUSTED,
    "topics_cli": _TRUSTED,
}


def functions() -> Iterator[str]:
    """Every decoder in the source, as module:function; module alone for what stands in no function."""
    for package, folder in SOURCES.items():
        for path in sorted((folder / package).rglob("*.py")):
            module = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
            yield from sorted(set(found_in(ast.parse(path.read_text(encoding="utf-8")), module)))


def found_in(tree: ast.AST, module: str) -> Iterator[str]:
    for node, function in inside(tree, ""):
        here = f"{module}:{function}" if function else module
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (is_function and function.lstrip("_").startswith(NAMES)) or takes_apart(node):
            yield here


def inside(node: ast.AST, function: str) -> Iterator[tuple[ast.AST, str]]:
    """Every node below, with the name of the innermost function that it is in; a function is in itself."""
    for child in ast.iter_child_nodes(node):
        own = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
        yield child, own
        yield from inside(child, own)


def takes_apart(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    called, of = node.func.attr, ast.unparse(node.func.value)
    return called in TAKING_APART or (called in ("decode", "convert") and of.startswith("msgspec"))


def covered(name: str, known: set[str]) -> bool:
    """Whether a target goes through it, or somebody else is named for it or for a package above it."""
    parts = name.partition(":")[0].split(".")
    above = {".".join(parts[:size]) for size in range(1, len(parts) + 1)}
    return name in known or bool((above | {name}) & ELSEWHERE.keys())


def test_every_decoder_has_a_target() -> None:
    known = {name for target in TARGETS for name in target.covers}
    found = list(functions())
    assert len(found) > 60
    missing = [name for name in found if not covered(name, known)]
    assert not missing, f"write a target in tests/fuzz/targets for {missing}, or say in ELSEWHERE what tries it"


def test_every_target_names_what_is_there() -> None:
    everything = set()
    for package, folder in SOURCES.items():
        for path in (folder / package).rglob("*.py"):
            module = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
            everything.add(module)
            everything |= {f"{module}:{name}" for _, name in inside(ast.parse(path.read_text(encoding="utf-8")), "")}
    named = {name for target in TARGETS for name in target.covers} | ELSEWHERE.keys()
    assert named <= everything, named - everything
    assert len({target.name for target in TARGETS}) == len(TARGETS)


@pytest.mark.parametrize("where", sorted({place for place in ELSEWHERE.values() if place.startswith("tests/")}))
def test_elsewhere_is_there(where: str) -> None:
    assert (ROOT / where).exists()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def decode_row(x): ...", ["m:decode_row"]),
        ("class A:\n  def _parse(self): ...", ["m:_parse"]),
        ("def f(x):\n  return S.unpack(x)", ["m:f"]),
        ("D = msgspec.json.Decoder(int).decode", ["m"]),
        ("def g(x):\n  return msgspec.json.decode(x)", ["m:g"]),
        ("def h(x):\n  return x.decode()", []),
    ],
)
def test_decoders_are_found(source: str, found: list[str]) -> None:
    assert sorted(set(found_in(ast.parse(source), "m"))) == found
