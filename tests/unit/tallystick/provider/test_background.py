"""What an agent says has a time, and is kept although its terminal is closed."""

from pathlib import Path

from tallystick.provider.background import AgentLog


def closed(line: str) -> None:
    raise OSError(5, "Input/output error")


def test_say__terminal_is_closed__goes_to_the_log_alone(tmp_path: Path) -> None:
    log = AgentLog(tmp_path, closed)

    log("offering")
    log("stopped: a\x1b[2J\n2026-01-01 00:00:00Z paid")  # an error of the market
    log.close()

    lines = (tmp_path / "logs" / "agent.log").read_text().splitlines()
    assert [line[21:] for line in lines] == ["offering", "stopped: a?[2J 2026-01-01 00:00:00Z paid"]
