"""An S3 server (SeaweedFS, see weed.py) for clusters, on the loopback: its buckets, and ways to take it away."""

import os
import signal
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import obstore
import requests
from obstore.store import S3Store, from_url

from support.weed import Weed


class S3(Weed):
    """An S3 server. `environment` is what a process needs to enter; nothing of it is set in this one."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        super().__init__(folder, host)
        self._buckets = 0

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return self.properties["s3.endpoint"]

    @property
    def environment(self) -> Mapping[str, str]:
        """Settings by which obstore, and so topics, finds it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.properties["s3.access-key-id"],
            "AWS_SECRET_ACCESS_KEY": self.properties["s3.secret-access-key"],
            "AWS_REGION": self.properties["s3.region"],
            "AWS_ALLOW_HTTP": "true",
        }

    def bucket(self) -> str:
        """The URL of a new bucket, s3://NAME."""
        self._buckets += 1
        url = f"s3://bucket-{self._buckets}"
        # A presigned PUT of no object at all is CreateBucket, which obstore has not.
        request = obstore.sign(self.store(url), "PUT", "", timedelta(minutes=1))
        requests.put(request, timeout=20).raise_for_status()
        return url

    def store(self, url: str) -> S3Store:
        """A bucket, for a test that looks into it, or damages it."""
        found = self.properties
        store = from_url(
            url,
            endpoint=found["s3.endpoint"],
            access_key_id=found["s3.access-key-id"],
            secret_access_key=found["s3.secret-access-key"],
            region=found["s3.region"],
            client_options={"allow_http": True},
        )
        assert isinstance(store, S3Store)
        return store

    def start(self) -> None:
        """Start, on the data that is there, and wait until it takes objects: 5 s after a restart."""
        super().start()
        try:
            obstore.put(self.store("s3://ready"), "x", b"")  # into a bucket that it makes
        except BaseException:
            self.stop()
            raise

    def pause(self) -> None:
        """Let it answer nothing any more; connections stay, and new ones are taken."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it answer again."""
        self._signal(signal.SIGCONT)

    def _signal(self, signum: int) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signum)
