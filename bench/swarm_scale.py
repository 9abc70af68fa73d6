"""What does the step machine cost, by the number of peers?

One undisturbed step of three stages with four units a peer and a chunk for each peer of a stage, in
one process: after every event `advance`, then `duties_of`, as the coordinator asks. CPU seconds of
both, and by which power of the number of peers they grow. Messages are made outside of the time.

`python -m bench.swarm_scale [--peers N ...]` prints a line a size.
"""

import json
import math
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise

from bench.measuring import about, limit, parsed, parser_of
from contracts.terms.ids import ZERO_DIGEST, ChunkIndex, PeerId
from contracts.terms.messages import PartDigest
from tests.unit.training.swarm.factories import averaged_chunk, copy, grad_commit, joining, terms
from training.swarm import step as machine
from training.swarm.closing import assigned_units
from training.swarm.duties import FetchParts, HoldChunks, SumChunks, duties_of
from training.swarm.events import (
    ChunkAveraged,
    ChunksHeld,
    Event,
    GradCommitted,
    PartsHeld,
    SealApplied,
    SealStored,
    UnitsDone,
)
from training.swarm.state import Averaging, Closed, Committed, Sealing, SwarmState, Working

SIZES = (9, 30, 99, 300)
STAGES, UNITS = 3, 4  # units of a peer


class Measured:
    """A swarm of `num_peers`, and the CPU seconds that its machine and its duties took."""

    def __init__(self, num_peers: int) -> None:
        self.num_peers = num_peers
        self.own = num_peers // STAGES  # peers of a stage
        self.peers = [
            PeerId(f"{number:05}".encode().ljust(32, b".")) for number in range(num_peers)
        ]
        self.terms = terms(
            peers=self.own, units=UNITS * self.own, steps=2, chunks=self.own, stages=STAGES
        )
        self.state = SwarmState(self.terms)
        self.seconds = {"advance": 0.0, "duties": 0.0}
        self.num_events = 0

    def tell(self, event: Event) -> None:
        """One event."""
        began = time.process_time()
        self.state, _ = machine.advance(self.state, event)
        between = time.process_time()
        self.duties = duties_of(self.state)
        self.seconds["advance"] += between - began
        self.seconds["duties"] += time.process_time() - between
        self.num_events += 1

    def join(self) -> None:
        """Everybody comes, which does not count."""
        for number, peer in enumerate(self.peers):
            self.tell(joining(peer, number % STAGES, at=1000))
        self.seconds, self.num_events = dict.fromkeys(self.seconds, 0.0), 0

    def run_step(self) -> None:
        """From the first unit to the last seal applied."""
        for events in (self.work, self.commit, self.exchange, self.average, self.seal):
            for event in events():
                self.tell(event)
        assert isinstance(self.state.phase, Working) and self.state.step == 2

    def work(self) -> Iterator[Event]:
        """Each unit is reported when it is done in all stages."""
        at = self.state.at
        for unit in range(UNITS * self.own):
            doers = self.peers[unit % self.own * STAGES :][:STAGES]
            copies = tuple(
                copy(doer, stage, unit, stages=STAGES) for stage, doer in enumerate(doers)
            )
            yield UnitsDone(self.state.step, copies, at)

    def commit(self) -> Iterator[Event]:
        """Each peer, with as many parts as there are chunks."""
        assert isinstance(self.state.phase, Closed)
        close, at = self.state.phase.close, self.state.at
        parts = tuple(
            PartDigest(chunk=ChunkIndex(chunk), digest=ZERO_DIGEST, norm_squared=1)
            for chunk in range(self.own)
        )
        for peer in self.peers:
            stage = self.state.members[peer].stage
            units = assigned_units(close, stage, peer)
            commit = grad_commit(peer, close, units, stage=stage).model_copy(
                update={"parts": parts}
            )
            commit.digest()
            yield GradCommitted(commit, units, at)

    def exchange(self) -> Iterator[Event]:
        """Each peer fetches all that is wanted of it at once."""
        assert isinstance(self.state.phase, Committed)
        for peer, duty in duties_of(self.state).items():
            assert isinstance(duty, FetchParts)
            yield PartsHeld(self.state.step, peer, duty.parts, self.state.at)

    def average(self) -> Iterator[Event]:
        """Chunk by chunk."""
        assert isinstance(self.state.phase, Averaging)
        average = self.state.phase.average
        average.digest()
        for peer, duty in duties_of(self.state).items():
            assert isinstance(duty, SumChunks)
            for stage, chunk in duty.chunks:
                message = averaged_chunk(peer, average, chunk, stage=stage)
                yield ChunkAveraged(message, self.state.at)
        for peer, duty in duties_of(self.state).items():
            assert isinstance(duty, HoldChunks)
            yield ChunksHeld(self.state.step, peer, duty.chunks, self.state.at)

    def seal(self) -> Iterator[Event]:
        """The seal is stored, and applied by one after the other."""
        assert isinstance(self.state.phase, Sealing)
        sealed = self.state.step
        yield SealStored(sealed, False, self.state.at)
        for peer in self.peers:
            yield SealApplied(peer, sealed, self.state.at)


def measure(num_peers: int) -> dict[str, float]:
    """CPU seconds of one step, and its events."""
    measured = Measured(num_peers)
    measured.join()
    measured.run_step()
    return {"peers": num_peers, "events": measured.num_events, **measured.seconds}


def powers(rows: Sequence[dict[str, float]], name: str) -> list[float]:
    """By which power of the number of peers a figure grows, from each size to the next."""
    return [
        round(math.log(more[name] / less[name]) / math.log(more["peers"] / less["peers"]), 2)
        for less, more in pairwise(rows)
    ]


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--peers", type=int, nargs="+", default=SIZES)
    options = parsed(parser, minutes=30, peers=SIZES[:2])
    rows = []
    for size in options.peers:
        with limit(options.minutes, f"a step of {size} peers"):
            rows.append(row := measure(size))
        print(", ".join(f"{name} {figure:.4g}" for name, figure in row.items()), flush=True)
    print("powers:", {name: powers(rows, name) for name in ("advance", "duties")})
    print(json.dumps(about() | {"rows": rows}))


if __name__ == "__main__":
    main()
