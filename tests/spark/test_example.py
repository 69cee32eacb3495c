"""examples/spark_webhooks.py against a server: the figures behind its chart, and what the docs say of it."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from support.spark import Row, Server, environment, need_java

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "spark_webhooks.py"
WEBHOOKS = ROOT / "examples" / "webhook-events.ndjson"


def test_chart_of_webhooks(server: Server, rows: Callable[..., list[Row]], tmp_path: Path) -> None:
    need_java()
    environment()
    lines = WEBHOOKS.read_bytes().splitlines()
    picture = tmp_path / "images" / "chart.png"
    env = dict(os.environ) | {
        "TOPICS_URL": server.url,
        "PICTURE": str(picture),
        "LAKE": str(tmp_path / "lake"),
        "MPLCONFIGDIR": str(tmp_path / "matplotlib"),
    }
    done = subprocess.run(
        [sys.executable, EXAMPLE], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

    stored = rows("gh-webhooks")
    assert [row.data for row in stored] == lines
    events = Counter(json.loads(line)["event"] for line in lines)
    assert Counter(row.tag for row in stored) == events

    *bars, last = done.stdout.splitlines()
    ranked = sorted(events.items(), key=lambda each: (-each[1], each[0]))
    shown = {name: int(count) for name, count in (bar.rsplit(maxsplit=1) for bar in bars)}
    others = len(ranked) - 20
    assert shown == dict(ranked[:20]) | {f"{others} other types": sum(n for _, n in ranked[20:])}
    assert last == f"table webhooks: {len(lines)} rows, {len(events)} types"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_picture_in_the_docs() -> None:
    picture = ROOT / "docs" / "images" / "webhooks_by_type.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
