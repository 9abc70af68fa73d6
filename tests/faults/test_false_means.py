"""A member that signs means which it gives to nobody, or says that it holds what it does not.

Time is short here: what is waited for HOLD in a real job is waited for a twentieth of a second.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typing_extensions import Buffer

from contracts.terms.errors import NotFound
from contracts.terms.ids import SessionKey, StepNumber
from tests.faults.test_memory_swarm import STEPS, WINDOW, lying, swarm_of
from tests.support.lying import Answer, AnsweringTransport
from tests.support.swarm_job import COORDINATOR, MemorySwarm, patient_rules
from training.averaging.slices import Slice, slice_digest
from training.coordinator import asking
from training.swarm import securing
from training.transport import calls
from training.transport.port import Handler
from training.worker.ports import Compute, Honest

RULES = patient_rules(exchange_timeout=1500)
LIAR = "cem"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(securing, "HOLD", 50)


class MadeUp(Honest):
    """From step `since` on it signs means that follow from no parts."""

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
        if step < self._since:
            return compute.mean(parts, weights, totals)
        return compute.mean(parts[:1], [1], [4])  # no longer than the true one


class OfAnotherSize(Honest):
    """From step WINDOW on its means, or its parts, have one element more, a zero."""

    def __init__(self, what: str) -> None:
        self._what = what

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
        return _longer(mean) if self._what == "means" and step >= WINDOW else mean

    def parts(self, compute: Compute, step: StepNumber) -> tuple[Slice, ...]:
        """See `Behaviour.parts`."""
        parts = compute.gradient()
        return tuple(map(_longer, parts)) if self._what == "parts" and step >= WINDOW else parts


def _longer(mean: Slice) -> Slice:
    data = mean.data + bytes(4)
    return replace(mean, data=data, digest=slice_digest(data))


def _is_late(header: bytes) -> bool:
    return calls.GetChunk.decoded(header, max_bytes=2**16).step >= WINDOW


class KeepsMeans:
    """A worker's handler that gives means of step WINDOW, and of later ones, to `only` alone.

    Others are told that there is none, or, if it is `silent`, nothing at all.
    """

    def __init__(self, handler: Handler, only: SessionKey | None, *, silent: bool) -> None:
        self._handler, self._only, self._silent = handler, only, silent

    async def handle(
        self, caller: SessionKey, method: str, header: bytes, tensors: tuple[memoryview, ...]
    ) -> Answer:
        """See `Handler.handle`."""
        if method == calls.GET_CHUNK.name and caller != self._only and _is_late(header):
            if self._silent:
                await asyncio.get_running_loop().create_future()
            raise NotFound("no such chunk")
        return await self._handler.handle(caller, method, header, tensors)


def lie_in_sums(
    swarm: MemorySwarm, only: SessionKey | None = None, *, silent: bool = False
) -> None:
    """The liar signs made-up means from WINDOW on, and gives them to `only` alone."""

    def around(handler: Handler) -> Handler:
        return KeepsMeans(handler, only, silent=silent)

    swarm.behaviours[LIAR] = MadeUp(WINDOW)
    swarm.wrap = lambda name, inner: AnsweringTransport(inner, around) if name == LIAR else inner


def assert_all_applied(swarm: MemorySwarm) -> None:
    """Every step is sealed, and everybody is in the same state after the last one."""
    assert [seal.step for seal in swarm.seals()] == list(range(1, STEPS + 1))
    for name in swarm.papers.members:
        assert [line["step"] for line in swarm.lines("seal_applied", of=name)][-1] == STEPS
    assert [len(roots) for roots in swarm.weights_roots()] == [1]


@pytest.mark.parametrize("names", [("ann", "bob", LIAR), ("ann", LIAR)], ids=["three", "two"])
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
@pytest.mark.parametrize("names", [("ann", "bob", LIAR), ("ann", LIAR)], ids=["three", "two"])
async def test_swarm__one_binds_chunks_of_another_size__the_others_go_on_without_them(
    tmp_path: Path, names: tuple[str, ...], what: str
) -> None:
    swarm = swarm_of(tmp_path, *names, chunks=len(names), rules=RULES)
    swarm.behaviours[LIAR] = OfAnotherSize(what)

    await swarm.run(timeout=20)

    assert_all_applied(swarm)
    named = {line["peer"] for line in swarm.lines("means_withheld", of=COORDINATOR)}
    assert named == ({swarm.session_of(LIAR).peer} if what == "means" else set())
    assert swarm.lines("ended_without_update") == []


async def test_swarm__a_summing_peer_answers_nobody_who_wants_its_mean__the_job_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "SHORTEST_CALL", 0.05)
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


@pytest.mark.parametrize("names", [("ann", "bob", LIAR), ("ann", LIAR)], ids=["three", "two"])
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
