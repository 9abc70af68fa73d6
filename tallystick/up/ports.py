"""Which port does each service listen on? Chosen once, kept in the data folder.

Only the API has a default. The others are drawn below the kernel's range for outgoing
connections: inside it, a client that reconnects to a dead service in a loop may be given the
service's own port and end up connected to itself. On loopback, and where `up --listen` says.
"""

import errno
import ipaddress
import os
import random
import socket
from collections.abc import Collection, Mapping
from pathlib import Path

from contracts.terms.errors import Conflict, Malformed, Unavailable, WrongConfiguration
from tallystick.up.data_folder import DataFolder, read_json

API_PORT = 8420
LOOPBACK = "127.0.0.1"

_LOWEST, _HIGHEST = 20_000, 32_000
_LISTENING = "0A"  # TCP_LISTEN in /proc/net/tcp


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
        return True


def checked_address(text: str) -> str:
    """An address of this machine that others can be told.

    Raises:
        Malformed: no IPv4 address, or one that stands for all of them.
        WrongConfiguration: no address of this machine.
    """
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError as error:
        raise Malformed(f"--listen {text!r:.60}: an IPv4 address, such as 192.168.1.5") from error
    if address.is_unspecified or address.is_multicast:
        raise Malformed(
            f"--listen {address}: name the one address under which the other machines reach this "
            "one (`ip address` shows what there is): they are told it"
        )
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError as error:
            raise WrongConfiguration(
                f"--listen {address}: this machine has no such address; `ip address` shows which "
                "it has"
            ) from error
    return str(address)


def choose(taken: Collection[int], generator: random.Random) -> int:
    """A free port that is not in `taken`.

    Raises:
        Unavailable: 1000 tries found none.
    """
    low, high = _range()
    for _ in range(1000):
        port = generator.randrange(low, high)
        if port not in taken and is_free(port):
            return port
    raise Unavailable(f"no free port between {low} and {high}")


def _range() -> tuple[int, int]:
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("ascii")
        first_outgoing = int(text.split()[0])
    except (OSError, ValueError):
        return _LOWEST, _HIGHEST
    if first_outgoing >= _LOWEST + 1000:
        return _LOWEST, min(_HIGHEST, first_outgoing)
    return max(1024, first_outgoing - 10_000), max(first_outgoing, 2048)


def remembered(folder: DataFolder) -> dict[str, int]:
    """The ports chosen by earlier starts."""
    ports = read_json(folder.ports)
    return {name: port for name, port in ports.items() if isinstance(port, int)}


def assign(
    names: Collection[str],
    *,
    api_port: int | None,
    before: Mapping[str, int],
    generator: random.Random,
) -> dict[str, int]:
    """A port for each name: the one it had if that is still free, else a new one.

    Args:
        names: Services that listen; `api` is one of them or not.
        api_port: What the user asked for; None keeps the earlier one or takes 8420; 0 draws.
        before: What earlier starts chose.
        generator: Source of new ports.

    Raises:
        Conflict: the API's port is taken; data: `port`.
        Malformed: the port asked for is out of range.
    """
    ports = dict(before)
    for name in sorted(names):
        if name == "api":
            ports[name] = _api_port(api_port, before.get(name, API_PORT), ports, generator)
        elif name not in ports or not is_free(ports[name]):
            ports[name] = choose(ports.values(), generator)
    return {name: ports[name] for name in names}


def _api_port(
    wanted: int | None, usual: int, taken: Mapping[str, int], generator: random.Random
) -> int:
    if wanted == 0:
        return choose(taken.values(), generator)
    port = usual if wanted is None else wanted
    if not 0 < port < 65_536:
        raise Malformed(f"port {port} is not between 0 (any free port) and 65535")
    if not is_free(port):
        raise Conflict(
            f"port {port} is taken by {holder(port)}; stop that, or choose another with "
            "`tallystick up --port N` (0 takes any free one)",
            port=port,
        )
    return port


def holder(port: int) -> str:
    """Who listens on a port, as far as this user may know."""
    inodes = {inode for inode, number in _listening().items() if number == port}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and inodes & _sockets_of(entry):
            name = Path(f"/proc/{entry}/comm").read_text("utf-8", "replace").strip()
            return f"{name} (pid {entry})"
    return "another user's process" if port >= 1024 or inodes else "the system (below 1024)"


def _listening() -> dict[str, int]:
    """Sockets that listen, as /proc names them, and their ports."""
    found = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTENING:
                found[f"socket:[{fields[9]}]"] = int(fields[1].rpartition(":")[2], 16)
    return found


def _sockets_of(pid: str) -> set[str]:
    found = set()
    try:
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            found.add(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
    except OSError:  # not ours to look at, or gone
        pass
    return found
