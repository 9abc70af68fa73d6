"""Where an auditor's missing bytes are looked for: with who held them, and who has audited them."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typing_extensions import Buffer

from contracts.governance.checking import Late
from contracts.governance.job import JobHistory
from contracts.terms.digest import tensor_digest
from contracts.terms.errors import NotFound, TallystickError, Unavailable
from contracts.terms.ids import ZERO_DIGEST, Digest, SessionKey, StageIndex, StepNumber, UnitId
from contracts.terms.messages import Message, TensorHeader, UnitLeaf
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed
from tests.support.dockets import CheckedJob, peer
from tests.support.history import DOMAIN, make_session
from training.coordinator.book import Book
from training.coordinator.finding import Finding
from training.transport import calls
from training.transport.port import Deadline, Reply
from training.worker.sealed import SealedWork

JOB, OUT = CheckedJob(), make_session("out")
DATA = bytes(8)
X = tensor_digest("float32", (2,), DATA)
COMMITS = {
    name: JOB.commit(name, stage=StageIndex(stage)) for name, stage in (("ann", 1), ("bob", 0))
}

LATE = Late(OUT.peer, StageIndex(1), COMMITS["ann"].digest(), 0, StepNumber(2))


class Holder:
    """A session to a member that has the tensor, or not."""

    def __init__(self, *, has_it: bool, is_held_up: bool = False) -> None:
        self._has_it = has_it
        self.num_asked = 0
        self.asked, self.goes_on = asyncio.Event(), asyncio.Event()
        if not is_held_up:
            self.goes_on.set()

    async def call(
        self,
        method: str,
        header: bytes,
        tensors: Sequence[Buffer] = (),
        *,
        deadline: Deadline,
        answer_bytes: int | None = None,
    ) -> Reply:
        """See `port.Session.call`."""
        self.num_asked += 1
        self.asked.set()
        await self.goes_on.wait()
        if not self._has_it:
            raise NotFound("not here")
        return Reply(calls.Done().encoded(), (memoryview(signed_header()), memoryview(DATA)))

    @property
    def node(self) -> SessionKey:
        """See `port.Session.node`."""
        return SessionKey(bytes(32))

    @property
    def closed(self) -> bool:
        """See `port.Session.closed`."""
        return False

    async def close(self) -> None:
        """See `port.Session.close`."""

    async def wait_closed(self) -> TallystickError:
        """See `port.Session.wait_closed`."""
        raise AssertionError


def signed_header() -> bytes:
    """Somebody's header of the tensor: whose, does not matter."""
    return (
        make_session("anybody")
        .sign(
            TensorHeader(
                job=JOB.spec.job(),
                step=StepNumber(1),
                stage=StageIndex(0),
                unit=UnitId(1),
                attempt=1,
                tensor="y",
                dtype="float32",
                shape=(2,),
                codec="none",
                tensor_digest=X,
            )
        )
        .encoded()
    )


def sealed() -> SealedWork:
    """Ann of stage 1 had x of unit 1 from bob of stage 0."""

    def leaf(x: Digest, y: Digest) -> UnitLeaf:
        return UnitLeaf(unit=UnitId(1), x=x, y=y, dy=ZERO_DIGEST, dx=ZERO_DIGEST, loss=None)

    ann, bob = COMMITS["ann"], COMMITS["bob"]
    leaves = {ann.digest(): (leaf(X, ZERO_DIGEST),), bob.digest(): (leaf(ZERO_DIGEST, X),)}
    pending = {(e.digest(),): Signed[Message](e, bytes(64)) for e in COMMITS.values()}
    found = SealedWork()
    found.note(JobHistory(DOMAIN, pending=pending, leaves=leaves))  # type: ignore[arg-type]
    return found


def finding(sessions: dict[str, Holder], heard: Sequence[str]) -> Finding:
    """Of a coordinator whose members are those with a session; ann was turned away."""
    late = replace(LATE, heard=tuple(map(peer, heard)))
    keys = {peer(name): SessionKey(peer(name) + bytes(12)) for name in sessions}
    book = SimpleNamespace(
        record_of_job=SimpleNamespace(
            job=JOB.spec.job(),
            spec=JOB.spec,
            checking=SimpleNamespace(awaited=lambda: (late,)),
        ),
        sealed_work=sealed(),
        state=SimpleNamespace(step=StepNumber(3), members=dict.fromkeys(keys)),
        key_of=keys.__getitem__,
        pending=lambda _kind: (),
    )
    reached = {keys[peer(name)]: session for name, session in sessions.items()}
    return Finding(
        cast(Book, book),
        cast(Any, lambda: reached),
        clock=lambda: UnixMillis(0),
        tell=lambda event, **fields: None,
    )


async def find(searched: Finding) -> bytes:
    """What the auditor from outside is given."""
    request = calls.Find(job=JOB.spec.job(), digest=X)
    _, found = await searched.find(OUT.key, request, ())
    return bytes(found[1])


async def test_find__doer_is_gone_and_the_neighbour_lost_it__who_has_audited_it_gives_it() -> None:
    bob, cem, dan = (Holder(has_it=has_it) for has_it in (False, True, True))

    found = await find(finding({"bob": bob, "cem": cem, "dan": dan}, heard=["cem"]))

    assert found == DATA
    assert (bob.num_asked, cem.num_asked, dan.num_asked) == (1, 1, 0)


async def test_find__while_a_holder_is_silent__its_auditor_is_excused_and_nobody_else() -> None:
    bob = Holder(has_it=True, is_held_up=True)
    searched = finding({"bob": bob}, heard=[])

    asking = asyncio.create_task(find(searched))
    await bob.asked.wait()

    assert searched.excuses(LATE)
    assert not searched.excuses(replace(LATE, auditor=peer("dan")))
    assert not searched.waits  # for a step: it has not said yet that there is nothing

    bob.goes_on.set()
    assert await asking == DATA
    assert not searched.excuses(LATE)


async def test_find__nothing_came__auditor_is_excused_until_it_is_asked_again() -> None:
    searched = finding({"bob": Holder(has_it=False)}, heard=[])

    with pytest.raises(Unavailable):
        await find(searched)

    assert searched.excuses(LATE) and searched.waits


async def test_find__doer_is_there_too__is_asked_last() -> None:
    ann, bob = Holder(has_it=True), Holder(has_it=True)

    assert await find(finding({"ann": ann, "bob": bob}, heard=[])) == DATA
    assert (ann.num_asked, bob.num_asked) == (0, 1)


async def test_find__nobody_has_audited_it__is_asked_for_again_in_the_next_step() -> None:
    bob, cem = Holder(has_it=False), Holder(has_it=True)

    with pytest.raises(Unavailable):
        await find(finding({"bob": bob, "cem": cem}, heard=[]))

    assert (bob.num_asked, cem.num_asked) == (1, 0)
