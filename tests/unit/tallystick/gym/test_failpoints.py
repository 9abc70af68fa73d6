"""Is a process struck at the line that a failpoint names, and once?"""

import os
import signal
from pathlib import Path

import pytest

from contracts.terms.errors import WrongConfiguration
from tallystick.gym.hooks import Failing, Failpoint, FailpointFile, parse_failpoints
from training.telling import tell_nobody


def test_parse_failpoints__two_of_them__both_are_read() -> None:
    found = parse_failpoints("kill:seal_stored:3, stop:opened:0")

    assert found == (Failpoint("kill", "seal_stored", 3), Failpoint("stop", "opened", 0))
    assert parse_failpoints("") == ()


@pytest.mark.parametrize("text", ["kill", "kill:x", "kill:x:y", "die:x:1", "kill::1", "kill:x:-1"])
def test_parse_failpoints__something_else__is_refused(text: str) -> None:
    with pytest.raises(WrongConfiguration):
        parse_failpoints(text)


def test_failing__its_event_and_step__strikes_once_in_the_life_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    struck: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: struck.append((pid, number)))
    points = parse_failpoints("kill:seal_stored:3")

    for _ in range(2):  # the second one as after a restart
        tell = Failing(tell_nobody, points, tmp_path)
        tell("seal_stored", step=2)
        tell("seal_stored", step=3)
        tell("seal_stored", step=3)

    assert struck == [(os.getpid(), signal.SIGKILL)]


def test_failpoint_file__two_processes_of_a_folder__each_is_struck_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    struck: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _pid, number: struck.append(number))
    for name in ("failpoints-trainer-0", "failpoints-trainer-1"):
        (tmp_path / name).write_text("kill:seal_stored:3")

        for _ in range(2):
            FailpointFile(tell_nobody, tmp_path / name)("seal_stored", step=3)

    assert struck == [signal.SIGKILL] * 2
