"""Lakehouse configuration: a TOML file, and overrides."""

import math
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from topics_client.address import Address
from topics_lakehouse.ddl import columns_of
from topics_lakehouse.schema import check_declared

DEFAULT_FILE: Final = "lakehouse.toml"
MIN_GRACE: Final = 3600.0
"""Seconds that a file which nothing refers to is always left alone: it may belong to a commit that is under way."""

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_]")
_NAME: Final = re.compile(r"[A-Za-z0-9_]+")
_SIZE: Final = re.compile(r"(\d+)\s*([kMG]?)i?B?")
_SIZES: Final = {"": 1, "k": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_TIMES: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}
_LOCAL_IO: Final = "topics_lakehouse.local_io.SyncedFileIO"
_LONGEST: Final = 10 * 365 * 86400.0
_MAX_WHOLE: Final = 1 << 62
_ODD: Final = frozenset("?#%")  # in a folder's name, where it is part of a URL
_ON_RECREATE: Final = ("fail", "archive")


class ConfigError(ValueError):
    """A setting that is wrong; the text names it."""


@dataclass(frozen=True, slots=True)
class TopicRule:
    """One topic, or all topics whose whole name matches a pattern, and how their tables are kept."""

    name: str = ""
    pattern: str = ""
    table: str = ""  # empty: the topic's name, with `_` for characters that a table's name can't have
    columns: pa.Schema = field(default_factory=lambda: pa.schema([]))  # typed columns taken from `data`
    on_recreate: str = "fail"  # fail, archive

    def matches(self, topic: str) -> bool:
        """Return True if the rule applies to this topic."""
        return topic == self.name if self.name else re.fullmatch(self.pattern, topic) is not None


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration of the lakehouse. Its string form contains no secret."""

    address: Address
    warehouse: str  # URL of the folder of the tables; empty where the catalog decides
    catalog: Mapping[str, str] = field(repr=False)  # properties for pyiceberg's load_catalog
    catalog_name: str
    namespace: str
    topics: tuple[TopicRule, ...]
    trigger_seconds: float  # between the starts of two rounds, at least
    max_records: int  # in one round, of all topics together; one of more than 1 KiB counts as several
    task_records: int  # in one task, at most
    target_file_bytes: int
    row_group_rows: int
    keep_snapshots: int  # of each table
    orphan_grace_seconds: float  # an unreferenced file younger than this is left alone
    group: str  # consumer group whose positions on the server follow the tables'; empty: none
    spark: Mapping[str, str] = field(repr=False)  # settings of the session that the job makes; `master` among them

    def rule(self, topic: str) -> TopicRule | None:
        """The rule of a topic: the one with its name, else the first whose pattern matches; None if there is none."""
        named = [rule for rule in self.topics if rule.name == topic]
        return next(iter(named or [rule for rule in self.topics if not rule.name and rule.matches(topic)]), None)

    def table(self, topic: str) -> str:
        """Name of the topic's table, without the namespace."""
        rule = self.rule(topic)
        return rule.table if rule is not None and rule.table else table_name(topic)


def table_name(topic: str) -> str:
    """The name that a topic's table has by default."""
    return _NOT_IN_NAMES.sub("_", topic)


def load(
    file: Path | None = None, overrides: Mapping[str, Any] = {}, environment: Mapping[str, str] | None = None
) -> Config:
    """The settings of a file, with those of `overrides` (the same keys; `catalog.uri` reaches into a table) in place of
    its own.

    Without `file`, `lakehouse.toml` counts where there is one. `${NAME}` in a text is replaced by the environment
    variable. Paths are relative to the file's folder. Raises ConfigError.
    """
    variables = os.environ if environment is None else environment
    if file is None and Path(DEFAULT_FILE).exists():
        file = Path(DEFAULT_FILE)
    given: dict[str, Any] = {}
    if file is not None:
        try:
            given = tomllib.loads(file.read_text())
        except OSError as error:
            raise ConfigError(f"{file}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}: {error}") from error
    where = f"{file}: " if file is not None else ""
    try:
        for key, value in overrides.items():
            _override(given, key, value)
        return _config(_expanded(given, "", variables), Path() if file is None else file.parent)
    except ConfigError as error:
        raise ConfigError(f"{where}{error}") from error


def assignments(texts: Sequence[str]) -> dict[str, str]:
    """Overrides for `load` from texts as `KEY=VALUE`, as command lines have them. Raises ConfigError."""
    found = {}
    for each in texts:
        key, equals, value = each.partition("=")
        if not equals or not key.strip():
            raise ConfigError("--set: KEY=VALUE is wanted")  # the text may be a secret
        found[key.strip()] = value.strip()
    return found


def _override(given: dict[str, Any], key: str, value: object) -> None:
    outer, _, inner = key.partition(".")
    if inner:
        table = given.setdefault(outer, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{outer} is no table of settings")
        table[inner] = value
    else:
        given[outer] = value


def _expanded(value: Any, key: str, variables: Mapping[str, str]) -> Any:
    """The value with `${NAME}` replaced, at every depth."""
    if isinstance(value, dict):
        return {name: _expanded(each, f"{key}.{name}" if key else name, variables) for name, each in value.items()}
    if isinstance(value, list):
        return [_expanded(each, f"{key}[{i}]", variables) for i, each in enumerate(value)]
    if not isinstance(value, str):
        return value

    def variable(found: re.Match[str]) -> str:
        name = found[1]
        if name not in variables:
            raise ConfigError(f"{key}: the environment has no {name}")
        return variables[name]

    return _VARIABLE.sub(variable, value)


class _Settings:
    """A table of settings, taken out one by one; the rest is unknown."""

    def __init__(self, given: Mapping[str, Any], key: str = "") -> None:
        self._left = dict(given)
        self._prefix = f"{key}." if key else ""

    def name(self, key: str) -> str:
        return self._prefix + key

    def take(self, key: str, default: Any = None) -> Any:
        return self._left.pop(key, default)

    def text(self, key: str, default: str = "") -> str:
        value = self.take(key, default)
        if not isinstance(value, str):
            raise ConfigError(f"{self.name(key)}: a text is wanted, not a {type(value).__name__}")  # may be a secret
        return value

    def choice(self, key: str, choices: Sequence[str], default: str) -> str:
        value = self.text(key, default)
        if value not in choices:
            raise ConfigError(f"{self.name(key)}: {value!r} is none of {', '.join(choices)}")
        return value

    def _measure(self, key: str, default: float, pattern: re.Pattern[str], units: Mapping[Any, float]) -> float:
        value = self.take(key, default)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
            return value
        found = pattern.fullmatch(value.strip()) if isinstance(value, str) else None
        if found is None:
            raise ConfigError(f"{self.name(key)}: can't be {value!r}")
        return float(found[1]) * units[found[2]]

    def seconds(self, key: str, default: float, *, minimum: float = 0.0) -> float:
        value = float(self._measure(key, default, _TIME, _TIMES))
        if not minimum <= value <= _LONGEST:
            raise ConfigError(f"{self.name(key)}: {minimum:g} to {_LONGEST:g} seconds are wanted, not {value:g}")
        return value

    def whole(self, key: str, default: int, *, minimum: int = 1) -> int:
        value = self._measure(key, default, _SIZE, _SIZES)
        if value != int(value) or not minimum <= value <= _MAX_WHOLE:
            raise ConfigError(f"{self.name(key)}: a whole number of at least {minimum} is wanted, not {value:g}")
        return int(value)

    def end(self) -> None:
        if self._left:
            raise ConfigError(f"unknown setting {self.name(min(self._left))}")


def _config(given: Mapping[str, Any], folder: Path) -> Config:
    settings = _Settings(given)
    address = _address(settings)
    namespace = settings.text("namespace", "topics")
    if not all(_NAME.fullmatch(part) for part in namespace.split(".")):
        raise ConfigError(f"namespace: {namespace!r} has letters that a name can't have")
    name, properties, warehouse = _catalog(settings, folder)
    on_recreate = settings.choice("on_recreate", _ON_RECREATE, "fail")
    config = Config(
        address=address,
        warehouse=warehouse,
        catalog=properties,
        catalog_name=name,
        namespace=namespace,
        topics=tuple(_rules(settings.take("topics", []), on_recreate)),
        trigger_seconds=settings.seconds("trigger", 0.5),
        max_records=settings.whole("max_records_per_round", 5_000_000),
        task_records=settings.whole("task_records", 1_000_000),
        target_file_bytes=settings.whole("target_file_size", 128 << 20, minimum=1 << 16),
        row_group_rows=settings.whole("row_group_rows", 100_000),
        keep_snapshots=settings.whole("keep_snapshots", 20),
        orphan_grace_seconds=settings.seconds("orphan_grace", 86400.0, minimum=MIN_GRACE),
        group=settings.text("group", "lakehouse"),
        spark=_properties(settings, "spark"),
    )
    settings.end()
    return config


def _address(settings: _Settings) -> Address:
    server, key = settings.text("server"), settings.text("key")
    try:
        return Address.parse(server or None, key=key or None)
    except ValueError as error:
        raise ConfigError(f"server: {error}") from error


def _catalog(settings: _Settings, folder: Path) -> tuple[str, dict[str, str], str]:
    """Name and properties of the catalog, and the URL that tables are put below."""
    properties = _properties(settings, "catalog")
    name = properties.pop("name", "topics")
    location = settings.text("warehouse")
    if properties.get("type", "sql") != "sql" or properties.get("uri", "").startswith(("http:", "https:")):
        if location:
            raise ConfigError("warehouse: with a catalog of that type it is catalog.warehouse")
        location = properties.get("warehouse", "")
        return name, properties, location.rstrip("/") if "://" in location else ""
    location = properties.get("warehouse", location or "warehouse")
    if "://" not in location:
        location = f"file://{(folder / location).absolute()}"
    if location.startswith("file://") and _ODD & set(location):
        raise ConfigError(f"warehouse: {location}: a folder with ?, # or % in its name can't be used")
    location = location.rstrip("/")
    if "uri" not in properties:
        if not location.startswith("file://"):
            raise ConfigError("catalog.uri: wanted where the warehouse is no folder of this machine")
        properties["uri"] = f"sqlite:///{location.removeprefix('file://')}/catalog.db"
    if location.startswith("file://"):
        properties.setdefault("py-io-impl", _LOCAL_IO)
    return name, properties | {"type": "sql", "warehouse": location}, location


def _properties(settings: _Settings, table: str) -> dict[str, str]:
    given = settings.take(table, {})
    if not isinstance(given, dict):
        raise ConfigError(f"{table}: a table of settings is wanted")
    return {key: _property(f"{table}.{key}", value) for key, value in _flat(given)}


def _flat(given: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """TOML reads `s3.endpoint = …` as a table in a table: put the names together again."""
    for key, value in given.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _property(key: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise ConfigError(f"{key}: a text, a number or a bool is wanted")


def _rules(given: object, on_recreate: str) -> Iterator[TopicRule]:
    if not isinstance(given, list) or not given:
        raise ConfigError("topics: at least one [[topics]] with a name or a pattern is wanted")
    names: dict[str, str] = {}
    for i, each in enumerate(given):
        each = {"name": each} if isinstance(each, str) else each
        if not isinstance(each, dict):
            raise ConfigError(f"topics[{i}]: a table of settings is wanted")
        settings = _Settings(each, f"topics[{i}]")
        rule = _rule(settings, on_recreate)
        settings.end()
        if rule.name:
            table = rule.table or table_name(rule.name)
            if table in names:
                raise ConfigError(f"topics[{i}].table: {table} is the table of topic {names[table]} already")
            names[table] = rule.name
        yield rule


def _rule(settings: _Settings, on_recreate: str) -> TopicRule:
    name, pattern, table = settings.text("name"), settings.text("pattern"), settings.text("table")
    if bool(name) == bool(pattern):
        raise ConfigError(f"{settings.name('name')}: either a name or a pattern is wanted")
    if pattern:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"{settings.name('pattern')}: {error}") from error
        if table:
            raise ConfigError(f"{settings.name('table')}: the topics of a pattern can't share one table")
    if table and not _NAME.fullmatch(table):
        raise ConfigError(f"{settings.name('table')}: {table!r} has letters that a table's name can't have")
    try:
        columns = columns_of(settings.take("schema", {}))
        check_declared(columns)
    except ValueError as error:
        raise ConfigError(f"{settings.name('schema')}: {error}") from error
    return TopicRule(name, pattern, table, columns, settings.choice("on_recreate", _ON_RECREATE, on_recreate))
