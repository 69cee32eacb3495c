"""Jobs as JSON texts and as events: every member in its place, bytes as they were stored."""

import json

from topics_gateway import sse
from topics_gateway.jobs import job_text, view_text
from topics_service.engine.queue.jobs import Job, JobView
from topics_service.storage.block import Block, build


def block(
    *datas: bytes, tags: object = None, nodes: object = None, metas: object = None, kinds: object = None
) -> Block:
    return build(7, 41, 1_700_000_000_123, datas, tags, nodes, metas, kinds, 0)  # type: ignore[arg-type]


def job(block: Block, position: int = 0) -> Job:
    return Job(block=block, position=position, lease_id="lease_0a", deadline=1_700_000_030_123, deliveries=2)


def test_a_job_with_everything() -> None:
    made = block(b"1", b'{"b": 1.0,"a":"\\u00e9"}', tags=[None, 'q"é\x01'.encode()], metas=[None, b'{"k" : []}'])
    assert (
        job_text(job(made, 1))
        == (
            '{"$seq":42,"lease_id":"lease_0a","deadline":1700000030123,"$ts":1700000000123,"$tag":"q\\"é\\u0001",'
            '"deliveries":2,"data":{"b": 1.0,"a":"\\u00e9"},"meta":{"k" : []}}'
        ).encode()
    )
    assert job_text(job(made, 0)) == (
        b'{"$seq":41,"lease_id":"lease_0a","deadline":1700000030123,"$ts":1700000000123,"deliveries":2,"data":1}'
    )


def test_binary_data_and_the_head_of_an_event() -> None:
    made = block(b"\x00\xff", b"null", kinds=b"\x01\x00", tags=[b"t", b""], nodes=[b"n", b"n"])
    text = job_text(job(made), b'{"topic":"q",')
    assert text.startswith(b'{"topic":"q","$seq":41,')
    assert b',"$ts":1700000000123,"$encoding":"base64","$tag":"t","deliveries":2,"data":"AP8="}' in text
    assert b"node" not in text
    assert b'"$tag":"","deliveries":2,"data":null}' in job_text(job(made, 1))


def test_an_event_is_one_line_whatever_is_stored() -> None:
    made = block(b'{"a":\r\n1}')
    event = sse.event(b"job", job_text(job(made)), b"41")
    lines = event.decode().split("\n")
    assert lines[:2] == ["id: 41", "event: job"]
    assert lines[3:] == ["", ""]
    assert '"data":{"a":  1}' in lines[2]


def test_views_show_what_their_state_has() -> None:
    made = block(b"1", tags=[b"t"], nodes=[b"writer"], metas=[b"{}"], kinds=None)
    texts = [
        view_text(JobView(block=made, position=0, state="ready", deliveries=0, priority=3)),
        view_text(JobView(block=made, position=0, state="in_flight", deliveries=1, node='w"', deadline=5)),
        view_text(JobView(block=made, position=0, state="delayed", deliveries=1, ready_at=6)),
    ]
    members = [list(json.loads(text)) for text in texts]
    head, tail = ["$seq", "$ts", "$tag", "$node", "state", "deliveries"], ["data", "meta"]
    assert members == [[*head, "priority", *tail], [*head, "node", "deadline", *tail], [*head, "ready_at", *tail]]
    assert json.loads(texts[1])["node"] == 'w"'
