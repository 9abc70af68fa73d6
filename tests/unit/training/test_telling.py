"""Log lines."""

import io
import json
import os

from training.telling import JsonLines, Rarely


def test_json_lines__event_with_bytes__one_line_of_json_in_hex() -> None:
    stream = io.StringIO()

    JsonLines(stream, process="worker")("seal_stored", step=3, seal=b"\x01\xff")

    line = json.loads(stream.getvalue())
    assert (line.pop("at") > 0, line.pop("mono") > 0, line.pop("pid")) == (True, True, os.getpid())
    assert line == {"process": "worker", "event": "seal_stored", "step": 3, "seal": "01ff"}


def test_rarely__fault_that_lasts__is_told_once_a_minute_with_how_often_it_came() -> None:
    told: list[dict[str, object]] = []
    now = [0.0]
    tell = Rarely(lambda event, **fields: told.append(fields), clock=lambda: now[0])

    for now[0] in (0.0, 0.2, 59.0, 60.0, 61.0):
        tell("waits", code="unavailable", step=int(now[0]))

    assert told == [
        {"code": "unavailable", "step": 0},
        {"code": "unavailable", "step": 60, "times": 3},
    ]
