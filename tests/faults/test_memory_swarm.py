"""A swarm in one event loop: undisturbed, and with each party killed at each line of its log.

A kill is scripted as (who tells, event, step) -> who dies, so it lands in its window or the test
fails. Everything that counts is equal to the run without kills: weights, losses, pay.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

from contracts.governance.claims import decode_sealed_pay
from contracts.terms.messages import Notice
from contracts.terms.work import Output
from tallystick.gym.around import Around, Computing
from tests.support.fakes.faulty_transport import Fault, FaultyTransport
from tests.support.plain_swarm import plain_run
from tests.support.swarm_job import COORDINATOR, MemorySwarm, make_papers, patient_rules
from training.strategies.port import Bucket, Draft, Items, Piece, Shard, Weights
from training.transport import calls
from training.transport.port import Transport
from training.worker.store import PAY_FILE

STEPS, UNITS, CHUNKS = 4, 6, 2
WINDOW = 2  # the step in which somebody dies
NINE = ("ann", "bob", "cem", "dan", "eve", "fay", "gil", "hal", "ivy")
SIX = NINE[:6]

TOLD_BY_COORDINATOR = (
    "item_done", "claim_stored", "round_closed", "bucket_stored", "seal_stored",
    "seal_applied",
)  # fmt: skip
TOLD_BY_WORKER = (
    "item_done", "claim_stored", "round_closed", "bucket_stored", "seal_stored", "seal_applied",
    "checkpoint_stored",
)  # fmt: skip
QUICK = {"commit_timeout": 1500, "exchange_timeout": 1500, "lease_grace": 3000}


def swarm_of(folder: Path, *workers: str, **changed: Any) -> MemorySwarm:
    papers = make_papers(
        *workers,
        **{
            "steps": STEPS,
            "units_per_step": UNITS,
            "rows_per_unit": 32,
            "chunks": CHUNKS,
            "checkpoint_every": 2,
            "validate_every": 2,
        }
        | changed,
    )
    return MemorySwarm(papers, folder)


async def run_with_a_kill(swarm: MemorySwarm, at: tuple[str, str, int], victim: str) -> None:
    """The kill lands, and everything ends as without it."""
    swarm.deadly = {at: victim}
    await swarm.run()
    assert swarm.deadly == {}, "the kill has to land"
    assert swarm.restarts == 1
    assert_as_plain(swarm)


def assert_as_plain(swarm: MemorySwarm, *, is_paid: bool = True) -> None:
    """Every worker ended where one peer alone ends, and every seal is valid and paid."""
    spec = swarm.papers.spec.message
    plain = plain_run(spec)
    assert not swarm.refused
    assert swarm.state_roots() == [{root} for root in plain.states]
    assert swarm.losses() == plain.losses
    assert swarm.validation() == plain.validation
    assert [seal.step for seal in swarm.seals()] == list(range(1, STEPS + 1))
    if is_paid:
        assert_paid(swarm)
    assert swarm.history().newest is not None  # refuses what is out of order, doubled, unsigned


def assert_paid(swarm: MemorySwarm) -> None:
    """All items of all steps are paid, once."""
    spec, last = swarm.papers.spec.message, swarm.seals()[-1]
    flops = sum(spec.item_flops) * UNITS * STEPS
    prices = [member.price for member in swarm.papers.members.values()]
    assert last.last
    assert last.vested == last.earned
    lowest, highest = (flops * price // 10**15 for price in (min(prices), max(prices)))
    assert lowest - len(prices) <= last.earned <= highest


async def test_swarm__three_stages_of_three_peers__equals_the_plain_run(tmp_path: Path) -> None:
    swarm = swarm_of(tmp_path, *NINE, stages=3)

    await swarm.run()

    assert_as_plain(swarm)
    assert swarm.restarts == 0
    assert [len(swarm.mates(stage)) for stage in range(3)] == [3, 3, 3]


ONE_PEER = [
    *((COORDINATOR, event) for event in TOLD_BY_COORDINATOR),
    *(("ann", event) for event in TOLD_BY_WORKER),
]
Kill = tuple[str, str, str]  # who tells, what, who dies


def kills(
    lines: Sequence[tuple[str, str]], *victims: str, always: Collection[Kill] = ()
) -> list[ParameterSet]:
    """Every line with every victim; those that are not in `always` only in `make nightly`."""
    found = [(*line, victim) for line in lines for victim in victims]
    assert set(always) <= set(found)
    return [
        pytest.param(
            *kill,
            marks=() if kill in always else pytest.mark.nightly,
            id="{2}-dies-when-{0}-tells-{1}".format(*kill),
        )
        for kill in found
    ]


@pytest.mark.parametrize(
    ("teller", "event", "victim"),
    kills(
        ONE_PEER,
        COORDINATOR,
        "ann",
        always=[
            ("ann", "item_done", "ann"),
            ("ann", "claim_stored", "ann"),
            ("ann", "bucket_stored", "ann"),
            ("ann", "seal_stored", "ann"),
            (COORDINATOR, "item_done", COORDINATOR),
            (COORDINATOR, "item_done", "ann"),
            (COORDINATOR, "claim_stored", COORDINATOR),
            (COORDINATOR, "round_closed", COORDINATOR),
            (COORDINATOR, "seal_stored", COORDINATOR),
        ],
    ),
)
async def test_swarm__one_peer_and_a_kill__all_as_without(
    tmp_path: Path, teller: str, event: str, victim: str
) -> None:
    swarm = swarm_of(tmp_path, "ann")
    await run_with_a_kill(swarm, (teller, event, WINDOW), victim)
    price = swarm.papers.members["ann"].price
    flops = sum(swarm.papers.spec.message.item_flops) * UNITS
    earned = [step * flops * price // 10**15 for step in range(1, STEPS + 1)]
    assert [seal.earned for seal in swarm.seals()] == earned


@pytest.mark.simulated_time  # a peer that is only slow would lose its items
@pytest.mark.parametrize(
    ("event", "stages"),
    [
        ("claim_stored", 1),
        ("round_closed", 2),
    ],
)
async def test_swarm__peer_gone_for_good__others_redo_its_items_and_it_leaves(
    tmp_path: Path, event: str, stages: int
) -> None:
    workers = SIX[: 3 * stages]
    swarm = swarm_of(tmp_path, *workers, stages=stages, rules=patient_rules(**QUICK))
    swarm.deadly = {(COORDINATOR, event, WINDOW): "bob"}
    swarm.for_good = frozenset({"bob"})

    await swarm.run()

    assert swarm.deadly == {}, "the kill has to land"
    assert_as_plain(swarm, is_paid=event == "claim_stored")  # it owes buckets of a closed round


async def test_swarm__late_joiner__loads_the_state_of_the_neediest_stage_and_works(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(
        tmp_path, *SIX, stages=3, peers_per_stage=1, checkpoint_every=1, validate_every=9
    )
    swarm.late = {name: ("ann", "seal_applied", WINDOW) for name in SIX[3:]}

    await swarm.run()

    assert_as_plain(swarm)
    assert [len(swarm.mates(stage)) for stage in range(3)] == [2, 2, 2]
    latecomers = {swarm.session_of(name).peer for name in SIX[3:]}
    assert latecomers & {claim.peer for claim in swarm.claims()}


async def test_swarm__newcomer_before_the_first_checkpoint__replays_and_takes_part(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob", peers_per_stage=1, checkpoint_every=9)
    swarm.late = {"bob": ("ann", "seal_applied", 1)}

    await swarm.run()

    assert [line["step"] for line in swarm.lines("seal_applied", of="bob")] == [1, 2, 3, 4]
    assert_as_plain(swarm)


async def test_swarm__leaver__its_work_counts_and_it_ends_by_itself(tmp_path: Path) -> None:
    swarm = swarm_of(tmp_path, *SIX, stages=2)
    swarm.leaving = {(COORDINATOR, "claim_stored", WINDOW): "bob"}

    await swarm.run()

    assert swarm.leaving == {}
    bob = swarm.session_of("bob").peer
    (left,) = [each for each in swarm.messages(Notice) if each.what == "leave"]
    assert left.peer == bob
    assert {claim.round for claim in swarm.claims() if claim.peer == bob} == {1, WINDOW}
    assert swarm.lines("items_lost", of=COORDINATOR) == []
    assert_as_plain(swarm)


async def test_swarm__stage_without_peers__waits_beyond_all_deadlines_and_goes_on(
    tmp_path: Path,
) -> None:
    rules = patient_rules(lease_grace=1_000_000)
    swarm = swarm_of(tmp_path, "ann", "bob", stages=2, rules=rules)
    swarm.deadly = {(COORDINATOR, "claim_stored", WINDOW): "bob"}
    swarm.jumps = {(COORDINATOR, "peer_lost", WINDOW): 2 * rules.commit_timeout}

    await swarm.run()

    assert swarm.restarts == 1
    assert swarm.jumps == {}
    assert swarm.lines("round_void", of=COORDINATOR) == []
    assert_as_plain(swarm)


class ReducingTooLong(Around):
    """In one round its mean of one bucket is longer than the shards of it."""

    def reduce(self, bucket: Bucket, shards: Iterator[Shard], weights: Weights) -> Piece:
        """See `Strategy.reduce`."""
        output, data = self._inner.reduce(bucket, shards, weights)
        if (self._round, output.bucket) == (WINDOW, 1):
            output = longer(output, 10**30)
        return output, data


def longer(output: Output, norm_squared: int) -> Output:
    """Stated with another norm."""
    return output.model_copy(update={"norm_squared": norm_squared})


@pytest.mark.simulated_time
async def test_swarm__nobody_brings_a_mean_that_can_be__round_is_void_and_the_job_goes_on(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob", rules=patient_rules(exchange_timeout=3000))
    swarm.behaviours = dict.fromkeys(swarm.papers.members, Computing(ReducingTooLong))

    await swarm.run()

    void = swarm.lines("round_void", of=COORDINATOR)
    assert [line["step"] for line in void] == [WINDOW]
    assert (1, WINDOW) not in [(each.bucket, each.round) for each in swarm.claims("bucket")]
    earned = [seal.earned for seal in swarm.seals()]
    assert earned[0] == earned[1] < earned[2] < earned[3]  # nobody had delivered what it owed
    assert [len(roots) for roots in swarm.state_roots()] == [1]
    assert WINDOW not in swarm.losses()


class Mismeasuring(Around):
    """From one round on its shards are not as long as it says."""

    def commit(self, items: Items) -> Draft:
        """See `Strategy.commit`."""
        draft = self._inner.commit(items)
        if self._round < WINDOW:
            return draft
        shards = ((longer(each, each.norm_squared + 1), data) for each, data in draft.shards)
        return replace(draft, shards=shards)


@pytest.mark.simulated_time
async def test_swarm__peer_claims_what_it_did_not_send__is_left_out_and_its_work_redone(
    tmp_path: Path,
) -> None:
    names = ("ann", "bob", "cem", "dan")
    swarm = swarm_of(tmp_path, *names, stages=2, rules=patient_rules(**QUICK))
    swarm.behaviours = {"bob": Computing(Mismeasuring)}

    await swarm.run()

    bob = swarm.session_of("bob").peer
    steps = range(WINDOW, STEPS + 1)
    assert bob not in {claim.peer for step in steps for claim in swarm.merged()[step]}
    pays = {name: decode_sealed_pay((tmp_path / name / PAY_FILE).read_bytes()) for name in names}
    assert {name: pay.left_out for name, pay in pays.items()} == {
        name: int(name == "bob")
        for name in names  # once: then it rests
    }
    assert_as_plain(swarm)


@pytest.mark.simulated_time
async def test_swarm__peer_serves_nobody__its_items_are_redone_in_time(tmp_path: Path) -> None:
    rules = patient_rules(commit_timeout=5000, exchange_timeout=3000)
    swarm = swarm_of(tmp_path, "ann", "bob", "cem", rules=rules)
    key = swarm.session_of("bob").key

    def wrap(name: str, transport: Transport) -> Transport:
        fault = Fault.DROP if name == COORDINATOR else Fault.PARTITION
        script = {(calls.GET_BYTES.name, key, count): fault for count in (1, 2)}
        return transport if name == "bob" else FaultyTransport(transport, script)

    swarm.wrap = wrap

    await swarm.run()

    assert swarm.lines("round_void", of=COORDINATOR) == []
    assert_as_plain(swarm)


async def test_swarm__killed_after_the_checkpoint__buckets_lead_to_the_same_state(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(tmp_path, "ann")
    swarm.deadly = {("ann", "item_done", STEPS): "ann"}
    await swarm.run()
    resumed = swarm.lines("resumed", of="ann")

    assert [line["step"] for line in resumed] == [STEPS - 1]
    applied = {line["step"]: line["state_root"] for line in swarm.lines("seal_applied", of="ann")}
    assert resumed[-1]["state_root"] == applied[STEPS - 1]
