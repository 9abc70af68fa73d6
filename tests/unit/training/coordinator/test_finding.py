"""Where an auditor's missing bytes are looked for: with who held them, and who has audited them."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typing_extensions import Buffer

from contracts.governance.checking import Late
from contracts.governance.job import JobHistory
from contracts.terms.digest import tensor_digest
from contracts.terms.errors import NotFound, TallystickError, Unavailable
from contracts.terms.ids import ZERO_DIGEST, Digest, SessionKey, StageIndex, StepNumber, UnitId
from contracts.terms.messages import GradCommit, Message, TensorHeader, UnitLeaf
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


class Holder:
    """A session to a member that has the tensor, or not."""

    def __init__(self, *, has_it: bool) -> None:
        self._has_it = has_it
        self.num_asked = 0

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
    work: GradCommit = COMMITS["ann"]
    late = Late(OUT.peer, StageIndex(1), work.digest(), 0, StepNumber(2), tuple(map(peer, heard)))
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


async def test_find__nobody_has_audited_it__is_asked_for_again_in_the_next_step() -> None:
    bob, cem = Holder(has_it=False), Holder(has_it=True)

    with pytest.raises(Unavailable):
        await find(finding({"bob": bob, "cem": cem}, heard=[]))

    assert (bob.num_asked, cem.num_asked) == (1, 0)
