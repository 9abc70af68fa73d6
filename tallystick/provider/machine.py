"""What a machine lends: which device, how much of it to which agent, how nicely, at which address.

Device: `resolve` turns the owner's wish into one; the probe measures it, the offer names its class,
and `told` hands the very same name to every peer and auditor. A peer whose lease names another
class than it finds itself to be does not begin. No torch.

Shares: `machine-HOST.json` in the user's folder, behind a lock beside it, lists the agents that
live: pid and start time, device, and what each holds of it. Each agent asks again before it offers;
an agent that is gone has given its share back, as nobody has its pid and start time any more. An
agent at work holds what its job needs and its owner's cap no further; those without work share the
rest equally (`fair`), and so do those in one control group what that may use.

Priority: whoever lends a machine goes on using it. The kernel gives a process that is `nice` less
of a core that others want, and all of one that nobody wants.

Address: a market in a private network (also one like 100.64.0.0/10, which overlays use) has
providers there: peers listen at the address that this machine has on the way to it. Behind a public
address there may be anything, so for such a market, and for one on this machine alone, peers stay
on loopback: the others reach them through the coordinator. A peer speaks mTLS with keys that the
signed membership names, wherever it listens.

Invariant: the agents of one user never hold more of a device, or of what a group may use, than
there is, at any moment: a share grows only into what the others have already given back. Units:
bytes, thousandths of a core.
"""

import contextlib
import fcntl
import ipaddress
import json
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

from contracts.disk import lock_file
from contracts.terms.errors import Unavailable, WrongConfiguration
from contracts.terms.messages import class_name
from tallystick.files import BY_UMASK, replace_file
from tallystick.resources import CORE, MACHINE, Limit, least
from tallystick.up.processes import Identity, Ticks, identify, is_alive

# -------------------------------------------------------------------------------------- the device

AUTO = "auto"
WISH = re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?")


def resolve(wanted: str, num_cuda: int) -> str:
    """The device that a wish names on a machine with so many CUDA devices: `cpu` or `cuda:N`.

    Raises:
        WrongConfiguration: no such device is here, or it is no wish.
    """
    if not WISH.fullmatch(wanted):
        raise WrongConfiguration(f"--device {wanted:.20}: it is auto, cpu, cuda, or cuda:N")
    if wanted == "cpu" or (wanted == AUTO and not num_cuda):
        return "cpu"
    number = int(wanted.partition(":")[2] or 0)
    if number >= num_cuda:
        raise WrongConfiguration(f"--device {wanted}: this machine has {num_cuda} CUDA devices")
    return f"cuda:{number}"


def fits(device: str, wanted: str) -> bool:
    """Whether a device that was measured before is one that the owner wants now."""
    return wanted == AUTO or device == wanted or (wanted == "cuda" and device == "cuda:0")


def told(device: str) -> Mapping[str, str]:
    """What tells peers and auditors where to compute."""
    return {f"TALLYSTICK_{process}_DEVICE": device for process in ("PEER", "AUDIT")}


def check_class(promised: str, own: str) -> None:
    """Refuse to compute as another device class than the one that a lease names.

    What comes of it would be held against the thresholds of the class in the lease, so an honest
    peer could be convicted.

    Raises:
        WrongConfiguration: they are two; the build label of torch makes no difference.
    """
    if class_name(promised) != class_name(own):
        raise WrongConfiguration(
            f"the lease is of a {promised}, and this machine computes as a {own}: start the agent "
            "with the device and torch that it was accepted with, or let it go"
        )


# ------------------------------------------------------------------------------------------ shares

LEAST_MEMORY = 64 * 2**20  # less is not worth an offer


@dataclass(frozen=True)
class Share:
    """What one agent holds."""

    pid: int
    start: int  # clock ticks since boot
    device: str
    memory: int
    cores: int
    cap: int | None  # bytes that its owner allows
    cap_cores: int | None
    is_at_work: bool = False
    groups: Sequence[str] = (MACHINE,)  # whose limits bind it


def fair(total: int, held: int, caps: Sequence[int | None]) -> list[int]:
    """Equal parts of `total` less `held`, none above its cap; what a cap leaves goes to others.

    Args:
        total: Of the machine.
        held: By agents at work.
        caps: Of the agents without work, None for no cap.

    Returns:
        Their shares in the same order, whole numbers that sum to at most the rest.
    """
    left, found = max(0, total - held), [0] * len(caps)
    order = sorted(range(len(caps)), key=lambda n: (caps[n] is None, caps[n] or 0))
    for place, number in enumerate(order):
        cap, part = caps[number], left // (len(caps) - place)
        found[number] = part if cap is None else min(part, cap)
        left -= found[number]
    return found


def claimed(
    mine: Share, others: Sequence[Share], memory: Sequence[Limit], cores: Sequence[Limit]
) -> Share:
    """What an agent without work may hold now: its fair part, as far as the others left it.

    Of each limit only those take a part whom it binds too.
    """

    def part(
        limits: Sequence[Limit], held: Callable[[Share], int], cap: Callable[[Share], int | None]
    ) -> int:
        found = []
        for limit in limits:
            near = [each for each in others if limit.group in each.groups]
            idle = [mine, *(each for each in near if not each.is_at_work)]
            busy = sum(held(each) for each in near if each.is_at_work)
            fairly = fair(limit.amount, busy, [cap(each) for each in idle])[0]
            found.append(min(fairly, limit.amount - sum(map(held, near))))
        return max(0, min(found))

    return replace(
        mine,
        memory=part(memory, lambda each: each.memory, lambda each: each.cap),
        cores=part(cores, lambda each: each.cores, lambda each: each.cap_cores),
        is_at_work=False,
    )


class Machine:
    """One agent's view of the machine; `close` gives its share back.

    Raises:
        Unavailable: the file cannot be read or written.
    """

    def __init__(
        self,
        folder: Path,
        device: str,
        *,
        memory: Sequence[Limit],
        cores: Sequence[Limit],
        speed: int = 0,
        cap: int | None = None,
        cap_cores: int | None = None,
    ) -> None:
        self._path = folder / f"machine-{socket.gethostname()}.json"
        self._lock = self._path.with_suffix(".lock")
        self._memory, self._cores, self._speed = memory, cores, speed
        ours = identify(os.getpid())
        assert ours is not None
        self.share = Share(
            ours.pid,
            ours.start_time,
            device,
            memory=0,
            cores=0,
            cap=least(memory) if cap is None else min(cap, least(memory)),
            cap_cores=least(cores) if cap_cores is None else min(cap_cores, least(cores)),
            groups=[limit.group for limit in (*memory, *cores)],
        )

    def offer(self) -> Share:
        """Take what an agent without work may offer now."""
        with self._others() as others:
            same = [each for each in others if each.device == self.share.device]
            self.share = claimed(self.share, same, self._memory, self._cores)
            self._write([*others, self.share])
        return self.share

    def speed(self, threads: int) -> int:
        """FLOP/s of our part of the cores, with so many threads, of what all of them do."""
        return max(1, self._speed * min(threads * CORE, self.share.cores) // least(self._cores))

    def work(self, memory: int) -> None:
        """Hold what a job needs, of what was offered; the rest is for others."""
        with self._others() as others:
            kept = min(memory, self.share.memory)
            self.share = replace(self.share, memory=kept, is_at_work=True)
            self._write([*others, self.share])

    def close(self) -> None:
        """Give the share back."""
        with self._others() as others:
            self._write(others)

    @contextmanager
    def _others(self) -> Iterator[list[Share]]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise Unavailable(f"cannot open {self._lock}: {error.strerror}") from error
        try:
            lock_file(lock, fcntl.LOCK_EX, self._lock)
            yield [each for each in self._read() if each.pid != self.share.pid and _lives(each)]
        finally:
            os.close(lock)

    def _read(self) -> list[Share]:
        try:
            return [Share(**each) for each in json.loads(self._path.read_text())]
        except (FileNotFoundError, ValueError, TypeError):
            return []  # damaged, though nothing here leaves half a file: shares are written again
        except OSError as error:
            raise Unavailable(f"cannot read {self._path}: {error.strerror}") from error

    def _write(self, shares: Sequence[Share]) -> None:
        data = json.dumps([asdict(each) for each in shares]).encode()
        try:
            replace_file(self._path, data, mode=BY_UMASK, durable=False)
        except OSError as error:
            raise Unavailable(f"cannot write {self._path}: {error.strerror}") from error


def _lives(share: Share) -> bool:
    return is_alive(Identity(share.pid, Ticks(share.start)))


# ---------------------------------------------------------------------------------------- priority

NICE = 5
"""A third of the weight of a process that is not nice (each unit is a factor of 1.25)."""
MAX_NICE = 19
_OF_SESSION = Path("/proc/self/autogroup")


def stand_back(nice: int, of_session: Path = _OF_SESSION) -> None:
    """Be as nice as that, with all threads that are begun from now on; 0 changes nothing.

    Where Linux groups processes by session (sched_autogroup(7)), niceness counts inside of one
    only, so a process that leads its session sets that of its group, too.

    Args:
        nice: 0 to 19, as for nice(1).
        of_session: Where that of the session's group is written, if anywhere.
    """
    if nice == 0:
        return
    os.setpriority(os.PRIO_PROCESS, 0, max(nice, os.getpriority(os.PRIO_PROCESS, 0)))
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):  # a kernel without groups, or a container's
            of_session.write_text(str(nice), encoding="ascii")


# ------------------------------------------------------------------------------------- the address

LOOPBACK = "127.0.0.1"

Route: TypeAlias = Callable[[str], tuple[str, str] | None]
"""From a URL to its address and our own on the way there; None if nothing leads there."""


def listen_address(market: str, chain: str, *, route: Route | None = None) -> str:
    """The address for peers of a market.

    Args:
        market: URL that this machine uses for it.
        chain: URL of its chain, which `up --listen` serves at an address that others reach too.
        route: See `Route`; by default that of this machine.
    """
    for url in (market, chain):
        ends = (route or route_to)(url)
        if ends is not None and all(map(_is_private, ends)):
            return ends[1]
    return LOOPBACK


def route_to(url: str) -> tuple[str, str] | None:
    """See `Route`."""
    parts = urlsplit(url)
    try:
        there = socket.getaddrinfo(parts.hostname, parts.port or 80, socket.AF_INET)[0][4]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(there)  # of a datagram: nothing is sent
            return str(there[0]), str(probe.getsockname()[0])
    except OSError:
        return None


def _is_private(address: str) -> bool:
    known = ipaddress.ip_address(address)
    return not (known.is_global or known.is_loopback or known.is_unspecified)
