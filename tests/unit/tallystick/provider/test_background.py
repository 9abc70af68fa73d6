"""What an agent says has a time, and is kept although its terminal is closed."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tallystick.provider.background import DETACHED, AgentLog, stamped


def closed(line: str) -> None:
    raise OSError(5, "Input/output error")


def test_stamped__line__has_its_moment_in_utc() -> None:
    now = datetime(2026, 11, 23, 9, 5, 7, 999, tzinfo=UTC)

    assert stamped("offering", now) == "2026-11-23 09:05:07Z offering"


def test_say__terminal_is_closed__goes_to_the_log_alone(tmp_path: Path) -> None:
    log = AgentLog(tmp_path, closed)

    log("offering")
    log("stopped")
    log.close()

    lines = (tmp_path / "logs" / "agent.log").read_text().splitlines()
    assert [line[21:] for line in lines] == ["offering", "stopped"]


def test_say__detached__the_terminal_is_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DETACHED, "1")
    said: list[str] = []

    AgentLog(tmp_path, said.append)("offering")

    assert len(said) == 1 and list(tmp_path.iterdir()) == []
