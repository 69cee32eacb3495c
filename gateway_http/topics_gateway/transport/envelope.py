"""The JSON error body of the few answers that the transport gives without asking the application."""

import json
from typing import Final

JSON: Final = b"application/json"


def error_body(code: str, message: str) -> bytes:
    """Return `{"error":{"code":...,"message":...}}` as UTF-8 JSON without spaces."""
    return json.dumps({"error": {"code": code, "message": message}}, separators=(",", ":")).encode()


INTERNAL: Final = error_body("internal", "internal error")
