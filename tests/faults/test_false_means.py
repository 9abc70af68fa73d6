"""A member that signs means which it gives to nobody, or says that it holds what it does not.

Time is short here: what is waited for HOLD in a real job is waited for a twentieth of a second.
Two members suffice for most lies; that a third one is no way out is run by `make nightly`.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest
from typing_extensions import Buffer

from contracts.terms.errors import NotFound
from contracts.terms.ids import SessionKey, StepNumber
from tests.faults.test_memory_swarm import STEPS, WINDOW, lying, swarm_of
from tests.support.history import DOMAIN
from tests.support.lying import Answer, AnsweringTransport
from tests.support.swarm_job import COORDINATOR, MemorySwarm, Papers, patient_rules
from training.averaging.slices import Slice, slice_digest
from training.coordinator import asking, means
from training.swarm import securing
from training.transport import calls
from training.transport.port import Handler, Transport
from training.worker.ports import Behaviour, Compute

First: TypeAlias = Callable[[SessionKey, str, bytes], Awaitable[Answer | None]]
"""Of caller, method and header."""
RULES = patient_rules(exchange_timeout=1500)
LIAR = "cem"

pytestmark = pytest.mark.simulated_time

of_two_or_three = pytest.mark.parametrize(
    "names",
    [("ann", LIAR), pytest.param(("ann", "bob", LIAR), marks=pytest.mark.nightly)],
    ids=["two", "three"],
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(securing, "HOLD", 50)


@pytest.fixture
def short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for one that is silent."""
    monkeypatch.setattr(asking, "SHORTEST_CALL", 0.05)
    monkeypatch.setattr(means, "SHORTEST_FETCH", 0.05)


class LyingInSums(Behaviour):
    """From step `since` on its means are what `lie` makes of the true mean and the parts."""

    def __init__(self, since: int) -> None:
        self._since = since

    def mean(
        self,
        compute: Compute,
        step: StepNumber,
        parts: Sequence[Buffer],
        weights: Sequence[int],
        totals: Sequence[int],
    ) -> Slice:
        """See `Behaviour.mean`."""
        mean = compute.mean(parts, weights, totals)
        return mean if step < self._since else self.lie(compute, step, parts, mean)

    def lie(
        self, compute: Compute, step: StepNumber, parts: Sequence[Buffer], mean: Slice
    ) -> Slice:
        """What follows from no parts, and is no longer than the true mean."""
        return compute.mean(parts[:1], [1], [4])


class LongMeans(LyingInSums):
    """Its means have one element more, a zero."""

    def lie(
        self, compute: Compute, step: StepNumber, parts: Sequence[Buffer], mean: Slice
    ) -> Slice:
        """See `LyingInSums.lie`."""
        return _longer(mean)


class LongParts(Behaviour):
    """From step WINDOW on its parts have one element more, a zero."""

    def parts(self, compute: Compute, step: StepNumber) -> tuple[Slice, ...]:
        """See `Behaviour.parts`."""
        parts = compute.gradient()
        return tuple(map(_longer, parts)) if step >= WINDOW else parts


def _longer(mean: Slice) -> Slice:
    data = mean.data + bytes(4)
    return replace(mean, data=data, digest=slice_digest(data))


def _is_late(header: bytes) -> bool:
    return step_of(header) >= WINDOW


def step_of(header: bytes) -> int:
    return calls.GetChunk.decoded(header, max_bytes=2**16).step


class Around:
    """A worker's handler; `first` may wait, refuse or answer in its place."""

    def __init__(self, handler: Handler, first: First) -> None:
        self._handler, self._first = handler, first

    async def handle(
        self, caller: SessionKey, method: str, header: bytes, tensors: tuple[memoryview, ...]
    ) -> Answer:
        """See `Handler.handle`."""
        answer = await self._first(caller, method, header)
        return answer or await self._handler.handle(caller, method, header, tensors)


def around(swarm: MemorySwarm, firsts: Mapping[str, First]) -> None:
    """Have the calls of these members go through something else before."""

    def wrapped(name: str, inner: Transport) -> Transport:
        if name not in firsts:
            return inner
        return AnsweringTransport(inner, lambda handler: Around(handler, firsts[name]))

    swarm.wrap = wrapped


def lie_in_sums(
    swarm: MemorySwarm, only: SessionKey | None = None, *, silent: bool = False
) -> None:
    """The liar signs made-up means from WINDOW on, and gives them to `only` alone.

    Others are told that there is none, or, if it is `silent`, nothing at all.
    """

    async def first(caller: SessionKey, method: str, header: bytes) -> Answer | None:
        if method == calls.GET_CHUNK.name and caller != only and _is_late(header):
            if silent:
                await asyncio.get_running_loop().create_future()
            raise NotFound("no such chunk")
        return None

    swarm.behaviours[LIAR] = LyingInSums(WINDOW)
    around(swarm, {LIAR: first})


def assert_all_applied(swarm: MemorySwarm) -> None:
    """Every step is sealed, and everybody is in the same state after the last one."""
    assert [seal.step for seal in swarm.seals()] == list(range(1, STEPS + 1))
    for name in swarm.papers.members:
        assert [line["step"] for line in swarm.lines("seal_applied", of=name)][-1] == STEPS
    assert [len(roots) for roots in swarm.weights_roots()] == [1]


@of_two_or_three
async def test_swarm__a_summing_peer_keeps_its_mean_to_itself__another_sums_in_its_place(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    swarm = swarm_of(tmp_path, *names, chunks=len(names), rules=RULES)
    lie_in_sums(swarm)

    await swarm.run(timeout=20)

    assert_all_applied(swarm)
    named = {line["peer"] for line in swarm.lines("means_withheld", of=COORDINATOR)}
    assert named == {swarm.session_of(LIAR).peer}


@pytest.mark.parametrize("what", ["means", "parts"])
@of_two_or_three
async def test_swarm__one_binds_chunks_of_another_size__the_others_go_on_without_them(
    tmp_path: Path, names: tuple[str, ...], what: str
) -> None:
    swarm = swarm_of(tmp_path, *names, chunks=len(names), rules=RULES)
    swarm.behaviours[LIAR] = LongMeans(WINDOW) if what == "means" else LongParts()

    await swarm.run(timeout=20)

    assert_all_applied(swarm)
    named = {line["peer"] for line in swarm.lines("means_withheld", of=COORDINATOR)}
    assert named == ({swarm.session_of(LIAR).peer} if what == "means" else set())
    assert swarm.lines("ended_without_update") == []


@pytest.mark.usefixtures("short_calls")
async def test_swarm__a_summing_peer_answers_nobody_who_wants_its_mean__the_job_goes_on(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob", LIAR, chunks=3, rules=RULES)
    lie_in_sums(swarm, silent=True)

    await swarm.run(timeout=20)

    assert_all_applied(swarm)


async def test_swarm__a_mean_is_shown_to_the_coordinator_alone__it_brings_it_to_the_others(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob", LIAR, chunks=3, rules=RULES)
    lie_in_sums(swarm, only=swarm.papers.session.key)

    await swarm.run(timeout=20)

    assert_all_applied(swarm)  # what was signed counts, and an audit of the sum compares it
    assert swarm.lines("means_withheld", of=COORDINATOR) == []


@of_two_or_three
async def test_swarm__one_says_that_it_holds_nothing_whatever_it_is_brought__no_step_is_lost(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    def hold_nothing(_header: bytes, answer: Answer) -> Answer:
        return calls.ChunksHeld(chunks=()).encoded(), answer[1]

    swarm = swarm_of(tmp_path, *names, chunks=len(names), rules=RULES)
    methods = (calls.HOLD_CHUNKS, calls.TAKE_CHUNK)
    lying(swarm, LIAR, {method.name: hold_nothing for method in methods})

    await swarm.run(timeout=20)

    assert_all_applied(swarm)
    assert swarm.lines("ended_without_update") == []


@pytest.mark.usefixtures("short_calls")
async def test_swarm__answer_about_an_older_mean__does_not_count_for_a_newer_one(
    tmp_path: Path,
) -> None:
    """The liar keeps ann's answer about its good mean back until it has signed a made-up one."""
    swarm = swarm_of(
        tmp_path, "ann", "bob", LIAR, chunks=6, steps=4, rules=patient_rules(exchange_timeout=4000)
    )
    swarm.behaviours[LIAR] = LyingInSums(3)

    def chunks_of(name: str, step: int) -> set[int]:
        lines = swarm.lines("chunk_stored", of=name)
        return {line["chunk"] for line in lines if line["step"] == step}

    async def first(caller: SessionKey, method: str, header: bytes) -> Answer | None:
        if method != calls.GET_CHUNK.name:
            return None
        asked = calls.GetChunk.decoded(header, max_bytes=2**16)
        if asked.step == WINDOW and caller == swarm.session_of("ann").key:
            while not chunks_of(LIAR, 3):
                await asyncio.sleep(0.01)
        elif asked.step > WINDOW and asked.chunk not in chunks_of("ann", WINDOW):
            await asyncio.get_running_loop().create_future()
        return None

    around(swarm, {LIAR: first})
    await swarm.run(timeout=20)

    assert [seal.step for seal in swarm.seals()] == [1, 2, 3, 4]
    assert [len(roots) for roots in swarm.weights_roots()] == [1]


@of_two_or_three
@pytest.mark.usefixtures("short_calls")
async def test_swarm__one_sums_many_chunks_and_is_silent__others_sum_them(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    rules = patient_rules(exchange_timeout=1600)
    swarm = swarm_of(tmp_path, *names, chunks=12, steps=4, rules=rules)

    async def first(_caller: SessionKey, method: str, header: bytes) -> Answer | None:
        if method == calls.GET_CHUNK.name and _is_late(header):
            await asyncio.get_running_loop().create_future()
        return None

    around(swarm, {LIAR: first})
    await swarm.run(timeout=20)

    assert [seal.step for seal in swarm.seals()][-1] >= 4
    named = {line["peer"] for line in swarm.lines("means_withheld", of=COORDINATOR)}
    assert named == {swarm.session_of(LIAR).peer}


async def test_swarm__means_come_slowly_and_one_says_it_has_none__who_signed_is_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(securing, "HOLD", 1000)
    rules = patient_rules(exchange_timeout=2400)
    swarm = swarm_of(tmp_path, "ann", "bob", LIAR, chunks=3, steps=3, rules=rules)

    async def slow(_caller: SessionKey, method: str, _header: bytes) -> Answer | None:
        if method == calls.GET_CHUNK.name:
            await asyncio.sleep(0.4)  # a sixth of the exchange: an eighth is too short for it
        return None

    async def has_none(_caller: SessionKey, method: str, _header: bytes) -> Answer | None:
        if method in (calls.HOLD_CHUNKS.name, calls.TAKE_CHUNK.name):
            return calls.ChunksHeld(chunks=()).encoded(), ()
        return None

    around(swarm, {"ann": slow, "bob": slow, LIAR: has_none})
    await swarm.run(timeout=20)

    assert [seal.step for seal in swarm.seals()] == [1, 2, 3]
    assert swarm.lines("means_withheld", of=COORDINATOR) == []


async def test_swarm__a_mean_is_with_its_signer_and_others_take_nothing__it_comes_after_the_seal(
    tmp_path: Path,
) -> None:
    """The line is so slow that nothing comes through in time: nobody is locked out by one word."""
    swarm = swarm_of(tmp_path, "ann", "bob", LIAR, chunks=3, rules=RULES)
    taken: Counter[SessionKey] = Counter()
    shown: Counter[int] = Counter()

    async def hide(caller: SessionKey, method: str, header: bytes) -> Answer | None:
        if method == calls.GET_CHUNK.name and step_of(header) == WINDOW:
            if caller != swarm.papers.session.key:
                raise NotFound("no such chunk")
            shown[calls.GetChunk.decoded(header, max_bytes=2**16).chunk] += 1
        return None

    def slow(name: str) -> First:
        async def first(_caller: SessionKey, method: str, _header: bytes) -> Answer | None:
            if method == calls.TAKE_CHUNK.name:
                taken[swarm.session_of(name).key] += 1
                if not _is_sealed(swarm, WINDOW):
                    await asyncio.get_running_loop().create_future()
            return None

        return first

    swarm.behaviours[LIAR] = LyingInSums(WINDOW)
    around(swarm, {LIAR: hide, "ann": slow("ann"), "bob": slow("bob")})
    await swarm.run(timeout=20)

    assert_all_applied(swarm)
    assert len(taken) == 2
    assert [*shown.values()] == [1], "it is fetched once, though two lack it"


def _is_sealed(swarm: MemorySwarm, step: int) -> bool:
    return any(line["step"] >= step for line in swarm.lines("seal_stored", of=COORDINATOR))


async def test_swarm__two_peers_of_one_owner_give_to_each_other_alone__the_job_does_not_pause(
    tmp_path: Path,
) -> None:
    """Means at any time, and from each AverageSet on their parts, which others then lack."""
    steps, liars = 4, ("cem", "dan")
    papers = swarm_of(tmp_path, "ann", *liars, chunks=3, steps=steps, rules=RULES).papers
    swarm = MemorySwarm(_of_one_owner(papers, *liars), tmp_path)
    keys = {swarm.session_of(name).key for name in liars}

    async def first(caller: SessionKey, method: str, _header: bytes) -> Answer | None:
        if method == calls.GET_CHUNK.name and caller not in keys:
            raise NotFound("no such chunk")
        closed, averaged = swarm.lines("step_closed"), swarm.lines("average_set_stored")
        if method == calls.GET_PART.name and len(closed) == len(averaged) and caller not in keys:
            raise NotFound("no such part")
        return None

    around(swarm, dict.fromkeys(liars, first))
    await swarm.run(timeout=40)

    assert [seal.step for seal in swarm.seals()] == list(range(1, steps + 1))
    assert [line["step"] for line in swarm.lines("seal_applied", of="ann")][-1] == steps
    lapsed = [line["step"] for line in swarm.lines("ended_without_update", of=COORDINATOR)]
    assert lapsed == [1, 4]  # what they do is remembered for 2 steps
    assert swarm.lines("paused", of=COORDINATOR) == []


def _of_one_owner(papers: Papers, first: str, second: str) -> Papers:
    """As if the wallet of the first had rented out both."""
    owner, lease = papers.members[first].wallet, papers.leases[second].message
    signed = owner.sign(lease.model_copy(update={"account": owner.account}), DOMAIN)
    return replace(papers, leases={**papers.leases, second: signed})
