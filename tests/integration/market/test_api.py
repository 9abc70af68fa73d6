"""The API as its users see it."""

import asyncio

import httpx

from contracts.terms.amounts import BaseUnits
from contracts.terms.encoding import decode, encode
from contracts.terms.escrow_messages import Grant, Limit
from contracts.terms.history import encode_kept
from contracts.terms.ids import ZERO_DIGEST, Digest
from contracts.terms.messages import DataSpec, JobSpec
from contracts.terms.moments import UnixMillis, UnixSeconds
from contracts.terms.typed_data import Domain
from market.bodies.base import Body, Problem, SignedBody, Stored, read_body
from market.bodies.jobs import (
    HostedJobs,
    HostHeartbeat,
    JobEndpoint,
    JobView,
    Permit,
    PostJob,
    PostReports,
    QuoteRequest,
    QuoteView,
    StepReport,
)
from market.bodies.market import (
    AccountView,
    FaucetRequest,
    FaucetView,
)
from market.bodies.money import JobMoney, OrderView, PayView, PostOrder
from market.bodies.offers import (
    Heartbeat,
    LeasesView,
    LeaseView,
    OfferStored,
    OffersView,
    Withdrawal,
)
from market.bodies.signing import (
    heartbeat_digest,
    reports_digest,
    withdrawal_digest,
)
from market.service.rows import BatchRow, JobRow
from tests.integration.market.client import HOST, client_of, once, signed
from tests.support.history import DOMAIN, make_session, make_wallet
from tests.support.market_world import (
    STAKE,
    World,
    market_spec,
    sign_digest,
)
from tests.support.patience import patience


async def post(client: httpx.AsyncClient, path: str, body: Body) -> httpx.Response:
    return await client.post(path, content=body.json_bytes(), headers={**HOST, **once(path)})


def problem(response: httpx.Response) -> Problem:
    return read_body(Problem, response.content)


def job_body(
    spec: JobSpec, *, by: str = "poster", domain: Domain = DOMAIN, deadline: int = 4_000_000_000
) -> PostJob:
    signed = make_wallet(by).sign(spec, domain).encoded()
    permit = Permit(deadline=UnixSeconds(deadline), signature=bytes(65))
    return PostJob(signed=signed, permit=permit)


async def test_quote__offer_is_new_then_heard__says_what_lacks_and_then_the_price(
    world: World,
) -> None:
    await world.register()
    await world.stake("ann")
    await world.sync()
    offer, spec, found = world.sign_offer("ann", 10**11), market_spec(), []
    async with client_of(world) as client:
        answer = await post(client, "/offers", SignedBody(signed=offer.encoded()))
        offered = read_body(OfferStored, answer.content)
        assert answer.status_code == 201 and offered.offer == offer.message.digest()
        for _ in range(2):
            answer = await post(client, "/jobs/quote", QuoteRequest(spec=spec.encoded()))
            found.append(read_body(QuoteView, answer.content))
            await beat(client, world, offered.offer)

    silent, heard = found
    assert not silent.fits and silent.not_matched[0].constraint == "heartbeat"
    assert heard.fits and heard.price_at_asks == spec.price_ceiling


async def test_api__a_matched_job_to_its_pay__every_route_answers(world: World) -> None:
    maker = await world.start_job()
    spec, account = maker.spec, make_wallet("ann").account
    async with client_of(world) as client:
        answer = await client.post("/hosting/claim", headers=HOST)
        assert [each.job for each in read_body(HostedJobs, answer.content).jobs] == [spec.job()]
        endpoint = JobEndpoint(job=spec.job(), address="127.0.0.1:7")
        answer = await post(
            client,
            "/hosting/heartbeat",
            HostHeartbeat(jobs=(spec.job(),), endpoints=(endpoint,)),
        )
        assert len(read_body(HostedJobs, answer.content).jobs) == 1

        maker.seal_step()
        maker.seal_step(last=True)
        batch = encode([encode_kept(item) for item in maker.items])
        path = f"/jobs/{spec.job().hex()}/messages"
        by_coordinator = signed(world, make_wallet("coordinator"), "POST", path, batch)
        for known in (1, len(maker.items)):
            answer = await client.post(path, content=batch, headers=by_coordinator)
            assert read_body(Stored, answer.content).known == known
        answer = await client.get(f"/jobs/{spec.job().hex()}/messages?after=1&limit=2")
        page = decode(answer.content)
        assert page == [[2, encode_kept(maker.items[1])], [3, encode_kept(maker.items[2])]]
        report = StepReport(
            step=1, loss_millionths=3_000_000, tokens_per_second=900, at=UnixMillis(5)
        )
        signature = sign_digest(maker.session, reports_digest(spec.job(), [report]))
        answer = await post(
            client,
            f"/jobs/{spec.job().hex()}/reports",
            PostReports(reports=(report,), signature=signature),
        )
        assert read_body(Stored, answer.content).stored == 1

        for _ in range(6):
            world.wait(6)
            await world.tick()
        view = read_body(JobView, (await client.get(f"/jobs/{spec.job().hex()}")).content)
        assert view.coordinator_address == "127.0.0.1:7" and view.opening is not None
        assert view.state == "finished" and view.progress.loss_millionths == 3_000_000
        assert view.vested == view.earned > 0 == view.claimed  # nobody has a limit yet
        path = f"/jobs/{spec.job().hex()}"
        pay = read_body(PayView, (await client.get(f"{path}/pay")).content)
        assert pay.seal is not None and [each.account for each in pay.leaves] == [account]
        limit = Limit(account=account, limit=BaseUnits(view.earned + 7))
        grant = Grant(job=spec.job(), limits=(limit,), by=world.by)
        handed_in = make_wallet("coordinator").sign(grant, DOMAIN).encoded()
        answer = await post(client, f"{path}/orders", PostOrder(signed=handed_in))
        order = read_body(OrderView, answer.content)
        assert (order.digest, order.kind, order.state) == (grant.digest(), "grant", "waiting")
        for _ in range(3):
            world.wait(6)
            await world.tick()
        again = await post(client, f"{path}/orders", PostOrder(signed=handed_in))
        assert read_body(OrderView, again.content).state == "sent"
        money = read_body(JobMoney, (await client.get(f"{path}/money")).content)
        (mine,) = money.accounts
        assert (mine.limit, mine.claimed, mine.due) == (view.earned + 7, view.earned, 0)
        assert money.free == spec.budget - mine.limit and money.committed == mine.limit
        assert money.committed_an_hour == mine.limit and money.warning is None
        shown = read_body(AccountView, (await client.get(f"/accounts/{account.hex()}")).content)
        assert (shown.bonded, shown.claimed) == (spec.min_stake, view.earned)
        assert shown.free == STAKE - spec.min_stake + view.earned
        root = (await world.rows(BatchRow))[0].root
        assert (await client.get(f"/batches/{root.hex()}")).status_code == 200
        name = world.offers["ann"]
        withdrawn = await client.request(
            "DELETE",
            f"/offers/{name.hex()}",
            content=Withdrawal(
                signature=sign_digest(make_session("agent ann"), withdrawal_digest(name))
            ).json_bytes(),
        )
        assert withdrawn.status_code == 204
        assert read_body(OffersView, (await client.get("/offers")).content).offers == ()
        offer = world.sign_offer("ann", 10**11)
        again = await post(client, "/offers", SignedBody(signed=offer.encoded()))
        assert read_body(OfferStored, again.content).withdrawn


async def beat(client: httpx.AsyncClient, world: World, offer: Digest) -> tuple[LeaseView, ...]:
    said = world.sign_beat(make_session("agent ann"), offer)
    answer = await client.post(f"/offers/{offer.hex()}/heartbeat", content=said.json_bytes())
    return read_body(LeasesView, answer.content).leases


# --------------------------------------------------------------------------------------- bad input


async def test_post_job__that_does_not_hold__is_refused_and_nothing_is_stored(
    world: World,
) -> None:
    no_data = DataSpec(manifest=Digest(b"m" * 32), seed=1, tokenizer=ZERO_DIGEST)
    changes: list[tuple[dict[str, object], str]] = [
        ({"deadline": UnixSeconds(1_750_000_030)}, "expired"),
        ({"data": no_data}, "not_found"),
        ({"memory_bytes": 1000}, "refused"),
        ({"item_flops": (5,)}, "conflict"),
        ({"budget": BaseUnits(10)}, "unaffordable"),
    ]
    spec = market_spec()
    unknown = encode({"message": spec.value() | {"kind": "job_spec.v99"}, "signature": bytes(65)})
    bodies = [(job_body(spec.model_copy(update=each)), code) for each, code in changes]
    bodies += [
        (job_body(spec, by="mallory"), "bad_signature"),
        (job_body(spec, domain=Domain(DOMAIN.chain_id + 1, DOMAIN.escrow)), "bad_signature"),
        (job_body(spec, deadline=5), "expired"),
        (job_body(spec).model_copy(update={"signed": unknown}), "unknown_version"),
    ]

    async with client_of(world) as client:
        early = await post(client, "/jobs", job_body(spec))  # its coordinator is not known yet
        await world.register()
        codes = [problem(await post(client, "/jobs", body)).code for body, _ in bodies]

    assert problem(early).code == "forbidden"
    assert codes == [code for _, code in bodies]
    assert await world.rows(JobRow) == []


async def test_heartbeat_and_withdrawal__replayed_or_clock_is_off_or_another_key__are_refused(
    world: World,
) -> None:
    offer, agent = await world.offer("ann", 10**11), make_session("agent ann")
    now, eve = world.now, make_session("mallory")

    async with client_of(world) as client:
        answers = []
        for at, key in (
            *((each, agent) for each in (now, now - 1, now + 121_000, now - 121_000)),
            (now + 1, eve),
        ):
            moment = UnixMillis(at)
            signature = sign_digest(key, heartbeat_digest(offer, moment))
            body = Heartbeat(at=moment, signature=signature)
            answers.append(
                await client.post(f"/offers/{offer.hex()}/heartbeat", content=body.json_bytes())
            )
        taken_back = Withdrawal(signature=sign_digest(eve, withdrawal_digest(offer))).json_bytes()
        answers.append(await client.request("DELETE", f"/offers/{offer.hex()}", content=taken_back))

    assert [problem(answer).code for answer in answers] == [
        *["expired"] * 4,
        *["bad_signature"] * 2,
    ]


async def test_faucet__asked_once__gives_gas_and_tokens(world: World) -> None:
    account = make_wallet("new").account

    async with client_of(world) as client:
        asking = asyncio.create_task(post(client, "/faucet", FaucetRequest(account=account)))
        async with asyncio.timeout(patience(10)):
            while not asking.done():
                await world.tick()
                await asyncio.sleep(0.01)
        given = read_body(FaucetView, (await asking).content)
        again = await post(client, "/faucet", FaucetRequest(account=account))

    now = await world.chain.account(account)
    assert (given.gas, given.tokens) == (now.gas, now.token) == (10**18, 10**9)
    assert read_body(FaucetView, again.content) == given
