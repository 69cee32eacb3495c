"""Short ways to run SQL and to consume over HTTP."""

import base64
import json
from typing import Any

import httpx

from support.http import Api, fresh, ok

ENVELOPE = (
    "topic_id", "partition_id", "offset", "message_id", "source_table", "op", "ts", "payload_mode", "payload",
)  # fmt: skip


class Sql:
    """SQL calls on a server. `run`, `rows` and `consume` check and decode; `send` and `post` give the response."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def send(self, text: str, *parameters: Any, **body: Any) -> httpx.Response:
        """Run statements."""
        given = {"params": list(parameters)} if parameters else {}
        return self.api.send("POST", "/api/sql", {"sql": text, **given, **body})

    def results(self, text: str, *parameters: Any, **body: Any) -> list[dict[str, Any]]:
        """The results of statements that succeed."""
        reply = ok(self.send(text, *parameters, **body))
        assert reply["status"] == "success"
        return list(reply["results"])

    def run(self, text: str, *parameters: Any, **body: Any) -> dict[str, Any]:
        """The result of one statement."""
        (result,) = self.results(text, *parameters, **body)
        return dict(result)

    def rows(self, text: str, *parameters: Any, **body: Any) -> list[dict[str, Any]]:
        """The rows of one statement as objects."""
        result = self.run(text, *parameters, **body)
        names = [column["name"] for column in result["schema"]]
        return [dict(zip(names, row, strict=True)) for row in result["rows"]]

    def refused(self, text: str, code: str, status: int) -> dict[str, Any]:
        """The error of statements that fail."""
        return error_of(self.send(text), code, status)

    def post(self, call: str, **body: Any) -> httpx.Response:
        """A call of consumers, `consume` or `ack`."""
        return self.api.send("POST", f"/api/topics/{call}", body)

    def consume(self, topic: str, group: str, start: Any = "Earliest", **body: Any) -> dict[str, Any]:
        """A page of messages, at once unless `timeout_seconds` is given."""
        body = {"timeout_seconds": 0, "limit": 1000} | body
        return ok(self.post("consume", topic=topic, group_id=group, start=start, **body))

    def payloads(self, topic: str, **body: Any) -> list[Any]:
        """The decoded payloads of a partition from its beginning."""
        return [payload(message) for message in self.consume(topic, fresh("g"), **body)["messages"]]

    def ack(self, topic: str, group: str, upto: int, **body: Any) -> int:
        """Acknowledge; the offset that is acknowledged now."""
        reply = ok(self.post("ack", topic=topic, group_id=group, upto_offset=upto, **body))
        assert reply["success"] is True
        return int(reply["acknowledged_offset"])


def payload(message: dict[str, Any]) -> Any:
    """The JSON value of a message over HTTP."""
    return json.loads(base64.b64decode(message["payload"], validate=True))


def error_of(response: httpx.Response, code: str, status: int) -> dict[str, Any]:
    """The error of a reply."""
    assert response.status_code == status, f"{response.status_code}: {response.text[:500]}"
    error = response.json()["error"]
    assert error["code"] == code, error
    return dict(error)
