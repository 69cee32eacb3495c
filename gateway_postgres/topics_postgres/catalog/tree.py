"""Queries of the catalog as trees: what they name is checked and put in the terms of DuckDB.

DuckDB reads them, for its grammar is PostgreSQL's. What it runs is made from the tree again, in which nothing is left
but kinds of nodes, functions, types and relations that are listed here: no text of a client is run.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from topics_postgres import oids
from topics_postgres.catalog import functions
from topics_postgres.catalog.relations import CATALOG, INFORMATION
from topics_postgres.catalog.types import RELATIONS
from topics_postgres.catalog.views import table_of
from topics_postgres.decoding import array_text
from topics_postgres.errors import PgError, Piece
from topics_sql.tokens import words

Node = dict[str, Any]

_CLASSES: Final = words(
    """BETWEEN CASE CAST COLLATE COLUMN_REF COMPARISON CONJUNCTION CONSTANT FUNCTION OPERATOR PARAMETER
    POSITIONAL_REFERENCE STAR SUBQUERY TYPE WINDOW"""
)
_KINDS: Final = words(
    """SELECT_NODE SET_OPERATION_NODE RECURSIVE_CTE_NODE CTE_NODE BASE_TABLE JOIN SUBQUERY TABLE_FUNCTION EMPTY
    EXPRESSION_LIST ORDER_MODIFIER LIMIT_MODIFIER DISTINCT_MODIFIER ORDER_DEFAULT ASCENDING DESCENDING"""
)
"""Kinds of nodes that are no expressions."""
_SCHEMAS: Final = frozenset({"", "pg_catalog", "information_schema"})
_TYPES: Final = {
    **dict.fromkeys(
        (
            "aclitem", "bpchar", "bytea", "char", "character", "character varying", "character_data", "cstring", "inet",
            "name", "pg_lsn", "pg_node_tree", "regconfig", "regoper", "regoperator", "regproc", "regprocedure",
            "sql_identifier", "text", "unknown", "varchar", "yes_or_no",
        ),
        "VARCHAR",
    ),
    **dict.fromkeys(("bool", "boolean", "logical"), "BOOLEAN"),
    **dict.fromkeys(("int2", "smallint", "short"), "SMALLINT"),
    **dict.fromkeys(("int4", "int", "integer", "signed", "cardinal_number"), "INTEGER"),
    **dict.fromkeys(("int8", "bigint", "long"), "BIGINT"),
    **dict.fromkeys(("float4", "real", "float"), "FLOAT"),
    **dict.fromkeys(("float8", "double", "double precision"), "DOUBLE"),
    **dict.fromkeys(("decimal", "numeric"), "DECIMAL"),
    **dict.fromkeys(("timestamp", "timestamptz", "timestamp with time zone", "time_stamp"), "TIMESTAMP"),
    **dict.fromkeys(("json", "jsonb"), "JSON"),
    **dict.fromkeys(("xid", "cid", "xid8"), "UBIGINT"),
    "oid": "UINTEGER", "date": "DATE", "time": "TIME", "uuid": "UUID", "interval": "INTERVAL",
}  # fmt: skip
_VECTORS: Final = {"int2vector": "USMALLINT", "oidvector": "UBIGINT"}
_VECTOR_COLUMNS: Final = frozenset(
    column.name for each in CATALOG.values() for column in each if column.type in _VECTORS
)
"""Columns whose elements are counted from 0."""
_BARE: Final = words("current_user session_user user current_role current_catalog current_schema")
_SESSION: Final = _BARE | words(
    """current_database version pg_backend_pid current_setting pg_postmaster_start_time txid_current set_config"""
)
"""Functions that the session answers."""
_OID_OF_TYPE: Final = {
    "BOOLEAN": oids.BOOL, "SMALLINT": oids.INT2, "INTEGER": oids.INT4, "BIGINT": oids.INT8, "UINTEGER": oids.OID,
    "FLOAT": oids.FLOAT4, "DOUBLE": oids.FLOAT8, "DECIMAL": oids.NUMERIC, "VARCHAR": oids.TEXT,
}  # fmt: skip
PARAMETER_TYPES: Final = {
    **{oid: name for name, oid in _OID_OF_TYPE.items()},
    **{oids.ARRAYS[oid]: f"{name}[]" for name, oid in _OID_OF_TYPE.items()},
}
"""The types of DuckDB for OIDs of parameters; all others are texts."""
_OID_OF_COLUMN: Final[dict[str, int]] = {}
"""The OIDs of columns by name, of those that have one type wherever they are and are no text."""


def _note_columns() -> None:
    known = {"oid": oids.OID, "bool": oids.BOOL, "int2": oids.INT2, "int4": oids.INT4, "int8": oids.INT8}
    for each in (*CATALOG.values(), *INFORMATION.values()):
        for column in each:
            oid = known.get(column.type, oids.TEXT)
            _OID_OF_COLUMN[column.name] = oid if _OID_OF_COLUMN.get(column.name, oid) == oid else oids.TEXT


_note_columns()


class Query:
    """A query put in the terms of DuckDB. `tree` is its tree, `relations` are those that it reads."""

    def __init__(
        self,
        tree: Node,
        piece: Piece,
        given: Mapping[int, int],
        session: Callable[[str, list[str]], Any],
        regclass: Callable[[str], int | None],
        *,
        with_values: bool = True,
    ) -> None:
        """`given` has the OIDs of parameters by number; `session` answers functions of the session.

        Without values, parameters are NULL. Raises PgError for a name or form that is not served.
        """
        self._with_values = with_values
        self._piece = piece
        self._session = session
        self._regclass = regclass
        self.parameters: dict[int, int] = {number: oid for number, oid in given.items() if oid}
        self.used: set[int] = set()
        """The numbers of parameters that are left in the tree."""
        self.relations: set[tuple[str, str]] = set()
        self._ctes: set[str] = set()
        self._aliases: dict[str, str] = {}
        """Relations by their aliases."""
        self._note_names(tree)
        statements = tree["statements"]
        if len(statements) != 1:
            raise PgError("42601", "there must be one query in the text")
        self._top = statements[0]["node"]
        self.tree = self._visit(tree)

    def _note_names(self, node: Any) -> None:
        if isinstance(node, list):
            for each in node:
                self._note_names(each)
        elif isinstance(node, dict):
            if node.get("type") == "BASE_TABLE":
                name = str(node["table_name"]).lower()
                self._aliases[str(node.get("alias") or name).lower()] = name
            for entry in (node.get("cte_map") or {}).get("map", ()):
                self._ctes.add(entry["key"].lower())
            for each in node.values():
                self._note_names(each)

    def _refused(self, message: str, node: Node | None = None, sqlstate: str = "0A000") -> PgError:
        at = (node or {}).get("query_location")
        known = isinstance(at, int) and at < len(self._piece.text)
        return PgError(sqlstate, message, position=self._piece.start + at + 1 if known and at is not None else 0)

    # ------------------------------------------------------------------------------------------------- nodes

    def _visit(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self._visit(each) for each in node]
        if not isinstance(node, dict):
            return node
        kind, name = node.get("class"), node.get("type")
        if kind is not None:
            if kind not in _CLASSES:
                raise self._refused(f"{str(kind).lower()} in a query of the catalog is not supported", node)
            handler = _EXPRESSIONS.get(kind)
            return handler(self, node) if handler is not None else self._inside(node)
        if name is not None and name not in _KINDS:
            raise self._refused(f"{str(name).lower()} in a query of the catalog is not supported", node)
        handler = _OTHERS.get(str(name))
        return handler(self, node) if handler is not None else self._inside(node)

    def _inside(self, node: Node) -> Node:
        return {key: self._visit(value) for key, value in node.items()}

    def _select(self, node: Node) -> Node:
        items = node.get("select_list") or []
        aliases = [self._label(each) for each in items]
        if node is self._top:
            items = [self._shown(each) for each in items]
        made = self._inside({**node, "select_list": items})
        for item, alias in zip(made["select_list"], aliases, strict=True):
            if alias:
                item["alias"] = alias
        return self._renamed_ctes(made)

    def _set(self, node: Node) -> Node:
        return self._renamed_ctes(self._inside(node))

    def _renamed_ctes(self, node: Node) -> Node:
        for entry in (node.get("cte_map") or {}).get("map", ()):
            entry["key"] = f"q_{entry['key'].lower()}"
        if "cte_name" in node:
            node["cte_name"] = f"q_{node['cte_name'].lower()}"
        return node

    def _label(self, item: Node) -> str:
        """The name of a column of the result, as PostgreSQL gives it; empty where DuckDB gives the same."""
        alias: str = item.get("alias", "")
        if alias:
            return alias if f'"{alias}"' in self._piece.text else alias.lower()
        if item.get("class") in ("STAR", "POSITIONAL_REFERENCE"):
            return ""
        return _name_of(item) or "?column?"

    def _shown(self, item: Node) -> Node:
        """A column of the whole result: OIDs of the types with names are shown by these."""
        name = _type_name(item["type_expr"]) if item.get("class") == "CAST" else ""
        if name in functions.TYPES_BY_NAME and "type_expr" in item:
            text = {"class": "TYPE", "type": "TYPE", "type_name": "text"}
            return {"class": "CAST", "type": "OPERATOR_CAST", "child": item, "type_expr": text}
        return item

    # --------------------------------------------------------------------------------------------- relations

    def _base_table(self, node: Node) -> Node:
        path = [str(each).lower() for each in (node.get("qualified_name") or {}).get("path", [node["table_name"]])]
        name, schema = path[-1], path[-2] if len(path) > 1 else ""
        made = dict(node)
        made.pop("schema_name", None)
        made.pop("catalog_name", None)
        made.setdefault("alias", name)
        if not schema and name in self._ctes:
            target = f"q_{name}"
        else:
            target = self._relation(schema, name, node)
        made["table_name"], made["qualified_name"] = target, {"path": [target]}
        return made

    def _relation(self, schema: str, name: str, node: Node) -> str:
        if schema in ("", "pg_catalog") and name in CATALOG:
            self.relations.add(("pg_catalog", name))
            return table_of("pg_catalog", name)
        if schema == "information_schema" and name in INFORMATION:
            self.relations.add((schema, name))
            return table_of(schema, name)
        full = f"{schema}.{name}" if schema else name
        if self._regclass(full) is not None and schema not in ("pg_catalog", "information_schema"):
            raise self._refused("a query of the catalog can't read tables as well", node)
        raise self._refused(f'relation "{full[:120]}" does not exist', node, "42P01")

    def _table_function(self, node: Node) -> Node:
        """A function in FROM: as a subquery, whose column has the name of the function or its alias."""
        call = node["function"]
        name = str(call.get("function_name", "")).lower()
        alias = node.get("alias") or name
        if node.get("with_ordinality"):
            if name != "unnest":
                raise self._refused("WITH ORDINALITY is supported with unnest()", node)
            made = dict(node)
            made["function"] = self._function(call, in_from=True)
            return made
        columns = [str(each) for each in node.get("column_name_alias") or ()]
        item = self._function(call)
        if name not in _ROW_FUNCTIONS:
            item["alias"] = columns[0] if columns else alias
        else:
            item["alias"] = "r"
        select: Node = {
            "type": "SELECT_NODE", "cte_map": {}, "select_list": [item], "from_table": {"type": "EMPTY"},
            "aggregate_handling": "STANDARD_HANDLING",
        }  # fmt: skip
        if name in _ROW_FUNCTIONS:
            inner = {"type": "SUBQUERY", "alias": "f", "subquery": {"node": select}}
            whole: Node = {"class": "COLUMN_REF", "type": "COLUMN_REF", "column_names": ["f", "r"]}
            parts = [
                {**_call("struct_extract", whole, _constant(column)), "alias": column}
                for column in _ROW_FUNCTIONS[name]
            ]
            select = {**select, "select_list": parts, "from_table": inner}
        found: Node = {"type": "SUBQUERY", "alias": alias, "subquery": {"node": select}}
        if columns and name in _ROW_FUNCTIONS:
            found["column_name_alias"] = columns
        return found

    # ------------------------------------------------------------------------------------------- expressions

    def _column(self, node: Node) -> Node:
        names = [str(each) for each in node["column_names"]]
        if len(names) == 1 and names[0].lower() in _BARE and not self._is_quoted(node):
            return _constant(self._session(names[0].lower(), []))
        if len(names) > 2 and names[0].lower() in _SCHEMAS:
            names = names[1:]
        if names[-1].lower() == "tableoid":
            alias = names[0].lower() if len(names) == 2 else next(iter(self._aliases), "")
            return _cast(_constant(RELATIONS.get(self._aliases.get(alias, ""), 0)), "UINTEGER")
        return {**node, "column_names": names}

    def _is_quoted(self, node: Node) -> bool:
        at = node.get("query_location")
        return isinstance(at, int) and self._piece.text[at : at + 1] == '"'

    def _parameter(self, node: Node) -> Node:
        number = int(node["identifier"])
        self.used.add(number)
        oid = self.parameters.setdefault(number, oids.TEXT)
        if not self._with_values:
            node = _constant(None)
        return _cast(node, PARAMETER_TYPES.get(oid, "VARCHAR[]" if oid in oids.ELEMENTS else "VARCHAR"))

    def _declare(self, node: Any, oid: int) -> None:
        """Give a parameter its type, if it has none."""
        if isinstance(node, dict) and node.get("class") == "PARAMETER":
            self.parameters.setdefault(int(node["identifier"]), oid)

    def _comparison(self, node: Node) -> Node:
        left, right = node.get("left"), node.get("right")
        for one, other in ((left, right), (right, left)):
            if isinstance(other, dict) and other.get("class") == "COLUMN_REF":
                self._declare(one, _OID_OF_COLUMN.get(str(other["column_names"][-1]).lower(), oids.TEXT))
        return self._inside(node)

    def _cast(self, node: Node) -> Node:
        child, kind = node["child"], _type_name(node["type_expr"])
        if kind in functions.TYPES_BY_NAME:
            self._declare(child, oids.TEXT)
            return self._named_oid(kind, child)
        target, element = self._type(node["type_expr"])
        if element is None:
            self._declare(child, _OID_OF_TYPE.get(target, oids.TEXT))
        else:
            self._declare(child, oids.ARRAYS[_OID_OF_TYPE.get(element, oids.TEXT)])
            listed = self._list(child, kind)
            if listed is not None:
                return _cast(listed, target)
        if target == "VARCHAR" and child.get("class") == "CAST":
            name = _type_name(child["type_expr"])
            if name in functions.TYPES_BY_NAME:
                return _call(f"f_{name}_name", self._visit(child))
        made = self._visit(child)
        if target == "DECIMAL" and node["type_expr"].get("children"):
            sized = {**_plain(target), "children": node["type_expr"]["children"]}
            return {"class": "CAST", "type": "OPERATOR_CAST", "child": made, "type_expr": sized}
        return _cast(made, target)

    def _type(self, node: Node) -> tuple[str, str | None]:
        """The type of DuckDB, and that of its elements."""
        name = _type_name(node)
        if name in _VECTORS:
            return f"{_VECTORS[name]}[]", "SMALLINT"
        if name == "list":
            element, inner = self._type(node["children"][0])
            if inner is not None:
                raise self._refused("arrays of arrays are not supported", node)
            return f"{element}[]", element
        if name.startswith("_") and name[1:] in _TYPES:
            return f"{_TYPES[name[1:]]}[]", _TYPES[name[1:]]
        if name in functions.TYPES_BY_NAME:
            return "UINTEGER", None
        if name not in _TYPES:
            raise self._refused(f'type "{name[:80]}" does not exist', node, "42704")
        return _TYPES[name], None

    def _named_oid(self, kind: str, child: Node) -> Node:
        """A cast to `regclass` and its like: the OID. Raises PgError for a name in the text that there is not."""
        literal = child.get("literal") or {}
        if kind == "regclass" and child.get("class") == "CONSTANT" and literal.get("kind") == "STRING":
            text = str(literal.get("text", ""))
            if not text.isdecimal():
                found = self._regclass(text)
                if found is None:
                    raise self._refused(f'relation "{text[:120]}" does not exist', child, "42P01")
                return _cast(_constant(found), "UINTEGER")
        if kind == "regtype" and child.get("class") == "CONSTANT" and literal.get("kind") == "STRING":
            lowered = {**literal, "text": str(literal.get("text", "")).removeprefix("pg_catalog.")}
            child = {**child, "literal": lowered}
        return _call(f"f_{kind}", self._visit(child))

    def _list(self, node: Node, kind: str) -> Node | None:
        """An array that is a literal in the text: `{a,b}`, or numbers divided by spaces for a vector."""
        literal = node.get("literal") or {}
        if node.get("class") != "CONSTANT" or literal.get("kind") != "STRING":
            return None
        text = str(literal.get("text", ""))
        values = list(text.split()) if kind in _VECTORS else array_text(text)
        return _call("list_value", *map(_constant, values))

    def _function(self, node: Node, *, in_from: bool = False) -> Node:
        name = str(node["function_name"]).lower()
        if str(node.get("schema", "")).lower() not in _SCHEMAS or node.get("catalog"):
            raise self._missing(name, node)
        arguments = [each["expression"] for each in node.get("arguments") or ()]
        if name == "format" and arguments and arguments[0].get("class") == "CONSTANT":
            return self._format(node, arguments)
        if name in _LIKE and len(arguments) == 2:
            return _call(_LIKE[name], *map(self._visit, arguments), _constant("\\"))
        if name in _SESSION and all(map(_is_literal, arguments)):
            return _constant(self._session(name, [self._literal(each, name) for each in arguments]))
        if name in functions.LOOKUPS:
            self._declare(arguments[0] if arguments else None, oids.TEXT)
            return _call(f"f_{functions.LOOKUPS[name]}", *map(self._visit, arguments))
        if name == "unnest" and arguments:
            self._declare(arguments[0], oids.ARRAYS[oids.TEXT])
            listed = self._list(arguments[0], "")
            if listed is not None:
                arguments = [listed]
        if name == "generate_subscripts" and arguments:
            made_before = set(self.used)
            self._visit(arguments[1:])  # for its parameters: the dimension is 1
            self.used = made_before
            return self._subscripts(arguments[0])
        made = [{"expression": self._visit(expression)} for expression in arguments]
        if name in functions.MACROS and name not in functions.TYPES_BY_NAME:
            target = f"f_{name}"
        elif name in functions.ALIKE or name in ("generate_series", "json_group_array"):
            target = name
        elif name in functions.RENAMED:
            target = functions.RENAMED[name]
        else:
            raise self._missing(name, node)
        rest = {key: self._visit(value) for key, value in node.items() if key not in ("arguments", "schema", "catalog")}
        found: Node = {**rest, "arguments": made, "function_name": target, "qualified_name": {"path": [target]}}
        if name == "generate_series" and not in_from:
            return _call("unnest", found)
        return found

    def _format(self, node: Node, arguments: list[Node]) -> Node:
        """A call of `format()` as the texts between its places, and what stands there."""
        parts: list[Node] = []
        given = iter(arguments[1:])
        for piece in re.split("(%[sIL%])", self._literal(arguments[0], "format")):
            if piece in ("%s", "%I", "%L"):
                value = _cast(self._visit(next(given, _constant(None))), "VARCHAR")
                quoting = {"%I": "f_quote_ident", "%L": "f_quote_literal"}.get(piece)
                parts.append(value if quoting is None else _call(quoting, value))
            else:
                parts.append(_constant("%" if piece == "%%" else piece))
        return _call("concat", *parts)

    def _subscripts(self, array: Node) -> Node:
        """The places of an array: from 0 in the vectors of the catalog, else from 1."""
        made = self._visit(array)
        first, last = (0, 1) if _is_vector(array) else (1, 0)
        end = _call("-", _call("len", made), _constant(last), is_operator=True)
        return _call("unnest", _call("generate_series", _constant(first), end))

    def _literal(self, node: Node, function: str) -> str:
        literal = node.get("literal")
        if node.get("class") == "CAST":
            return self._literal(node["child"], function)
        if literal is None:
            raise self._refused(f"{function}() takes values in the text only", node)
        return str(literal.get("text", ""))

    def _missing(self, name: str, node: Node) -> PgError:
        return self._refused(f"function {name[:80]}() does not exist in queries of the catalog", node, "42883")

    def _operator(self, node: Node) -> Node:
        made = self._inside(node)
        children: list[Node] = node.get("children") or []
        if node["type"] == "ARRAY_EXTRACT" and _is_vector(children[0]):
            made["children"][1] = _call("+", made["children"][1], _constant(1), is_operator=True)
        if node["type"] == "COMPARE_IN" and children[0].get("class") == "COLUMN_REF":
            for each in children[1:]:
                self._declare(each, _OID_OF_COLUMN.get(str(children[0]["column_names"][-1]).lower(), oids.TEXT))
            made = self._inside(node)
        return made

    def _subquery(self, node: Node) -> Node:
        child = node.get("child")
        if node.get("subquery_type") == "ANY" and isinstance(child, dict) and child.get("class") == "COLUMN_REF":
            oid = _OID_OF_COLUMN.get(str(child["column_names"][-1]).lower(), oids.TEXT)
            items = node["subquery"]["node"].get("select_list") or [{}]
            if str(items[0].get("function_name", "")) == "unnest" and items[0].get("arguments"):
                self._declare(items[0]["arguments"][0]["expression"], oids.ARRAYS.get(oid, oids.ARRAYS[oids.TEXT]))
        return self._inside(node)

    def _collate(self, node: Node) -> Node:
        """Collations that queries name: texts are compared by their bytes, as with the only one here."""
        if str(node.get("collation", "")).lower().rpartition(".")[2] not in ("default", "c", "posix", "ucs_basic"):
            raise self._refused(f'collation "{str(node.get("collation"))[:80]}" does not exist', node, "42704")
        found: Node = self._visit(node["child"])
        return found

    def _window(self, node: Node) -> Node:
        name = str(node["function_name"]).lower()
        if name not in functions.ALIKE or str(node.get("schema", "")).lower() not in _SCHEMAS:
            raise self._missing(name, node)
        made = self._inside({key: value for key, value in node.items() if key not in ("schema", "catalog")})
        return {**made, "qualified_name": {"path": [name]}}


_LIKE: Final = {
    "~~": "like_escape", "!~~": "not_like_escape", "~~*": "ilike_escape", "!~~*": "not_ilike_escape",
}  # fmt: skip
"""Patterns have a backslash as their escape, as DuckDB's have only if it is named."""
_ROW_FUNCTIONS: Final[dict[str, tuple[str, ...]]] = {
    "pg_get_keywords": ("word", "catcode", "barelabel", "catdesc", "baredesc"),
    "aclexplode": ("grantor", "grantee", "privilege_type", "is_grantable"),
    "pg_options_to_table": ("option_name", "option_value"),
    "_pg_expandarray": ("x", "n"),
}
"""Functions whose rows have several columns."""
_EXPRESSIONS: Final[dict[str, Callable[[Query, Node], Node]]] = {
    "CAST": Query._cast,
    "COLLATE": Query._collate,
    "COLUMN_REF": Query._column,
    "COMPARISON": Query._comparison,
    "FUNCTION": Query._function,
    "OPERATOR": Query._operator,
    "PARAMETER": Query._parameter,
    "SUBQUERY": Query._subquery,
    "WINDOW": Query._window,
}
_OTHERS: Final[dict[str, Callable[[Query, Node], Node]]] = {
    "BASE_TABLE": Query._base_table,
    "RECURSIVE_CTE_NODE": Query._set,
    "SELECT_NODE": Query._select,
    "SET_OPERATION_NODE": Query._set,
    "TABLE_FUNCTION": Query._table_function,
}


def _type_name(node: Node) -> str:
    return str(node.get("type_name", "")).lower()


def _is_literal(node: Node) -> bool:
    return _is_literal(node["child"]) if node.get("class") == "CAST" else "literal" in node


def _is_vector(node: Node) -> bool:
    return node.get("class") == "COLUMN_REF" and str(node["column_names"][-1]).lower() in _VECTOR_COLUMNS


def _name_of(item: Node) -> str:
    """The name that PostgreSQL gives to a column of a result, empty for none."""
    kind = item.get("class")
    if kind == "COLUMN_REF":
        return str(item["column_names"][-1]).lower()
    if kind in ("FUNCTION", "WINDOW"):
        name = str(item["function_name"]).lower()
        is_name = not item.get("is_operator") and name.lstrip("_")[:1].isalpha()
        return _LABELS.get(name, name) if is_name else ""
    if kind == "CAST":
        return _name_of(item["child"]) or _LABELS.get(_type_name(item["type_expr"]), _type_name(item["type_expr"]))
    if kind == "CASE":
        return _name_of(item.get("else_expr") or {}) or "case"
    if kind == "COLLATE":
        return _name_of(item["child"])
    if kind == "SUBQUERY":
        if item.get("subquery_type") == "EXISTS":
            return "exists"
        items = item["subquery"]["node"].get("select_list") or [{}]
        return "" if item.get("subquery_type") != "SCALAR" else str(items[0].get("alias") or _name_of(items[0]))
    if kind == "OPERATOR":
        if item["type"] == "STRUCT_EXTRACT":
            return str((item["children"][1].get("literal") or {}).get("text", ""))
        if item["type"] == "ARRAY_EXTRACT":
            return _name_of(item["children"][0])
        return {"OPERATOR_COALESCE": "coalesce", "ARRAY_CONSTRUCTOR": "array"}.get(str(item["type"]), "")
    return ""


_LABELS: Final = {
    "count_star": "count", "list_value": "array", "integer": "int4", "bigint": "int8", "smallint": "int2",
    "boolean": "bool", "double": "float8", "float": "float4",
}  # fmt: skip


def _constant(value: str | int | bool | None) -> Node:
    literal: Node
    if value is None:
        literal = {"kind": "NULL_LITERAL"}
    elif isinstance(value, bool):
        literal = {"kind": "BOOLEAN", "text": "true" if value else "false"}
    else:
        literal = {"kind": "STRING" if isinstance(value, str) else "INTEGER", "text": str(value)}
    return {"class": "CONSTANT", "type": "VALUE_CONSTANT", "literal": literal}


def _call(name: str, *arguments: Node, is_operator: bool = False) -> Node:
    return {
        "class": "FUNCTION", "type": "FUNCTION", "function_name": name, "is_operator": is_operator,
        "arguments": [{"expression": each} for each in arguments], "qualified_name": {"path": [name]},
        "order_bys": {"type": "ORDER_MODIFIER"},
    }  # fmt: skip


def _cast(child: Node, target: str) -> Node:
    kind: Node
    if target.endswith("[]"):
        kind = {"class": "TYPE", "type": "TYPE", "type_name": "list", "qualified_name": {"path": ["list"]},
                "children": [_plain(target[:-2])]}  # fmt: skip
    else:
        kind = _plain(target)
    return {"class": "CAST", "type": "OPERATOR_CAST", "child": child, "type_expr": kind}


def _plain(name: str) -> Node:
    return {"class": "TYPE", "type": "TYPE", "type_name": name, "qualified_name": {"path": [name]}}
