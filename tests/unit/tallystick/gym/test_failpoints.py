"""Is a process struck at the line that a failpoint names, and once?"""

import os
import signal
from pathlib import Path

import pytest

from contracts.terms.errors import WrongConfiguration
from tallystick.gym.hooks import Failpoint, FailpointFile, parse_failpoints
from training.telling import tell_nobody


def test_parse_failpoints__two_of_them__both_are_read() -> None:
    found = parse_failpoints("kill:seal_stored:3, stop:opened:0")

    assert found == (Failpoint("kill", "seal_stored", 3), Failpoint("stop", "opened", 0))
    assert parse_failpoints("") == ()


@pytest.mark.parametrize("text", ["kill", "kill:x", "kill:x:y", "die:x:1", "kill::1", "kill:x:-1"])
def test_parse_failpoints__something_else__is_refused(text: str) -> None:
    with pytest.raises(WrongConfiguration):
        parse_failpoints(text)


def test_failpoint_file__two_processes_of_a_folder__each_is_struck_once_at_its_event_and_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    struck: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: struck.append((pid, number)))

    for name in ("failpoints-coordinator", "failpoints-peer"):
        (tmp_path / name).write_text("kill:seal_stored:3")
        for _ in range(2):  # the second one as after a restart
            tell = FailpointFile(tell_nobody, tmp_path / name)
            for event, step in (("seal_stored", 2), ("opened", 3), ("seal_stored", 3)):
                tell(event, step=step)

    assert struck == [(os.getpid(), signal.SIGKILL)] * 2
