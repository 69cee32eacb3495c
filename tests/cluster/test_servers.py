"""The servers of these tests: they start, lose what they shall lose, and come back."""

import base64
from pathlib import Path
from typing import Any

import obstore
import requests

from support.etcd import Etcd
from support.s3 import S3


def test_a_bucket_outlives_its_server(tmp_path: Path) -> None:
    with S3(tmp_path / "s3") as s3:
        store = s3.store(s3.bucket())
        obstore.put(store, "a", b"x")
        s3.stop()
        s3.start()
        assert bytes(obstore.get(store, "a").bytes()) == b"x"
        assert s3.bucket() != s3.bucket()


def test_an_etcd_loses_its_entries_only_when_it_is_emptied(tmp_path: Path) -> None:
    with Etcd(tmp_path / "etcd") as etcd:
        key = base64.b64encode(b"a").decode()

        def call(method: str, **body: str) -> dict[str, Any]:
            reply = requests.post(f"http://{etcd.address}/v3/kv/{method}", json={"key": key} | body, timeout=20)
            return dict(reply.json())

        call("put", value=key)
        etcd.stop()
        etcd.start()
        assert call("range")["count"] == "1"
        etcd.empty()
        etcd.start()
        assert "count" not in call("range")
