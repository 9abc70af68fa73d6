"""A timeline keeps the rules of the trace-event format, and shows what was told."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from contracts.terms.errors import Conflict, NotFound
from tallystick.watch.timeline import read_lines, told_of, trace_of, write_trace
from tests.support.trace_format import check_format

JOB = "ab" * 32
COORDINATOR, ANN, BOB = "coordinator.log", "peer-ann.log", "peer-bob.log"
WALL = 1_800_000_000_000  # Unix milliseconds at which every monotonic clock here says 1 second
Line = tuple[str, Mapping[str, Any]]


def line(source: str, mono_ms: float, event: str, **fields: Any) -> Line:
    """One line of a process; its kind is that of its file."""
    process = source.split(".")[0].split("-")[0]
    head = {"at": WALL - 1000 + int(mono_ms), "mono": int(mono_ms * 1000), "pid": 7}
    return source, head | {"process": process, "event": event, "job": JOB} | fields


def step() -> list[Line]:
    """One step of two stages: ann's forward, bob's pass, ann's backward, commit, seal."""
    ann, bob = {"peer": "aa" * 32, "stage": 0}, {"peer": "bb" * 32, "stage": 1}
    return [
        line(COORDINATOR, 1000, "opened", step=1),
        line(ANN, 1020, "item_forward", step=1, item=0, took_us=10_000, queue=1, **ann),
        line(ANN, 1030, "item_forward", step=1, item=1, took_us=10_000, queue=0, **ann),
        line(BOB, 1040, "item_done", step=1, item=0, took_us=20_000, loss=5_900_000, **bob),
        line(ANN, 1060, "item_done", step=1, item=0, took_us=15_000, **ann),
        line(COORDINATOR, 1061, "claim_stored", step=1),
        line(ANN, 1065, "shard_stored", step=1, took_us=9_000, **ann),
        line(ANN, 1066, "claim_stored", step=1, took_us=2_000, items=2, **ann),
        line(COORDINATOR, 1070, "round_closed", step=1),
        line(COORDINATOR, 1080, "seal_stored", step=1, loss=5_900_000),
        line(COORDINATOR, 1090, "peer_lost", step=2, peer="bb" * 32),
        line(ANN, 1095, "finished", step=1, **ann),
        line(COORDINATOR, 1099, "finished", step=1),
    ]


def trace(lines: list[Line] | None = None) -> list[dict[str, Any]]:
    """The events of a timeline, after it went through JSON."""
    drawn = trace_of(told_of(step() if lines is None else lines, None))
    events: list[dict[str, Any]] = json.loads(json.dumps(drawn, allow_nan=False))["traceEvents"]
    check_format(events)
    return events


def of_kind(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The events of one phase letter."""
    return [event for event in events if event["ph"] == kind]


def test_timeline__what_took_time__is_a_slice_that_ends_at_its_line() -> None:
    slices = {
        (event["name"], event["args"].get("item")): (event["ts"], event["dur"])
        for event in of_kind(trace(), "X")
        if event["pid"] == 2
    }

    assert slices == {
        ("forward", 0): (10_000, 10_000),
        ("forward", 1): (20_000, 10_000),
        ("backward", 0): (45_000, 15_000),
        ("exchange", None): (56_000, 9_000),
        ("commit", None): (64_000, 2_000),
    }


def test_timeline__peer_that_left_in_order_or_uploaded_at_the_end__is_not_gone() -> None:
    bob, ann = {"peer": "bb" * 32, "stage": 1}, {"peer": "aa" * 32, "stage": 0}
    ends = [line(BOB, 1100, "left", step=1, **bob)]
    ends += [line(ANN, 1100, "weights_uploaded", step=1, bytes=9, **ann)]

    names = [event["name"] for event in of_kind(trace(step() + ends), "i")]

    assert "left" in names and "gone" not in names


def test_told_of__clocks_of_two_machines__are_joined_by_wall_time() -> None:
    far = {"at": WALL + 500, "mono": 5, "pid": 1, "process": "peer", "event": "resumed"}
    lines = [line(COORDINATOR, 1000, "opened", step=1), ("other.log", far | {"job": JOB})]

    assert [each.at_us for each in told_of(lines, None)] == [0, 500_000]


def test_told_of__several_jobs__one_has_to_be_named() -> None:
    other = {"job": "cd" * 32, "pid": 9}
    lines = [*step(), line("coordinator-2.log", 1000, "opened", step=1, **other)]

    with pytest.raises(Conflict, match="several jobs"):
        told_of(lines, None)
    assert len(told_of(lines, "cd")) == 1
    assert len(told_of(lines, JOB)) == len(step())
    with pytest.raises(NotFound):
        told_of(lines, "ef")


def test_read_lines__folders_with_other_things__our_lines_alone(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    _, told = line(COORDINATOR, 1000, "opened", loss=float("nan"))
    text = f'Traceback\n{json.dumps(told)}\n{{"a": 1}}\n[1]\n{{"at": 1, "process":\n'
    (tmp_path / "deep" / "a.log").write_text(text)
    (tmp_path / "deep" / "a.txt").write_text(text)
    (tmp_path / "deep" / "b.log").write_bytes(b"\xff\xfe{\n")

    [(source, found)] = read_lines([tmp_path])

    assert source == str(tmp_path / "deep" / "a.log")
    assert found["event"] == "opened"
    write_trace(trace_of(told_of([(source, found)], None)), tmp_path / "trace.json")
    check_format(json.loads((tmp_path / "trace.json").read_text())["traceEvents"])


def test_read_lines__nothing_there__is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="has told anything"):
        read_lines([tmp_path])
    with pytest.raises(NotFound, match="there is no"):
        read_lines([tmp_path / "nowhere"])
