"""Failpoints, adversaries and slow machines, for `TALLYSTICK_HOOKS=tallystick.gym.hooks`.

A failpoint is where a process is made to die, or to stand still: at one line of its log, once,
without a sleep. A line is told right after the fact is on disk (`training.telling`), so a test that
names a line knows what the process had stored when it died.

A machine that is slower than this one is for demos and tests on one machine; numbers stay equal.
After each pass the slowed stage sleeps in proportion to the CPU time that the pass took, so a peer
with factor 3 takes three times as long as its neighbour on the same cores and computes the same
bytes. CPU time, not wall time: neighbours that crowd the cores would slow it twice.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic_settings import SettingsConfigDict

from contracts.settings import ProcessSettings
from contracts.terms.errors import WrongConfiguration
from contracts.terms.messages import RulesSpec
from tallystick.gym.around import Around, Computing
from tallystick.gym.behaviours import Together
from tallystick.gym.registry import behaviour_of
from training.hooks import Hooks
from training.strategies.port import Compute, Group, State
from training.telling import Tell
from training.worker.ports import Behaviour, MakeStrategy

T = TypeVar("T")

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


class FailpointFile:
    """Tells, and strikes where a file says so, which is read at each event: none, no failpoint.

    A test writes it beside the journals of the process that is to fail, at any time before.
    Processes that share a folder have files of different names.
    """

    def __init__(self, tell: Tell, file: Path) -> None:
        self._tell, self._file = tell, file

    def __call__(self, event: str, **fields: object) -> None:
        """See `Tell`."""
        self._tell(event, **fields)
        try:
            failpoints = parse_failpoints(self._file.read_text())
        except FileNotFoundError:
            return
        for point in failpoints:
            if (point.event, point.step) == (event, fields.get("step")):
                self._strike(point)

    def _strike(self, point: Failpoint) -> None:
        try:
            self._file.with_name(point.mark(self._file.name)).touch(exist_ok=False)
        except FileExistsError:
            return
        self._tell("failpoint", action=point.action, at_event=point.event, step=point.step)
        os.kill(os.getpid(), _SIGNALS[point.action])


# ----------------------------------------------------------------------------------- slow machines

MAX_FACTOR = 1000.0


class Slowed(Around):
    """Takes `factor` times as long for each pass, and when it is measured.

    Args:
        make: Of the strategy inside.
        compute: What it computes by.
        factor: 1 for the machine as it is.
        cpu_seconds: Clock of what the calling thread has used.
        sleep: Waits this many seconds.

    Raises:
        WrongConfiguration: the factor is not between 1 and 1000.
    """

    def __init__(
        self,
        make: MakeStrategy,
        compute: Compute,
        factor: float,
        *,
        cpu_seconds: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not 1.0 <= factor <= MAX_FACTOR:
            raise WrongConfiguration(f"a slowdown is between 1 and {MAX_FACTOR:.0f}, not {factor}")
        super().__init__(make, compute)
        self._factor, self._cpu_seconds, self._sleep = factor, cpu_seconds, sleep

    async def computed(self, function: Callable[[], T]) -> T:
        """See `Around.computed`."""
        return await super().computed(lambda: self._slowly(function))

    def first_state(self, group: Group) -> State:
        """See `Strategy.first_state`."""
        state = self._inner.first_state(group)
        measure = state.measure
        vars(state)["measure"] = lambda seed: self._slowly(lambda: measure(seed))
        return state

    def _slowly(self, function: Callable[[], T]) -> T:
        began = self._cpu_seconds()
        try:
            return function()
        finally:
            self._sleep((self._factor - 1) * (self._cpu_seconds() - began))


# --------------------------------------------------------------------------------------- the hooks


class PlayedSettings(ProcessSettings):
    """`TALLYSTICK_PEER_*` variables that only the gym reads."""

    model_config = SettingsConfigDict(env_prefix="TALLYSTICK_PEER_")

    slowdown: float = 1.0
    """How many times slower it computes than it could; see `Slowed`."""
    behaviour: str = ""
    """Which adversary it plays; see `registry`. Empty: none."""


def played(rules: RulesSpec) -> Behaviour:
    """The adversary that this process plays, at the speed of the machine that it plays."""
    settings = PlayedSettings()
    behaviour = behaviour_of(settings.behaviour, rules)
    if settings.slowdown == 1.0:
        return behaviour
    return Together(
        behaviour, Computing(lambda make, compute: Slowed(make, compute, settings.slowdown))
    )


HOOKS = Hooks(tell=FailpointFile, behaviour=played)
