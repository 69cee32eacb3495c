"""A real S3 and a real etcd for all tests, and a bucket for each."""

from collections.abc import Iterator

import pytest

from support.etcd import Etcd
from support.s3 import S3


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """An S3 server, shared: a test that takes it away starts one of its own."""
    with S3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """An etcd, shared: a test uses a cluster name of its own, and one that takes it away starts another."""
    with Etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def bucket_url(s3: S3, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket, `s3://NAME`, with the environment by which this process finds it."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3.bucket()
