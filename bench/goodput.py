"""What part of its speed does a swarm keep while its peers are killed?

`python -m bench.goodput [--pairs N] [--seconds N] [--every N] [--round SECONDS] [--quick]` prints a
table and one line of JSON. One job of two stages of four peers with one thread each
(`goodput_process`), every process real, lives for the whole run; with --round one of eight replicas
that take local steps for so long and then exchange differences in four bits. Windows of so many
seconds without a kill and with kills take turns; in those with kills a peer gets SIGKILL once in
every so many seconds, at a drawn moment, as kills that keep time with rounds cost each time the
same; each peer in its turn in a drawn order. It is started again at once, as a provider's agent
does, finds what it left on its disk, and takes its place again.

Goodput is sealed samples of a window with kills / those of the window without before it. All peers
share this machine: while one is away, or imports torch again, others have its core, or less of
theirs. So what is lost here is what kills cost in waits and in work done twice, and starts; where
each peer has a machine of its own, what it would have done while it is away is lost too.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

from bench.goodput_process import PEERS, ROLES, ROWS, UNITS, GoodputJob
from bench.measuring import (
    Line,
    Processes,
    about,
    limit,
    markdown,
    now,
    parsed,
    parser_of,
    spread,
    tell,
)
from tests.support.corpora import builtin_text, cut_corpus
from tests.support.swarm_job import COORDINATOR

CORPUS_BYTES = 1_000_000


@dataclass(frozen=True)
class Window:
    """What happened in so many seconds."""

    samples: int  # sealed
    rounds: int
    void: int
    until_seal: tuple[float, ...]  # seconds from each SIGKILL to the next update


class Swarm(Processes):
    """The processes of the job."""

    def __init__(self, folder: Path, seed: int, round_time: int, *, quick: bool) -> None:
        super().__init__("bench.goodput_process", folder)
        corpus = cut_corpus(builtin_text(CORPUS_BYTES), shard_bytes=32_768)
        corpus.write(folder / "blobs")
        self.job = GoodputJob(seed, quick, corpus.manifest.digest().hex(), round_time)
        self.job.write(folder)
        order, self._moments = list(PEERS), Random(seed)
        self._moments.shuffle(order)
        self._victims = cycle(order)
        for role in ROLES:
            self.start(role)

    def updates(self, since: float) -> list[Line]:
        """Seals that moved the model."""
        sealed = self.lines(COORDINATOR, "seal_stored", since=since)
        return [line for line in sealed if line["loss"] is not None]

    def _samples(self, updates: Sequence[Line]) -> int:
        """Rows that these seals cover."""
        if not self.job.round_time:
            return len(updates) * UNITS * ROWS
        steps = {line["step"] for line in updates}
        claims = self.lines(COORDINATOR, "claim_stored")
        return self.job.rows * sum(each["items"] for each in claims if each["step"] in steps)

    def settle(self) -> None:
        """Wait until every process is back, and two rounds more."""

        def are_back() -> bool:
            return all(self._works(peer) for peer in PEERS)

        self.wait("every peer to work", are_back)
        began = now()
        self.wait("two rounds", lambda: len(self.updates(began)) > 1)

    def _works(self, peer: str) -> bool:
        pid = self.running[peer].pid
        return any(line["pid"] == pid for line in self.lines(peer, "seal_applied"))

    def _wait_until(self, moment: float, what: str) -> None:
        self.wait(what, lambda: now() >= moment)

    def window(self, seconds: float, kill_every: float | None) -> Window:
        """Let it train for so long, after all are back; with a kill every so many seconds."""
        self.settle()
        began, killed = now(), list[float]()
        ends = began + seconds
        slots = 0 if kill_every is None else int(seconds / kill_every)
        for slot in range(slots):
            at = began + (slot + self._moments.random()) * (kill_every or 0.0)
            self._wait_until(at, "the next kill")
            victim = next(self._victims)
            killed.append(now())
            self.kill(victim)
            self.start(victim)
        self._wait_until(ends, "the end of a window")
        updates = [line for line in self.updates(began) if line["seconds"] < ends]
        void = [line for line in self.lines(COORDINATOR, "round_void", since=began)]
        self.wait("the seal after the last kill", lambda: bool(self.updates(ends)))
        return Window(
            samples=self._samples(updates),
            rounds=len(updates) + len(void),
            void=len(void),
            until_seal=tuple(self.updates(at)[0]["seconds"] - at for at in killed),
        )


def measure(options: argparse.Namespace) -> list[tuple[Window, Window]]:
    """Windows in turn, without kills and with them."""
    pairs = list[tuple[Window, Window]]()
    with tempfile.TemporaryDirectory(prefix="tallystick-goodput-") as folder:
        length = int(1000 * options.round)
        swarm = Swarm(Path(folder), options.seed, length, quick=options.quick)
        try:
            for _ in range(options.pairs):
                calm = swarm.window(options.seconds, None)
                pairs.append((calm, swarm.window(options.seconds, options.every)))
                tell(str(pairs[-1]))
        finally:
            swarm.kill()
    return pairs


def row(name: str, windows: Sequence[Window], seconds: float) -> dict[str, Any]:
    """Of windows of one kind together."""
    rounds = sum(window.rounds for window in windows)
    waits = [wait for window in windows for wait in window.until_seal]
    return {
        "": name,
        "samples/s": round(sum(window.samples for window in windows) / seconds / len(windows), 1),
        "rounds": rounds,
        "void, %": round(100 * sum(window.void for window in windows) / rounds, 1),
        "kills": len(waits),
        "SIGKILL to seal, s": spread(waits, 2) if waits else "",
    }


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=180, help="of a window")
    parser.add_argument("--every", type=float, default=30, help="seconds between two kills")
    parser.add_argument("--round", type=float, default=0, help="seconds, of local steps")
    parser.add_argument("--seed", type=int, default=1)
    options = parsed(parser, minutes=60, pairs=1, seconds=8, every=4)
    with limit(options.minutes, "goodput"):
        pairs = measure(options)
    calm, killed = zip(*pairs, strict=True)
    rows = [row("no kills", calm, options.seconds), row("kills", killed, options.seconds)]
    goodput = spread([100 * less.samples / more.samples for more, less in pairs], 1)
    print(markdown(rows))
    print(f"goodput, %: {goodput}")
    asked = {
        name: getattr(options, name) for name in ("pairs", "seconds", "every", "round", "seed")
    }
    print(json.dumps({"goodput, %": goodput, "rows": rows} | about(**asked)))


if __name__ == "__main__":
    main()
