"""Every method of a job, called wrongly: malformed, oversized, by the wrong party, with nonsense.

The loops run over the registry, so a new method is tried too. Whatever comes back has to be the
error that fits; another one, or a change of state, fails.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from contracts.keys.wallet import Session
from contracts.terms import errors
from contracts.terms.history import Kept, encode_kept, kept_digest
from contracts.terms.ids import ZERO_DIGEST, StageIndex, StepNumber
from contracts.terms.items import MAX_ITEMS
from contracts.terms.messages import Seal
from contracts.terms.signatures import Signed
from contracts.terms.work import RoundClosed
from tests.support.history import DOMAIN, make_session
from tests.support.lone_worker import seal_of, sealed_job, worker_of
from tests.support.swarm_job import MemorySwarm
from tests.unit.training.coordinator.journals import handlers_of, open_journal
from training.journal import Journal
from training.transport import calls
from training.transport.dispatch import Dispatcher
from training.transport.wire import PING, AnyMethod, WireMessage
from training.worker import files as served_files
from training.worker.answers import Answers
from training.worker.work import Work

FIRST = StageIndex(0)
STRANGER, OUTSIDE = make_session("stranger"), make_session("outside")
Case = tuple[AnyMethod, Mapping[str, Any], Sequence[bytes], type[errors.TallystickError]]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> MemorySwarm:
    """A job of one peer that has ended; its messages are for others to misuse."""
    folder = tmp_path_factory.mktemp("job")
    return sealed_job(folder, "ann", steps=2, units_per_step=2, checkpoint_every=1)


@dataclass
class Parties:
    """What a coordinator and a worker serve at the beginning of a job."""

    job: MemorySwarm
    coordinator: Dispatcher
    worker: Dispatcher
    work: Work

    @property
    def keys(self) -> dict[str, Session]:
        """Who may call."""
        papers = self.job.papers
        return {
            "coordinator": papers.session,
            "ann": papers.members["ann"].session,
            "outside": OUTSIDE,
            "stranger": STRANGER,
        }

    def snapshot(self, folder: Path) -> tuple[Any, ...]:
        """What a wrong call must not change."""
        at = self.work.station
        files = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
        state = None if at.seat is None else (at.state.roots(), at.book.group)
        known = {**self.work.exchange.kept}, at.peers.mates(FIRST)
        return at.applied, at.book.sealed, state, known, files

    async def refusal(
        self,
        to: Dispatcher,
        who: str,
        method: AnyMethod,
        header: bytes,
        tensors: Sequence[bytes] = (),
    ) -> type[errors.TallystickError]:
        """What is said to a call that has to be refused."""
        try:
            given = tuple(memoryview(each) for each in tensors)
            await to.handle(self.keys[who].key, method.name, header, given)
        except errors.TallystickError as error:
            assert error.message
            return type(error)
        raise AssertionError(f"{who} got an answer to {method.name}")

    def request(self, method: AnyMethod, **changed: Any) -> bytes:
        """A well-formed request."""
        usual = {
            "job": self.job.papers.job, "address": "x:1", "bandwidth": 1, "applied": 0, "group": 0,
            "round": 1, "start": 0, "end": 1, "seed": 0, "seen": 0, "items": ((0, 1),), "given": (),
            "is_first": True, "results": (), "failed": (), "holding": (), "digests": (),
            "is_free": False,
            "digest": ZERO_DIGEST, "bucket": 0, "members": (), "names": (), "all_applied": 0,
            "to": self.keys["ann"].key, "method": PING.name, "milliseconds": 1000, "max_bytes": 9,
        } | changed  # fmt: skip
        fields = method.request.model_fields.keys() - {"kind"}
        message: WireMessage = method.request(**{name: usual[name] for name in fields})
        return message.encoded()


@pytest.fixture
async def parties(tmp_path: Path, job: MemorySwarm) -> AsyncIterator[Parties]:
    folder = tmp_path / "ann"
    copytree(job.folder / "ann" / "buckets", folder / "buckets")
    async with worker_of(job.papers, "ann", folder) as work:
        work.station.peers.trust_outside([OUTSIDE.key])
        with Journal(tmp_path / "coordinator") as file:
            handlers = handlers_of(open_journal(job.papers, file), tmp_path)
            handlers.roster[job.session_of("ann").key] = job.papers.leases["ann"]
            yield Parties(job, handlers.dispatcher(), Answers(work).dispatcher(), work)
            assert handlers._job.state.members == {}


async def test_methods__header_is_garbage_or_too_long__refused_before_anything_is_done(
    tmp_path: Path, parties: Parties
) -> None:
    garbage = (b"", b"\xc1", b"\x80", b"{}", b"\x81\xa4kind\xa7nothing", bytes(300))
    before = parties.snapshot(tmp_path)

    for method, who in product(calls.METHODS.values(), parties.keys):
        for to in (parties.coordinator, parties.worker):
            for header in garbage:
                kind = await parties.refusal(to, who, method, header)
                assert issubclass(kind, errors.Refused), (method, who, header)
            kind = await parties.refusal(to, who, method, bytes(method.max_header_bytes + 1))
            assert kind in {errors.TooLarge, errors.Forbidden, errors.NotFound}, (method, who)

    assert parties.snapshot(tmp_path) == before


async def test_methods__well_formed_but_by_the_wrong_party__forbidden(
    tmp_path: Path, parties: Parties
) -> None:
    before = parties.snapshot(tmp_path)
    refused = {errors.Forbidden, errors.NotFound}
    leads = {calls.MEASURE, calls.COMMIT, calls.REDUCE, calls.TAKE_SEAL}

    for method in {*calls.METHODS.values()} - {PING}:
        request = parties.request(method)
        assert await parties.refusal(parties.coordinator, "stranger", method, request) in refused
        for who in ("ann", "outside"):
            if method in leads or (who == "outside" and method.name not in calls.FOR_AUDITORS):
                kind = await parties.refusal(parties.worker, who, method, request)
                is_served = method.name in parties.worker.methods
                assert kind is (errors.Forbidden if is_served else errors.NotFound), method

    assert parties.snapshot(tmp_path) == before


async def test_coordinator__leased_but_no_member_yet__only_joining_is_heard(
    parties: Parties,
) -> None:
    for method in (calls.LEAVE, calls.NEXT_ITEM, calls.GET_CLAIMS, calls.HELD):
        request = parties.request(method)
        kind = await parties.refusal(parties.coordinator, "ann", method, request)
        assert kind is errors.Conflict, method
    lease = parties.job.papers.spec.encoded()  # signed, and no lease
    request = parties.request(calls.JOIN)
    kind = await parties.refusal(parties.coordinator, "ann", calls.JOIN, request, [lease])
    assert kind is errors.Forbidden


def handed_over(items: Sequence[Kept]) -> tuple[tuple[bytes, ...], list[bytes]]:
    """Names and tensors of what a seal call gives."""
    return tuple(map(kept_digest, items)), [encode_kept(item) for item in items]


def closed_of(parties: Parties, **changed: Any) -> Signed[RoundClosed]:
    """The RoundClosed of the first round, signed by the coordinator, whatever is in it."""
    closed = parties.job.messages(RoundClosed)[0]
    return parties.job.papers.session.sign(closed.model_copy(update=changed))


def resealed(parties: Parties, items: Sequence[Kept], **changed: Any) -> list[Kept]:
    """The same items under another seal of the coordinator's."""
    seal = items[-1]
    assert isinstance(seal, Signed) and isinstance(seal.message, Seal)
    other = seal.message.model_copy(update=changed)
    signed = parties.job.papers.coordinator.sign(other, DOMAIN)
    return [*items[:-1], signed]


def wrong_calls(parties: Parties) -> Iterator[Case]:
    """What a worker at the beginning of round 1 is asked, and what it says."""
    none: tuple[bytes, ...] = ()
    for method in {*parties.worker.methods.values()} - {PING, calls.REDUCE, calls.TAKE_SEAL}:
        yield method, {"job": ZERO_DIGEST}, none, errors.Conflict
    yield calls.COMMIT, {"round": 2}, none, errors.Unavailable
    yield calls.COMMIT, {"round": 0}, none, errors.Conflict
    yield calls.COMMIT, {"items": ()}, none, errors.Conflict
    yield calls.COMMIT, {"items": ((0, MAX_ITEMS + 1),)}, none, errors.Conflict
    yield calls.GET_BYTES, {}, none, errors.NotFound
    for method in (calls.GET_STATE, calls.GET_STATE_RANGE):
        for changed in ({"group": 1}, {"round": 1}, {"round": 10_000_000}):
            yield method, changed, none, errors.NotFound
    for method in (calls.GET_WEIGHTS, calls.GET_WEIGHTS_RANGE):
        yield method, {}, none, errors.NotFound

    closed = closed_of(parties).encoded()
    for tensors in (none, [b""], [b"\x80" * 100], [closed, closed]):
        yield calls.REDUCE, {}, tensors, errors.Malformed
    yield calls.REDUCE, {}, [parties.job.papers.spec.encoded()], errors.UnknownVersion
    forged = STRANGER.sign(parties.job.messages(RoundClosed)[0])
    yield calls.REDUCE, {}, [forged.encoded()], errors.BadSignature
    of_another_job = closed_of(parties, job=ZERO_DIGEST).encoded()
    yield calls.REDUCE, {}, [of_another_job], errors.Conflict
    yield calls.REDUCE, {}, [closed_of(parties, round=2).encoded()], errors.Unavailable
    yield calls.REDUCE, {"bucket": 2}, [closed], errors.Conflict

    first, second = (seal_of(parties.job, step) for step in (1, 2))
    seal = first[-1]
    assert isinstance(seal, Signed)
    signature = STRANGER.private_key.sign(seal.message.digest()) + b"\x1b"
    for items, error in (
        ((), errors.Malformed),
        (first[:-1], errors.Malformed),  # no seal
        (first[1:], errors.BadSignature),  # by somebody without a lease
        (first[:-2] + first[-1:], errors.InvalidSeal),  # an item is missing
        (second, errors.BadSignature),  # the job has no member yet
        (first + second, errors.Malformed),
        ([*first[:-1], Signed(seal.message, signature)], errors.InvalidSeal),
        (resealed(parties, first, earned=1), errors.InvalidSeal),
    ):
        names, given = handed_over(items)
        yield calls.TAKE_SEAL, {"names": names}, given, error
    names, given = handed_over(first)
    told = {
        "names": names,
        "members": (calls.MemberView(session_key=STRANGER.key, group=FIRST, address="x:1"),),
    }
    yield calls.TAKE_SEAL, told, [*given[:-1], b"\x80" * 100], errors.Malformed


async def refuses(parties: Parties, folder: Path, cases: Iterable[Case]) -> None:
    """The coordinator is told of each case what it has to be, and nothing is changed."""
    before, wrong = parties.snapshot(folder), []
    for method, changed, tensors, error in cases:
        request = parties.request(method, **changed)
        kind = await parties.refusal(parties.worker, "coordinator", method, request, tensors)
        if kind is not error or parties.snapshot(folder) != before:
            wrong.append((method.name, [*changed], len(tensors), kind))
    assert not wrong, "\n".join(map(str, wrong))


async def test_worker__calls_of_what_does_not_exist_or_is_forged__refused_and_nothing_is_changed(
    tmp_path: Path, parties: Parties
) -> None:
    await parties.work.states.take_group(FIRST, StepNumber(0))

    await refuses(parties, tmp_path, wrong_calls(parties))


async def test_worker__calls_of_a_round_that_is_over__refused_and_nothing_is_changed(
    tmp_path: Path, parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    await parties.work.states.take_group(FIRST, StepNumber(0))
    first = seal_of(parties.job, 1)
    given = {kept_digest(item): item for item in first}
    await parties.work.states.take_seal([*given], given, StepNumber(0))
    monkeypatch.setattr(served_files, "RANGE", 30)
    names, tensors = handed_over(resealed(parties, first, earned=1))

    ranges = [{"start": a, "end": b} for a, b in ((0, 0), (2, 1), (0, 31), (10**6, 10**6 + 1))]

    await refuses(
        parties,
        tmp_path,
        [
            (calls.TAKE_SEAL, {"names": names}, tensors, errors.Equivocation),
            (calls.REDUCE, {}, [closed_of(parties).encoded()], errors.Conflict),
            (calls.COMMIT, {}, (), errors.Conflict),
            *((calls.GET_STATE_RANGE, each, (), errors.Malformed) for each in ranges),
        ],
    )


async def test_worker__no_group_yet__what_needs_one_is_unavailable_and_nothing_is_changed(
    tmp_path: Path, parties: Parties
) -> None:
    names, tensors = handed_over(seal_of(parties.job, 1))
    closed = [closed_of(parties).encoded()]
    await refuses(
        parties,
        tmp_path,
        [
            (calls.REDUCE, {}, closed, errors.Unavailable),
            (calls.TAKE_SEAL, {"names": names}, tensors, errors.Unavailable),
            (calls.GET_STATE, {}, (), errors.Unavailable),
            (calls.GET_STATE_RANGE, {}, (), errors.Unavailable),
            (calls.GET_WEIGHTS, {}, (), errors.Unavailable),
            (calls.GET_WEIGHTS_RANGE, {}, (), errors.NotFound),
        ],
    )
