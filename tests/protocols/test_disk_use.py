"""What a topic of events takes on the disk: a part of their bytes, in the log at once and in the tables later."""

import json
from pathlib import Path

from support.http import Api, ok
from support.server import ServerProcess

RECORDS = 20_000


def used(directory: Path) -> int:
    """The bytes of all files; blocks would count what is reserved for the log."""
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


def test_events_take_a_fraction_of_their_size(tmp_path: Path) -> None:
    datas = [
        {"n": i, "action": "opened", "repository": "octocat/Hello-World", "url": f"https://x/{i}"}
        for i in range(RECORDS)
    ]
    given = sum(len(json.dumps(data)) for data in datas)
    with ServerProcess(tmp_path) as server:
        with Api(server.base) as api:
            empty = used(server.data_dir)
            for at in range(0, RECORDS, 1000):
                records = [{"data": data, "tag": "octocat/Hello-World"} for data in datas[at : at + 1000]]
                ok(api.write("events", records), 200, 201)
            assert used(server.data_dir) - empty < given / 2, "in the log, before any table is written"
        server.stop()
        assert used(server.data_dir) < given / 2
        server.start()
        with Api(server.base) as api:
            found: list[object] = []
            while len(found) < RECORDS:
                page = ok(api.send("POST", "/v0/topics/events/diff", {"from_seq": len(found), "limit": 1000}))
                found += [record["data"] for record in page["records"]]
        assert found == datas
