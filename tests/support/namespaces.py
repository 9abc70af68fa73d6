"""Several machines in one: network namespaces that only share a bridge, for tests that need root.

Each site has a loopback of its own and one address on the bridge, so a service on a site's loopback
is out of every other site's reach. The bridge lives in a namespace of its own: nothing of this
machine's network is touched, and the sites reach nothing but each other.

    with network("market", "ann") as sites:
        subprocess.Popen(sites["ann"].command("curl", f"http://{sites['market'].address}:8420/"))
        with sites["ann"].cut():  # packets vanish, no connection is reset
            ...

A site may be behind a router of its own, which masquerades: it reaches the others, and they see the
router's address and cannot dial it. That needs the command `nft` (package nftables).
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache

import pytest

_INTERFACE, _BRIDGE, _SUBNET = "eth0", "bridge0", "10.77.0"
_HOME, _INSIDE = "192.168.77", "inside0"  # of every router: nobody sees more than one
_MASQUERADE = f"""
add table ip home
add chain ip home out {{ type nat hook postrouting priority srcnat; }}
add rule ip home out oifname "{_INTERFACE}" masquerade
"""


@dataclass(frozen=True)
class Site:
    """One machine of the network."""

    name: str
    namespace: str
    address: str  # IPv4, on the bridge, or behind its router
    _edge: str  # namespace at the other end of its cable: its own, or its router's
    _hub: str  # namespace of the bridge
    _port: str  # the bridge's end of its cable

    def command(self, *words: str) -> list[str]:
        """These words as a command that runs at this site."""
        return ["ip", "netns", "exec", self.namespace, *words]

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Nothing comes or goes meanwhile, and nobody is told: no reset, no loss of carrier."""
        self.unplug()
        try:
            yield
        finally:
            self.plug()

    def unplug(self) -> None:
        """From now on nothing comes or goes."""
        _ip("-n", self._hub, "link", "set", self._port, "nomaster")

    def plug(self) -> None:
        """Everything comes and goes again."""
        _ip("-n", self._hub, "link", "set", self._port, "master", _BRIDGE)

    def losing(self, share: float) -> AbstractContextManager[None]:
        """Its cable loses a share of all packets meanwhile."""
        return self._through_program(share=share)

    @contextmanager
    def slow(self, *, delay: float, rate: str) -> Iterator[None]:
        """Its cable takes `delay` seconds each way meanwhile, at a rate as in `50mbit` each way."""
        shaped = ("root", "tbf", "rate", rate, "burst", "32kb", "latency", "200ms")
        ends = ((self._edge, _INTERFACE), (self._hub, self._port))
        for namespace, interface in ends:
            _run("tc", "-n", namespace, "qdisc", "add", "dev", interface, *shaped)
        try:
            with self._through_program(delay=delay):
                yield
        finally:
            for namespace, interface in ends:
                _run("tc", "-n", namespace, "qdisc", "del", "dev", interface, "root")

    @contextmanager
    def _through_program(self, *, share: float = 0.0, delay: float = 0.0) -> Iterator[None]:
        near, far = f"{self._port}-near", f"{self._port}-far"
        words = ("-m", "tests.support.slow_cable", str(share), str(delay), self._port, far)
        self.unplug()
        _ip("-n", self._hub, "link", "add", near, "type", "veth", "peer", "name", far)
        _ip("-n", self._hub, "link", "set", near, "master", _BRIDGE, "up")
        _ip("-n", self._hub, "link", "set", far, "up")
        command = ["ip", "netns", "exec", self._hub, sys.executable, *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as cable:
            try:
                assert cable.stdout is not None and cable.stdout.readline() == "ready\n"
                yield
            finally:
                cable.kill()
                _ip("-n", self._hub, "link", "del", near)
                self.plug()

    def bytes_sent(self) -> int:
        """All that it has sent to other sites so far, headers of packets included."""
        counter = f"/sys/class/net/{_INTERFACE}/statistics/tx_bytes"
        done = subprocess.run(self.command("cat", counter), capture_output=True, check=True)
        return int(done.stdout)


@contextmanager
def network(*names: str, behind_routers: Collection[str] = ()) -> Iterator[Mapping[str, Site]]:
    """Sites with these names on one bridge; all of it is gone afterwards."""
    prefix = f"tally{os.getpid()}"
    hub = f"{prefix}-hub"
    with ExitStack() as stack:
        _namespace(stack, hub)
        _ip("-n", hub, "link", "add", _BRIDGE, "type", "bridge")
        _ip("-n", hub, "link", "set", _BRIDGE, "up")
        sites = {}
        for number, name in enumerate(names, start=1):
            own, address, port = f"{prefix}-{name}", f"{_SUBNET}.{number}", f"port{number}"
            site = Site(name, own, address, own, hub, port)
            _namespace(stack, own)
            if name in behind_routers:
                site = replace(site, address=f"{_HOME}.2", _edge=f"{own}-router")
                _namespace(stack, site._edge)
            _plug_in(site._edge, address, hub, port)
            _ip("-n", hub, "link", "set", port, "master", _BRIDGE)
            if name in behind_routers:
                _route(site)
            sites[name] = site
        yield sites


def _namespace(stack: ExitStack, name: str) -> None:
    _ip("netns", "add", name)
    stack.callback(_ip, "netns", "del", name)
    _ip("-n", name, "link", "set", "lo", "up")


_OFFLOADS = (0x17, 0x1F, 0x24)  # SIOCETHTOOL: set checksums, TCP segments, any segments
_SWITCH_OFF = f"""
import array, fcntl, socket, struct
end = socket.socket()
for command in {_OFFLOADS}:
    value = array.array("B", struct.pack("II", command, 0))
    name = struct.pack("16sP", b"{_INTERFACE}", value.buffer_info()[0]) + bytes(8)
    fcntl.ioctl(end, 0x8946, name)
"""


def packets_as_sent(site: Site) -> None:
    """Let packets leave a site as a real cable has them: whole checksums, none above the MTU.

    Without it a program that passes packets on would see what the kernel had saved itself.
    """
    subprocess.run(site.command(sys.executable, "-c", _SWITCH_OFF), check=True)


def _plug_in(namespace: str, address: str, other: str, port: str) -> None:
    """Give a namespace its interface, whose cable ends at `port` of another one."""
    ends = ("type", "veth", "peer", "name", _INTERFACE, "netns", namespace)
    _ip("-n", other, "link", "add", port, *ends)
    _ip("-n", other, "link", "set", port, "up")
    _ip("-n", namespace, "address", "add", f"{address}/24", "dev", _INTERFACE)
    _ip("-n", namespace, "link", "set", _INTERFACE, "up")


def _route(site: Site) -> None:
    """Put a site behind its router, and let that masquerade."""
    _plug_in(site.namespace, site.address, site._edge, _INSIDE)
    _ip("-n", site._edge, "address", "add", f"{_HOME}.1/24", "dev", _INSIDE)
    _ip("-n", site.namespace, "route", "add", "default", "via", f"{_HOME}.1")
    router = ("ip", "netns", "exec", site._edge)
    _run(*router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
    _run(*router, "nft", _MASQUERADE)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@cache
def why_not() -> str | None:
    """Why this machine has no network namespaces for us; None if it has."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the command `ip` (package iproute2)"
    try:
        with network("probe") as sites:
            sites["probe"].bytes_sent()
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.decode(errors='replace').strip()}"
    return None


def need_namespaces() -> None:
    """Skip the test, with the reason, where there are none."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
