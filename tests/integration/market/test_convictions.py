"""A seal ruled that somebody may be slashed: what comes of it when an auditor shows why."""

from dataclasses import replace

import pytest

from contracts.governance.record import JobRecord
from contracts.keys.wallet import Session
from contracts.terms.amounts import BaseUnits, Flops, pay_for
from contracts.terms.auditors import AuditorList, OutsideAuditor
from contracts.terms.digest import blob_digest, digest
from contracts.terms.errors import BadSignature, Conflict, Forbidden, Malformed, NotFound
from contracts.terms.ids import Address, Digest, JobId, PeerId, StageIndex
from contracts.terms.messages import GradCommit
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from market.bodies.routes import (
    GET_CONVICTIONS,
    GET_CONVICTIONS_OF,
    GET_SLASHES,
    POST_CONTEST,
    POST_EVIDENCE,
)
from market.bodies.settlement import ContestSlash, PostEvidence
from market.bodies.signing import contest_digest, evidence_digest
from market.service.coding import items
from market.service.contests import judge_contest
from market.service.convictions import note_convictions
from market.service.rows import ConvictionRow, SlashRow
from tallystick.sdk.client import MarketClient
from tests.integration.market.client import sdk
from tests.integration.market.test_auditors import AUDIT
from tests.integration.market.test_slash import open_cases_of
from tests.support.history import JobMaker, make_session, make_wallet
from tests.support.market_world import World
from verification.docket import PaidAudit, begin_job
from verification.draws.cases import CONFIRMING, Case, Heard, Ruling

AUDITORS = ("out1", "out2")


def session_of(name: str) -> Session:
    return make_session(f"audit {name}")


async def worked(world: World) -> tuple[JobMaker, GradCommit]:
    """A job that has sealed a step, and what its one provider committed to."""
    maker = await world.start_job()
    maker.seal_step()
    await world.send(maker)
    commits = (item.message for item in maker.items if isinstance(item, Signed))
    return maker, next(each for each in commits if isinstance(each, GradCommit))


def ruled(maker: JobMaker, *rulings: Ruling) -> JobRecord:
    """The job's record, as if it were checked and its newest seal had ruled this."""
    listed = AuditorList(
        auditors=tuple(
            sorted(
                (
                    OutsideAuditor(
                        account=make_wallet(name).account,
                        stake=BaseUnits(50_000_000),
                        session_key=session_of(name).key,
                        device_class="cpu",
                    )
                    for name in AUDITORS
                ),
                key=lambda each: each.account,
            )
        )
    )
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


async def rows(world: World) -> list[ConvictionRow]:
    async with world.new_work() as work:
        return await work[ConvictionRow].where()


async def test_note_convictions__slashable_work__knows_stake_value_and_accusers(
    world: World,
) -> None:
    maker, commit = await worked(world)
    member = maker.members[0]
    settled = Ruling("settled", Digest(b"s" * 32), maker.record.step, member.session.peer)

    found = await note(world, ruled(maker, settled, slashable(maker, commit.digest())))
    again = await note(world, ruled(maker, slashable(maker, commit.digest())))

    (row,) = await rows(world)
    worth = pay_for(commit.num_units * maker.spec.unit_flops[0], member.price)  # type: ignore[arg-type]
    assert found == again == [commit.digest()]
    assert (row.account, row.wanted) == (member.wallet.account, maker.spec.min_stake)
    assert row.owed == worth > 0
    assert items(row.accounts) == [make_wallet(name).account for name in AUDITORS]
    assert row.evidence is None


async def test_note_convictions__auditor_that_lied__is_at_risk_with_what_a_lease_reserves(
    world: World,
) -> None:
    maker, _ = await worked(world)
    liar = session_of("out1").peer

    await note(world, ruled(maker, slashable(maker, Digest(b"r" * 32), whom=liar)))

    (row,) = await rows(world)
    assert row.account == make_wallet("out1").account and row.wanted == maker.spec.min_stake
    assert items(row.accounts) == [make_wallet("out2").account] and row.owed == 0


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
    maker, commit = await worked(world)
    subject, job = commit.digest(), maker.spec.job()
    await note(world, ruled(maker, slashable(maker, subject)))
    async with sdk(world) as client:
        first = await client.call(POST_EVIDENCE, evidence(world, maker, subject), job=job)
        other = evidence(world, maker, subject, by="out2", text=b"another")
        again = await client.call(POST_EVIDENCE, other, job=job)
        for _ in range(4):
            world.wait(5)
            await world.tick()
        (slash,) = (await client.whole(GET_SLASHES, job=job)).slashes
    challenger = await world.ports.account(make_wallet("out1").account)

    assert first == again and first.state == "convicted"
    assert (slash.state, slash.evidence) == ("executed", blob_digest(b"bundle"))
    assert slash.amount == maker.spec.min_stake
    assert slash.restitution <= (await rows(world))[0].owed
    assert challenger.token == slash.bounty == maker.spec.min_stake // 5


async def convicted_at_its_end(world: World) -> tuple[JobMaker, Digest]:
    """A job that is over and could be refunded, and what somebody was convicted of in it."""
    maker, commit = await worked(world)
    known = len(maker.items)
    maker.seal_step(last=True)
    await world.send(maker, known)
    await note(world, ruled(maker, slashable(maker, commit.digest())))
    await world.tick()
    await world.tick()
    await until(world, (await world.job(maker.spec.job())).refundable_at)
    return maker, commit.digest()


async def until(world: World, moment: int | None) -> None:
    """The chain's clock comes there, and the market looks."""
    assert moment is not None
    world.wait(moment - world.chain.now)
    for _ in range(3):
        await world.tick()


async def test_refund__conviction_has_no_evidence_yet__waits_and_what_is_shown_then_is_repaid(
    world: World,
) -> None:
    maker, subject = await convicted_at_its_end(world)
    waiting = await world.job(maker.spec.job())
    async with sdk(world) as client:
        await client.call(POST_EVIDENCE, evidence(world, maker, subject), job=maker.spec.job())
        for _ in range(4):
            world.wait(5)
            await world.tick()
        (slash,) = (await client.whole(GET_SLASHES, job=maker.spec.job())).slashes

    assert waiting.state == "closed"
    assert slash.state == "executed" and slash.restitution > 0
    assert (await world.job(maker.spec.job())).state == "refunded"


async def test_refund__conviction_that_nobody_shows__waits_one_response_window_and_no_longer(
    world: World,
) -> None:
    maker, _ = await convicted_at_its_end(world)
    refundable_at = (await world.job(maker.spec.job())).refundable_at
    assert refundable_at is not None
    ends = refundable_at + world.chain.parameters["response_window"]

    await until(world, ends - 1)
    before = await world.job(maker.spec.job())
    await until(world, ends)

    assert before.state == "closed"
    assert (await world.job(maker.spec.job())).state == "refunded"


async def test_post_evidence__what_does_not_hold__is_refused(world: World) -> None:
    maker, commit = await worked(world)
    subject, other, job = commit.digest(), Digest(b"o" * 32), maker.spec.job()
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
    maker, commit = await worked(world)
    subject, job = commit.digest(), maker.spec.job()
    await note(world, ruled(maker, slashable(maker, subject)))
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


@pytest.mark.parametrize("shown", ["before", "while contested", "after"])
async def test_post_evidence__first_bundle_does_not_hold__the_next_one_is_tried(
    world: World, shown: str
) -> None:
    maker, commit = await worked(world)
    subject, job, account = commit.digest(), maker.spec.job(), maker.members[0].wallet.account
    await note(world, ruled(maker, slashable(maker, subject)))
    good = evidence(world, maker, subject)
    async with sdk(world) as client:
        junk = await client.call(
            POST_EVIDENCE, evidence(world, maker, subject, by="out2", text=b"x"), job=job
        )
        if shown == "before":
            await client.call(POST_EVIDENCE, good, job=job)
        await later(world)
        await contest(client, maker, junk.evidence)
        if shown == "while contested":
            await client.call(POST_EVIDENCE, good, job=job)
        await judge_contest(junk.evidence, upheld=True, now=world.now, work=world.new_work())
        if shown == "after":
            await later(world)
            await client.call(POST_EVIDENCE, good, job=job)
        is_free = await ever_free(world, account, times=5)
        ended = {
            each.evidence: each.state for each in (await client.whole(GET_SLASHES, job=job)).slashes
        }

    assert ended == {junk.evidence: "dropped", good.bundle: "executed"}
    assert shown == "after" or not is_free


async def test_post_evidence__bundle_that_fell__earns_its_auditor_nothing(world: World) -> None:
    honest = AUDITORS[1]
    _, junk, _ = await contested(world, honest=honest)
    await judge_contest(junk, upheld=True, now=world.now, work=world.new_work())
    await later(world, times=5)

    earned = {name: await token_of(world, name) for name in AUDITORS}

    assert earned.pop(honest) > 0 and set(earned.values()) == {0}


async def test_judge_contest__auditor_that_agreed__may_not(world: World) -> None:
    _, junk, _ = await contested(world, honest="out1")

    for judge in AUDITORS:
        by = frozenset({make_wallet(judge).account})
        with pytest.raises(Forbidden):
            await judge_contest(junk, upheld=False, by=by, now=world.now, work=world.new_work())


async def contest(client: MarketClient, maker: JobMaker, bundle: Digest) -> None:
    """The convict shows the same bundle."""
    signature = maker.members[0].wallet.sign_digest(contest_digest(bundle, bundle))
    shown = ContestSlash(bundle=bundle, signature=signature)
    await client.call(POST_CONTEST, shown, evidence=bundle)


async def contested(world: World, *, honest: str) -> tuple[JobMaker, Digest, Digest]:
    """Two bundles of one conviction, the dishonest first, which is contested: junk and good."""
    maker, commit = await worked(world)
    subject, job = commit.digest(), maker.spec.job()
    (liar,) = set(AUDITORS) - {honest}
    await note(world, ruled(maker, slashable(maker, subject)))
    async with sdk(world) as client:
        junk = await client.call(
            POST_EVIDENCE, evidence(world, maker, subject, by=liar, text=b"x"), job=job
        )
        good = evidence(world, maker, subject, by=honest)
        await client.call(POST_EVIDENCE, good, job=job)
        await later(world)
        await contest(client, maker, junk.evidence)
    return maker, junk.evidence, good.bundle


async def token_of(world: World, name: str) -> BaseUnits:
    return BaseUnits((await world.ports.account(make_wallet(name).account)).token)


async def later(world: World, *, times: int = 1) -> None:
    for _ in range(times):
        world.wait(5)
        await world.tick()
        await world.sync()


async def ever_free(world: World, account: Address, *, times: int) -> bool:
    """Whether no case was open against an account between two of its slashes."""
    frees = []
    for _ in range(times):
        await later(world)
        frees.append(await open_cases_of(world) == 0)
        async with world.new_work() as work:
            if await work[SlashRow].where(account=account, state="executed"):
                return any(frees[:-1])
    return any(frees)


async def test_get_convictions__of_job_and_account__say_who_may_show_it_and_what_came_of_it(
    world: World,
) -> None:
    maker, commit = await worked(world)
    subject, job, convict = commit.digest(), maker.spec.job(), maker.members[0].wallet.account
    await note(world, ruled(maker, slashable(maker, subject)))
    async with sdk(world) as client:
        (noted,) = (await client.whole(GET_CONVICTIONS, job=job)).convictions
        await client.call(POST_EVIDENCE, evidence(world, maker, subject), job=job)
        world.wait(5)
        await world.tick()
        await world.sync()
        (announced,) = (await client.whole(GET_CONVICTIONS_OF, account=convict)).convictions
        innocent = (
            await client.whole(GET_CONVICTIONS_OF, account=make_wallet("out1").account)
        ).convictions
        world.wait(5)
        for _ in range(2):
            await world.tick()
        (executed,) = (await client.whole(GET_CONVICTIONS, job=job)).convictions

    assert noted.auditors == tuple(session_of(name).peer for name in AUDITORS)
    assert (noted.subject, noted.account, noted.slash) == (subject, convict, None)
    assert innocent == () and announced.slash is not None and executed.slash is not None
    assert announced.slash.state == "announced" and announced.slash.window_ends is not None
    assert announced.slash.window_ends * 1000 > announced.slash.convicted_at
    assert (executed.slash.state, executed.slash.window_ends) == ("executed", None)
    assert executed.slash.evidence == blob_digest(b"bundle")


async def test_note_convictions__accuser_of_honest_work__owes_what_its_audit_was_paid(
    world: World,
) -> None:
    maker, commit = await worked(world)
    accuser = session_of("out1").peer

    await note(world, ruled(maker, slashable(maker, commit.digest(), whom=accuser)))

    (row,) = await rows(world)
    flops = Flops(commit.num_units * maker.spec.unit_flops[0])
    assert row.owed == pay_for(flops, AUDIT.price) < pay_for(flops, maker.members[0].price)
