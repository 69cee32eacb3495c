"""Write bodies: columns, verbatim bytes, refusals and duplicates."""

# ruff: noqa: UP031 - JSON has enough braces without those of str.format

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics_gateway.append_decoder import read_append
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.model import AppendRequest, Batch, ConfigInput

LIMITS = Limits()


def read(text: str | bytes) -> AppendRequest:
    request = read_append("t", text.encode() if isinstance(text, str) else text, LIMITS)
    request.batch.datas = list(map(bytes, request.batch.datas))  # they are views of the body: compare what they hold
    return request


def refuse(text: str | bytes) -> str:
    with pytest.raises(TopicsError) as error:
        read(text)
    assert error.value.reason is Reason.INVALID_REQUEST
    return error.value.message


def test_columns_are_absent_when_no_record_has_the_member() -> None:
    assert read('{"records":[{"data":1},{"data":null}]}').batch == Batch(datas=[b"1", b"null"])
    assert read('{"records":[{"data":1,"tag":null,"node":null,"meta":null}]}').batch == Batch(datas=[b"1"])


def test_columns_with_gaps() -> None:
    batch = read('{"records":[{"data":1,"tag":"é"},{"data":2,"meta":{}},{"data":3,"node":""}]}').batch
    assert batch.tags == ["é".encode(), None, None]
    assert batch.metas == [None, b"{}", None]
    assert batch.nodes == [None, None, b""]


def test_the_node_of_the_batch_is_the_default() -> None:
    assert read('{"records":[{"data":1},{"data":2}],"node":"b"}').batch.nodes == [b"b", b"b"]
    batch = read('{"node":"b","records":[{"data":1,"node":null},{"data":2,"node":"own"}]}').batch
    assert batch.nodes == [b"b", b"own"]
    assert read('{"records":[{"data":1}],"node":null}').batch.nodes is None


def test_data_and_meta_are_kept_byte_for_byte() -> None:
    data = r'{ "z":1.0, "a" : [ -0.0,1e3 ,' + str(2**70) + r'], "k":1,"k":2, "s":"\u00e9\/é" }'
    meta = r'{"b":{"y":1,"b":1.0} ,"a":"\n"}'
    batch = read('{"records": [ {"meta": %s , "data": %s} ] }' % (meta, data)).batch
    assert (batch.datas, batch.metas) == ([data.encode()], [meta.encode()])


def test_the_other_members() -> None:
    request = read(
        '{"records":[{"data":1}],"idempotency_key":"k","create":false,"config":{"ttl_ms":5},'
        '"disable_backpressure":true,"return_seqs":false}'
    )
    assert (request.idempotency_key, request.create, request.disable_backpressure) == ("k", False, True)
    assert request.config == ConfigInput(ttl_ms=5)
    request = read('{"records":[{"data":1}],"idempotency_key":null,"create":null,"config":null}')
    assert (request.idempotency_key, request.create, request.config) == (None, None, None)


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", '"x"', "{}", '{"records":null}', '{"records":{}}', '{"records":"x"}', '{"records":[5]}',
        '{"records":[[]]}', '{"records":[{}]}', '{"records":[{"tag":"x"}]}', '{"records":[{"data":1,"tag":5}]}',
        '{"records":[{"data":1,"node":5}]}', '{"records":[{"data":1}],"node":5}', '{"records":[{"data":1}]}x',
        '{"records":[{"data":1,"meta":"x"}]}', '{"records":[{"data":1,"meta":[1]}]}',
        '{"records":[{"data":1,"meta":7}]}', '{"records":[{"data":1}],"idempotency_key":5}',
        '{"records":[{"data":1}],"create":"yes"}', '{"records":[{"data":1}],"create":1}',
        '{"records":[{"data":1}],"disable_backpressure":"no"}', '{"records":[{"data":1}],"disable_backpressure":null}',
        '{"records":[{"data":1}],"config":5}', '{"records":[{"data":1}],"config":[]}',
        '{"records":[{"data":1}],"config":{"ttl_ms":1.0}}', '{"records":[{"data":NaN}]}', '{"records":[{"data":01}]}',
        r'{"records":[{"data":"\ud800"}]}', r'{"records":[{"data":1,"tag":"\ud800"}]}', '{"records":[{"data":"\n"}]}',
        r'{"records":[{"data":1}],"unknown":"\ud800"}', '{"records":[{"data":}]}', '{"records":[{"data":1},]}',
    ],
)  # fmt: skip
def test_refusals(text: str) -> None:
    refuse(text)


@pytest.mark.parametrize(
    "text",
    [
        b'{"records":[{"data":"\xff"}]}', b'{"records":[{"data":1,"meta":{"k":"\xc0\xaf"}}]}',
        b'{"records":[{"data":1,"tag":"\xed\xa0\x80"}]}', b'{"records":[{"data":1}],"\xff":1}',
    ],
)  # fmt: skip
def test_invalid_utf8_is_refused(text: bytes) -> None:
    assert "UTF-8" in refuse(text)


@pytest.mark.parametrize("bad", [b"\xff", b"\xc3", b"\xf0\x9f\x98", b"\xed\xa0\x80"])
@pytest.mark.parametrize("at", [(1 << 20) - 3, (1 << 20) - 2, (1 << 20) - 1, 1 << 20, (2 << 20) - 1, 3_000_000])
def test_invalid_utf8_is_found_where_it_is_in_a_large_body(bad: bytes, at: int) -> None:
    """It is looked for in steps of a megabyte, which cut characters."""
    head = b'{"records":[{"data":"'
    text = head + b"x" * (at - len(head)) + bad + b"x" * 200_000 + b'"}]}'
    assert refuse(text) == f"the body is not valid UTF-8 (byte {at})"


def test_characters_at_the_end_of_a_step_are_whole() -> None:
    for at in range((1 << 20) - 4, (1 << 20) + 1):
        head = b'{"records":[{"data":"'
        text = head + b"x" * (at - len(head)) + "\U0001f600".encode() + b'"}]}'
        assert read(text).batch.datas == [text[len(head) - 1 : -3]]


def test_a_large_body_is_not_copied_whole() -> None:
    """One character beyond the BMP made a text of four times its size of it."""
    text = b'{"records":[%b]}' % b",".join([b'{"data":"%b"}' % ("\U0001f600" + "x" * 1_000_000).encode()] * 16)
    tracemalloc.start()
    request = read_append("t", text, LIMITS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(request.batch.datas) == 16
    assert peak < 12 << 20, peak


def test_nesting() -> None:
    deep = "[" * 100 + "]" * 100
    assert read('{"records":[{"data":%s}]}' % deep).batch.datas == [deep.encode()]
    assert read('{ "records" : [ {  "data"  : %s  } ] , "x" : 1  }' % deep).batch.datas == [deep.encode()]
    assert "deep" in refuse('{"records":[{"data":%s}]}' % ("[" * 100_000 + "]" * 100_000))
    assert "deep" in refuse('{"records":[{"data":1}],"x":%s}' % ('{"a":' * 100_000 + "1" + "}" * 100_000))


def test_meta_limits() -> None:
    def write(keys: int) -> str:
        return json.dumps({"records": [{"data": 1, "meta": {f"k{i}": 0 for i in range(keys)}}]})

    read(write(64))
    assert "65 keys" in refuse(write(65))
    assert "meta" in refuse('{"records":[{"data":1,"meta":{"k":"%s"}}]}' % ("x" * 16_400))


DUPLICATES = [
    '{"data":1,"data":2}', '{"data":1,"tag":"","tag":""}', '{"data":1,"tag":"a","tag":null}',
    '{"data":1,"node":"","node":""}', '{"data":1,"meta":{},"meta":{}}', '{"tag":"a","data":1,"tag":"long enough"}',
    r'{"data":1,"t\u0061g":"a","tag":"b"}', r'{"data":1,"tag":"a","t\u0061g":"b"}',
    '{"data":1,"meta":null,"meta":{}}', '{ "data" : 1 , "data" : 2 }',
]  # fmt: skip
FINE = [
    '{"data":{"a":1,"a":2}}', '{"data":1,"meta":{"k":1,"k":2}}', '{"data":1,"x":1,"x":2}', '{"data":1,"tag":null}',
    r'{"data":1,"tag":"\u00e9\u00e9\u00e9","node":"\n\n\n\n\n\n\n\n\n\n"}', '{"data":1,"x":{"data":1,"data":2}}',
    '{\n  "data": 1,\n  "tag": "a",\n  "node": "b",\n  "meta": {}\n}', '{"data":[{"data":1,"data":1}],"tag":"é"}',
]  # fmt: skip
AROUND = [
    '{"records":[%s]}',
    '{"records":[{"data":0,"tag":"a"},%s,{"data":9}]}',
    '{"records": [{"data": 0, "tag": "a", "node": "b", "meta": {"k": 1}}, %s]}',
    '{"x":[[{"data":1}]],"records":[%s],"return_seqs":true}',
    '{"node":"[","idempotency_key":"[{}]","records":[{"data":null,"tag":null,"node":null},%s]}',
    '{\n\t"records"\n:\n[\n%s\n]\n}',
]


@pytest.mark.parametrize("around", AROUND)
def test_duplicates_in_a_record_are_refused_in_every_spelling(around: str) -> None:
    for record in DUPLICATES:
        assert "duplicate" in refuse(around % record), record
    for record in FINE:
        read(around % record)


@pytest.mark.parametrize("space", ["", " ", " " * 10])
@pytest.mark.parametrize(
    "twice",
    [
        '"node":"","node":""', '"idempotency_key":"a","idempotency_key":"b"', '"create":true,"create":false',
        '"config":{},"config":{}', '"disable_backpressure":true,"disable_backpressure":true',
        '"config":null,"config":{}',
        '"records":[{"data":1}]', '"records":[]', r'"rec\u006frds":[{"data":2}]', '"config":{"ttl_ms":1,"ttl_ms":1}',
        '"node":null,"node":"a"',
    ],
)  # fmt: skip
def test_duplicates_beside_the_records_are_refused(twice: str, space: str) -> None:
    assert "duplicate" in refuse('{"records":%s[{"data":1}],%s%s}' % (space, space, twice))
    assert "duplicate" in refuse('{%s,%s"records":[{"data":1}%s]}' % (twice, space, space))


def test_how_many_elements_a_record_has_is_no_matter_of_its_layout() -> None:
    large = ",".join("1" * (LIMITS.max_record_bytes // 2))  # as many as a record can have, spaced or not
    assert len(read('{ "records" : [ { "data" : "%s" } ] }' % large).batch.datas) == 1
    too_large = read('{ "records" : [ { "data" : [%s,%s,1] } ] }' % (large, large))
    assert len(too_large.batch.datas) == 1, "that is said later"
    assert "members and elements" in refuse('{"records":[{"data":1,"x":[%s,%s,%s]}]}' % (large, large, large))


def test_records_that_occur_elsewhere_too() -> None:
    read('{"x":[{"data":1}],"records":[{"data":1}]}')
    assert "duplicate" in refuse('{"x":[{"data":1}],"records":[{"data":1}],"node":"a","node":"b"}')


text = st.text(max_size=8)
records = st.lists(
    st.fixed_dictionaries(
        {
            "data": st.recursive(
                st.none() | st.integers() | text, lambda inner: st.dictionaries(text, inner, max_size=3)
            )
        },
        optional={"tag": text | st.none(), "node": text | st.none(), "meta": st.dictionaries(text, text, max_size=3)},
    ),
    min_size=1,
    max_size=5,
)
layouts = st.sampled_from([{"separators": (",", ":")}, {}, {"indent": 3}])


@given(records, layouts, st.booleans())
def test_no_layout_of_a_body_without_duplicates_is_refused(
    records: list[dict[str, Any]], layout: dict[str, Any], ascii_only: bool
) -> None:
    batch = read(json.dumps({"records": records}, ensure_ascii=ascii_only, **layout)).batch
    assert [json.loads(data) for data in batch.datas] == [record["data"] for record in records]
    for name, column in (("tag", batch.tags), ("node", batch.nodes)):
        want = [None if (value := record.get(name)) is None else value.encode() for record in records]
        assert (column or [None] * len(records)) == want


@given(records, layouts, st.booleans(), st.data())
def test_every_duplicate_is_found_in_every_layout(
    records: list[dict[str, Any]], layout: dict[str, Any], ascii_only: bool, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(records) - 1))
    name = data.draw(st.sampled_from(sorted(records[at])))
    records[at] = {**records[at], "~": records[at][name]}  # spelled as the name itself below
    body = json.dumps({"records": records}, ensure_ascii=ascii_only, **layout)
    before, _, after = body.rpartition('"~"') if at == len(records) - 1 else body.partition('"~"')
    if '"~"' in before + after:  # the generated text has one too: not the case to test
        return
    assert "duplicate" in refuse(f'{before}"{name}"{after}')
