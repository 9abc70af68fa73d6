"""What a coordinator shows its members of a round, to whom, when and how often."""

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from contracts.terms.digest import peer_id
from contracts.terms.errors import Conflict, Overloaded
from contracts.terms.ids import Digest, PeerId, SessionKey
from contracts.terms.signatures import decode_signed, expect
from contracts.terms.work import RoundClosed, WorkClaim
from tests.support.history import make_digest
from tests.support.lying import Answer, AnsweringTransport, Lie, LyingTransport
from tests.support.patience import patience
from tests.support.plain_swarm import plain_run
from tests.support.swarm_job import COORDINATOR, MemorySwarm, make_papers, patient_rules
from training.transport import calls
from training.transport.port import Handler, Transport
from training.transport.wire import ask

NAMES = ("ann", "bob", "cem", "dan")
MUTE = "ann"
ROUNDS = 2


def swarm_of(folder: Path, **rules: int) -> MemorySwarm:
    """A job of two groups of two members."""
    usual: dict[str, Any] = {"stages": 2, "steps": ROUNDS, "units_per_step": 8, "chunks": 2}
    usual["rows_per_unit"] = 32
    return MemorySwarm(make_papers(*NAMES, rules=patient_rules(**rules), **usual), folder)


def assert_as_plain(swarm: MemorySwarm) -> None:
    """All items were sealed, and all ended where one peer alone ends."""
    plain = plain_run(swarm.papers.spec.message)
    assert swarm.state_roots() == [{root} for root in plain.states]
    assert swarm.losses() == plain.losses


class Watched:
    """A party's handler; counts what it is brought, and notes what it shows. One never claims."""

    def __init__(self, swarm: MemorySwarm, name: str, told: "Told", handler: Handler) -> None:
        self._swarm, self._name, self._told, self._handler = swarm, name, told, handler

    async def handle(
        self, caller: SessionKey, method: str, header: bytes, tensors: tuple[memoryview, ...]
    ) -> Answer:
        """See `port.Handler`."""
        if method == calls.COMMIT.name and self._name == MUTE:
            raise Overloaded("not now")
        if method == calls.TAKE_SEAL.name:
            self._told.count[self._swarm.session_of(self._name).peer] += len(tensors)
        answer = await self._handler.handle(caller, method, header, tensors)
        if method == calls.GET_CLAIMS.name:
            self._told.count[peer_id(caller)] += len(answer[1])
            self._told.note(self._swarm, peer_id(caller), answer)
        return answer


class Told:
    """What each member was told of claims and of what a seal covers."""

    def __init__(self) -> None:
        self.count = Counter[PeerId]()
        self.early = list[WorkClaim]()
        """Shown to a member that could still claim in that round."""

    def note(self, swarm: MemorySwarm, peer: PeerId, answer: Answer) -> None:
        """One answer to `round.claims`."""
        messages = (decode_signed(bytes(each)).message for each in answer[1])
        for claim in (each for each in messages if isinstance(each, WorkClaim)):
            if peer == swarm.session_of(MUTE).peer and claim.round > 1:
                continue  # it rests, so it may claim nothing
            lines = swarm.lines("claim_stored", of=COORDINATOR)
            stored = [line["peer"] for line in lines if line["step"] == claim.round]
            resting = int(claim.round > 1)
            if peer not in stored and len(stored) < len(NAMES) - resting:
                self.early.append(claim)


@pytest.mark.simulated_time
async def test_claims__one_gives_none__travel_once_and_not_to_who_could_still_claim(
    tmp_path: Path,
) -> None:
    """Else a member could claim what another one did, and everybody would hear all twice."""
    swarm, told = swarm_of(tmp_path, commit_timeout=1500), Told()

    def wrap(name: str, transport: Transport) -> Transport:
        return AnsweringTransport(transport, partial(Watched, swarm, name, told))

    swarm.wrap = wrap
    await swarm.run()

    assert_as_plain(swarm)
    assert told.early == []
    posted = len(swarm.feed.items) - 2  # JobSpec and JobOpening are known
    assert len(told.count) == len(NAMES) and max(told.count.values()) <= posted


def lying(swarm: MemorySwarm, **lies: Lie) -> None:
    """Bob answers so."""
    methods = {getattr(calls, name).name: lie for name, lie in lies.items()}
    swarm.wrap = lambda name, transport: (
        LyingTransport(transport, methods) if name == "bob" else transport
    )


def shards_of(answer: Answer) -> list[Digest]:
    """What an answer to `round.commit` claims."""
    claim = expect(decode_signed(bytes(answer[1][-2])), WorkClaim).message
    return [output.digest for output in claim.outputs]


async def test_get_bytes__a_shard_before_round_closed_or_what_no_audit_needs__is_a_conflict(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(tmp_path)
    asked, shards = list[asyncio.Task[None]](), list[Digest]()

    def watched(_header: bytes, answer: Answer) -> Answer:
        shards.extend(shards_of(answer))
        return answer

    async def refused(digest: Digest, words: str) -> None:
        session = swarm.parties["ann"].transport.sessions[swarm.papers.session.key]
        request = calls.GetBytes(job=swarm.papers.job, digest=digest)
        with pytest.raises(Conflict, match=words):
            await ask(session, calls.GET_BYTES, request, deadline=patience(20))

    def watch(name: str, line: dict[str, Any]) -> None:
        is_first = (name, line["event"], len(asked)) == (COORDINATOR, "claim_stored", 0)
        if is_first and line["peer"] == swarm.session_of("bob").peer:
            early = refused(shards[0], "before RoundClosed")
            nothing = refused(make_digest("a tensor"), "nobody asks")
            asked.extend(map(asyncio.ensure_future, (early, nothing)))

    lying(swarm, COMMIT=watched)
    swarm.watch = watch
    await swarm.run()

    assert len(await asyncio.gather(*asked)) == 2


@pytest.mark.simulated_time
async def test_shards__other_bytes_than_were_claimed__others_do_the_items(tmp_path: Path) -> None:
    swarm = swarm_of(tmp_path, commit_timeout=1500, exchange_timeout=1500)
    shards, given = set[Digest](), set[Digest]()

    def watched(_header: bytes, answer: Answer) -> Answer:
        shards.update(shards_of(answer))
        return answer

    def false(header: bytes, answer: Answer) -> Answer:
        request = calls.GetBytes.decoded(header, max_bytes=calls.GET_BYTES.max_header_bytes)
        if request.digest not in shards:
            return answer
        given.add(Digest(request.digest))
        return answer[0], [bytes(memoryview(each).nbytes) for each in answer[1]]

    lying(swarm, COMMIT=watched, GET_BYTES=false)
    await swarm.run()

    bob = swarm.session_of("bob").peer
    own = {claim.digest() for claim in swarm.claims() if claim.peer == bob}
    assert given and own
    assert all(own.isdisjoint(each.weights) for each in swarm.messages(RoundClosed))
    assert_as_plain(swarm)


@pytest.mark.parametrize("event", ["item_forward", "shard_stored"])
async def test_coordinator__dies_between_groups_or_shards__goes_on_with_what_members_have(
    tmp_path: Path, event: str
) -> None:
    swarm = swarm_of(tmp_path)
    swarm.deadly = {(COORDINATOR, event, ROUNDS): COORDINATOR}

    await swarm.run()

    assert swarm.deadly == {} and swarm.restarts == 1
    assert_as_plain(swarm)
