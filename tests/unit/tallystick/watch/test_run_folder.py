"""Does a folder of curves hold each step once, whenever and however its writer came and went?"""

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event

from contracts.terms.errors import Conflict, Malformed
from contracts.terms.ids import JobId
from tallystick.sdk.curves import Point
from tallystick.watch.run_folder import METRICS, RunFolder

JOB = JobId(bytes(range(32)))


def point(step: int, validation: float | None = None) -> Point:
    return Point(
        step=step, time=1000.5 + step, loss=4.5 - step / 4, validation_loss=validation,
        tokens=512 * step, tokens_per_second=300 + step, peers=3, bytes=4096,
    )  # fmt: skip


def write(folder: Path, *points: Point) -> None:
    with closing(RunFolder(folder, JOB)) as run:
        run.add(points)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


def told(folder: Path) -> list[tuple[int, str, float]]:
    """(step, curve, value) of all event files."""
    return [
        (event.step, value.tag, value.simple_value)
        for path in sorted(folder.glob("events.*"))
        for event in events(path.read_bytes())
        for value in event.summary.value
    ]


def events(data: bytes) -> Iterator[Any]:
    """Records of TFRecord: length (8 bytes), its checksum (4), data, their checksum (4)."""
    while data:
        end = 12 + int.from_bytes(data[:8], "little")
        yield Event.FromString(data[12:end])
        data = data[end + 4 :]


def both_hold(folder: Path, *points: Point) -> bool:
    written = [{"job": JOB.hex(), **asdict(each)} for each in points]
    curves = sorted(
        (each.step, name, value)
        for each in points
        for name, value in asdict(each).items()
        if name not in ("step", "time") and value is not None
    )
    return lines(folder) == written and sorted(told(folder)) == curves


def test_add__steps_as_they_come__each_in_a_line_and_as_events(tmp_path: Path) -> None:
    write(tmp_path / "run", point(1), point(2, 3.5), point(4))

    assert both_hold(tmp_path / "run", point(1), point(2, 3.5), point(4))


def test_add__what_is_there_already__changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, point(1), point(2))
    write(tmp_path, point(1), point(2), point(3))
    write(tmp_path)

    assert both_hold(tmp_path, point(1), point(2), point(3))


@pytest.mark.parametrize("is_opened_again", [False, True])
def test_add__last_step_that_was_validated_since__takes_the_place_of_its_line(
    tmp_path: Path, is_opened_again: bool
) -> None:
    with closing(RunFolder(tmp_path, JOB)) as run:
        run.add([point(1), point(2)])
        assert run.final == 1
        if not is_opened_again:
            run.add([point(2, 3.5), point(3, 3.25)])
            assert run.final == 3
    if is_opened_again:
        write(tmp_path, point(2, 3.5), point(3, 3.25))

    assert both_hold(tmp_path, point(1), point(2, 3.5), point(3, 3.25))


def test_open__line_that_a_crash_cut_off__is_written_again(tmp_path: Path) -> None:
    write(tmp_path, point(1), point(2), point(3))
    path = tmp_path / METRICS
    path.write_bytes(path.read_bytes()[:-10])

    with closing(RunFolder(tmp_path, JOB)) as run:
        assert run.final == 1
        run.add([point(2), point(3)])

    assert both_hold(tmp_path, point(1), point(2), point(3))


def test_open__folder_of_another_job__refused(tmp_path: Path) -> None:
    write(tmp_path, point(1))

    with pytest.raises(Conflict, match=JOB.hex()):
        RunFolder(tmp_path, JobId(bytes(32)))


@pytest.mark.parametrize("line", ["", "{}", "[]", "no", '{"job": "a", "step": 1}'])
def test_open__lines_of_somebody_else__refused_and_kept(tmp_path: Path, line: str) -> None:
    (tmp_path / METRICS).write_text(line + "\n")

    with pytest.raises(Malformed, match="line 1, is none"):
        RunFolder(tmp_path, JOB)
    assert (tmp_path / METRICS).read_text() == line + "\n"


def test_open__without_the_library__lines_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX.event_file_writer", None)

    with closing(RunFolder(tmp_path, JOB)) as run:
        assert not run.has_events
        run.add([point(1), replace(point(1), validation_loss=2.0)])

    assert lines(tmp_path)[0]["validation_loss"] == 2.0 and len(lines(tmp_path)) == 1
    assert told(tmp_path) == []
