"""The API as its users see it."""

import asyncio

import httpx

from contracts.keys.wallet import Session
from contracts.terms.amounts import BaseUnits
from contracts.terms.digest import blob_digest
from contracts.terms.encoding import decode, encode
from contracts.terms.escrow_messages import Grant, Limit
from contracts.terms.history import encode_kept
from contracts.terms.ids import ZERO_DIGEST, Digest, StageIndex
from contracts.terms.messages import DataSpec, JobSpec, LeaseAccept
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.bodies.base import Body, Problem, SignedBody, Stored, read_body
from market.bodies.jobs import (
    CoordinatorClaim,
    HostedJobs,
    HostHeartbeat,
    HostRegistered,
    JobEndpoint,
    JobPosted,
    JobView,
    Permit,
    PostJob,
    PostReports,
    QuoteRequest,
    QuoteView,
    RegisterHost,
    StepReport,
)
from market.bodies.market import (
    AccountView,
    CoordinatorView,
    FaucetRequest,
    FaucetView,
    NetworkView,
)
from market.bodies.money import JobMoney, OrderView, PayView, PostOrder
from market.bodies.offers import (
    AcceptLease,
    Heartbeat,
    LeasesView,
    LeaseView,
    OfferStored,
    OffersView,
    Withdrawal,
)
from market.bodies.signing import (
    heartbeat_digest,
    hosting_digest,
    reports_digest,
    withdrawal_digest,
)
from market.service.rows import BatchRow, JobRow
from tests.integration.market.client import HOST, client_of, once, signed
from tests.support.history import DOMAIN, JobMaker, Member, make_session, make_wallet
from tests.support.market_world import (
    ANCHORER,
    DEVICE,
    MANIFEST,
    LeasedMaker,
    World,
    market_spec,
    sign_digest,
    spec_changes,
)
from tests.support.patience import patience


async def post(client: httpx.AsyncClient, path: str, body: Body) -> httpx.Response:
    return await client.post(path, content=body.json_bytes(), headers={**HOST, **once(path)})


def problem(response: httpx.Response) -> Problem:
    return read_body(Problem, response.content)


def job_body(spec: JobSpec, *, by: str = "poster", deadline: int = 4_000_000_000) -> PostJob:
    signed = make_wallet(by).sign(spec, DOMAIN).encoded()
    permit = Permit(deadline=UnixSeconds(deadline), signature=bytes(65))
    return PostJob(signed=signed, permit=permit)


async def test_api__a_job_from_offer_to_its_pay__every_route_answers(world: World) -> None:
    async with client_of(world) as client:
        network = read_body(NetworkView, (await client.get("/network")).content)
        assert network.times.tail > 0 and network.anchorer == world.chain.anchorer
        wallet = make_wallet("coordinator")
        claim = CoordinatorClaim(
            address=wallet.account,
            signature=wallet.sign_digest(hosting_digest("host", wallet.account)),
        )
        answer = await post(
            client, "/hosting/register", RegisterHost(host="host", coordinators=(claim,))
        )
        assert read_body(HostRegistered, answer.content).coordinators == 1
        asked = signed(world, make_wallet("poster"), "POST", "/coordinators", key="c1")
        answer = await client.post("/coordinators", headers=asked)
        assert read_body(CoordinatorView, answer.content).coordinator == wallet.account
        again = await client.post("/coordinators", headers=asked)
        assert again.content == answer.content

        account = make_wallet("ann").account
        world.chain.give_tokens(account, 10**7)
        world.chain.deposit(account, 10**7)
        await world.sync()
        offer = world.sign_offer("ann", 10**11)
        answer = await post(client, "/offers", SignedBody(signed=offer.encoded()))
        offered = read_body(OfferStored, answer.content)
        name = offered.offer
        assert answer.status_code == 201 and name == offer.message.digest()
        assert not offered.withdrawn

        path = f"/blobs/{blob_digest(MANIFEST).hex()}"
        put = await client.put(
            path, content=MANIFEST, headers=signed(world, wallet, "PUT", path, MANIFEST)
        )
        assert put.status_code == 204
        got = await client.get(f"/blobs/{blob_digest(MANIFEST).hex()}")
        assert got.content == MANIFEST
        spec = market_spec()
        quote = read_body(
            QuoteView,
            (await post(client, "/jobs/quote", QuoteRequest(spec=spec.encoded()))).content,
        )
        assert not quote.fits and quote.not_matched[0].constraint == "heartbeat"
        await beat(client, world, name)
        quote = read_body(
            QuoteView,
            (await post(client, "/jobs/quote", QuoteRequest(spec=spec.encoded()))).content,
        )
        assert quote.fits and quote.price_at_asks == spec.price_ceiling

        world.chain.give_tokens(spec.poster, spec.budget)
        answer = await post(client, "/jobs", job_body(spec))
        posted = read_body(JobPosted, answer.content)
        assert answer.status_code == 202 and posted.job == spec.job() and posted.state == "draft"
        again = await post(client, "/jobs", job_body(spec))
        assert again.content == answer.content
        await world.tick()
        (lease,) = await beat(client, world, name)
        assert lease.price == spec.price_ceiling and lease.spec == job_body(spec).signed

        await world.register()
        peer = make_session("peer")
        accept = await accept_over(client, world, lease, "ann", peer)
        assert accept.state == "accepted"
        await world.tick()
        hosted = read_body(
            HostedJobs,
            (await client.post("/hosting/claim", json={"host": "host"}, headers=HOST)).content,
        )
        assert [each.job for each in hosted.jobs] == [spec.job()]
        seen = read_body(JobView, (await client.get(f"/jobs/{spec.job().hex()}")).content)
        assert [each.state for each in seen.leases] == ["active"]
        endpoint = JobEndpoint(job=spec.job(), address="127.0.0.1:7")
        answer = await post(
            client,
            "/hosting/heartbeat",
            HostHeartbeat(host="host", jobs=(spec.job(),), endpoints=(endpoint,)),
        )
        assert len(read_body(HostedJobs, answer.content).jobs) == 1

        maker = maker_of(spec, lease, "ann", peer)
        maker.seal_step()
        maker.seal_step(last=True)
        batch = encode([encode_kept(item) for item in maker.items])
        path = f"/jobs/{spec.job().hex()}/messages"
        by_coordinator = signed(world, make_wallet("coordinator"), "POST", path, batch)
        answer = await client.post(path, content=batch, headers=by_coordinator)
        stored = read_body(Stored, answer.content)
        assert (stored.stored, stored.known) == (len(maker.items) - 1, 1)
        answer = await client.post(path, content=batch, headers=by_coordinator)
        assert read_body(Stored, answer.content).known == len(maker.items)
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
        assert (shown.bonded, shown.claimed) == (lease.stake, view.earned)
        assert shown.free == 10**7 - lease.stake + view.earned
        root = await a_batch(world)
        assert (await client.get(f"/batches/{root.hex()}")).status_code == 200
        withdrawn = await client.request(
            "DELETE",
            f"/offers/{name.hex()}",
            content=Withdrawal(
                signature=sign_digest(make_session("agent ann"), withdrawal_digest(name))
            ).json_bytes(),
        )
        assert withdrawn.status_code == 204
        assert read_body(OffersView, (await client.get("/offers")).content).offers == ()
        again = await post(client, "/offers", SignedBody(signed=offer.encoded()))
        assert read_body(OfferStored, again.content).withdrawn


async def a_batch(world: World) -> Digest:
    async with world.new_work() as work:
        return (await work[BatchRow].where())[0].root


async def beat(
    client: httpx.AsyncClient, world: World, offer: Digest, name: str = "ann"
) -> tuple[LeaseView, ...]:
    world.beats += 1
    at = world.now
    signature = sign_digest(make_session(f"agent {name}"), heartbeat_digest(offer, at))
    body = Heartbeat(at=at, signature=signature)
    answer = await client.post(f"/offers/{offer.hex()}/heartbeat", content=body.json_bytes())
    return read_body(LeasesView, answer.content).leases


def accept_of(lease: LeaseView, peer: Session) -> LeaseAccept:
    return LeaseAccept(
        job=lease.job,
        account=lease.account,
        session_key=peer.key,
        offer=lease.offer,
        price=lease.price,
        stake=lease.stake,
        device_class=DEVICE,
    )


async def accept_over(
    client: httpx.AsyncClient, world: World, lease: LeaseView, name: str, peer: Session
) -> LeaseView:
    accept = make_wallet(name).sign(accept_of(lease, peer), DOMAIN).encoded()
    bond = world.sign_bond(name, lease).encoded()
    body = AcceptLease(accept=accept, bond=bond).json_bytes()
    answer = await client.post(f"/leases/{lease.lease.hex()}/accept", content=body)
    return read_body(LeaseView, answer.content)


def maker_of(spec: JobSpec, lease: LeaseView, name: str, peer: Session) -> JobMaker:
    return LeasedMaker(
        name=spec.name,
        members=[Member(make_wallet(name), peer, lease.price, StageIndex(lease.stage))],
        spec_changes=spec_changes(spec),
        anchorer=ANCHORER,
        leases={peer.key: accept_of(lease, peer)},
    )


# --------------------------------------------------------------------------------------- bad input


async def test_post_job__that_does_not_hold__is_refused_and_nothing_is_stored(
    world: World,
) -> None:
    no_data = DataSpec(manifest=Digest(b"m" * 32), seed=1, tokenizer=ZERO_DIGEST)
    changes: list[tuple[dict[str, object], str]] = [
        ({"deadline": UnixSeconds(1_750_000_030)}, "expired"),
        ({"data": no_data}, "not_found"),
        ({"memory_bytes": 1000}, "refused"),
        ({"unit_flops": (5,)}, "conflict"),
        ({"budget": BaseUnits(10)}, "unaffordable"),
    ]
    spec = market_spec()
    unknown = encode({"message": spec.value() | {"kind": "job_spec.v9"}, "signature": bytes(65)})
    bodies = [(job_body(spec.model_copy(update=each)), code) for each, code in changes]
    bodies += [
        (job_body(spec, by="mallory"), "bad_signature"),
        (job_body(spec, deadline=5), "expired"),
        (job_body(spec).model_copy(update={"signed": unknown}), "unknown_version"),
    ]

    async with client_of(world) as client:
        early = await post(client, "/jobs", job_body(spec))  # its coordinator is not known yet
        await world.register()
        codes = [problem(await post(client, "/jobs", body)).code for body, _ in bodies]

    assert problem(early).code == "forbidden"
    assert codes == [code for _, code in bodies]
    assert await world_jobs(world) == 0


async def test_heartbeat__replayed_or_clock_is_off_or_another_key__is_refused(
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

    assert [problem(answer).code for answer in answers] == [
        *["expired"] * 4,
        "bad_signature",
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


async def world_jobs(world: World) -> int:
    async with world.new_work() as work:
        return len(await work[JobRow].where())
