"""SIGKILL with every data path under load at once: at any moment, within a recovery, within a clean stop.

`TOPICS_KILLS` is the number of kills of the long form, which `make soak` runs with its default of 200.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from crash.everything import Everything, Loads

from support.server import ServerProcess
from support.waiting import poll

KILLS = 2
SOAK_SECONDS = float(os.environ.get("TOPICS_SOAK_SECONDS", "0"))
SOAK_KILLS = int(os.environ.get("TOPICS_KILLS", "200"))
KILLS_OF_A_SERVER = 10  # then the next one begins, so that checks stay quick
MOST_DOUBLE = 3  # kills of one recovery after another
LOAD_SECONDS = (0.05, 1.5)


@dataclass
class Figures:
    """What was done, over all servers."""

    kills: int = 0
    in_recovery: int = 0
    in_stop: int = 0
    """Killed after SIGTERM and before the process had ended by itself."""
    acked: int = 0
    longest_start: float = 0.0
    """Seconds from the start of the process to readiness."""

    def __str__(self) -> str:
        return (
            f"{self.kills} SIGKILL under load, of them {self.in_stop} in a clean stop; {self.in_recovery} more in the "
            f"recovery after one; {self.acked:,} acknowledged writes checked, 0 lost; longest start "
            f"{self.longest_start:.2f} s"
        )


def kill_and_check(server: ServerProcess, seed: int, kills: int, figures: Figures) -> None:
    """One directory with so many kills, every one followed by a full comparison."""
    rng = random.Random(seed)
    server.start()
    everything = Everything(server, rng)
    for number in range(kills):
        with everything.load() as loads:
            watch(loads, rng.uniform(*LOAD_SECONDS))
            if number % 3 == 1:
                figures.in_stop += stop_and_kill(server, everything, loads, rng)
        figures.kills += 1
        figures.in_recovery += kill_recoveries(server, rng, figures, least=number % 2)
        began = time.monotonic()
        server.start()
        figures.longest_start = max(figures.longest_start, time.monotonic() - began)
        everything.check()
    everything.finish()
    assert server.stop(30) == 0
    server.start()
    everything.check()
    figures.acked += everything.acked


def watch(loads: Loads, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        loads.check()
        time.sleep(0.01)


def stop_and_kill(server: ServerProcess, everything: Everything, loads: Loads, rng: random.Random) -> bool:
    """SIGTERM, and SIGKILL a moment later while one client still writes; whether that came before its end."""
    loads.send_away()
    late = threading.Thread(target=everything.straggle, args=(5,))
    late.start()
    server.signal(signal.SIGTERM)
    time.sleep(rng.uniform(0, 0.4))
    killed = server.alive()
    server.kill()
    late.join(30)
    assert not late.is_alive()
    return killed


def kill_recoveries(server: ServerProcess, rng: random.Random, figures: Figures, least: int) -> int:
    """Start and kill before the server is ready, some times; returns how often. The first `least` hit for certain."""
    killed = 0
    for number in range(rng.randint(least, MOST_DOUBLE)):
        files = server.spawn()
        if number >= least and rng.random() < 0.5:  # anywhere, most often while Python starts
            time.sleep(rng.uniform(0, max(1.0, figures.longest_start)))
        else:  # in the recovery itself, which begins with the lock of the database
            began = time.monotonic()
            poll(lambda began=began: holds_lock(server) or time.monotonic() > began + 20 or not server.alive(), 30)
            time.sleep(rng.uniform(0, 0.15) if number >= least else 0)
        killed += not all(file.exists() for file in files)
        server.kill()
    return killed


def holds_lock(server: ServerProcess) -> bool:
    """Whether the process has opened the database."""
    lock = str(server.data_dir / "LOCK")
    try:
        return any(os.readlink(f"/proc/{server.pid}/fd/{fd}") == lock for fd in os.listdir(f"/proc/{server.pid}/fd"))
    except FileNotFoundError:
        return False


@pytest.mark.timeout(120)
def test_kills_anywhere_with_every_path_under_load(make_server: Callable[..., ServerProcess]) -> None:
    figures = Figures()
    kill_and_check(make_server(kafka=True), 1, KILLS, figures)
    assert figures.in_recovery
    assert figures.acked > 500
    print(figures)


@pytest.mark.soak
@pytest.mark.skipif(not SOAK_SECONDS and "TOPICS_KILLS" not in os.environ, reason="TOPICS_KILLS says how many")
@pytest.mark.timeout(0)
def test_every_path_sigkill_soak(make_server: Callable[..., ServerProcess]) -> None:
    figures = Figures()
    seed = int(os.environ.get("TOPICS_SOAK_SEED", time.time_ns() % 100_000))
    while figures.kills < SOAK_KILLS:
        kills = min(KILLS_OF_A_SERVER, SOAK_KILLS - figures.kills)
        print(f"TOPICS_SOAK_SEED={seed}: {figures}", flush=True)
        kill_and_check(make_server(kafka=True), seed, kills, figures)
        seed += 1
    print(figures)
