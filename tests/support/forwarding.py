"""`PYTHONPATH=tests python -m support.forwarding` serves HTTP as a node that owns nothing, before a `topics serve`.

It takes the same variables as `topics serve`, so suites for a server run against it (`CONF_CMD`).
"""

import asyncio
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path


async def serve(server: "subprocess.Popen[bytes]", address: str, env: Mapping[str, str]) -> int:
    """Serve what is at `address`, host:port, until the server behind has ended; its exit code."""
    from topics_cluster.coordinator import Addresses
    from topics_cluster.forward_http import ForwardingApp
    from topics_cluster.trust import Secret, Signer
    from topics_gateway.transport import HttpServer
    from topics_server.ports import bind, write_port_file
    from topics_server.settings import load

    settings = load(env, {})
    signer = Signer(Secret([b"a secret that the nodes of tests share"]))
    app = ForwardingApp(lambda: Addresses(http=address, grpc=""), signer, hold_seconds=2)
    http = HttpServer(app, bind(settings.host, settings.port, "TOPICS_PORT"))
    await http.start()
    write_port_file("TOPICS_PORT_FILE", settings.port_file, f"{settings.host}:{http.port}")
    code = await asyncio.to_thread(server.wait)
    await http.stop(0)
    app.close()
    return code


def main() -> int:
    """Run both until the server behind has ended."""
    for signum in (signal.SIGTERM, signal.SIGINT):  # a signal to the group ends the server, and that ends this
        signal.signal(signum, lambda *_: None)
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder) / "http"
        behind = {**os.environ, "TOPICS_PORT": "0", "TOPICS_PORT_FILE": str(port_file)}
        server = subprocess.Popen([Path(sys.executable).parent / "topics", "serve"], env=behind)
        importlib.import_module("topics_cluster.forward_http")  # while the other one starts

        while not port_file.exists():
            if server.poll() is not None:
                return server.returncode
            time.sleep(0.01)
        return asyncio.run(serve(server, port_file.read_text(), os.environ))


if __name__ == "__main__":
    sys.exit(main())
