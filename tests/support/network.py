"""Hosts in network namespaces of their own, behind a router that drops the packets between any two of them."""

import os
import random
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

from support.missing import without
from support.server import DIE_WITH_US
from support.waiting import poll

_MASK: Final = 29
_SUBNETS: Final = 256 >> (32 - _MASK)
_MINE: Final = ("clients", "store", "etcd")
"""Hosts that are this process's own, and its servers'."""


class Network:
    """The hosts `clients`, `store` and `etcd`, which are addresses of this machine, and those of `names`.

    A packet that is dropped vanishes: nothing is refused, and no connection ends. All of it goes with the test process.
    """

    def __init__(self, names: Iterable[str]) -> None:
        """Skip the test where namespaces can't be made."""
        self._names = list(names)
        assert len(self._names) < _SUBNETS
        self._base = f"198.{random.choice((18, 19))}.{random.randrange(256)}"  # of RFC 2544: nobody's
        self.hosts = {name: self._address(0, number + 1) for number, name in enumerate(_MINE)}
        """The address of each host."""
        self.hosts |= {name: self._address(number, 1) for number, name in enumerate(self._names, 1)}
        self._cuts: list[list[str]] = []
        self._holders: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        if os.geteuid() or not shutil.which("ip") or not shutil.which("nsenter"):
            without("network namespaces need root, and the programs `ip` (iproute2) and `nsenter`")
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for holder in self._holders.values():
            holder.kill()
            holder.wait()

    def space(self, name: str) -> Path:
        """The namespace of a host of `names`."""
        return Path(f"/proc/{self._holders[name].pid}/ns/net")

    def cut(self, one: str, *others: str) -> None:
        """Drop what goes between a host and others, from now on."""
        for other in others:
            self._drop(one, other)
            self._drop(other, one)

    def cut_from(self, one: str, *others: str) -> None:
        """Drop what others send to a host: what it sends arrives."""
        for other in others:
            self._drop(other, one)

    def heal(self) -> None:
        """Drop nothing any more."""
        while self._cuts:
            self._at_router("ip", "rule", "del", *self._cuts.pop())

    def _drop(self, source: str, target: str) -> None:
        rule = ["from", self.hosts[source], "to", self.hosts[target], "priority", "100", "blackhole"]
        self._at_router("ip", "rule", "add", *rule)
        self._cuts.append(rule)

    def _address(self, subnet: int, host: int) -> str:
        return f"{self._base}.{(subnet << (32 - _MASK)) + host}"

    def _build(self) -> None:
        for name in ("router", *self._names):
            self._holders[name] = subprocess.Popen([*DIE_WITH_US, "unshare", "--net", "sleep", "infinity"])
        ours = Path("/proc/self/ns/net").readlink()
        for holder in self._holders.values():
            poll(lambda holder=holder: _entered(holder, ours), 20, "a namespace")  # type: ignore[misc]
        self._at_router("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        end = f"t{self._base.replace('.', '-')}"  # names of interfaces have 15 characters at most
        self._link(0, end, [self.hosts[name] for name in _MINE], ())
        _run("ip", "route", "add", f"{self._base}.0/24", "via", self._address(0, 6))
        for number, name in enumerate(self._names, 1):
            at = self._at(name)
            self._link(number, "eth0", [self.hosts[name]], at)
            _run(*at, "ip", "link", "set", "lo", "up")
            _run(*at, "ip", "route", "add", "default", "via", self._address(number, 6))

    def _link(self, number: int, end: str, addresses: Iterable[str], at: Iterable[str]) -> None:
        """Join a host, which `at` enters, to the router."""
        port = f"p{number}"
        self._at_router("ip", "link", "add", port, "type", "veth", "peer", "name", end)
        pid = self._holders[self._names[number - 1]].pid if at else os.getpid()
        self._at_router("ip", "link", "set", end, "netns", str(pid))
        self._at_router("ip", "addr", "add", f"{self._address(number, 6)}/{_MASK}", "dev", port)
        self._at_router("ip", "link", "set", port, "up")
        for address in addresses:
            _run(*at, "ip", "addr", "add", f"{address}/{_MASK}", "dev", end)
        _run(*at, "ip", "link", "set", end, "up")

    def _at_router(self, *command: str) -> None:
        _run(*self._at("router"), *command)

    def _at(self, name: str) -> list[str]:
        """The command that runs another one at a host."""
        return ["nsenter", f"--net={self.space(name)}", "--"]


def _entered(holder: subprocess.Popen[bytes], ours: Path) -> bool:
    """Return whether a process has a namespace of its own."""
    if holder.poll() is not None:
        without("no network namespaces can be made here")
    return Path(f"/proc/{holder.pid}/ns/net").readlink() != ours


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
