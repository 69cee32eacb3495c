"""Blocks in messages: whole, cut, and each once."""

import pytest
from shards.samples import Samples, records

from topics_service.api.queues import QueuesApi
from topics_service.api.topics import TopicsApi
from topics_service.engine.model import DiffReply, Slice
from topics_service.engine.queue.jobs import ClaimReply, Job
from topics_service.storage import block as columnar
from topics_service.storage.kafkablock import KafkaBlock
from topics_shards.wire.carriers import carrier_of
from topics_shards.wire.methods import RemoteMethod
from topics_shards.wire.pieces import Packing, Piece, Pieces, block_of, cut

DIFF = RemoteMethod(TopicsApi.diff, is_read=True)


def page(*slices: Slice) -> DiffReply:
    return DiffReply(
        topic="t", slices=slices, next_from_seq=9, head_seq=9, earliest_seq=1, tombstone=None, records_scanned=1
    )


@pytest.mark.parametrize("seed", range(30))
def test_a_piece_has_the_records_of_its_block(seed: int) -> None:
    samples = Samples(seed)
    for block in samples.blocks:
        for _ in range(5):
            start = samples.rng.randrange(block.count)
            stop = samples.rng.randrange(start + 1, block.count + 1)
            piece = block_of(cut(block, start, stop)).columns()
            assert piece.count == stop - start
            assert records(piece, 0, piece.count) == records(block, start, stop)


@pytest.mark.parametrize("seed", range(10))
def test_a_piece_of_batches_has_whole_ones(seed: int) -> None:
    samples = Samples(seed)
    block = samples.batches()
    assert isinstance(block, KafkaBlock)
    start = samples.rng.randrange(block.count)
    sent = cut(block, start, start + 1)
    piece = block_of(sent)
    assert sent.shift <= start < sent.shift + piece.count
    assert isinstance(piece, KafkaBlock)
    assert [bytes(piece.batch(each)) for each in piece.parts] == [bytes(block.batch(block.part_at(start)))]
    assert piece.base_seq == block.base_seq + sent.shift
    assert (piece.first_ts, piece.max_ts) == (block.ts_at(start), block.max_ts)
    assert piece.cum_bytes == block.cum_bytes + block.sizes_upto(sent.shift)


def test_a_few_records_of_a_large_block_cost_little() -> None:
    block = Samples(1).block(1000, 150)
    assert len(DIFF.encode_result(page(Slice(block, 0, 1000)))) > 150_000
    assert len(DIFF.encode_result(page(Slice(block, 990, 1000)))) < 3000
    claim = RemoteMethod(QueuesApi.claim, is_read=False)
    jobs = [Job(block, at, "lease", 5, 1) for at in range(0, 1000, 100)]
    body = claim.encode_result(ClaimReply(topic="t", jobs=jobs))
    assert len(body) < 6000
    found = claim.decode_result(body).jobs
    assert [job.seq for job in found] == [job.seq for job in jobs]
    datas = [block.record_data(at) for at in range(0, 1000, 100)]
    assert [job.block.record_data(job.position) for job in found] == datas


def test_records_that_are_near_each_other_share_a_piece() -> None:
    block = Samples(1).block(1000, 150)
    packing = Packing()
    places: list[list[object]] = [[-1, at, at + 1] for at in (3, 1, 900, 7)]
    for place in places:
        packing.want(block, place[1], place[2], place)  # type: ignore[arg-type]
    pieces = packing.pieces()
    assert [place[0] for place in places] == [0, 0, 1, 0]
    assert [(piece.shift, len(piece.ends or b"") // 4) for piece in pieces] == [(1, 7), (900, 1)]


def test_a_block_is_carried_once() -> None:
    block = Samples(1).block(100, 150)
    once = len(DIFF.encode_result(page(Slice(block, 0, 100))))
    many = len(DIFF.encode_result(page(*(Slice(block, at, at + 1) for at in range(100)))))
    assert many < once + 100 * 5
    found = DIFF.decode_result(DIFF.encode_result(page(Slice(block, 0, 50), Slice(block, 50, 100)))).slices
    assert found[0].block is found[1].block


@pytest.mark.parametrize(
    "piece",
    [
        Piece(0, 1, 1, [(1, 5)], 5, 0, b"12", ends=b"\1\0\0\0"),
        Piece(0, 1, 1, [(1, 5)], 5, 0, b"12", ends=b"\1\0"),
        Piece(0, 1, 1, [(1, 5)], 5, 0, b"12", ends=b""),
        Piece(0, 1, 1, [(2, 5)], 5, 0, b"12", ends=b"\2\0\0\0"),
        Piece(0, 1, 1, [(1, 5)], 5, 0, b"12", ends=b"\2\0\0\0", kinds=b"\0\0"),
        Piece(0, 1, 1, [], 5, 0, b"12", ends=b"\2\0\0\0"),
        Piece(0, 1, 1, [(1, 5)], 5, 0, b"no batch"),
        Piece(0, 1, 1, [(1, 5)], 5, 0, b""),
    ],
)
def test_what_is_no_block_is_refused(piece: Piece) -> None:
    with pytest.raises(ValueError, match=r"piece|batch|records|kinds|multiple"):
        Pieces([piece])


def test_a_place_outside_of_its_piece_is_refused() -> None:
    block = columnar.build(1, 1, 5, [b"1", b"2"], None, None, None, None, 0)
    packing = Packing()
    carrier = carrier_of(Slice, "here")
    assert carrier.pack is not None
    assert carrier.unpack is not None
    place = carrier.pack(Slice(block, 0, 2), packing)
    pieces = Pieces(packing.pieces())
    for wrong in ((1, 0, 2), (-1, 0, 1), (0, 0, 3), (0, 2, 1)):
        with pytest.raises(ValueError, match="piece"):
            carrier.unpack(wrong, pieces)
    assert carrier.unpack(tuple(place), pieces).stop == 2
