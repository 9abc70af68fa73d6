"""Several machines in one: network namespaces that only share a bridge, for tests that need root.

Each site has a loopback of its own and one address on the bridge, so a service on a site's loopback
is out of every other site's reach. The bridge lives in a namespace of its own: nothing of this
machine's network is touched, and the sites reach nothing but each other.

    with network("market", "ann") as sites:
        subprocess.Popen(sites["ann"].command("curl", f"http://{sites['market'].address}:8420/"))
        with sites["ann"].cut():  # packets vanish, no connection is reset
            ...
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache

import pytest

_INTERFACE, _BRIDGE, _SUBNET = "eth0", "bridge0", "10.77.0"


@dataclass(frozen=True)
class Site:
    """One machine of the network."""

    name: str
    namespace: str
    address: str  # IPv4, on the bridge
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

    @contextmanager
    def losing(self, share: float) -> Iterator[None]:
        """Its cable loses a share of all packets meanwhile."""
        near, far = f"{self._port}-near", f"{self._port}-far"
        words = (sys.executable, "-m", "tests.support.lossy_cable", str(share), self._port, far)
        self.unplug()
        _ip("-n", self._hub, "link", "add", near, "type", "veth", "peer", "name", far)
        _ip("-n", self._hub, "link", "set", near, "master", _BRIDGE, "up")
        _ip("-n", self._hub, "link", "set", far, "up")
        command = ["ip", "netns", "exec", self._hub, *words]
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
def network(*names: str) -> Iterator[Mapping[str, Site]]:
    """Sites with these names on one bridge; all of it is gone afterwards."""
    prefix = f"tally{os.getpid()}"
    hub = f"{prefix}-hub"
    with ExitStack() as stack:
        _namespace(stack, hub)
        _ip("-n", hub, "link", "add", _BRIDGE, "type", "bridge")
        _ip("-n", hub, "link", "set", _BRIDGE, "up")
        sites = {}
        for number, name in enumerate(names, start=1):
            site = Site(name, f"{prefix}-{name}", f"{_SUBNET}.{number}", hub, f"port{number}")
            _namespace(stack, site.namespace)
            _plug_in(site)
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


def _plug_in(site: Site) -> None:
    ends = ("type", "veth", "peer", "name", _INTERFACE, "netns", site.namespace)
    _ip("-n", site._hub, "link", "add", site._port, *ends)
    _ip("-n", site._hub, "link", "set", site._port, "master", _BRIDGE, "up")
    _ip("-n", site.namespace, "address", "add", f"{site.address}/24", "dev", _INTERFACE)
    _ip("-n", site.namespace, "link", "set", _INTERFACE, "up")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


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
