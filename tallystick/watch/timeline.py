"""A job's log lines as a timeline, in the trace-event format that Perfetto and Chrome open.

One track a party: the coordinator, each peer over all its restarts, with a row more
wherever two things overlap. A line with `took_us` is a slice that ends at it, any other an instant;
a flow joins what was done of one item in one round, in order; the coordinator has its phases.

Moments are microseconds since the first line. Those of one process come from its monotonic clock,
so that a step of the wall clock bends nothing; processes are put beside each other by their wall
clocks, those within `SAME_CLOCK_US` of each other as if they shared one, as they do on one machine.

Format: Trace Event Format (Google, 2016), JSON object form; each kind of event is written as its
section there says, and `ts` is never negative.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from contracts.terms.errors import Conflict, NotFound
from tallystick.watch.phases import Phase, next_phase

SAME_CLOCK_US = 20_000
SUFFIXES = (".log", ".jsonl")

Event = dict[str, Any]

_NAMES = {
    "item_forward": "forward",
    "item_done": "backward",
    "claim_stored": "commit",
    "shard_stored": "exchange",
    "bucket_stored": "reduce",
    "seal_applied": "apply",
    "checkpoint_stored": "checkpoint",
}
_OF_AN_ITEM = ("item_forward", "item_done")
_GLOBAL = ("seal_stored", "failpoint", "peer_joined", "peer_lost", "reopened", "round_void")
_LAST_WORDS = ("finished", "left", "too_late", "failed")
_HEAD = ("at", "mono", "process", "pid", "event", "job", "took_us")


class Instance(NamedTuple):
    """One process from its start to its end."""

    process: str
    source: str  # file that it wrote to
    pid: int

    @property
    def kind(self) -> str:
        """What it does in the job."""
        return "coordinator" if self.process == "coordinator" else "peer"


@dataclass(frozen=True)
class Told:
    """One line, on the common clock."""

    at_us: int
    by: Instance
    event: str
    fields: Mapping[str, Any]

    def number(self, name: str) -> int | None:
        """A field that is an integer."""
        value = self.fields.get(name)
        return value if type(value) is int else None


@dataclass(frozen=True)
class Track:
    """A party: its instances share it."""

    kind: str
    stage: int  # of a peer, as its lines say
    name: str  # a peer's id, else the process

    @property
    def label(self) -> str:
        """What people read."""
        return f"stage {self.stage} peer {self.name[:12]}" if self.kind == "peer" else self.name


# ---------------------------------------------------------------------------------- reading


def read_lines(places: Iterable[Path]) -> list[tuple[str, Mapping[str, Any]]]:
    """What processes told, with the file that holds it; anything else in the files is skipped.

    Args:
        places: Files, and folders that are searched for `*.log` and `*.jsonl`.

    Raises:
        NotFound: no such file or folder, or none of them holds a line.
    """
    found = [(str(file), line) for file in _files(places) for line in _lines(file)]
    if not found:
        raise NotFound("no process has told anything there")
    return found


def _files(places: Iterable[Path]) -> list[Path]:
    files: set[Path] = set()
    for place in places:
        if place.is_dir():
            files |= {file for suffix in SUFFIXES for file in place.rglob(f"*{suffix}")}
        elif place.is_file():
            files.add(place)
        else:
            raise NotFound(f"there is no {place}")
    return sorted(files)


def _lines(file: Path) -> Iterator[Mapping[str, Any]]:
    with file.open(encoding="utf-8", errors="replace") as text:
        for line in text:
            if line.startswith("{") and (told := _parsed(line)) is not None:
                yield told


def _parsed(line: str) -> Mapping[str, Any] | None:
    try:
        told = json.loads(line, parse_constant=str)  # NaN is no JSON
    except ValueError:
        return None  # cut off by a kill, or another program's
    is_ours = (
        isinstance(told, dict)
        and type(told.get("at")) is int
        and isinstance(told.get("process"), str)
        and isinstance(told.get("event"), str)
    )
    return told if is_ours else None


# --------------------------------------------------------------------------------- choosing


def told_of(lines: Iterable[tuple[str, Mapping[str, Any]]], job: str | None) -> list[Told]:
    """The lines of one job on one clock, in order.

    Args:
        lines: See `read_lines`.
        job: The first digits of its id; None where there is but one.

    Raises:
        NotFound: no process told of that job. Conflict: there are several jobs; data: `jobs`.
    """
    by_instance: dict[Instance, list[Mapping[str, Any]]] = defaultdict(list)
    for source, line in lines:
        pid = line.get("pid")
        own = Instance(line["process"], source, pid if type(pid) is int else 0)
        by_instance[own].append(line)
    chosen = _chosen(by_instance, job)
    offsets = _offsets({own: by_instance[own] for own in chosen})
    told = [
        Told(_own_us(line) + offsets[own], own, line["event"], line)
        for own in chosen
        for line in by_instance[own]
    ]
    first = min(each.at_us - (each.number("took_us") or 0) for each in told)
    return sorted(
        (Told(each.at_us - first, each.by, each.event, each.fields) for each in told),
        key=lambda each: each.at_us,
    )


def _chosen(
    by_instance: Mapping[Instance, Sequence[Mapping[str, Any]]], job: str | None
) -> list[Instance]:
    """Instances that told of the job; where nobody names any, all."""
    jobs = {
        own: {line["job"] for line in lines if isinstance(line.get("job"), str)}
        for own, lines in by_instance.items()
    }
    named = set().union(*jobs.values())
    wanted = {each for each in named if job is None or each.startswith(job)}
    if len(wanted) > 1:
        names = sorted(each[:16] for each in wanted)
        raise Conflict(f"several jobs are told of there: {', '.join(names)}; name one", jobs=names)
    if not named and job is None:
        return list(by_instance)
    if not wanted:
        raise NotFound(f"no process tells of job {job}")
    return [own for own, theirs in jobs.items() if theirs & wanted]


def _own_us(line: Mapping[str, Any]) -> int:
    mono = line.get("mono")
    return mono if type(mono) is int else int(line["at"]) * 1000


def _offsets(
    by_instance: Mapping[Instance, Sequence[Mapping[str, Any]]],
) -> dict[Instance, int]:
    """From each instance's clock to Unix microseconds."""
    offsets: dict[Instance, int] = {}
    for own, lines in by_instance.items():
        offset = int(lines[0]["at"]) * 1000 - _own_us(lines[0])
        near = [each for each in offsets.values() if abs(each - offset) <= SAME_CLOCK_US]
        offsets[own] = near[0] if near else offset
    return offsets


# ---------------------------------------------------------------------------------- drawing


def trace_of(told: Sequence[Told]) -> dict[str, Any]:
    """The timeline as a JSON object."""
    tracks = _tracks(told)
    numbers = {track: number for number, track in enumerate(_in_order(tracks), start=1)}
    drawn: list[Event] = []
    flows: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for track, number in numbers.items():
        own = [each for each in told if tracks[each.by] == track]
        drawn += _about(track, number)
        drawn += _drawn(own, number, flows)
    for each, steps in enumerate(flows.values(), start=1):
        drawn += _flow(each, steps)
    jobs = {line.fields["job"] for line in told if isinstance(line.fields.get("job"), str)}
    return {
        "traceEvents": drawn,
        "displayTimeUnit": "ms",
        "otherData": {"job": min(jobs, default=""), "lines": str(len(told))},
    }


def _tracks(told: Iterable[Told]) -> dict[Instance, Track]:
    """Each instance's party; a peer is whom its own lines are mostly about."""
    peers: dict[Instance, Counter[str]] = defaultdict(Counter)
    stages: dict[str, int] = defaultdict(int)
    for each in told:
        peer = each.fields.get("peer")
        peers[each.by].update([peer] if isinstance(peer, str) else [])
    names = {
        own: found.most_common(1)[0][0] if own.kind == "peer" and found else own.process
        for own, found in peers.items()
    }
    for each in told:
        stages[names[each.by]] = max(stages[names[each.by]], each.number("stage") or 0)
    return {own: Track(own.kind, stages[name], name) for own, name in names.items()}


def _in_order(tracks: Mapping[Instance, Track]) -> list[Track]:
    ranks = {"coordinator": 0, "peer": 1}
    return sorted(set(tracks.values()), key=lambda t: (ranks[t.kind], t.stage, t.name))


def _event(ph: str, name: str, number: int, at_us: int, about: Event, **more: Any) -> Event:
    """An event of track `number`, in its first row if `more` names no other."""
    return {"ph": ph, "name": name, "pid": number, "tid": 0, "ts": at_us, "args": about, **more}


def _about(track: Track, number: int) -> Iterator[Event]:
    yield _event("M", "process_name", number, 0, {"name": track.label})
    yield _event("M", "process_sort_index", number, 0, {"sort_index": number})


def _drawn(
    own: Sequence[Told], number: int, flows: dict[tuple[int, int], list[Event]]
) -> Iterator[Event]:
    slices = sorted(
        ((each.at_us - took, took, each) for each in own if (took := _took(each)) is not None),
        key=lambda each: each[:2],
    )
    rows: list[int] = []  # when the last slice of each ends
    for start, took, each in slices:
        row = next((row for row, ends in enumerate(rows) if ends <= start), len(rows))
        rows[row : row + 1] = [start + took]
        name, about = _NAMES.get(each.event, each.event), _arguments(each)
        drawn = _event("X", name, number, start, about, cat=each.by.kind, tid=row + 1, dur=took)
        yield drawn
        step, item = each.number("step"), each.number("item")
        if each.event in _OF_AN_ITEM and step is not None and item is not None:
            flows[step, item].append(drawn)
    yield from _instants(own, number)
    yield from _gone(own, number)
    yield from _phases(own, number, row=len(rows) + 1)
    yield from _counters(own, number)


def _took(each: Told) -> int | None:
    took = each.number("took_us")
    return None if took is None else max(0, took)


def _arguments(each: Told) -> Event:
    return {name: value for name, value in each.fields.items() if name not in _HEAD}


def _instants(own: Iterable[Told], number: int) -> Iterator[Event]:
    for each in own:
        if _took(each) is None or each.event in _GLOBAL:
            scope = "g" if each.event in _GLOBAL and each.by.kind != "peer" else "p"
            yield _instant(each.event, number, each.at_us, scope, _arguments(each))


def _instant(name: str, number: int, at_us: int, scope: str, about: Event) -> Event:
    return _event("i", name, number, at_us, about, cat="event", s=scope)


def _gone(own: Sequence[Told], number: int) -> Iterator[Event]:
    """Processes that ended without last words: killed, or still at work."""
    last = {each.by: each for each in own}
    ended = {each.by for each in own if each.event in _LAST_WORDS}  # one may upload after them
    for by, each in last.items():
        if by not in ended:
            yield _instant("gone", number, each.at_us, "g", {"pid": by.pid})


def _phases(own: Sequence[Told], number: int, *, row: int) -> Iterator[Event]:
    now: Phase | None = None
    for each in own:
        step = each.number("step")
        if each.by.kind != "coordinator" or step is None:
            continue
        now, passed = next_phase(now, each.event, step, each.at_us)
        if passed is not None:
            name, began, took = passed.name, passed.began_us, passed.took_us
            about = {"step": passed.step}
            yield _event("X", name, number, began, about, cat="phase", tid=row, dur=took)


def _counters(own: Iterable[Told], number: int) -> Iterator[Event]:
    for each in own:
        values = {"queue": each.number("queue")}
        if each.event == "seal_stored" and each.by.kind == "coordinator":
            values["loss"] = each.number("loss")
        for name, value in values.items():
            if value is not None:
                shown = value / 1e6 if name == "loss" else value
                yield _event("C", name, number, each.at_us, {name: shown})


def _flow(number: int, steps: Sequence[Event]) -> Iterator[Event]:
    """Arrows from slice to slice, each bound to the one that encloses its moment."""
    ordered = sorted(steps, key=lambda each: (each["ts"], each["pid"]))
    if len(ordered) < 2:
        return
    for index, each in enumerate(ordered):
        kind = "s" if index == 0 else "f" if index == len(ordered) - 1 else "t"
        middle = each["ts"] + each["dur"] // 2  # its start may be another one's end
        more = {"cat": "item", "id": number, "tid": each["tid"]}
        more |= {"bp": "e"} if kind == "f" else {}
        yield _event(kind, f"item {each['args']['item']}", each["pid"], middle, {}, **more)


def write_trace(trace: Mapping[str, Any], file: Path) -> None:
    """Write it in one line."""
    file.write_text(json.dumps(trace, separators=(",", ":"), allow_nan=False) + "\n")
