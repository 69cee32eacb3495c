"""`PYTHONPATH=tests python -m support.forwarding` serves HTTP as a node that owns nothing, before a `topics serve`.

It takes the same variables as `topics serve`, so suites for a server run against it (`CONF_CMD`).
"""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import uvloop

from topics_cluster.coordinator import Addresses
from topics_cluster.forward_http import ForwardingApp
from topics_cluster.trust import Secret, Signer
from topics_gateway.transport import HttpServer
from topics_server.ports import bind, write_port_file
from topics_server.settings import load

_SECRET = b"a secret for tests, of 32 bytes or more"


async def serve(env: Mapping[str, str]) -> int:
    """Serve until the server behind has ended; its exit code."""
    settings = load(env, {})
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder) / "http"
        behind = {**env, "TOPICS_PORT": "0", "TOPICS_PORT_FILE": str(port_file)}
        command = Path(sys.executable).parent / "topics"
        server = await asyncio.create_subprocess_exec(command, "serve", env=behind)
        for signum in (signal.SIGTERM, signal.SIGINT):  # a signal to the group is the server's
            asyncio.get_running_loop().add_signal_handler(signum, lambda: None)
        ended = asyncio.create_task(server.wait())
        while not port_file.exists():
            if ended.done():
                return ended.result()
            await asyncio.sleep(0.01)
        addresses = Addresses(http=port_file.read_text(), grpc="")
        app = ForwardingApp(lambda: addresses, Signer(Secret([_SECRET])), hold_seconds=2)
        sock = bind(settings.host, settings.port, "TOPICS_PORT")
        http = HttpServer(app, sock)
        await http.start()
        write_port_file("TOPICS_PORT_FILE", settings.port_file, f"{settings.host}:{http.port}")
        code = await ended
        await http.stop(0)
        app.close()
        return code


if __name__ == "__main__":
    sys.exit(uvloop.run(serve(os.environ)))
