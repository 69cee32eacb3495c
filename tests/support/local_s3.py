"""An S3 server in memory: as much of the API as obstore uses, with a chosen delay and chosen faults.

As a program it serves until it is killed: `python -m support.local_s3 PORT_FILE [DELAY_SECONDS]`.
"""

import re
import sys
import threading
import time
import xml.etree.ElementTree as ET
from calendar import timegm
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final, Literal, NamedTuple, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

Fault = Literal["500", "503", "lost", "late", "half"]
"""Fate of a request: an error before anything is done; done, and the answer lost; done after `late_seconds`, with the
connection closed at once; answered with half a body."""

_PAGE: Final = 1000
_MAX_SKEW_SECONDS: Final = 900


class _Object(NamedTuple):
    body: bytes
    made: float


class LocalS3:
    """The server. Buckets need not be made: each name is one."""

    def __init__(
        self,
        *,
        delay: float = 0,
        conditional: bool = True,
        fault: Callable[[str, str], Fault | None] = lambda method, key: None,
        late_seconds: float = 3,
        host: str = "127.0.0.1",
    ) -> None:
        """With `conditional` False it creates what is there over again, as stores do that don't know `If-None-Match`.

        `fault` is asked for each request, by its method and the name of the object with its bucket in front. `host` is
        the address that it listens at.
        """
        self.delay = delay
        self.conditional = conditional
        self.fault = fault
        self.late_seconds = late_seconds
        self.key_ids: set[str] | None = None
        """Access keys that are accepted; None: all are. Their secrets are not checked."""
        self.seen_key_ids: set[str] = set()
        self.checks_time = True
        """Refuse requests whose time is a quarter of an hour off, as S3 does."""
        self.objects: dict[str, _Object] = {}
        self.puts = 0
        self.lock = threading.Lock()
        self._parts: dict[str, dict[int, bytes]] = {}
        self._server = _Server(self, host)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def endpoint(self) -> str:
        """Its URL."""
        host, port, *_ = self._server.server_address
        return f"http://{host}:{port}"

    @property
    def environment(self) -> Mapping[str, str]:
        """Settings by which obstore, and so topics, finds it."""
        return self.environment_of(self.endpoint)

    @staticmethod
    def environment_of(endpoint: str) -> Mapping[str, str]:
        """The settings for a server at that URL."""
        return {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "anyone",
            "AWS_SECRET_ACCESS_KEY": "anything",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def put(self, key: str, body: bytes, *, create: bool) -> bool:
        """Store an object; False if it is there and only to be created."""
        with self.lock:
            self.puts += 1
            if create and self.conditional and key in self.objects:
                return False
            self.objects[key] = _Object(body, time.time())
            return True

    def begin_upload(self) -> str:
        with self.lock:
            name = f"upload-{len(self._parts)}"
            self._parts[name] = {}
            return name

    def put_part(self, upload: str, number: int, body: bytes) -> None:
        with self.lock:
            self._parts[upload][number] = body

    def complete(self, upload: str, key: str, *, create: bool) -> bool:
        parts = self._parts[upload]
        return self.put(key, b"".join(parts[number] for number in sorted(parts)), create=create)

    def keys(self, prefix: str) -> list[str]:
        """The names below a prefix, bucket in front."""
        with self.lock:
            return sorted(key for key in self.objects if key.startswith(prefix))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    @contextmanager
    def away(self, way: str, seconds: float) -> Iterator[None]:
        """Answer nothing within the block: "refuses" each request at once, or "hangs" for so many seconds."""
        if way == "refuses":
            self.fault = lambda method, key: "503"
        else:
            self.delay = seconds
        try:
            yield
        finally:
            self.fault, self.delay = (lambda method, key: None), 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, store: LocalS3, host: str) -> None:
        super().__init__((host, 0), _Handler)
        self.store = store

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that is killed in the middle is none."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    server: _Server

    def do_PUT(self) -> None:
        body = self._body()
        self._handle(lambda: self._put(body))

    def do_POST(self) -> None:
        body = self._body()
        self._handle(lambda: self._post(body))

    def do_GET(self) -> None:
        self._handle(self._get)

    def do_HEAD(self) -> None:
        self._handle(self._get)

    def do_DELETE(self) -> None:
        self._handle(self._delete)

    @property
    def _store(self) -> LocalS3:
        return self.server.store

    def _handle(self, act: Callable[[], tuple[int, bytes, dict[str, str]]]) -> None:
        parts = urlsplit(self.path)
        self.key = unquote(parts.path).lstrip("/")
        self.query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        store = self._store
        refusal = self._refusal()
        if refusal:
            self._answer(403, f"<Error><Code>{refusal}</Code></Error>".encode(), {})
            return
        fault = store.fault(self.command, self.key)
        time.sleep(store.delay)
        if fault in ("500", "503"):
            self._answer(int(fault), b"<Error><Code>SlowDown</Code></Error>", {})
            return
        if fault == "late":
            threading.Timer(store.late_seconds, act).start()
        else:
            answer = act()
        if fault in ("late", "lost"):
            self.close_connection = True
            return
        self._answer(*answer, half=fault == "half")

    def _refusal(self) -> str:
        """The code of S3's error for a key that is not accepted or a time that is too far off; empty for none."""
        key_id = re.search(r"Credential=([^/]*)/", self.headers.get("Authorization", ""))
        if key_id is not None:
            self._store.seen_key_ids.add(key_id[1])
        if self._store.key_ids is not None and (key_id is None or key_id[1] not in self._store.key_ids):
            return "InvalidAccessKeyId"
        given = self.headers.get("x-amz-date")
        if (
            self._store.checks_time
            and given
            and abs(timegm(time.strptime(given, "%Y%m%dT%H%M%SZ")) - time.time()) > _MAX_SKEW_SECONDS
        ):
            return "RequestTimeTooSkewed"
        return ""

    def _put(self, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        if "uploadId" in self.query:
            self._store.put_part(self.query["uploadId"], int(self.query["partNumber"]), body)
            return 200, b"", {"ETag": '"part"'}
        if "/" in self.key and not self._store.put(self.key, body, create=self._creates()):
            return 412, b"<Error><Code>PreconditionFailed</Code></Error>", {}
        return 200, b"", {"ETag": '"one"'}

    def _post(self, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        if "delete" in self.query:
            bucket = self.key.rstrip("/")
            names = [_unescaped(name) for name in re.findall(rb"<Key>(.*?)</Key>", body)]
            for name in names:
                self._remove(f"{bucket}/{name}")
            deleted = "".join(f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in names)
            return 200, f"<DeleteResult>{deleted}</DeleteResult>".encode(), {}
        if "uploads" in self.query:
            bucket, _, name = self.key.partition("/")
            text = (
                f"<Bucket>{bucket}</Bucket><Key>{escape(name)}</Key><UploadId>{self._store.begin_upload()}</UploadId>"
            )
            return 200, f"<InitiateMultipartUploadResult>{text}</InitiateMultipartUploadResult>".encode(), {}
        if not self._store.complete(self.query["uploadId"], self.key, create=self._creates()):
            return 412, b"<Error><Code>PreconditionFailed</Code></Error>", {}
        return 200, b"<CompleteMultipartUploadResult><ETag>one</ETag></CompleteMultipartUploadResult>", {}

    def _get(self) -> tuple[int, bytes, dict[str, str]]:
        if "list-type" in self.query:
            return 200, self._listing(), {"Content-Type": "application/xml"}
        found = self._store.objects.get(self.key)
        if found is None:
            return 404, b"<Error><Code>NoSuchKey</Code></Error>", {}
        headers = {"ETag": '"one"', "Last-Modified": _date(found.made, "%a, %d %b %Y %H:%M:%S GMT")}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            return 200, found.body, headers
        first, last = int(wanted[1]), min(int(wanted[2] or len(found.body)), len(found.body) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(found.body)}"
        return 206, found.body[first : last + 1], headers

    def _listing(self) -> bytes:
        bucket = self.key.rstrip("/") + "/"
        after = self.query.get("continuation-token") or self.query.get("start-after", "")
        names = [key[len(bucket) :] for key in self._store.keys(bucket + self.query.get("prefix", ""))]
        names = [name for name in names if name > after]
        shown = names[: int(self.query.get("max-keys", _PAGE))]
        lines = []
        for name in shown:
            found = self._store.objects.get(bucket + name)
            if found is not None:
                made = _date(found.made, "%Y-%m-%dT%H:%M:%S.000Z")
                lines.append(
                    f"<Contents><Key>{escape(name)}</Key><Size>{len(found.body)}</Size>"
                    f"<LastModified>{made}</LastModified><ETag>one</ETag></Contents>"
                )
        more = len(shown) < len(names)
        token = f"<NextContinuationToken>{escape(shown[-1])}</NextContinuationToken>" if more else ""
        return (
            f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{''.join(lines)}</ListBucketResult>"
        ).encode()

    def _delete(self) -> tuple[int, bytes, dict[str, str]]:
        self._remove(self.key)
        return 204, b"", {}

    def _remove(self, key: str) -> None:
        with self._store.lock:
            self._store.objects.pop(key, None)

    def _creates(self) -> bool:
        return self.headers.get("If-None-Match") == "*"

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(self, status: int, body: bytes, headers: dict[str, str], *, half: bool = False) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if half else body)
        self.close_connection = self.close_connection or half


def _unescaped(name: bytes) -> str:
    return ET.fromstring(b"<k>" + name + b"</k>").text or ""


def _date(seconds: float, form: str) -> str:
    return time.strftime(form, time.gmtime(seconds))


def main() -> None:
    """Serve until killed."""
    port_file, delay = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    store = LocalS3(delay=delay)
    port_file.write_text(store.endpoint)
    store._server.serve_forever()


if __name__ == "__main__":
    main()
