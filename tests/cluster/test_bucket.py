"""The promises of every Bucket, kept by S3 (SeaweedFS) and by the one in memory."""

import asyncio
import os
import random
from pathlib import Path

import pytest

from support.s3 import S3
from topics_backup.objects import open_url
from topics_cluster.bucket import Bucket, BucketError
from topics_cluster.memory import MemoryBucket
from topics_cluster.s3 import S3Bucket


@pytest.fixture(params=["memory", "s3"])
def bucket(request: pytest.FixtureRequest) -> Bucket:
    if request.param == "memory":
        return MemoryBucket()
    return S3Bucket(f"{request.getfixturevalue('bucket_url')}/some/where")


async def test_a_name_is_given_once(bucket: Bucket) -> None:
    assert await bucket.get("s0/log/1") is None
    assert await bucket.create("s0/log/1", [b"a", b"", b"bc"])
    assert not await bucket.create("s0/log/1", [b"other"])
    assert await bucket.get("s0/log/1") == b"abc"
    await bucket.delete(["s0/log/1"])
    assert await bucket.create("s0/log/1", [])
    assert await bucket.get("s0/log/1") == b""


async def test_of_many_that_create_one_name_one_succeeds(bucket: Bucket) -> None:
    for number in range(5):
        contents = [bytes([i]) * 2_000 for i in range(8)]
        created = await asyncio.gather(*(bucket.create(f"race/{number}", [content]) for content in contents))
        assert sum(created) == 1
        assert await bucket.get(f"race/{number}") == contents[created.index(True)]


async def test_names_are_listed_in_order_with_their_sizes(bucket: Bucket) -> None:
    names = [f"s0/log/{number:020}" for number in (9, 10, 11, 100)] + ["s0/logs", "s0/ckpt/1", "s00/log/1"]
    for name in names:
        await bucket.create(name, [name.encode()])
    log = sorted(names)[1:5]
    assert [entry.name for entry in await bucket.list("s0/log/")] == log
    assert [entry.name for entry in await bucket.list("s0/log/", log[1])] == log[2:]
    assert [entry.name for entry in await bucket.list("s0/log/", log[1] + "0")] == log[2:]
    assert [entry.name for entry in await bucket.list("s0/log/0000000000000000001")] == log[1:3]
    assert [entry.name for entry in await bucket.list("s0/log/", before=log[2])] == log[:2]
    assert [entry.name for entry in await bucket.list("s0/log/", log[0], log[3])] == log[1:3]
    assert [entry.name for entry in await bucket.list("")] == sorted(names)
    assert await bucket.list("s1/") == []
    entries = await bucket.list("s0/log/")
    assert [entry.size for entry in entries] == [27] * 4
    assert max(entry.modified for entry in entries) - min(entry.modified for entry in entries) < 60


async def test_absent_names_are_deleted_without_an_error(bucket: Bucket) -> None:
    kept, gone = [f"a/{i}" for i in range(3)], [f"b/{i}" for i in range(3)]
    for name in kept + gone:
        await bucket.create(name, [b"x"])
    await bucket.delete([*gone, *(f"c/{i}" for i in range(1500))])
    await bucket.delete([])
    assert [entry.name for entry in await bucket.list("")] == kept


async def test_files_go_and_come(bucket: Bucket, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for content in (random.Random(1).randbytes(12_345_678), b""):
        source.write_bytes(content)
        await bucket.put_file("files/1", source)
        assert await bucket.get("files/1") == content
        assert await bucket.get_file("files/1", target)
        assert target.read_bytes() == content
        with pytest.raises(FileExistsError):
            await bucket.get_file("files/1", target)
        target.unlink()
    assert not await bucket.get_file("files/2", target)
    assert not target.exists()
    with pytest.raises(FileNotFoundError):
        await bucket.put_file("files/1", target)


async def test_a_store_without_that_bucket_is_no_empty_one(bucket_url: str, tmp_path: Path) -> None:
    bucket = S3Bucket("s3://not-there/x")
    for call in (
        lambda: bucket.get("a"),
        lambda: bucket.get_file("a", tmp_path / "new"),
        lambda: bucket.list("a"),
    ):
        with pytest.raises(BucketError, match=r"^s3://not-there/x: .*NoSuchBucket"):
            await call()


async def test_a_store_that_refuses_the_keys(bucket_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another secret")
    bucket = S3Bucket(bucket_url)
    for call in (
        lambda: bucket.get("a"),
        lambda: bucket.create("a", [b""]),
        lambda: bucket.list(""),
        lambda: bucket.delete(["a"]),
    ):
        with pytest.raises(BucketError, match="SignatureDoesNotMatch") as error:
            await call()
        assert "another secret" not in str(error.value)
    with pytest.raises(ValueError, match="nothing://x"):
        S3Bucket("nothing://x")


async def test_keys_of_a_file_can_be_changed(bucket_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, secret = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    bucket = S3Bucket(bucket_url)
    with pytest.raises(BucketError, match="credentials"):
        await bucket.create("a", [b"x"])

    async def refused() -> bool:
        try:
            await bucket.create("a", [b"x"])
        except BucketError as error:
            return "SignatureDoesNotMatch" in str(error)
        return False

    for given in ("wrong%", secret, "wrong", secret):
        file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {given}\n")
        async with asyncio.timeout(20):
            while await refused() is (given == secret):
                await asyncio.sleep(0.1)
    assert await bucket.get("a") == b"x"
    open_url(bucket_url).put("b", b"y")  # as a target of backups, which blocks
    assert await bucket.get("b") == b"y"


async def test_a_store_that_is_away_and_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with S3(tmp_path / "s3") as s3:
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        bucket = S3Bucket(s3.bucket(), request_seconds=1.0)
        assert await bucket.create("a", [b"x"])
        s3.pause()
        with pytest.raises(BucketError):
            await bucket.create("b", [b"y"])  # it may still be made
        s3.resume()
        assert await _repeated(bucket, "b", b"y") or await bucket.get("b") == b"y"
        s3.stop()
        with pytest.raises(BucketError):
            await bucket.create("c", [b"z"])
        s3.start()
        assert await bucket.get("a") == b"x"
        assert await _repeated(bucket, "c", b"z") or await bucket.get("c") == b"z"


async def _repeated(bucket: Bucket, name: str, content: bytes) -> bool:
    """Create an object as a log does, over answers that do not come."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await bucket.create(name, [content])
            except BucketError:
                await asyncio.sleep(0.05)
