"""Stake of who was convicted: announced, contested or executed, and found again in the ledger."""

import pytest

from contracts.terms import errors
from contracts.terms.amounts import BaseUnits
from contracts.terms.digest import blob_digest
from contracts.terms.ids import Address, Digest, JobId
from market.bodies.routes import GET_JOB, GET_SLASHES, POST_CONTEST, POST_JUDGEMENT
from market.bodies.settlement import ContestSlash, JudgeContest, SlashView
from market.bodies.signing import contest_digest
from market.domain import ledger
from market.domain.slashing import Conviction, Slash
from market.service.booking import balances_of
from market.service.coding import wide
from market.service.rows import BalanceRow, SlashRow
from market.service.slash import announce_slashes, convict, execute_slashes
from tallystick.sdk.client import MarketClient
from tests.integration.market.client import TOKEN, sdk
from tests.support.history import JobMaker, make_wallet
from tests.support.market_world import STAKE, World

RESERVED = 1_000_000  # min_stake of the test's job
ANNOUNCEMENT, EXECUTION = 5, 60  # seconds
FINDER = make_wallet("finder").account
NOBODY = Address(bytes(20))  # whom no token is sent to


def publish(world: World, text: bytes) -> Digest:
    """A bundle in the market's blobs, of the world's only job."""
    (job,) = {each.job for each in world.bundles.says.values()}
    return world.show(text, job)


async def convicted(
    world: World,
    maker: JobMaker,
    evidence: bytes = b"bundle",
    *,
    wanted: int = RESERVED,
    owed: int = 10**9,
    finder: Address = FINDER,
) -> SlashRow:
    """A conviction of the job's one provider."""
    conviction = Conviction(
        world.show(evidence, maker.spec.job()),
        maker.spec.job(),
        maker.members[0].wallet.account,
        BaseUnits(wanted),
        BaseUnits(owed),
        finder,
    )
    return await convict(conviction, world.now, world.now, world.new_work())


async def slash_of(world: World, evidence: Digest) -> SlashRow:
    async with world.new_work() as work:
        row = await work[SlashRow].get(evidence)
    assert row is not None
    return row


async def balances(world: World, maker: JobMaker) -> dict[str, int]:
    """What the ledger says of the stake of the job's provider."""
    job, account = maker.spec.job(), maker.members[0].wallet.account
    names = {
        "reserved": ledger.reserved(job, account),
        "free": ledger.stake(account),
        "unbonding": ledger.unbonding(account),
        "slashed": ledger.slashed(account),
        "escrow": ledger.escrow(job),
    }
    async with world.new_work() as work:
        found = await balances_of(list(names.values()), work)
        total = sum(row.amount for row in await work[BalanceRow].where())
    assert total == 0
    return {name: found.get(account, 0) for name, account in names.items()}


async def check_ledger_is_the_chains(world: World, account: Address) -> None:
    now = (await world.ports.account(account)).stake
    async with world.new_work() as work:
        rows = {row.account: row.amount for row in await work[BalanceRow].where()}
    held = sum(
        amount
        for name, amount in rows.items()
        if name.startswith("reserved:") and name.endswith(account.hex())
    )
    assert held == now.reserved
    assert rows.get(ledger.stake(account), 0) == now.free
    assert rows.get(ledger.unbonding(account), 0) == now.unbonding


async def wait_and_tick(world: World, seconds: int, *, times: int = 1) -> None:
    for _ in range(times):
        world.wait(seconds)
        await world.tick()


async def forget_from(world: World, event: str) -> None:
    """The chain loses the block of this event, and all later ones."""
    head = (await world.ports.head()).number
    first = next(each.block for each in await world.ports.events(0, head) if each.event == event)
    world.chain.forget(head + 1 - first)


async def test_slash__convicted__is_announced_executed_and_every_part_found_again(
    world: World,
) -> None:
    maker = await world.start_job()
    row = await convicted(world, maker)
    before = await balances(world, maker)
    finder = (await world.ports.account(FINDER)).token

    await world.tick()
    gathered = await slash_of(world, row.evidence)
    await wait_and_tick(world, ANNOUNCEMENT)
    await world.tick()
    announced = await slash_of(world, row.evidence)
    await wait_and_tick(world, ANNOUNCEMENT)
    ended = await slash_of(world, row.evidence)
    after = await balances(world, maker)

    assert gathered.state == "convicted"
    assert (announced.state, announced.case) == ("announced", 1) and announced.announced_by
    assert (ended.state, ended.amount) == ("executed", RESERVED) and ended.ended_by
    assert (ended.restitution, ended.bounty, ended.burned) == (300_000, 200_000, 500_000)
    assert before["reserved"] == RESERVED and after["reserved"] == 0
    assert after["slashed"] == 500_000 and after["free"] == before["free"]
    assert after["escrow"] == before["escrow"] + 300_000
    paid = (await world.ports.account(FINDER)).token
    assert paid - finder == 200_000
    await check_ledger_is_the_chains(world, row.account)


async def test_slash__more_than_the_reservation__reaches_free_then_unbonding_stake(
    world: World,
) -> None:
    maker = await world.start_job()
    account = maker.members[0].wallet.account
    world.chain.unbond(account, 4_000_000)
    row = await convicted(world, maker, wanted=8_000_000, owed=0)

    await wait_and_tick(world, ANNOUNCEMENT, times=4)

    after = await balances(world, maker)
    assert (await slash_of(world, row.evidence)).burned == 6_400_000
    assert (after["reserved"], after["free"]) == (0, 0)
    assert after["unbonding"] == STAKE - 8_000_000
    await check_ledger_is_the_chains(world, account)


async def test_slash__several_convictions__settle_together_and_late_ones_get_what_is_left(
    world: World,
) -> None:
    maker = await world.start_job()
    world.chain.unbond(maker.members[0].wallet.account, 1)
    first = await convicted(world, maker, b"1", wanted=STAKE)
    second = await convicted(world, maker, b"2", wanted=STAKE)
    await wait_and_tick(world, ANNOUNCEMENT)
    late = await convicted(world, maker, b"3", wanted=STAKE)

    await wait_and_tick(world, ANNOUNCEMENT, times=4)

    rows = [await slash_of(world, each.evidence) for each in (first, second, late)]
    assert [row.state for row in rows] == ["executed", "executed", "nothing"]
    assert [row.amount for row in rows] == [STAKE // 2, STAKE // 2, 0]
    await check_ledger_is_the_chains(world, first.account)


@pytest.mark.parametrize(
    ("left", "upheld", "then"),
    [
        (0, True, ("executed", STAKE)),
        (1, False, ("executed", 1)),
    ],
)
async def test_slash__stake_is_in_an_open_case__waits_for_its_end(
    world: World, left: int, upheld: bool, then: tuple[str, int]
) -> None:
    maker = await world.start_job()
    junk = await convicted(world, maker, b"junk", wanted=STAKE - left)
    await wait_and_tick(world, ANNOUNCEMENT)
    genuine = await convicted(world, maker, b"genuine", wanted=STAKE)
    async with sdk(world, TOKEN) as client:
        await client.call(
            POST_CONTEST, contest(junk.evidence, publish(world, b"mine")), evidence=junk.evidence
        )
        await wait_and_tick(world, ANNOUNCEMENT, times=3)
        waiting = await slash_of(world, genuine.evidence)
        await client.call(POST_JUDGEMENT, JudgeContest(upheld=upheld), evidence=junk.evidence)
    await wait_and_tick(world, ANNOUNCEMENT, times=5)

    ended = await slash_of(world, genuine.evidence)
    assert waiting.state == "convicted"
    assert (ended.state, ended.amount) == then
    assert (await slash_of(world, junk.evidence)).state == ("dropped" if upheld else "executed")
    await check_ledger_is_the_chains(world, junk.account)


async def test_slash__repeated_at_every_point__happens_once(world: World) -> None:
    maker = await world.start_job()
    for _ in range(6):
        row = await convicted(world, maker)
        for _ in range(2):
            await announce_slashes(world.now, world.new_work(), world.ports)
            await execute_slashes(world.new_work(), world.ports)
        await wait_and_tick(world, 2)
    await wait_and_tick(world, 2, times=6)

    names = [event.event for event in await world.ports.events(0, 10**9)]
    assert (await slash_of(world, row.evidence)).state == "executed"
    assert names.count("SlashAnnounced") == names.count("SlashEnded") == 1
    assert (await balances(world, maker))["slashed"] == 500_000


async def test_slash__execution_of_one_is_refused__others_are_executed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    maker = await world.start_job()
    first, second = sorted((b"1", b"2"), key=blob_digest)  # the order of rows
    refused = await convicted(world, maker, first, finder=NOBODY)
    other = await convicted(world, maker, second)

    await wait_and_tick(world, ANNOUNCEMENT, times=3)

    assert (await slash_of(world, refused.evidence)).state == "announced"
    assert (await slash_of(world, other.evidence)).state == "executed"
    assert f"{refused.evidence.hex()}: contract_refused: ERC20InvalidReceiver" in caplog.text


async def test_slash__announcement_of_one_is_refused__others_are_announced(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = await world.start_job()
    first, second = sorted((b"1", b"2"), key=blob_digest)  # the order of rows
    refused, other = [await convicted(world, maker, each) for each in (first, second)]
    announce = world.chain.announce_slash

    async def announce_slash(slash: Slash, times_announced: int) -> Digest:
        if slash.evidence == refused.evidence:
            raise errors.ContractRefused("the account holds 0 wei")
        return await announce(slash, times_announced)

    monkeypatch.setattr(world.chain, "announce_slash", announce_slash)
    await wait_and_tick(world, ANNOUNCEMENT)
    await world.sync()

    assert (await slash_of(world, refused.evidence)).state == "announcing"
    assert (await slash_of(world, other.evidence)).state == "announced"


async def test_slash__chain_forgets_its_end__books_back_and_happens_again(world: World) -> None:
    maker = await world.start_job()
    row = await convicted(world, maker)
    await wait_and_tick(world, ANNOUNCEMENT, times=4)
    done = await balances(world, maker)
    assert (await slash_of(world, row.evidence)).state == "executed"

    await forget_from(world, "SlashEnded")
    await world.tick()
    await wait_and_tick(world, ANNOUNCEMENT, times=2)

    assert (await slash_of(world, row.evidence)).state == "executed"
    assert await balances(world, maker) == done
    await check_ledger_is_the_chains(world, row.account)


async def test_slash__market_was_off_until_its_case_ran_out__is_announced_again(
    world: World,
) -> None:
    maker, row = await announced(world)

    world.wait(ANNOUNCEMENT + EXECUTION)
    await wait_and_tick(world, 1, times=2)
    again = await slash_of(world, row.evidence)
    await wait_and_tick(world, ANNOUNCEMENT, times=2)

    assert (again.state, again.case) == ("announced", 2)
    assert (await slash_of(world, row.evidence)).state == "executed"
    assert (await balances(world, maker))["slashed"] == 500_000
    await check_ledger_is_the_chains(world, row.account)


async def test_slash__admin_cancels_its_case__is_over(world: World) -> None:
    maker, row = await announced(world)

    await world.chain.drop_slash(1)  # before it ran out: none but the slasher and the admin may
    await wait_and_tick(world, ANNOUNCEMENT + EXECUTION, times=3)

    ended = await slash_of(world, row.evidence)
    assert (ended.state, ended.case) == ("dropped", 1)
    assert (await balances(world, maker))["slashed"] == 0
    await check_ledger_is_the_chains(world, row.account)


# ---------------------------------------------------------------------------------------- contests


def contest(evidence: Digest, bundle: Digest, by: str = "ann") -> ContestSlash:
    signature = make_wallet(by).sign_digest(contest_digest(evidence, bundle))
    return ContestSlash(bundle=bundle, signature=signature)


async def contests(
    client: MarketClient, world: World, row: SlashRow, bundle: bytes = b"mine"
) -> SlashView:
    """The convict shows a bundle of its own."""
    shown = contest(row.evidence, publish(world, bundle))
    return await client.call(POST_CONTEST, shown, evidence=row.evidence)


async def announced(world: World) -> tuple[JobMaker, SlashRow]:
    maker = await world.start_job()
    row = await convicted(world, maker)
    await wait_and_tick(world, ANNOUNCEMENT)
    await world.sync()
    return maker, await slash_of(world, row.evidence)


@pytest.mark.parametrize(
    ("upheld", "state", "burned"), [(True, "dropped", 0), (False, "executed", 500_000)]
)
async def test_contest__judged__ends_as_the_bundles_say(
    world: World, upheld: bool, state: str, burned: int
) -> None:
    maker, row = await announced(world)
    async with sdk(world, TOKEN) as client:
        contested = await contests(client, world, row)
        await wait_and_tick(world, 2 * ANNOUNCEMENT, times=2)
        held = await slash_of(world, row.evidence)
        await client.call(POST_JUDGEMENT, JudgeContest(upheld=upheld), evidence=row.evidence)
        await wait_and_tick(world, 1, times=2)
        (shown,) = (await client.whole(GET_SLASHES, job=maker.spec.job())).slashes

    assert contested.state == held.state == "contested"
    assert (shown.state, shown.burned) == (state, burned)
    assert (await balances(world, maker))["slashed"] == burned
    await check_ledger_is_the_chains(world, row.account)


async def test_contest__no_bundle_about_this_work__is_refused_and_the_slash_goes_on(
    world: World,
) -> None:
    maker, row = await announced(world)
    bundle, of_other_work, of_another_job = (
        world.show(b"x", maker.spec.job()),
        world.show(b"of other work", maker.spec.job(), Digest(b"o" * 32)),
        world.show(b"of another job", JobId(bytes(32))),
    )
    del world.bundles.says[bundle]
    async with sdk(world) as client:
        for name in (bundle, of_other_work, of_another_job):
            with pytest.raises(errors.Malformed):
                await client.call(POST_CONTEST, contest(row.evidence, name), evidence=row.evidence)
    await wait_and_tick(world, ANNOUNCEMENT, times=2)

    assert (await slash_of(world, row.evidence)).state == "executed"
    assert (await balances(world, maker))["slashed"] == 500_000


async def test_contest__not_judged_in_time__acquits_nobody_and_slashes_nobody(
    world: World,
) -> None:
    maker, row = await announced(world)
    async with sdk(world, TOKEN) as client:
        await contests(client, world, row)
        open_cases = await cases_over(world, seconds=2 * (ANNOUNCEMENT + EXECUTION))
        waiting = await slash_of(world, row.evidence)
        untouched = await balances(world, maker)
        await client.call(POST_JUDGEMENT, JudgeContest(upheld=False), evidence=row.evidence)
        await wait_and_tick(world, ANNOUNCEMENT, times=4)

    assert min(open_cases) >= 1 and waiting.state == "contested" and waiting.case == 4
    assert untouched["slashed"] == 0
    assert (await slash_of(world, row.evidence)).state == "executed"
    assert (await balances(world, maker))["slashed"] == 500_000
    assert await open_cases_of(world) == 0
    await check_ledger_is_the_chains(world, row.account)


async def cases_over(world: World, *, seconds: int) -> list[int]:
    """How many cases were open against an account, after every fifth second."""
    found = []
    for _ in range(seconds // 5):
        await wait_and_tick(world, 5)
        found.append(await open_cases_of(world))
    return found


async def open_cases_of(world: World) -> int:
    """How many slash cases are open on chain."""
    events = await world.ports.events(0, 10**9)
    ids = [wide(event.args["id"]) for event in events if event.event == "SlashAnnounced"]
    return len([each for each in ids if await world.ports.slash_case(each) is not None])


@pytest.mark.parametrize("upheld", [True, False])
async def test_contest__judged_while_its_next_case_is_unconfirmed__ends_once(
    world: World, upheld: bool
) -> None:
    maker, row = await announced(world)
    async with sdk(world, TOKEN) as client:
        await contests(client, world, row)
        world.wait(ANNOUNCEMENT + EXECUTION // 2)
        await announce_slashes(world.now, world.new_work(), world.ports)
        renewing = await slash_of(world, row.evidence)
        await client.call(POST_JUDGEMENT, JudgeContest(upheld=upheld), evidence=row.evidence)
        await execute_slashes(world.new_work(), world.ports)
        await wait_and_tick(world, ANNOUNCEMENT, times=6)

    names = [event.event for event in await world.ports.events(0, 10**9)]
    assert (renewing.state, renewing.case, renewing.superseded) == ("contested", 1, 1)
    assert (await slash_of(world, row.evidence)).state == ("dropped" if upheld else "executed")
    assert (await balances(world, maker))["slashed"] == (0 if upheld else 500_000)
    assert names.count("SlashAnnounced") == names.count("SlashEnded") == 2
    await check_ledger_is_the_chains(world, row.account)


@pytest.mark.parametrize(
    ("judged", "upheld", "state"), [("before", True, "dropped"), ("after", False, "executed")]
)
async def test_contest__chain_forgets_the_announcement__holds_against_its_next_case(
    world: World, judged: str, upheld: bool, state: str
) -> None:
    _, row = await announced(world)
    async with sdk(world, TOKEN) as client:
        await contests(client, world, row)
        if judged == "before":
            await client.call(POST_JUDGEMENT, JudgeContest(upheld=upheld), evidence=row.evidence)
        await forget_from(world, "SlashAnnounced")
        await wait_and_tick(world, ANNOUNCEMENT, times=2)
        if judged == "after":
            contested = await slash_of(world, row.evidence)
            assert (contested.state, contested.case) == ("contested", 1)
            await client.call(POST_JUDGEMENT, JudgeContest(upheld=upheld), evidence=row.evidence)
    await wait_and_tick(world, ANNOUNCEMENT, times=2)

    assert (await slash_of(world, row.evidence)).state == state
    await check_ledger_is_the_chains(world, row.account)


async def test_contest__chain_forgets_that_it_was_dropped__is_dropped_again(world: World) -> None:
    maker, row = await announced(world)
    async with sdk(world, TOKEN) as client:
        await contests(client, world, row)
        await client.call(POST_JUDGEMENT, JudgeContest(upheld=True), evidence=row.evidence)
    await wait_and_tick(world, ANNOUNCEMENT + EXECUTION)
    dropped = await slash_of(world, row.evidence)

    await forget_from(world, "SlashAnnounced")
    await wait_and_tick(world, ANNOUNCEMENT, times=4)

    assert dropped.state == (await slash_of(world, row.evidence)).state == "dropped"
    assert (await balances(world, maker))["reserved"] == RESERVED


async def test_contest__case_ran_out__is_refused_until_it_is_announced_again(world: World) -> None:
    _, row = await announced(world)
    mine = contest(row.evidence, publish(world, b"mine"))
    world.wait(ANNOUNCEMENT + EXECUTION)
    async with sdk(world) as client:
        with pytest.raises(errors.Conflict, match="ran out"):
            await client.call(POST_CONTEST, mine, evidence=row.evidence)
        await wait_and_tick(world, 1, times=2)
        contested = await client.call(POST_CONTEST, mine, evidence=row.evidence)

    assert (contested.state, contested.case) == ("contested", 2)


async def test_contest__what_does_not_hold__is_refused(world: World) -> None:
    _, row = await announced(world)
    bundle, name = publish(world, b"mine"), row.evidence
    async with sdk(world) as client:
        with pytest.raises(errors.BadSignature):
            await client.call(POST_CONTEST, contest(name, bundle, by="bob"), evidence=name)
        with pytest.raises(errors.NotFound):
            await client.call(POST_CONTEST, contest(name, Digest(b"n" * 32)), evidence=name)
        with pytest.raises(errors.NotFound):
            await client.call(POST_CONTEST, contest(bundle, bundle), evidence=bundle)
        with pytest.raises(errors.Forbidden):
            await client.call(POST_JUDGEMENT, JudgeContest(upheld=True), evidence=name)
        await client.call(POST_CONTEST, contest(name, bundle), evidence=name)
        again = await client.call(POST_CONTEST, contest(name, bundle), evidence=name)
        with pytest.raises(errors.Conflict):
            await contests(client, world, row, b"another")
    async with sdk(world, TOKEN) as client:
        await client.call(POST_JUDGEMENT, JudgeContest(upheld=False), evidence=name)
        with pytest.raises(errors.Conflict):
            await client.call(POST_JUDGEMENT, JudgeContest(upheld=True), evidence=name)
        with pytest.raises(errors.Conflict):
            await contests(client, world, row, b"another")

    assert again.state == "contested"


async def contested_at_its_end(world: World) -> tuple[JobMaker, SlashRow]:
    """A job that is over and could be refunded, and a slash in it that is contested."""
    maker = await world.start_job()
    maker.seal_step(last=True)
    await world.send(maker)
    row = await convicted(world, maker)
    await wait_and_tick(world, ANNOUNCEMENT)
    await world.sync()
    async with sdk(world) as client:
        await contests(client, world, row)
    await world.tick()
    refundable_at = (await world.job(maker.spec.job())).refundable_at
    assert refundable_at is not None
    await wait_and_tick(world, refundable_at + 1 - world.chain.now)
    return maker, row


async def test_contest__job_could_be_refunded__waits_for_the_restitution(world: World) -> None:
    maker, row = await contested_at_its_end(world)
    await wait_and_tick(world, 1)
    waiting = await world.job(maker.spec.job())
    async with sdk(world, TOKEN) as client:
        await client.call(POST_JUDGEMENT, JudgeContest(upheld=False), evidence=row.evidence)
        await wait_and_tick(world, ANNOUNCEMENT, times=4)
        view = await client.call(GET_JOB, job=maker.spec.job())

    ended = await slash_of(world, row.evidence)
    assert waiting.state == "closed"
    assert (ended.state, view.state) == ("executed", "refunded") and ended.restitution > 0
    assert view.escrowed == maker.spec.budget + ended.restitution == view.earned + view.refunded
    assert view.reconciled


async def test_contest__nobody_judges__holds_a_refund_up_for_one_response_window_alone(
    world: World,
) -> None:
    maker, row = await contested_at_its_end(world)
    await wait_and_tick(world, world.chain.parameters["response_window"], times=2)
    refunded = await world.job(maker.spec.job())
    contested = await slash_of(world, row.evidence)
    await wait_and_tick(world, EXECUTION, times=2)
    async with sdk(world, TOKEN) as client:
        await client.call(POST_JUDGEMENT, JudgeContest(upheld=False), evidence=row.evidence)
    await wait_and_tick(world, ANNOUNCEMENT, times=4)

    ended = await slash_of(world, row.evidence)
    assert (refunded.state, contested.state) == ("refunded", "contested")
    assert (ended.state, ended.restitution) == ("executed", 0) and ended.burned > 0
    await check_ledger_is_the_chains(world, row.account)
