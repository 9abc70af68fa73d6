"""Failpoints, adversaries and slow machines, for `TALLYSTICK_HOOKS=tallystick.gym.hooks`.

A failpoint is where a process is made to die, or to stand still: at one line of its log, once,
without a sleep. A line is told right after the fact is on disk (`training.telling`), so a test that
names a line knows what the process had stored when it died.

A machine that is slower than this one is for demos and tests on one machine; numbers stay equal.
After each pass the slowed stage sleeps in proportion to the CPU time that the pass took, so a peer
with factor 3 takes three times as long as its neighbour on the same cores and computes the same
bytes. CPU time, not wall time: neighbours that crowd the cores would slow it twice.
"""

import functools
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from pydantic_settings import SettingsConfigDict

from contracts.settings import ProcessSettings
from contracts.terms.errors import WrongConfiguration
from contracts.terms.messages import RulesSpec
from tallystick.gym.registry import behaviour_of
from training.hooks import Hooks
from training.strategies.port import Group, State, Strategy
from training.telling import Tell
from training.worker.ports import Behaviour

# -------------------------------------------------------------------------------------- failpoints

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


@dataclass(frozen=True)
class Failpoint:
    """At the event of this step the process gets `signal`, once in the life of `folder`."""

    action: str
    event: str
    step: int

    def mark(self, process: str) -> str:
        """Name of the file that says that it has struck this process."""
        return f"{process}-{self.action}-{self.event}-{self.step}.done"


def parse_failpoints(text: str) -> tuple[Failpoint, ...]:
    """Failpoints as `action:event:step`, separated by commas; action is kill or stop.

    Raises:
        WrongConfiguration: the text is something else.
    """
    found = []
    for word in filter(None, text.split(",")):
        match word.strip().split(":"):
            case [("kill" | "stop") as action, event, step] if event and step.isdecimal():
                found.append(Failpoint(action, event, int(step)))
            case _:
                raise WrongConfiguration(
                    f"failpoint {word!r}: wanted kill|stop:event:step, e.g. kill:seal_stored:3"
                )
    return tuple(found)


class Failing:
    """Tells, and then strikes where a failpoint fits; processes that share a folder have names."""

    def __init__(
        self, tell: Tell, failpoints: Iterable[Failpoint], folder: Path, name: str = "failpoint"
    ) -> None:
        self._tell, self._failpoints, self._folder = tell, tuple(failpoints), folder
        self._name = name

    def __call__(self, event: str, **fields: object) -> None:
        """See `Tell`."""
        self._tell(event, **fields)
        for point in self._failpoints:
            if (point.event, point.step) == (event, fields.get("step")):
                self._strike(point)

    def _strike(self, point: Failpoint) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            (self._folder / point.mark(self._name)).touch(exist_ok=False)
        except FileExistsError:
            return
        self._tell("failpoint", action=point.action, at_event=point.event, step=point.step)
        os.kill(os.getpid(), _SIGNALS[point.action])


class FailpointFile:
    """Tells, and strikes where a file says so, which is read at each event: none, no failpoint.

    A test writes it beside the journals of the process that is to fail, at any time before.
    """

    def __init__(self, tell: Tell, file: Path) -> None:
        self._tell, self._file = tell, file

    def __call__(self, event: str, **fields: object) -> None:
        """See `Tell`."""
        try:
            failpoints = parse_failpoints(self._file.read_text())
        except FileNotFoundError:
            failpoints = ()
        Failing(self._tell, failpoints, self._file.parent, self._file.name)(event, **fields)


# ----------------------------------------------------------------------------------- slow machines

P = ParamSpec("P")
T = TypeVar("T")

MAX_FACTOR = 1000.0


def slow_down(
    strategy: Strategy,
    factor: float,
    *,
    cpu_seconds: Callable[[], float] = time.thread_time,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Make each pass of `strategy` take `factor` times its time from now on.

    Passes are what is measured at joining, routed and paid; the rest of a round stays as quick as
    it is.

    Args:
        strategy: It computes on one thread, by its attribute `compute`.
        factor: 1 for the machine as it is.
        cpu_seconds: Clock of what the calling thread has used.
        sleep: Waits this many seconds.

    Raises:
        WrongConfiguration: the factor is not between 1 and 1000.
    """
    if not 1.0 <= factor <= MAX_FACTOR:
        raise WrongConfiguration(f"a slowdown is between 1 and {MAX_FACTOR:.0f}, not {factor}")
    if factor == 1.0:
        return

    def slowed(work: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(work)
        def slowly(*args: P.args, **kwargs: P.kwargs) -> T:
            began = cpu_seconds()
            try:
                return work(*args, **kwargs)
            finally:
                sleep((factor - 1) * (cpu_seconds() - began))

        return slowly

    changed: Any = strategy
    compute, first_state = changed.compute, changed.first_state

    async def computing(function: Callable[[], object]) -> object:
        return await compute(slowed(function))

    def measured(group: Group) -> State:
        state = first_state(group)
        state.measure = slowed(state.measure)
        return state  # type: ignore[no-any-return]

    changed.compute, changed.first_state = computing, measured


# --------------------------------------------------------------------------------------- the hooks


class PlayedSettings(ProcessSettings):
    """`TALLYSTICK_PEER_*` variables that only the gym reads."""

    model_config = SettingsConfigDict(env_prefix="TALLYSTICK_PEER_")

    slowdown: float = 1.0
    """How many times slower it computes than it could; see `slow_down`."""
    behaviour: str = ""
    """Which adversary it plays; see `registry`. Empty: none."""


def played(rules: RulesSpec) -> Behaviour:
    """The adversary that this process plays."""
    return behaviour_of(PlayedSettings().behaviour, rules)


def slowed(strategy: Strategy) -> Strategy:
    """The arithmetic at the speed of the machine that this process plays."""
    slow_down(strategy, PlayedSettings().slowdown)
    return strategy


HOOKS = Hooks(tell=FailpointFile, behaviour=played, strategy=slowed)
