"""What does the round machine cost, by the number of peers?

One undisturbed round of three groups with four items a peer and a bucket for each peer of a group,
in one process: after every event `advance`, then what every member that was named is owed and when
time matters next, as the coordinator asks. CPU seconds by phase, and by which power of the number
of peers they grow. Messages are made outside of the time.

`python -m bench.round_scale [--peers N ...]` prints a line a size.
"""

import json
import math
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise

from bench.measuring import about, limit, parsed, parser_of
from contracts.terms.ids import PeerId, StageIndex
from tests.support.rounds import RULES, bucket_claim, claim_of, joining, layout, result, terms
from training.rounds.events import (
    Applied,
    Event,
    Held,
    ItemsDone,
    Reduced,
    Sealed,
    Send,
    WorkClaimed,
)
from training.rounds.machine import advance
from training.rounds.owed import AskBuckets, AskClaim, next_deadline, owed
from training.rounds.state import Commit, Reduce, Seal, Work, first_state

SIZES = (9, 30, 99, 300)
GROUPS, ITEMS = 3, 4  # items of a peer


class Measured:
    """A job of `num_peers`, and the CPU seconds that its machine and what it owes took."""

    def __init__(self, num_peers: int) -> None:
        self.own = num_peers // GROUPS  # peers of a group
        self.peers = [
            PeerId(f"{number:05}".encode().ljust(32, b".")) for number in range(num_peers)
        ]
        self.shape = layout(GROUPS, ITEMS * self.own, 2, self.own)
        self.state = first_state(terms(self.shape, self.own))
        self.seconds: dict[str, float] = {}
        for number, peer in enumerate(self.peers):
            self.tell(joining(peer, number % GROUPS))

    def tell(self, event: Event) -> None:
        """One event."""
        self.state, effects = advance(self.state, event, RULES)
        for effect in effects:
            if isinstance(effect, Send):
                for peer in effect.peers:
                    owed(self.state, peer)
        next_deadline(self.state)

    def run_round(self) -> int:
        """From the first item to the seal applied by all; how many events that is."""
        num_events = 0
        for phase in (self.work, self.claim, self.deliver, self.reduce, self.seal):
            events = [*phase()]
            began = time.process_time()  # costs as much as an event: not once for each
            for event in events:
                self.tell(event)
            self.seconds[phase.__name__] = time.process_time() - began
            num_events += len(events)
        assert isinstance(self.state.phase, Work) and self.state.round == 2
        return num_events

    def work(self) -> Iterator[Event]:
        """Each result is reported by itself."""
        for item in range(ITEMS * self.own):
            for group in range(GROUPS):
                peer = self.peers[item % self.own * GROUPS + group]
                yield ItemsDone(peer, (result(peer, group, item),), self.state.at)

    def claim(self) -> Iterator[Event]:
        """Each peer, with as many shards as there are buckets."""
        for peer in self.peers:
            asked = owed(self.state, peer)
            assert isinstance(asked, AskClaim)
            group = self.state.members[peer].group
            claim = claim_of(peer, group, asked.items, shape=self.shape)
            claim.digest()
            yield WorkClaimed(claim, self.state.at)

    def deliver(self) -> Iterator[Event]:
        """Each reducer has all its shards at once."""
        assert isinstance(self.state.phase, Commit)
        for peer, shards in self.state.phase.lacking.items():
            yield Held(peer, shards, self.state.at)

    def reduce(self) -> Iterator[Event]:
        """Bucket by bucket; each member fetches its buckets in four parts."""
        assert isinstance(self.state.phase, Reduce)
        buckets: dict[StageIndex, list[bytes]] = {}
        for peer in self.peers:
            asked = owed(self.state, peer)
            assert isinstance(asked, AskBuckets)
            for bucket in asked.buckets:
                claim = bucket_claim(peer, asked.closed, bucket)
                claim.digest()
                buckets.setdefault(bucket[0], []).append(claim.outputs[0].digest)
                yield Reduced(claim, b"s" * 64, self.state.at)
        for part in range(4):
            for peer in self.peers:
                own = buckets[self.state.members[peer].group][part::4]
                yield Held(peer, frozenset(own), self.state.at)  # type: ignore[arg-type]

    def seal(self) -> Iterator[Event]:
        """The seal is stored, and applied by one after the other."""
        assert isinstance(self.state.phase, Seal)
        yield Sealed(self.state.round, False, self.state.at)
        for peer in self.peers:
            yield Applied(peer, self.state.round, self.state.at)


def measure(num_peers: int) -> dict[str, float]:
    """CPU seconds of one round, and its events."""
    measured = Measured(num_peers)
    num_events = measured.run_round()
    total = sum(measured.seconds.values())
    return {"peers": num_peers, "events": num_events, **measured.seconds, "all": total}


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
        with limit(options.minutes, f"a round of {size} peers"):
            rows.append(row := measure(size))
        print(", ".join(f"{name} {figure:.4g}" for name, figure in row.items()), flush=True)
    print("powers:", {name: powers(rows, name) for name in (*rows[0],)[2:]})
    print(json.dumps(about() | {"rows": rows}))


if __name__ == "__main__":
    main()
