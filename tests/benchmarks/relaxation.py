"""How long until a job that matches nothing is told the least change with which it would?

CPU milliseconds of `least_relaxation` over 10,000 offers, the least of five. Aim: 50, as a page of
a waiting job is made with it. `python -m tests.benchmarks.relaxation` prints one line a size.
"""

import random
import time

from contracts.terms.amounts import BaseUnits, Flops, PricePerPflop
from contracts.terms.ids import Address, Digest
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.domain.cuts import Cut
from market.domain.matching import Need, judge
from market.domain.offers import Candidate
from market.domain.relaxation import least_relaxation

NOW = UnixMillis(1_000_000)
NUM_OFFERS, ROUNDS = 10_000, 5
SIZES = ((3, 3), (16, 16), (64, 64))  # stages, peers of each


def many_offers(number: int) -> list[Candidate]:
    """Offers of which about half fail something, and a tenth more than one thing."""
    draw = random.Random(1)
    return [
        Candidate(
            offer=Digest(each.to_bytes(32, "big")),
            account=Address(each.to_bytes(20, "big")),
            price=PricePerPflop(int(draw.lognormvariate(0, 0.5) * 2 * 10**9)),
            memory_bytes=int(draw.lognormvariate(0, 0.7) * 10**9),
            flops_per_second=10**9,
            available_from=UnixSeconds(draw.choice((0, 0, 1001 + each % 999))),
            expires_at=UnixSeconds(1500 + draw.randrange(2000)),
            heard_at=NOW,
            leased=draw.random() < 0.05,
            free_stake=BaseUnits(int(draw.lognormvariate(0, 0.6) * 10**7)),
            device_class="cpu/a",
        )
        for each in range(number)
    ]


def milliseconds(stages: int, peers: int) -> float:
    """The least of some rounds: another process may have had the core."""
    need = Need(PricePerPflop(10**9), 10**9, BaseUnits(10**7), UnixSeconds(2500), NOW)
    cut = Cut(stages, peers, 10**9, Flops(1))
    others = [
        Cut(more, fewer, 10**9 * stages // more, Flops(1))
        for more in range(max(1, stages - 4), stages + 5)
        for fewer in range(max(1, peers - 64), peers + 1)
        if (more, fewer) != (stages, peers)
    ]
    judged = judge(need, many_offers(NUM_OFFERS))
    took = []
    for _ in range(ROUNDS):
        began = time.process_time()
        least_relaxation(need, cut, others, judged)
        took.append(time.process_time() - began)
    return min(took) * 1000


def main() -> None:
    """Measure and print."""
    for stages, peers in SIZES:
        print(f"{stages} stages of {peers}: {milliseconds(stages, peers):.0f} ms of CPU")


if __name__ == "__main__":
    main()
