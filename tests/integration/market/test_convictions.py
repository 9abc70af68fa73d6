"""A seal ruled that somebody may be slashed: what comes of it when an auditor shows why."""

from dataclasses import replace

import pytest

from contracts.governance.record import JobRecord
from contracts.keys.wallet import Session
from contracts.terms.amounts import Flops
from contracts.terms.digest import blob_digest, digest
from contracts.terms.errors import BadSignature, Conflict, Forbidden, Malformed, NotFound
from contracts.terms.ids import Address, Digest, JobId, PeerId, StageIndex
from contracts.terms.typed_data import Domain
from contracts.terms.work import WorkClaim
from market.bodies.routes import (
    GET_CONVICTIONS,
    GET_CONVICTIONS_OF,
    GET_SLASHES,
    POST_EVIDENCE,
)
from market.bodies.signing import evidence_digest
from market.bodies.slashes import PostEvidence
from market.service.convictions import note_convictions
from market.service.rows import ConvictionRow
from tests.integration.market.client import sdk
from tests.integration.market.test_auditors import AUDIT
from tests.support.escrow_model import ANNOUNCE
from tests.support.history import (
    JobMaker,
    claims_in,
    make_session,
    make_wallet,
    outside_auditors,
)
from tests.support.market_world import World
from verification.docket import PaidAudit, begin_job
from verification.draws.cases import CONFIRMING, Case, Heard, Ruling

AUDITORS = ("out1", "out2")


def session_of(name: str) -> Session:
    return make_session(f"audit {name}")


async def worked(world: World) -> tuple[JobMaker, WorkClaim]:
    """A job that has sealed a step, and what its one provider claims."""
    maker = await world.start_job()
    await world.seal(maker)
    return maker, claims_in(maker.items, "work")[0]


def ruled(maker: JobMaker, *rulings: Ruling) -> JobRecord:
    """The job's record, as if it were checked and its newest seal had ruled this."""
    listed = outside_auditors(AUDITORS, session_of=session_of)
    rules = maker.spec.rules.model_copy(update={"audit": AUDIT})
    spec = maker.spec.model_copy(update={"rules": rules})
    audits = tuple(heard_last(each) for each in rulings if each.what == "slashable")
    docket = replace(begin_job(spec, listed), rulings=rulings, audits=audits)
    return replace(maker.record, spec=spec, outside=listed, checking=docket)


def report_of(peer: PeerId) -> Digest:
    """What the report of an auditor is called."""
    return digest("report", peer)


def heard_last(ruling: Ruling) -> PaidAudit:
    """The report that made it slashable, after those before it."""
    *before, last = [Heard(peer, "mismatch", report_of(peer)) for peer in ruling.by]
    case = Case(
        ruling.subject, "work", ruling.peer, StageIndex(0), ruling.step, ruling.step, Flops(1),
        ruling.subject, ruling.peer, round=CONFIRMING, heard=tuple(before),
    )  # fmt: skip
    return PaidAudit(last, 0, case, Flops(1))


def slashable(maker: JobMaker, subject: Digest, *, whom: bytes | None = None) -> Ruling:
    peers = tuple(session_of(name).peer for name in AUDITORS)
    peer = maker.members[0].session.peer if whom is None else whom
    return Ruling("slashable", subject, maker.record.step, peer, peers)  # type: ignore[arg-type]


async def note(world: World, record: JobRecord) -> list[Digest]:
    async with world.new_work() as work:
        return await note_convictions(record, work)


async def convicted(world: World) -> tuple[JobMaker, Digest, JobId]:
    """A job whose one provider may be slashed for its work."""
    maker, work = await worked(world)
    await note(world, ruled(maker, slashable(maker, work.digest())))
    return maker, work.digest(), maker.spec.job()


async def rows(world: World) -> list[ConvictionRow]:
    return await world.rows(ConvictionRow)


async def test_note_convictions__slashable_work__knows_the_stake_at_risk(
    world: World,
) -> None:
    maker, work = await worked(world)
    member = maker.members[0]
    settled = Ruling("settled", Digest(b"s" * 32), maker.record.step, member.session.peer)

    found = await note(world, ruled(maker, settled, slashable(maker, work.digest())))
    again = await note(world, ruled(maker, slashable(maker, work.digest())))

    (row,) = await rows(world)
    assert found == again == [work.digest()]
    assert (row.account, row.wanted) == (member.wallet.account, maker.spec.min_stake)
    assert row.evidence is None


async def test_note_convictions__auditor_that_lied__is_at_risk_with_what_a_lease_asks_for(
    world: World,
) -> None:
    maker, _ = await worked(world)
    liar = session_of("out1").peer

    await note(world, ruled(maker, slashable(maker, Digest(b"r" * 32), whom=liar)))

    (row,) = await rows(world)
    assert row.account == make_wallet("out1").account and row.wanted == maker.spec.min_stake


async def test_note_convictions__unchecked_job__has_none(world: World) -> None:
    maker, _ = await worked(world)

    assert await note(world, maker.record) == []


def evidence(
    world: World, maker: JobMaker, subject: Digest, *, by: str = "out1", text: bytes = b"bundle"
) -> PostEvidence:
    """A bundle that is in the market's blobs, named by an auditor."""
    session = session_of(by)
    said = {"auditor": session.peer, "report": report_of(session.peer)}
    bundle = world.show(text, maker.spec.job(), subject, **said)
    name = evidence_digest(maker.spec.job(), subject, bundle)
    return PostEvidence(
        subject=subject,
        bundle=bundle,
        session_key=session.key,
        signature=session.private_key.sign(name),
    )


async def test_post_evidence__by_an_auditor__is_slashed_in_the_end(world: World) -> None:
    maker, subject, job = await convicted(world)
    async with sdk(world) as client:
        first = await client.call(POST_EVIDENCE, evidence(world, maker, subject), job=job)
        other = evidence(world, maker, subject, by="out2", text=b"another")
        again = await client.call(POST_EVIDENCE, other, job=job)
        await later(world, times=2)
        (slash,) = (await client.whole(GET_SLASHES, job=job)).slashes

    assert first == again and first.state == "convicted"
    assert (slash.state, slash.evidence) == ("burned", blob_digest(b"bundle"))
    assert slash.amount == maker.spec.min_stake


async def test_post_evidence__what_does_not_hold__is_refused(world: World) -> None:
    maker, work = await worked(world)
    subject, other, job = work.digest(), Digest(b"o" * 32), maker.spec.job()
    await note(world, ruled(maker, slashable(maker, subject), slashable(maker, other)))
    good = evidence(world, maker, subject)
    async with sdk(world) as client:
        with pytest.raises(BadSignature):
            forged = good.model_copy(update={"session_key": session_of("out2").key})
            await client.call(POST_EVIDENCE, forged, job=job)
        with pytest.raises(Forbidden):
            await client.call(
                POST_EVIDENCE, evidence(world, maker, subject, by="stranger"), job=job
            )
        with pytest.raises(NotFound):
            await client.call(POST_EVIDENCE, evidence(world, maker, Digest(b"n" * 32)), job=job)
        await client.call(POST_EVIDENCE, evidence(world, maker, subject), job=job)
        with pytest.raises(Conflict):
            await client.call(
                POST_EVIDENCE, evidence(world, maker, subject, text=b"another"), job=job
            )
        with pytest.raises(Conflict):
            await client.call(POST_EVIDENCE, evidence(world, maker, other), job=job)

    assert [row.evidence for row in await rows(world)].count(good.bundle) == 1


FALSE = {
    "no bundle": None,
    "of another job": {"job": JobId(bytes(32))},
    "of another chain": {"domain": Domain(7, Address(bytes(20)))},
    "about another message": {"subject": Digest(b"o" * 32)},
    "by another auditor": {"auditor": session_of("out1").peer},
    "a report that no seal holds": {"report": Digest(b"r" * 32)},
    "a message that was never sent": {"kept": (Digest(b"k" * 32),)},
}


async def test_post_evidence__bad_bundle_first__is_refused_and_bars_no_good_one(
    world: World,
) -> None:
    maker, subject, job = await convicted(world)
    async with sdk(world) as client:
        for what, changed in FALSE.items():
            bad = evidence(world, maker, subject, by="out2", text=what.encode())
            said = world.bundles.says.pop(bad.bundle)
            if changed is not None:
                world.bundles.says[bad.bundle] = replace(said, **changed)
            with pytest.raises(Malformed):
                await client.call(POST_EVIDENCE, bad, job=job)
        slash = await client.call(POST_EVIDENCE, evidence(world, maker, subject), job=job)

    assert (slash.state, slash.evidence) == ("convicted", blob_digest(b"bundle"))


@pytest.mark.parametrize("is_shown_before", [True, False])
async def test_post_evidence__first_bundle_is_dropped__the_next_one_is_tried(
    world: World, is_shown_before: bool
) -> None:
    maker, subject, job = await convicted(world)
    account = maker.members[0].wallet.account
    good = evidence(world, maker, subject)
    async with sdk(world) as client:
        junk = await client.call(
            POST_EVIDENCE, evidence(world, maker, subject, by="out2", text=b"x"), job=job
        )
        if is_shown_before:
            await client.call(POST_EVIDENCE, good, job=job)
        await world.tick()
        world.chain.drop(job, account)
        await world.sync()
        if not is_shown_before:
            await client.call(POST_EVIDENCE, good, job=job)
        await world.tick()
        await later(world)
        ended = {
            each.evidence: each.state for each in (await client.whole(GET_SLASHES, job=job)).slashes
        }

    assert ended == {junk.evidence: "dropped", good.bundle: "burned"}


async def later(world: World, *, times: int = 1) -> None:
    for _ in range(times):
        world.wait(ANNOUNCE)
        await world.tick()


async def test_get_convictions__of_job_and_account__say_who_may_show_it_and_what_came_of_it(
    world: World,
) -> None:
    maker, subject, job = await convicted(world)
    convict = maker.members[0].wallet.account
    async with sdk(world) as client:
        (noted,) = (await client.whole(GET_CONVICTIONS, job=job)).convictions
        await client.call(POST_EVIDENCE, evidence(world, maker, subject), job=job)
        await world.tick()
        (announced,) = (await client.whole(GET_CONVICTIONS_OF, account=convict)).convictions
        innocent = (
            await client.whole(GET_CONVICTIONS_OF, account=make_wallet("out1").account)
        ).convictions
        await later(world)
        (burned,) = (await client.whole(GET_CONVICTIONS, job=job)).convictions

    assert noted.auditors == tuple(session_of(name).peer for name in AUDITORS)
    assert (noted.subject, noted.account, noted.slash) == (subject, convict, None)
    assert innocent == () and announced.slash is not None and burned.slash is not None
    assert announced.slash.state == "announced" and announced.slash.burns_from is not None
    assert announced.slash.burns_from * 1000 > announced.slash.convicted_at
    assert (burned.slash.state, burned.slash.evidence) == ("burned", blob_digest(b"bundle"))
