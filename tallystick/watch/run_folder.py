"""A job's curves as files that grow: JSON lines, and TensorBoard's events made of them.

`metrics.jsonl` has a line for each step with an update, and says alone how far the folder is: a
line that a crash cut off is written again, and the event file is made anew by each `RunFolder`. So
either file has a step once, however often the folder was left.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from contracts.terms.errors import Conflict, Malformed
from contracts.terms.ids import JobId
from tallystick.sdk.curves import Point

METRICS = "metrics.jsonl"
NO_TENSORBOARD = (
    "only metrics.jsonl is written; files for TensorBoard need tensorboardX: "
    "pip install 'tallystick[tensorboard]'"
)
_SUFFIX = ".tallystick"
_CURVES = ("loss", "validation_loss", "tokens", "tokens_per_second", "peers", "bytes")


class RunFolder:
    """The files of one job, written by one process at a time."""

    def __init__(self, folder: Path, job: JobId) -> None:
        """Open `folder`, which is made if it is not there.

        Raises:
            Conflict: it holds another job.
            Malformed: `metrics.jsonl` is of somebody else.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._job, self._path = job.hex(), folder / METRICS
        points = self._read()
        self._last = points[-1] if points else None
        self._file = self._path.open("ab")
        self._events = _events_in(folder)
        for point in points:
            self._tell(point)
        self.flush()

    @property
    def has_events(self) -> bool:
        """Whether files for TensorBoard are written."""
        return self._events is not None

    @property
    def final(self) -> int:
        """The step up to which nothing changes any more: the last one may yet be validated."""
        last = self._last
        return 0 if last is None else last.step - (last.validation_loss is None)

    def add(self, points: Sequence[Point]) -> None:
        """Write the steps beyond `final`, ascending; what is there already stays."""
        for point in points:
            last = self._last
            if last is not None and point.step == last.step:
                if last.validation_loss is None and point.validation_loss is not None:
                    self._file.truncate(self._file.tell() - len(self._line(last)))
                    self._write(point)
                    self._tell(point, ("validation_loss",))
            elif last is None or point.step > last.step:
                self._write(point)
                self._tell(point)
        self.flush()

    def flush(self) -> None:
        """Hand over to the system what was written."""
        self._file.flush()
        if self._events is not None:
            self._events.flush()

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._events is not None:
            self._events.close()

    def _line(self, point: Point) -> bytes:
        return json.dumps({"job": self._job, **asdict(point)}).encode() + b"\n"

    def _write(self, point: Point) -> None:
        self._file.write(self._line(point))
        self._last = point

    def _read(self) -> list[Point]:
        """The steps that are there, without a line that was cut off."""
        data = self._path.read_bytes() if self._path.exists() else b""
        *lines, cut_off = data.split(b"\n")
        points = []
        for number, line in enumerate(lines, start=1):
            try:
                fields = json.loads(line)
                job, point = fields.pop("job"), Point(**fields)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise Malformed(f"{self._path}, line {number}, is none of `job watch`") from error
            if job != self._job:
                raise Conflict(f"{self._path} is of job {job}: name another folder", job=job)
            points.append(point)
        if cut_off:
            with self._path.open("r+b") as file:
                file.truncate(len(data) - len(cut_off))
        return points

    def _tell(self, point: Point, names: Sequence[str] = _CURVES) -> None:
        if self._events is None:
            return
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        for name in names:
            value = getattr(point, name)
            if value is not None:
                summary = scalar(name, value)
                event = Event(wall_time=point.time, step=point.step, summary=summary)
                self._events.write_event(event)


def _events_in(folder: Path) -> Any:
    """A new event file in place of our older ones; None without the library."""
    try:
        from tensorboardX.event_file_writer import EventsWriter
    except ModuleNotFoundError:
        return None
    for old in folder.glob(f"events.out.tfevents.*{_SUFFIX}"):
        old.unlink()
    return EventsWriter(str(folder / "events"), filename_suffix=_SUFFIX)
