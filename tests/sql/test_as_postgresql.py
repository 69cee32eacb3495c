"""Expressions of SQL text give what PostgreSQL 15 gives, as text, or an error with its SQLSTATE."""

import pytest

from support.sql_schema import MemorySchema
from topics_service.engine.errors import TopicsError
from topics_service.engine.tables.compilation import compile_expression
from topics_service.engine.tables.plans import Select
from topics_service.engine.tables.values import to_text

AS_THERE = [
    ('1/0', 'ERR 22012'), ('7/2', '3'), ('-7/2', '-3'), ('7 % -2', '1'), ('7.0/2', '3.5000000000000000'),
    ('1e0/3', '0.33333333333333333333'), ('9223372036854775807 + 1', 'ERR 22003'),
    ('9223372036854775808', '9223372036854775808'), ('2147483647 + 1', 'ERR 22003'), ('1.5 + 1', '2.5'),
    ('1.50 * 2.25', '3.3750'), ("'a' || 1 || NULL", None), ('10000000000.0 / 3', '3333333333.33333333'),
    ('1.0 / 10000000', '0.000000100000000000000000'), ('0.0001 / 3.0', '0.000033333333333333333333'),
    ('123456789.123 / 0.000001', '123456789123000.000000'), ('2.0 / 30000', '0.000066666666666666666667'),
    ('99999.0/9999', '10.0009000900090009'), ('5.5 % 2', '1.5'), ('-5.5 % 2', '-1.5'),
    ('0.1::float8 + 0.2::float8', '0.30000000000000004'), ('1e15::float8', '1e+15'),
    ('123456789012345678::float8', '1.2345678901234568e+17'), ('1e-5::float8', '1e-05'), ('0.0001::float8', '0.0001'),
    ('1.5e300::float8', '1.5e+300'), ("'NaN'::float8", 'NaN'), ("'-Infinity'::float8", '-Infinity'),
    ("'nan'::float8 = 'nan'::float8", 'true'), ("'nan'::float8 > 'inf'::float8", 'true'),
    ('1e308::float8 * 10', 'ERR 22003'), ('1e-308::float8 * 1e-308::float8', 'ERR 22003'), ('1e6::real', '1e+06'),
    ('0.1::real', '0.1'), ('1.1::real + 1', '2.100000023841858'), ('1234567.1::real', '1.2345671e+06'),
    ('1e39::real', 'ERR 22003'), ("'1e-60'::real", 'ERR 22003'), ('0.1::real = 0.1', 'false'),
    ('0.1::real::float8', '0.10000000149011612'), ('2.5::float8::int', '2'), ('3.5::float8::int', '4'),
    ('(-2.5)::int', '-3'), ('3e9::float8::int', 'ERR 22003'), ("'nan'::float8::int", 'ERR 22003'),
    ("' 12 '::int", '12'), ("'12x'::int", 'ERR 22P02'), ("''::int", 'ERR 22P02'), ("'3000000000'::int", 'ERR 22003'),
    ("'99999999999999999999'::bigint", 'ERR 22003'), ("'1.5'::int", 'ERR 22P02'), ("'1e400'::float8", 'ERR 22003'),
    ("'1e-400'::float8", 'ERR 22003'), ("' inf '::float8", 'Infinity'), ("'-1.005'::numeric(10,2)", '-1.01'),
    ("'99999999.995'::numeric(10,2)", 'ERR 22003'), ('1e10::numeric(10,2)', 'ERR 22003'), ("'1e5'::numeric", '100000'),
    ("' 1.50 '::numeric", '1.50'), ("'.5'::numeric", '0.5'), ("'1e'::numeric", 'ERR 22P02'),
    ("'tru'::boolean", 'true'), ("'o'::boolean", 'ERR 22P02'), ("'of'::boolean", 'false'),
    ("' YES '::boolean", 'true'), ("'2'::boolean", 'ERR 22P02'), ('2::boolean', 'true'), ('true::int', '1'),
    ("'2026-1-5'::date", '2026-01-05'), ("'9999-12-31'::date", '9999-12-31'),
    ("'2026-01-31T12:00:00.1234567'::timestamp", '2026-01-31 12:00:00.123457'),
    ("'2026-01-31T12:00'::timestamp", '2026-01-31 12:00:00'), ("'12:30'::time", '12:30:00'),
    ("'2026-01-31 12:00:00.5'::timestamp::date", '2026-01-31'),
    ("'2026-01-31 12:00:00.5'::timestamp::time", '12:00:00.5'), ("'2026-01-31'::date + 1", '2026-02-01'),
    ("'2026-01-31'::date - '2025-01-31'::date", '365'),
    ("'9999-12-31'::date < '2026-01-31 12:00:00'::timestamp", 'false'), ("'\\xDEadbeef'::bytea", '\\xdeadbeef'),
    ("'\\xDE'::bytea || '\\x00'::bytea", '\\xde00'), ("length('\\xDEAD'::bytea)", '2'),
    ("'{0188e5b5-2e9c-7a6b-8a1c-0242ac120002}'::uuid", '0188e5b5-2e9c-7a6b-8a1c-0242ac120002'),
    ("'0188-e5b5-2e9c-7a6b-8a1c-0242-ac12-0002'::uuid", '0188e5b5-2e9c-7a6b-8a1c-0242ac120002'),
    ("'0188e5b5'::uuid", 'ERR 22P02'), ("'abcdef'::varchar(3)", 'abc'), ('12345::varchar(3)', '123'),
    ("upper('äb')", 'ÄB'), ("octet_length('äö')", '4'), ("btrim('xax','x')", 'a'), ("ltrim('xyxa','xy')", 'a'),
    ("substring('abcdef' from 2 for 3)", 'bcd'), ("substring('abcdef', -1, 3)", 'a'),
    ("substring('abc', 2, -1)", 'ERR 22011'), ("substring('abc', 5)", ''), ("left('abc', -5)", ''),
    ("right('abc', -1)", 'bc'), ("right('abc', 0)", ''), ("replace('ab','','x')", 'ab'), ("strpos('abc','')", '1'),
    ("position('c' in 'abc')", '3'), ("concat('a',1,NULL,1.50)", 'a11.50'), ('abs((-2147483648)::int)', 'ERR 22003'),
    ('mod(-7,4)', '-3'), ('mod(7,2.5)', '2.0'), ('mod(7,0)', 'ERR 22012'), ('round(-2.5)', '-3'),
    ('round(2.5::float8)', '2'), ('round(5)', '5'), ('round(155.5,-1)', '160'), ('round(-155.5,-2)', '-200'),
    ('round(1.5,3)', '1.500'), ('ceil(-1.5)', '-1'), ('floor(2.0)', '2'), ('coalesce(NULL,1,2)', '1'),
    ('nullif(1,1)', None), ('greatest(1,NULL,2.5)', '2.5'), ("least('b','a')", 'a'),
    ("extract(second from '2026-01-31 12:00:01.5'::timestamp)", '1.500000'),
    ("extract(milliseconds from '2026-01-31 12:00:01.5'::timestamp)", '1500.000'),
    ("extract(epoch from '2026-01-31 12:00:01.5'::timestamp)", '1769860801.500000'),
    ("extract(dow from '2026-02-01'::date)", '0'), ("extract(week from '2027-01-01'::date)", '53'),
    ("extract(isoyear from '2027-01-01'::date)", '2026'), ("extract(hour from '12:30:00'::time)", '12'),
    ("extract(foo from '2026-05-01'::date)", 'ERR 22023'),
    ("date_trunc('week','2026-02-01 05:00'::timestamp)", '2026-01-26 00:00:00'),
    ("date_trunc('quarter','2026-05-05 05:00'::timestamp)", '2026-04-01 00:00:00'),
    ("date_trunc('foo','2026-05-05 05:00'::timestamp)", 'ERR 22023'),
    ('\'{"a":{"b":[1,2]}}\'::json -> \'a\' ->> \'b\'', '[1,2]'), ('\'{"a":"x\\u00e4"}\'::json ->> \'a\'', 'xä'),
    ('\'{"a":null}\'::json ->> \'a\'', None), ('\'{"a":null}\'::json -> \'a\'', 'null'),
    ("'[1,2.50]'::json -> -1", '2.50'), ("'[1,2]'::json -> 'a'", None), ("'5'::json -> 0", None),
    ('\'{"a":1,"a":2}\'::json -> \'a\'', '2'), ('\'{"a":1.10}\'::json ->> \'a\'', '1.10'),
    ("json_array_length('[1,2,3]')", '3'), ("json_array_length('{}')", 'ERR 22023'), ("json_typeof('null')", 'null'),
    ("'{'::json", 'ERR 22P02'), ("'abc' LIKE 'A%'", 'false'), ("'abc' ILIKE 'A%'", 'true'),
    ("'a%c' LIKE 'a\\%c'", 'true'), ("'a_c' LIKE 'a!_c' ESCAPE '!'", 'true'), ("'aäc' LIKE 'a_c'", 'true'),
    ("'abc' NOT LIKE '%b%'", 'false'), ('3 IN (1,NULL)', None), ('3 NOT IN (1,NULL)', None),
    ('1 IS DISTINCT FROM NULL', 'true'), ('TRUE AND NULL', None), ('FALSE AND NULL', 'false'), ('NOT NULL', None),
    ('1 = 1.0', 'true'), ("1 = '1'", 'true'), ("1 = 'x'", 'ERR 22P02'), ('CASE WHEN 1=1 THEN 1 ELSE 2.5 END', '1'),
    ("CASE 3 WHEN 1 THEN 'a' ELSE 'b' END", 'b'), ('9007199254740993 = 9007199254740992::float8', 'true'),
    ('9007199254740993::bigint::float8', '9.007199254740992e+15'), ("'a' < 'B'", 'false'), ("'a' < 'ä'", 'true'),
    ('-(-9223372036854775808)::bigint', 'ERR 22003'), ('(-9223372036854775808)::bigint / -1', 'ERR 22003'),
    ('(-9223372036854775808)::bigint % -1', '0'), ("- '-2147483648'::int", 'ERR 22003'),
    ('32767::smallint + 1::smallint', 'ERR 22003'), ('1::smallint + 1', '2'), ('40000::smallint', 'ERR 22003'),
    ('123.456::numeric(5,1)', '123.5'), ('12345.6::numeric(5,1)', 'ERR 22003'),
    ('-0.1234567890123456789012345678901234567', '-0.1234567890123456789012345678901234567'), ('0.1 + 0.2', '0.3'),
    (r"E'a\tb\\c\'d\x41\101\u00e4\U0001F600''e\q\x'", "a\tb\\c'dAAä😀'eqx"), ("length(e'\\n')", '1'),
    (r"E'\u12'", 'ERR 22025'), (r"E'\000'", 'ERR 22021'), (r"E'\xe4'", 'ERR 22021'), (r"'\n' || E'\n'", '\\n\n'),
]  # fmt: skip

ON_PURPOSE = [
    # another zone than UTC is converted, and not dropped
    ("'2026-01-31 12:00:00+02'::timestamp", "2026-01-31 10:00:00"),
    # TRUE is a word in each text
    ("concat('a', true)", "atrue"),
    # a document's number is a number
    ("'5'::json::int", "5"),
    # one SQLSTATE for each value beyond its range
    ("'2026-02-30'::date", "ERR 22003"),
    # no leap second, and no 24:00
    ("'2026-01-31 12:00:60'::timestamp", "ERR 22P02"), ("'24:00'::time", "ERR 22P02"),
    # refused whether it would be reached or not
    ("'b' LIKE 'abc\\'", "ERR 22025"),
    # 38 digits before the point
    ("1e30 * 1e10", "ERR 22003"),
]  # fmt: skip


@pytest.fixture(scope="module")
def schema() -> MemorySchema:
    return MemorySchema("")


@pytest.mark.parametrize(("expression", "value"), AS_THERE + ON_PURPOSE)
def test_value(schema: MemorySchema, expression: str, value: str | None) -> None:
    made: str | None
    try:
        (plan,) = schema.plans(f"SELECT {expression}")
        assert isinstance(plan.action, Select)
        (output,) = plan.action.outputs
        made = to_text(compile_expression(output.expression, {})((), None, ()), output.type)
    except TopicsError as error:
        made = f"ERR {(error.detail or {})['sqlstate']}"
    assert made == value
