"""Every fault on every kind of call of a job: it ends with the same curve and the same states.

One run for the kinds of one part of a round: the first calls of each kind from anybody to anybody
meet one fault each. Runs are in memory and without torch, so what is compared is equal, not close.
TLS keeps corruption from real streams; here it stands for a peer that says nonsense.
"""

from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.fakes.faulty_transport import (
    DIAL,
    AnyFault,
    Delay,
    Fault,
    FaultyTransport,
    OnReply,
    Partition,
    When,
)
from tests.support.plain_swarm import plain_run
from tests.support.swarm_job import MemorySwarm, make_papers
from training.transport import calls
from training.transport.port import Transport

WORKERS = ("ann", "bob", "cem", "dan")
STEPS = 3
A_MOMENT = timedelta(milliseconds=20)
PATIENCE = 0.05  # seconds that a caller waits for what was dropped

FAULTS: tuple[AnyFault, ...] = (
    Fault.DROP,
    OnReply(Fault.DROP),
    Fault.DUPLICATE,
    Fault.CORRUPT,
    OnReply(Fault.CORRUPT),
    Fault.TRUNCATE,
    OnReply(Fault.TRUNCATE),
    OnReply(Delay(A_MOMENT)),
    Partition(A_MOMENT),
    OnReply(Partition(A_MOMENT)),
)
KINDS = {
    "joining": (DIAL, calls.JOIN.name, calls.MEASURE.name),
    "items": (calls.NEXT_ITEM.name, calls.GET_BYTES.name),
    "exchange": (
        calls.COMMIT.name,
        calls.GET_CLAIMS.name,
        calls.HELD.name,
        calls.REDUCE.name,
        calls.TAKE_SEAL.name,
    ),
}


class Supervised(MemorySwarm):
    """A process that ends with an error is started again, as the host and the agent do."""

    async def _keep_alive(self, name: str) -> None:
        await super()._keep_alive(name)
        while self.refused.pop(name, None) is not None:
            await super()._keep_alive(name)


def with_faults(
    swarm: MemorySwarm, kinds: tuple[str, ...], faults: tuple[AnyFault, ...]
) -> list[FaultyTransport]:
    """Fault n at the n-th call of each of these kinds, between each pair."""
    made: list[FaultyTransport] = []
    parties = ["coordinator", *swarm.papers.members]

    wrapped: set[str] = set()

    def wrap(name: str, inner: Transport) -> Transport:
        if name in wrapped:
            return inner  # a process that is started again has had its faults
        wrapped.add(name)
        script: dict[When, AnyFault] = {
            (kind, swarm.session_of(party).key, number): fault
            for kind in kinds
            for party in parties
            for number, fault in enumerate(faults, start=1)
        }
        made.append(FaultyTransport(inner, script, patience=PATIENCE))
        return made[-1]

    swarm.wrap = wrap
    return made


@pytest.mark.simulated_time
@pytest.mark.parametrize("part", KINDS)
async def test_job__every_fault_on_every_kind_of_call__ends_with_the_same_curve(
    tmp_path: Path, part: str
) -> None:
    swarm = Supervised(make_papers(*WORKERS, stages=2, steps=STEPS), tmp_path)
    made = with_faults(swarm, KINDS[part], FAULTS)

    await swarm.run(timeout=600)

    plain = plain_run(swarm.papers.spec.message)
    assert swarm.losses() == plain.losses
    assert swarm.state_roots() == [{root} for root in plain.states]
    assert {when[0] for each in made for when, _ in each.struck} == {*KINDS[part]}


async def test_job__reference_item_asked_or_answered_in_nonsense__nobody_ends(
    tmp_path: Path,
) -> None:
    swarm = MemorySwarm(make_papers("ann", "bob", steps=1), tmp_path)
    faults = (Fault.CORRUPT, OnReply(Fault.CORRUPT), Fault.TRUNCATE, OnReply(Fault.TRUNCATE))
    made = with_faults(swarm, (calls.MEASURE.name,), faults)

    await swarm.run()

    assert sum(len(each.struck) for each in made) == 2 * len(faults)
    assert (swarm.refused, len(swarm.seals())) == ({}, 1)
