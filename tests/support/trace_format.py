"""The rules of the trace-event format, for any timeline (Trace Event Format, Google, 2016)."""

from collections import defaultdict
from typing import Any

REQUIRED = {
    "X": {"name", "cat", "ts", "dur", "pid", "tid", "args"},
    "i": {"name", "ts", "s", "pid", "tid"},
    "C": {"name", "ts", "pid", "args"},
    "M": {"name", "pid", "args"},
    "s": {"name", "cat", "id", "ts", "pid", "tid"},
    "t": {"name", "cat", "id", "ts", "pid", "tid"},
    "f": {"name", "cat", "id", "ts", "pid", "tid", "bp"},
}


def check_format(events: list[dict[str, Any]]) -> None:
    """What the trace-event format asks for, and what its readers need to place every event."""
    for event in events:
        assert REQUIRED[event["ph"]] <= event.keys()
        assert all(type(event[name]) is int for name in ("pid", "tid", "ts") if name in event)
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
        assert event.get("s", "g") in ("g", "p", "t")
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
    check_nesting(events)
    check_flows(events)


def check_nesting(events: list[dict[str, Any]]) -> None:
    """Slices of one row follow or hold each other; none crosses the end of another."""
    rows = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            rows[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for row in rows.values():
        open_until: list[int] = []
        for start, end in sorted(row, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)


def check_flows(events: list[dict[str, Any]]) -> None:
    """Each flow begins once, ends once, and every moment of it lies in a slice of its row."""
    flows = defaultdict(list)
    slices = [event for event in events if event["ph"] == "X"]
    for event in events:
        if event["ph"] in "stf":
            flows[event["id"]].append((event["ts"], event["ph"]))
            assert any(
                (each["pid"], each["tid"]) == (event["pid"], event["tid"])
                and each["ts"] <= event["ts"] <= each["ts"] + each["dur"]
                for each in slices
            )
    for each in flows.values():
        kinds = [kind for _, kind in sorted(each)]
        assert kinds == ["s", *["t"] * (len(kinds) - 2), "f"]
