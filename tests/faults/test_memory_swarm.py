"""A swarm in one event loop: undisturbed, and with each party killed at each line of its log.

A kill is scripted as (who tells, event, step) -> who dies, so it lands in its window or the test
fails. Everything that counts is equal to the run without kills: weights, losses, pay.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

from contracts.terms.ids import StepNumber, UnitId
from contracts.terms.messages import RulesSpec, StepClose
from contracts.terms.signatures import Signed
from tests.support.swarm_job import COORDINATOR, TRAINER, MemorySwarm, make_papers
from training.transport.calls import COMPUTE, GET_PART, NEXT_STEP, TAKE_SEAL
from training.transport.faulty_adapter import Fault, FaultyTransport
from training.transport.port import Transport
from training.worker.counting import CountingCompute

STEPS, UNITS, CHUNKS = 4, 6, 2
WINDOW = 2  # the step in which somebody dies

TOLD_BY_COORDINATOR = (
    "step_closed", "grad_commit_stored", "average_set_stored", "chunk_stored", "seal_stored",
    "seal_applied",
)  # fmt: skip
TOLD_BY_WORKER = (
    "unit_done", "grad_commit_stored", "chunk_stored", "seal_stored", "seal_applied",
    "checkpoint_stored",
)  # fmt: skip
TOLD_BY_TRAINER = ("step_begun", "units_reported")


def swarm_of(folder: Path, *workers: str, **changed: Any) -> MemorySwarm:
    papers = make_papers(
        *workers,
        **{
            "steps": STEPS,
            "units_per_step": UNITS,
            "chunks": CHUNKS,
            "checkpoint_every": 2,
            "validate_every": 2,
        }
        | changed,
    )
    return MemorySwarm(papers, folder)


def plain_run() -> tuple[bytes, dict[int, int]]:
    """One compute, no swarm: weights root and losses after the same steps."""
    compute, losses = CountingCompute(CHUNKS), {}
    for step in range(1, STEPS + 1):
        leaves = [compute.add_unit(StepNumber(step), UnitId(unit)) for unit in range(UNITS)]
        own = [leaf.loss for leaf in leaves if leaf.loss is not None]
        losses[step] = (2 * sum(own) + UNITS) // (2 * UNITS)
        compute.apply([piece.data for piece in compute.gradient()], sealed_norm=1)
    return compute.roots().weights, losses


def assert_as_plain(swarm: MemorySwarm) -> None:
    """Every worker ended where one compute alone ends, and every seal is valid and paid."""
    weights, losses = plain_run()
    assert not swarm.refused or swarm.late
    assert swarm.weights_roots() == {weights}
    assert swarm.losses() == losses
    assert [seal.step for seal in swarm.seals()] == list(range(1, STEPS + 1))
    last = swarm.seals()[-1]
    flops = swarm.papers.spec.message.unit_flops[0] * UNITS * STEPS
    prices = [member.price for member in swarm.papers.members.values()]
    assert last.last
    assert last.vested == last.earned
    lowest, highest = (flops * price // 10**15 for price in (min(prices), max(prices)))
    assert lowest - len(prices) <= last.earned <= highest
    assert swarm.history().newest is not None


async def test_swarm__one_peer_undisturbed__equals_the_plain_run(tmp_path: Path) -> None:
    swarm = swarm_of(tmp_path, "ann")

    await swarm.run()

    assert_as_plain(swarm)
    assert swarm.restarts == 0


async def test_swarm__three_peers_undisturbed__equals_the_plain_run(tmp_path: Path) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob", "cem")

    await swarm.run()

    assert_as_plain(swarm)
    assert len({commit.peer for commit in swarm.commits()}) == 3


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> MemorySwarm:
    """A run of one peer without kills."""

    async def run() -> MemorySwarm:
        swarm = swarm_of(tmp_path_factory.mktemp("undisturbed"), "ann")
        await swarm.run()
        return swarm

    return asyncio.run(run())


ONE_PEER = [
    *((COORDINATOR, event) for event in TOLD_BY_COORDINATOR),
    *(("ann", event) for event in TOLD_BY_WORKER),
    *((TRAINER, event) for event in TOLD_BY_TRAINER),
]
THREE_PEERS = [(COORDINATOR, event) for event in TOLD_BY_COORDINATOR]
ALWAYS = {"grad_commit_stored", "average_set_stored", "chunk_stored", "seal_stored", "unit_done"}


def kills(lines: list[tuple[str, str]], *victims: str) -> list[ParameterSet]:
    """Every line with every victim; the less telling ones only in `make chaos`."""
    return [
        pytest.param(
            teller,
            event,
            victim,
            marks=() if event in ALWAYS else pytest.mark.chaos,
            id=f"{victim}-dies-when-{teller}-tells-{event}",
        )
        for teller, event in lines
        for victim in victims
    ]


@pytest.mark.parametrize(
    ("teller", "event", "victim"), kills(ONE_PEER, COORDINATOR, TRAINER, "ann")
)
async def test_swarm__one_peer_and_a_kill__every_byte_as_without(
    tmp_path: Path, undisturbed: MemorySwarm, teller: str, event: str, victim: str
) -> None:
    swarm = swarm_of(tmp_path, "ann")
    swarm.deadly = {(teller, event, WINDOW): victim}

    await swarm.run()

    assert swarm.deadly == {}, "the kill has to land"
    assert swarm.restarts == 1
    assert_as_plain(swarm)
    assert swarm.losses() == undisturbed.losses()
    pay = [(seal.earned, seal.vested, seal.pay_root) for seal in swarm.seals()]
    assert pay == [(seal.earned, seal.vested, seal.pay_root) for seal in undisturbed.seals()]
    norms = [seal.gradient_norm for seal in swarm.seals()]
    assert norms == [seal.gradient_norm for seal in undisturbed.seals()]


@pytest.mark.parametrize(
    ("teller", "event", "victim"), kills(THREE_PEERS, COORDINATOR, TRAINER, "bob")
)
async def test_swarm__three_peers_and_a_kill__equals_the_plain_run(
    tmp_path: Path, teller: str, event: str, victim: str
) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob", "cem")
    swarm.deadly = {(teller, event, WINDOW): victim}

    await swarm.run()

    assert swarm.deadly == {}, "the kill has to land"
    assert swarm.restarts == 1
    assert_as_plain(swarm)


@pytest.mark.parametrize("event", ["grad_commit_stored", "average_set_stored", "chunk_stored"])
async def test_swarm__peer_gone_for_good__others_redo_its_units_and_it_leaves(
    tmp_path: Path, event: str
) -> None:
    quick = RulesSpec(
        checking="off",
        vesting_window=2,
        commit_timeout=400,
        exchange_timeout=400,
        lease_grace=1000,
    )
    swarm = swarm_of(tmp_path, "ann", "bob", "cem", rules=quick)
    swarm.deadly = {(COORDINATOR, event, WINDOW): "bob"}
    swarm.for_good = frozenset({"bob"})

    await swarm.run()

    assert swarm.deadly == {}, "the kill has to land"
    assert_as_plain(swarm)


async def test_swarm__newcomer_after_the_checkpoints__is_told_why_it_cannot_join(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob", peers_per_stage=1, checkpoint_every=1)
    swarm.late = {"bob": ("ann", "checkpoint_stored", WINDOW)}

    await swarm.run()

    assert "averaged chunks" in swarm.refused["bob"].message
    del swarm.computes["bob"]
    assert_as_plain(swarm)


async def test_swarm__newcomer_before_the_first_checkpoint__replays_and_takes_part(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob", peers_per_stage=1, checkpoint_every=9)
    swarm.late = {"bob": ("ann", "seal_applied", 1)}

    await swarm.run()

    assert [line["step"] for line in swarm.lines("seal_applied", of="bob")] == [1, 2, 3, 4]
    assert_as_plain(swarm)


async def test_swarm__everybody_killed_in_one_step__equals_the_plain_run(tmp_path: Path) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob", "cem")
    swarm.deadly = {
        (COORDINATOR, "grad_commit_stored", WINDOW): "ann",
        (COORDINATOR, "chunk_stored", WINDOW): "bob",
        (COORDINATOR, "seal_stored", WINDOW): COORDINATOR,
        (COORDINATOR, "average_set_stored", WINDOW): TRAINER,
    }

    await swarm.run()

    assert swarm.deadly == {}
    assert swarm.restarts == 4
    assert_as_plain(swarm)


@contextmanager
def faults(swarm: MemorySwarm, script: dict[tuple[str, str, str, int], Fault]) -> Iterator[None]:
    """Faults by (who calls, method, who is called, occurrence); each has to hit."""
    keys = {
        COORDINATOR: swarm.papers.session.key,
        TRAINER: swarm.papers.trainer.key,
    } | {name: member.session.key for name, member in swarm.papers.members.items()}
    made: list[FaultyTransport] = []

    def wrap(name: str, transport: Transport) -> Transport:
        own = {
            (method, keys[to], count): fault
            for (caller, method, to, count), fault in script.items()
            if caller == name
        }
        made.append(FaultyTransport(transport, own))
        return made[-1]

    swarm.wrap = wrap
    yield
    assert sum(len(each.struck) for each in made) == len(script), "every fault has to hit"


async def test_swarm__unit_answer_lost_or_doubled__unit_counts_once(tmp_path: Path) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob")
    script = {
        (TRAINER, COMPUTE.name, "ann", 2): Fault.DUPLICATE,
        (TRAINER, COMPUTE.name, "bob", 1): Fault.DUPLICATE,
        (COORDINATOR, TAKE_SEAL.name, "bob", 2): Fault.DUPLICATE,
        (TRAINER, NEXT_STEP.name, COORDINATOR, 2): Fault.DUPLICATE,
    }

    with faults(swarm, script):
        await swarm.run()

    assert_as_plain(swarm)


async def test_swarm__part_corrupted_on_its_way__is_fetched_again(tmp_path: Path) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob")
    script = {("ann", GET_PART.name, "bob", 1): Fault.CORRUPT}

    with faults(swarm, script):
        await swarm.run()

    assert_as_plain(swarm)
    assert swarm.lines("part_not_fetched", of="ann") != []


async def test_swarm__peer_killed_while_it_works__says_what_it_lacks(tmp_path: Path) -> None:
    swarm = swarm_of(tmp_path, "ann")
    swarm.deadly = {(TRAINER, "units_reported", WINDOW): "ann"}

    await swarm.run()

    assert swarm.lines("redo", of=COORDINATOR) != []
    assert_as_plain(swarm)


async def test_swarm__killed_after_the_checkpoint__chunks_lead_to_the_same_state(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(tmp_path, "ann")
    swarm.deadly = {("ann", "unit_done", STEPS): "ann"}
    await swarm.run()
    resumed = swarm.lines("resumed", of="ann")

    assert [line["step"] for line in resumed] == [0, STEPS - 1]
    applied = {line["step"]: line["state_root"] for line in swarm.lines("seal_applied", of="ann")}
    assert resumed[-1]["state_root"] == applied[STEPS - 1]


async def test_swarm__what_the_market_hears__is_one_valid_history(tmp_path: Path) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob")
    swarm.deadly = {(COORDINATOR, "seal_stored", WINDOW): COORDINATOR}

    await swarm.run()

    history = swarm.history()  # refuses anything that is out of order, doubled or unsigned
    assert history.record is not None
    assert history.record.ended
    closes = [
        item.message
        for item in swarm.items()
        if isinstance(item, Signed) and isinstance(item.message, StepClose)
    ]
    assert [close.step for close in closes] == [1, 2, 3, 4]
    assert len(swarm.feed.reports) == STEPS + 2  # and two with a validation loss
