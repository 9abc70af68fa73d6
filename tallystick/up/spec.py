"""What is a service? A command line, what it needs first, and how one sees that it is ready.

Values only: the supervisor runs them, tests build their own. Spans are in seconds. Passwords and
addresses that hold passwords go into `environment` or `stdin`, never into `argv`, which every
user of the machine can read.
"""

import signal
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from contracts.terms.errors import InvariantBroken, Malformed

Probe: TypeAlias = Callable[[], Awaitable[bool]]
Action: TypeAlias = Callable[[], Awaitable[None]]


async def nothing() -> None:
    """The action that does nothing."""


async def always() -> bool:
    """The probe of what is ready once it runs."""
    return True


@dataclass(frozen=True)
class As:
    """Another user to run as; -1 stays."""

    user: int = -1
    group: int = -1


OURSELVES = As()


@dataclass(frozen=True, kw_only=True)
class ServiceSpec:
    """A process that is kept running."""

    name: str
    argv: tuple[str, ...]
    ready: Probe = always
    """True once the service answers. Asked again and again; must return within seconds."""
    says: str = ""
    """What the service writes to its log when it is ready; asked for before `ready` is."""
    environment: Mapping[str, str] = field(default_factory=dict)
    depends_on: tuple[str, ...] = ()
    port: int | None = None
    stdin: bytes | int | None = None
    """Bytes to send (a configuration with passwords), a descriptor to inherit, or nothing."""
    working_folder: Path | None = None
    prepare: Action = nothing
    """Done before every start."""
    run_as: As = OURSELVES
    stop_signal: signal.Signals = signal.SIGTERM
    grace: float = 10.0
    ready_within: float = 120.0
    dies_with_us: bool = True
    postgres_folder: Path | None = None
    """Where its backends run, which overwrite their environment (Postgres only)."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """Something that is done once, between services: a command or a coroutine."""

    name: str
    argv: tuple[str, ...] = ()
    action: Action = nothing
    """Awaited after the command, if there is one."""
    needed: Callable[[], bool] = lambda: True
    environment: Mapping[str, str] = field(default_factory=dict)
    depends_on: tuple[str, ...] = ()
    within: float = 300.0


Item: TypeAlias = ServiceSpec | Step


@dataclass(frozen=True)
class Backoff:
    """How long to wait before the next start of something that ends."""

    first: float = 0.05
    factor: float = 2.0
    most: float = 10.0
    stable_after: float = 10.0
    """Whoever ran this long is forgiven all earlier ends."""

    def failures(self, before: int, *, ran_for: float) -> int:
        """Ends in a row, the one that just came included."""
        return 1 if ran_for >= self.stable_after else before + 1

    def delay(self, failures: int) -> float:
        """Seconds to wait after that many ends in a row."""
        exponent = min(max(failures - 1, 0), 64)
        return min(self.most, self.first * self.factor**exponent)


def subset(items: Sequence[Item], only: Collection[str]) -> tuple[Item, ...]:
    """The items named in `only`; needs outside of it are taken as met.

    Raises:
        Malformed: a name that no item has.
    """
    names = {item.name for item in items}
    if unknown := set(only) - names:
        raise Malformed(
            f"no service is named {', '.join(sorted(unknown))!r:.80}; "
            f"there are: {', '.join(sorted(names))}"
        )
    return tuple(
        replace(item, depends_on=tuple(name for name in item.depends_on if name in only))
        for item in items
        if item.name in only
    )


def after(items: Sequence[Item], first: Item) -> tuple[Item, ...]:
    """`first`, then the items, where those that needed nothing now need `first`."""
    rest = (item if item.depends_on else replace(item, depends_on=(first.name,)) for item in items)
    return (first, *rest)


def check_order(items: Sequence[Item]) -> None:
    """Every item stands after all that it needs, under a name of its own.

    Raises:
        InvariantBroken: otherwise.
    """
    seen: set[str] = set()
    for item in items:
        if item.name in seen or not seen.issuperset(item.depends_on):
            raise InvariantBroken(f"{item.name} is named twice or stands before what it needs")
        seen.add(item.name)
