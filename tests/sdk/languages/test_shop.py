"""The shop of examples/: built as its README says, outside of the repository, under strict checkers; then a day in its
life, with a server that is killed, seen in a browser."""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.browser import CHROMIUM, open_page
from support.missing import without
from support.server import DIE_WITH_US, ServerProcess
from support.waiting import poll
from topics_client import Retry, TopicConfig, TopicsClient

ROOT = Path(__file__).parents[3]
SECONDS = 30.0

pytestmark = pytest.mark.timeout(300)  # the first build of grpc


@pytest.fixture
def shop(run: Callable[..., str], tmp_path: Path) -> Path:
    """A copy of the project next to the checkout, built."""
    for program in ("go", "npm"):
        if shutil.which(program) is None:
            without(f"{program} is not installed")
    if CHROMIUM is None:
        without("chromium is not installed")
    (tmp_path / "topics").symlink_to(ROOT)
    shop = tmp_path / "shop"
    shutil.copytree(ROOT / "examples/shop", shop)
    build = re.findall(r"```sh\n(.*?)```", (shop / "README.md").read_text(), re.DOTALL)[0]
    own, _, rest = build.partition("\n")
    assert own.startswith("python3 -m venv")  # the environment of the tests has the SDK already
    rest = re.sub(r"npm ci --prefix .*\n", "", rest)  # tests/sdk/languages/setup.sh has done it
    quiet = {"npm_config_prefer_offline": "true", "npm_config_audit": "false", "npm_config_fund": "false"}
    run("bash", "-euc", rest, cwd=shop, env=quiet)
    run(sys.executable, "-m", "mypy", shop / "worker/worker.py", cwd=ROOT)  # strict, as configured there
    assert not run("gofmt", "-l", ".", cwd=shop / "consumer")
    return shop


@contextmanager
def program(log: Path, *command: str | Path, **env: str) -> Iterator[Callable[[], str]]:
    """A program that runs, and what gives its output; ended by SIGTERM, well."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    with log.open("w") as out:
        process = subprocess.Popen([*DIE_WITH_US, *command], env=others | env, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield log.read_text
        process.terminate()
        assert process.wait(SECONDS) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def order(number: int, customer: str, pieces: int) -> dict[str, Any]:
    return {"id": f"o-{number}", "customer": customer, "pieces": pieces, "price": 250}


def test_a_day_of_the_shop(shop: Path, tmp_path: Path) -> None:
    server = ServerProcess(
        tmp_path / "server", env={"TOPICS_API_KEYS": "admin,work:read+write,eyes:read"}, same_ports=True
    )
    with server, TopicsClient(server.grpc_target, key="admin", retry=Retry(seconds=20)) as topics:
        topics.put_topic("orders", TopicConfig(type="queue", max_deliveries=1, dead_letter="orders:dead"))
        work = program(
            tmp_path / "worker.log", sys.executable, shop / "worker/worker.py",
            TOPICS_URL=f"topics://{server.grpc_target}", TOPICS_API_KEY="work",
        )  # fmt: skip
        addresses = ("-grpc", server.grpc_target, "-http", server.base, "-page", str(shop / "page/dist"))
        consume = program(
            tmp_path / "consumer.log",
            shop / "consumer/consumer",
            "-listen",
            "127.0.0.1:0",
            *addresses,
            TOPICS_API_KEY="eyes",
        )
        with work, consume as said:
            page_url = poll(lambda: "".join(re.findall(r"serves (http://\S+)", said())), SECONDS) + "/"

            def totals() -> dict[str, int]:
                with urllib.request.urlopen(f"{page_url}totals", timeout=10) as reply:
                    return dict(json.load(reply)["customers"])

            topics.append_many("orders", [order(1, "ada", 12), order(2, "bob", 1), "no order", order(3, "ada", 1)])
            poll(lambda: totals() == {"ada": 3000, "bob": 250}, SECONDS)
            with open_page(tmp_path, page_url) as page:
                shown = "[...document.querySelectorAll('#totals tr')].map((row) => row.innerText)"
                listed = "[...document.querySelectorAll('#receipts li')].map((item) => item.textContent)"
                poll(lambda: page.run("document.querySelector('#state').textContent") == "live", SECONDS)
                assert page.run(listed) == []  # these are in the totals already
                assert page.run(shown) == ["ada\t30.00 €", "bob\t2.50 €"]
                topics.append("orders", order(4, "cy", 2))
                poll(lambda: page.run(listed) == ["cy: 5.00 € (o-4)"], SECONDS)
                server.kill()
                server.start()
                topics.append_many("orders", [order(5, "ada", 1), order(4, "cy", 2)])  # an order that came before
                poll(lambda: page.run(listed) == ["ada: 2.50 € (o-5)", "cy: 5.00 € (o-4)"], SECONDS)
                assert page.run(shown) == ["ada\t32.50 €", "bob\t2.50 €", "cy\t5.00 €"]
            poll(lambda: topics.get_topic("orders").count == 0, SECONDS)
            poll(lambda: totals() == {"ada": 3250, "bob": 250, "cy": 500}, SECONDS)
        assert [record.value["customer"] for record in topics.read("receipts")].count("cy") == 1
