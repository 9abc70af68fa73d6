"""Where a process is made to die, or to stand still: at one line of its log, once, without a sleep.

A line is told right after the fact is on disk (`training.telling`), so a test that names a line
knows what the process had stored when it died.
"""

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from contracts.terms.errors import WrongConfiguration
from training.telling import Tell

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
