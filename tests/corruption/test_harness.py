"""Tests of the harness that starts servers on damaged directories."""

import socket
import subprocess
import threading
from pathlib import Path

import pytest

from support.server import ServerProcess, StartFailedError


def test_a_server_that_ends_while_it_is_asked_whether_it_is_ready_has_not_started(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    server._process = subprocess.Popen(["false"])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.http_port = listener.getsockname()[1]
        ending = threading.Thread(target=lambda: listener.accept()[0].close())
        ending.start()
        with pytest.raises(StartFailedError, match="the server exited with 1"):
            server._recovered()
        ending.join()
