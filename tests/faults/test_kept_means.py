"""What one member can do with means that the coordinator fetches, keeps and hands over.

Found by attackers: each of these had ended the coordinator, paused the job or locked out others.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import Buffer

from contracts.terms.errors import Conflict, NotFound
from contracts.terms.ids import SessionKey, StepNumber
from contracts.terms.messages import AveragedChunk
from contracts.terms.signatures import decode_signed, expect
from tests.faults.test_false_means import LIAR, RULES, around, assert_all_applied, step_of
from tests.faults.test_memory_swarm import STEPS, WINDOW, lying, swarm_of
from tests.support.lying import Answer
from tests.support.swarm_job import COORDINATOR, MemorySwarm
from training.averaging.slices import Slice, slice_digest
from training.coordinator import means
from training.swarm import securing
from training.transport import calls
from training.transport.port import Transport
from training.transport.wire import ask
from training.worker.ports import Behaviour, Compute

pytestmark = pytest.mark.simulated_time


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(securing, "HOLD", 50)


def sign_with(swarm: MemorySwarm, changed: Callable[[AveragedChunk], dict[str, Any]]) -> None:
    """From WINDOW on the liar's AveragedChunks say something else; the rest of it is honest."""
    session = swarm.session_of(LIAR)

    def signed_anew(tensor: Buffer) -> bytes:
        mean = expect(decode_signed(bytes(tensor)), AveragedChunk).message
        update = changed(mean) if mean.step >= WINDOW else {}
        return session.sign(mean.model_copy(update=update)).encoded()

    def resign(_header: bytes, answer: Answer) -> Answer:
        return answer[0], [signed_anew(tensor) for tensor in answer[1]]

    lying(swarm, LIAR, {calls.SUM_CHUNKS.name: resign})


@pytest.mark.parametrize("what", ["job", pytest.param("step", marks=pytest.mark.nightly)])
async def test_swarm__mean_is_signed_for_another_job_or_step__another_sums_in_its_place(
    tmp_path: Path, what: str
) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob", LIAR, chunks=3, rules=RULES)
    other = swarm_of(tmp_path / "other", "ann", LIAR, steps=7).papers.job
    sign_with(swarm, lambda mean: {"job": other} if what == "job" else {"step": mean.step + 1})

    await swarm.run(timeout=600)

    assert_all_applied(swarm)
    assert swarm.lines("ended_without_update") == []


class Zeros(Behaviour):
    """In step WINDOW its means are zeros; all but the first have the norm that it is made with."""

    def __init__(self, norm: int) -> None:
        self._norm, self._is_first = norm, True

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
        if step != WINDOW:
            return mean
        norm, self._is_first = 0 if self._is_first else self._norm, False
        data = bytes(len(mean.data))
        return Slice(data, slice_digest(data), norm)


def show_to_the_coordinator_alone(swarm: MemorySwarm) -> None:
    """What the liar has summed from WINDOW on."""

    async def first(caller: SessionKey, method: str, header: bytes) -> Answer | None:
        is_wanted = method == calls.GET_CHUNK.name and step_of(header) >= WINDOW
        if is_wanted and caller != swarm.papers.session.key:
            raise NotFound("no such chunk")
        return None

    around(swarm, {LIAR: first})


@pytest.mark.parametrize(("chunks", "norm"), [(12, 0), (6, 1)], ids=["same", "of_another_norm"])
async def test_swarm__means_share_their_bytes__each_is_checked_and_brought_by_itself(
    tmp_path: Path, chunks: int, norm: int
) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob", LIAR, chunks=chunks, rules=RULES)
    swarm.behaviours[LIAR] = Zeros(norm)
    show_to_the_coordinator_alone(swarm)

    await swarm.run(timeout=600)

    assert_all_applied(swarm)
    assert bool(swarm.lines("means_withheld", of=COORDINATOR)) == bool(norm)


async def test_swarm__no_room_to_keep_a_mean__two_owners_have_to_hold_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(means, "MOST_BYTES", 0)
    swarm = swarm_of(tmp_path, "ann", "bob", LIAR, chunks=3, rules=RULES)
    show_to_the_coordinator_alone(swarm)

    await swarm.run(timeout=600)

    assert_all_applied(swarm)
    assert swarm.lines("mean_not_kept") and not swarm.lines("means_kept")


async def test_swarm__a_member_leaves_while_it_is_handed_a_seal__the_job_goes_on(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob", LIAR, chunks=3, rules=RULES)
    inner: dict[str, Transport] = {}

    async def first(_caller: SessionKey, method: str, _header: bytes) -> Answer | None:
        if method == calls.TAKE_SEAL.name and swarm.lines("seal_applied", of=LIAR):
            session = inner[LIAR].sessions[swarm.papers.session.key]
            with suppress(Conflict):  # no member any more
                while True:
                    await ask(session, calls.LEAVE, calls.Leave(job=swarm.papers.job), deadline=5)
            raise NotFound("no")
        return None

    around(swarm, {LIAR: first})
    wrapped = swarm.wrap

    def noted(name: str, transport: Transport) -> Transport:
        inner[name] = transport
        return wrapped(name, transport)

    swarm.wrap = noted
    with suppress(TimeoutError):  # the liar's own worker waits for its next seal for ever
        await swarm.run(timeout=60)

    assert [seal.step for seal in swarm.seals()] == list(range(1, STEPS + 1))
