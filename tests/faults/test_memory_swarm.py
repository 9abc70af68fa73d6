"""A swarm in one event loop: undisturbed, and with each party killed at each line of its log.

A kill is scripted as (who tells, event, step) -> who dies, so it lands in its window or the test
fails. Everything that counts is equal to the run without kills: weights, losses, pay.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

from contracts.governance.claims import decode_sealed_pay
from contracts.terms.history import Leaves, decode_kept, encode_kept, unit_leaves_root
from contracts.terms.ids import StageIndex
from contracts.terms.messages import AveragedChunk, AverageSet, GradCommit, Notice
from contracts.terms.signatures import Signed, decode_signed, expect
from tests.support.fakes.counting import CountingCompute
from tests.support.fakes.faulty_transport import Fault, FaultyTransport
from tests.support.history import make_digest
from tests.support.lying import Answer, LyingTransport
from tests.support.plain_swarm import plain_run
from tests.support.swarm_job import COORDINATOR, MemorySwarm, make_papers, patient_rules
from training.averaging.slices import Slice
from training.transport import calls
from training.transport.port import Transport
from training.worker.ports import Compute
from training.worker.store import PAY_FILE

STEPS, UNITS, CHUNKS = 4, 6, 2
WINDOW = 2  # the step in which somebody dies
NINE = ("ann", "bob", "cem", "dan", "eve", "fay", "gil", "hal", "ivy")
SIX = NINE[:6]

TOLD_BY_COORDINATOR = (
    "step_begun", "units_taken", "step_closed", "grad_commit_stored", "average_set_stored",
    "chunk_stored", "seal_stored", "seal_applied",
)  # fmt: skip
TOLD_BY_WORKER = (
    "unit_done", "grad_commit_stored", "chunk_stored", "seal_stored", "seal_applied",
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


def assert_as_plain(swarm: MemorySwarm) -> None:
    """Every worker ended where one compute alone ends, and every seal is valid and paid."""
    spec = swarm.papers.spec.message
    plain = plain_run(spec)
    assert not swarm.refused
    assert swarm.weights_roots() == [{root} for root in plain.weights]
    assert swarm.losses() == plain.losses
    assert swarm.validation() == plain.validation
    assert [seal.step for seal in swarm.seals()] == list(range(1, STEPS + 1))
    assert_paid(swarm)
    assert swarm.history().newest is not None  # refuses what is out of order, doubled, unsigned


def assert_paid(swarm: MemorySwarm) -> None:
    """All units of all steps are paid, once."""
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
            ("ann", "unit_done", "ann"),
            ("ann", "grad_commit_stored", "ann"),
            ("ann", "chunk_stored", "ann"),
            ("ann", "seal_stored", "ann"),
            (COORDINATOR, "grad_commit_stored", COORDINATOR),
            (COORDINATOR, "average_set_stored", COORDINATOR),
            (COORDINATOR, "seal_stored", COORDINATOR),
            (COORDINATOR, "units_taken", COORDINATOR),
            (COORDINATOR, "units_taken", "ann"),
        ],
    ),
)
async def test_swarm__one_peer_and_a_kill__every_byte_as_without(
    tmp_path: Path, undisturbed: MemorySwarm, teller: str, event: str, victim: str
) -> None:
    swarm = swarm_of(tmp_path, "ann")
    await run_with_a_kill(swarm, (teller, event, WINDOW), victim)
    assert swarm.losses() == undisturbed.losses()
    pay = [(seal.earned, seal.vested, seal.pay_root) for seal in swarm.seals()]
    assert pay == [(seal.earned, seal.vested, seal.pay_root) for seal in undisturbed.seals()]
    norms = [seal.gradient_norm for seal in swarm.seals()]
    assert norms == [seal.gradient_norm for seal in undisturbed.seals()]


@pytest.mark.simulated_time  # a peer that is only slow would lose its units
@pytest.mark.parametrize(
    ("event", "stages"),
    [
        ("grad_commit_stored", 1),
        ("average_set_stored", 2),
    ],
)
async def test_swarm__peer_gone_for_good__others_redo_its_units_and_it_leaves(
    tmp_path: Path, event: str, stages: int
) -> None:
    workers = SIX[: 3 * stages]
    swarm = swarm_of(tmp_path, *workers, stages=stages, rules=patient_rules(**QUICK))
    swarm.deadly = {(COORDINATOR, event, WINDOW): "bob"}
    swarm.for_good = frozenset({"bob"})

    await swarm.run()

    assert swarm.deadly == {}, "the kill has to land"
    assert_as_plain(swarm)


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
    assert latecomers & {commit.peer for commit in swarm.commits()}


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
    swarm.leaving = {(COORDINATOR, "step_closed", WINDOW): "bob"}

    await swarm.run()

    assert swarm.leaving == {}
    bob = swarm.session_of("bob").peer
    (left,) = [each for each in swarm.messages(Notice) if each.what == "leave"]
    assert left.peer == bob
    assert {c.step for c in swarm.commits() if c.peer == bob} == {1, WINDOW}
    assert swarm.lines("redo", of=COORDINATOR) == []
    del swarm.computes["bob"]
    assert_as_plain(swarm)


async def test_swarm__stage_without_peers__waits_beyond_all_deadlines_and_goes_on(
    tmp_path: Path,
) -> None:
    rules = patient_rules(lease_grace=1_000_000)
    swarm = swarm_of(tmp_path, "ann", "bob", stages=2, rules=rules)
    swarm.deadly = {(COORDINATOR, "step_closed", WINDOW): "bob"}
    swarm.jumps = {(COORDINATOR, "peer_lost", WINDOW): 2 * rules.commit_timeout}

    await swarm.run()

    assert swarm.restarts == 1
    assert swarm.jumps == {}
    assert swarm.lines("ended_without_update", of=COORDINATOR) == []
    assert_as_plain(swarm)


@contextmanager
def faults(swarm: MemorySwarm, script: dict[tuple[str, str, str, int], Fault]) -> Iterator[None]:
    """Faults by (who calls, method, who is called, occurrence); each has to hit."""
    made: list[FaultyTransport] = []

    def wrap(name: str, transport: Transport) -> Transport:
        own = {
            (method, swarm.session_of(to).key, count): fault
            for (caller, method, to, count), fault in script.items()
            if caller == name
        }
        made.append(FaultyTransport(transport, own))
        return made[-1]

    swarm.wrap = wrap
    yield
    assert sum(len(each.struck) for each in made) == len(script), "every fault has to hit"


async def test_swarm__owners_do_not_reach_each_other__parts_go_through_the_coordinator(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob")
    script = {("ann", calls.GET_PART.name, "bob", 1): Fault.PARTITION}

    with faults(swarm, script):
        await swarm.run()

    assert_as_plain(swarm)
    assert swarm.lines("parts_denied", of=COORDINATOR) == []


def lying(swarm: MemorySwarm, liar: str, lies: dict[str, Any]) -> None:
    """Let one worker answer some methods with lies."""

    def wrap(name: str, transport: Transport) -> Transport:
        return LyingTransport(transport, lies) if name == liar else transport

    swarm.wrap = wrap


def holding_nothing_of(swarm: MemorySwarm, owner: str) -> dict[str, Any]:
    """A summing peer's denial: it has no part of `owner`, whoever brings it."""

    def deny(_header: bytes, answer: Answer) -> Answer:
        held = calls.PartsHeld.decoded(answer[0], max_bytes=2**21)
        names = {c.digest() for c in swarm.commits() if c.peer == peer}
        kept = tuple(part for part in held.parts if part.grad_commit not in names)
        return calls.PartsHeld(parts=kept).encoded(), answer[1]

    peer = swarm.session_of(owner).peer
    return {calls.FETCH_PARTS.name: deny, calls.TAKE_PARTS.name: deny}


async def test_swarm__rival_denies_receipt__is_replaced_and_the_sender_stays(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob", "cem")
    lying(swarm, "bob", holding_nothing_of(swarm, "ann"))

    await swarm.run()

    denials = swarm.lines("parts_denied", of=COORDINATOR)
    assert {line["peer"] for line in denials} == {swarm.session_of("bob").peer}
    assert swarm.lines("redo", of=COORDINATOR) == []
    ann = {c.digest() for c in swarm.commits() if c.peer == swarm.session_of("ann").peer}
    averaged = {m.grad_commit for each in swarm.messages(AverageSet) for m in each.members}
    assert ann <= averaged
    assert len(ann) == STEPS
    assert_as_plain(swarm)


async def test_swarm__summing_peer_sums_nothing__another_one_does(tmp_path: Path) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob", "cem")
    lying(swarm, "bob", {calls.SUM_CHUNKS.name: lambda _header, answer: (answer[0], [])})

    await swarm.run()

    bob = swarm.session_of("bob").peer
    assert {line["peer"] for line in swarm.lines("parts_denied", of=COORDINATOR)} == {bob}
    assert bob not in {chunk.peer for chunk in swarm.messages(AveragedChunk)}
    assert_as_plain(swarm)


def summing_too_long(swarm: MemorySwarm, liar: str) -> dict[str, Any]:
    """In one step its mean of one chunk is longer than the parts of it."""

    def stretch(_header: bytes, answer: Answer) -> Answer:
        signed = [expect(decode_signed(bytes(each)), AveragedChunk) for each in answer[1]]
        return answer[0], [longer(each.message).encoded() for each in signed]

    def longer(chunk: AveragedChunk) -> Signed[AveragedChunk]:
        if (chunk.step, chunk.chunk) == (WINDOW, 1):
            chunk = chunk.model_copy(update={"norm_squared": 10**30})
        return swarm.session_of(liar).sign(chunk)

    return {calls.SUM_CHUNKS.name: stretch}


@pytest.mark.simulated_time
async def test_swarm__nobody_brings_a_mean_that_can_be__step_lapses_and_the_job_goes_on(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob", rules=patient_rules(exchange_timeout=3000))
    swarm.wrap = lambda name, transport: (
        LyingTransport(transport, summing_too_long(swarm, name))
        if name in swarm.papers.members
        else transport
    )

    await swarm.run()

    lapsed = swarm.lines("ended_without_update", of=COORDINATOR)
    assert [line["step"] for line in lapsed] == [WINDOW]
    averages = [each for each in swarm.messages(AverageSet) if each.step == WINDOW]
    committed = [each for each in swarm.messages(GradCommit) if each.step == WINDOW]
    assert [len(each.members) for each in averages] == [len(committed)]
    kept = [(each.chunk, each.step) for each in swarm.messages(AveragedChunk)]
    assert (1, WINDOW) not in kept
    earned = [seal.earned for seal in swarm.seals()]
    assert earned[0] < earned[1] < earned[2] < earned[3]  # all had delivered what they owed
    assert [len(roots) for roots in swarm.weights_roots()] == [1]
    assert WINDOW not in swarm.losses()


def measuring_wrongly(swarm: MemorySwarm, liar: str) -> Callable[[StageIndex], Compute]:
    """In one step parts of its gradient are not as long as it says."""

    class Wrong(CountingCompute):
        def gradient(self) -> tuple[Slice, ...]:
            """See `Compute.gradient`."""
            parts = super().gradient()
            if swarm.computes.get(liar) is not self or self.counter != WINDOW - 1:
                return parts
            return tuple(replace(part, norm_squared=part.norm_squared + 1) for part in parts)

    batch = swarm.papers.spec.message.batch
    return lambda stage: Wrong(batch.chunks, stage, batch.stages)


async def test_swarm__peer_commits_to_a_wrong_norm__is_left_out_and_no_summing_peer_is_blamed(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob", "cem")
    swarm.make_compute = measuring_wrongly(swarm, "bob")

    await swarm.run(timeout=30)

    bob = swarm.session_of("bob").peer
    broken = [(line["step"], line["peer"]) for line in swarm.lines("link_broken", of=COORDINATOR)]
    assert broken == [(WINDOW, bob)]
    assert swarm.lines("parts_denied", of=COORDINATOR) == []
    assert bob not in {
        chunk.peer for chunk in swarm.messages(AveragedChunk) if chunk.step == WINDOW
    }
    assert_as_plain(swarm)


@pytest.mark.simulated_time
async def test_swarm__owner_serves_nobody__who_waited_for_it_commits_in_time(
    tmp_path: Path,
) -> None:
    rules = patient_rules(commit_timeout=5000, exchange_timeout=3000)
    swarm = swarm_of(tmp_path, "ann", "bob", "cem", rules=rules)
    key = swarm.session_of("bob").key

    def wrap(name: str, transport: Transport) -> Transport:
        fault = Fault.DROP if name == COORDINATOR else Fault.PARTITION
        script = {(calls.GET_PART.name, key, count): fault for count in (1, 2)}
        return transport if name == "bob" else FaultyTransport(transport, script)

    swarm.wrap = wrap

    await swarm.run()

    assert swarm.lines("redo", of=COORDINATOR) != [], "it is struck when nobody has its parts"
    assert swarm.lines("ended_without_update", of=COORDINATOR) == []
    assert_as_plain(swarm)


def bending_its_leaves(swarm: MemorySwarm, liar: str) -> dict[str, Any]:
    """From one step on it commits to another tensor than it has sent."""

    def bend(_header: bytes, answer: Answer) -> Answer:
        if len(answer[1]) != 2:
            return answer
        commit = expect(decode_signed(bytes(answer[1][0])), GradCommit).message
        item = decode_kept(bytes(answer[1][1]))
        assert isinstance(item, Leaves)
        if commit.step < WINDOW:
            return answer
        sent = "y" if commit.stage == 0 else "dx"
        first = item.leaves[0].model_copy(update={sent: make_digest("bent")})
        leaves = (first, *item.leaves[1:])
        commit = commit.model_copy(update={"units_root": unit_leaves_root(leaves)})
        signed = swarm.session_of(liar).sign(commit)
        kept = encode_kept(Leaves(commit.digest(), leaves))
        return answer[0], [signed.encoded(), kept]

    return {calls.CLOSE_STEP.name: bend}


async def test_swarm__peer_commits_to_what_it_did_not_send__is_left_out_and_its_work_redone(
    tmp_path: Path,
) -> None:
    names = ("ann", "bob", "cem", "dan")
    swarm = swarm_of(tmp_path, *names, stages=2)
    lying(swarm, "bob", bending_its_leaves(swarm, "bob"))

    await swarm.run()

    bob = swarm.session_of("bob").peer
    broken = [(line["step"], line["peer"]) for line in swarm.lines("link_broken", of=COORDINATOR)]
    steps = range(WINDOW, STEPS + 1)
    assert broken == [(step, bob) for step in steps]
    assert bob not in {commit.peer for commit in swarm.commits() if commit.step in steps}
    pays = {name: decode_sealed_pay((tmp_path / name / PAY_FILE).read_bytes()) for name in names}
    assert {name: pay.left_out for name, pay in pays.items()} == {
        name: len(steps) if name == "bob" else 0 for name in names
    }
    assert_as_plain(swarm)


async def test_swarm__killed_after_the_checkpoint__chunks_lead_to_the_same_state(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(tmp_path, "ann")
    swarm.deadly = {("ann", "unit_done", STEPS): "ann"}
    await swarm.run()
    resumed = swarm.lines("resumed", of="ann")

    assert [line["step"] for line in resumed] == [STEPS - 1]
    applied = {line["step"]: line["state_root"] for line in swarm.lines("seal_applied", of="ann")}
    assert resumed[-1]["state_root"] == applied[STEPS - 1]
