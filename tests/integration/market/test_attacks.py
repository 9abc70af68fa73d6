"""What strangers and members put into a market that is not theirs: each attack, and its refusal."""

from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from contracts.keys.wallet import Wallet
from contracts.terms.digest import blob_digest
from contracts.terms.encoding import encode
from contracts.terms.errors import BadSignature, Forbidden
from contracts.terms.history import Kept, encode_kept
from contracts.terms.ids import Address
from contracts.terms.moments import UnixMillis, UnixSeconds
from contracts.terms.typed_data import Domain
from market.api.app import make_app
from market.bodies.jobs import (
    CoordinatorClaim,
    HostHeartbeat,
    Permit,
    PostJob,
    RegisterHost,
    StandingJob,
)
from market.bodies.routes import (
    GET_JOB,
    POST_CLAIM,
    POST_COORDINATOR,
    POST_HOST,
    POST_HOST_HEARTBEAT,
    POST_JOB,
)
from market.bodies.signing import HostCredential, hosting_digest
from market.service.coordinators import UNPAID_AT_MOST
from market.service.feeds import newest_events
from market.service.rows import BlobUploadRow, BlobUseRow, CoordinatorRow, MessageRow
from tallystick.sdk.http import Signer, signed_by
from tests.integration.market.client import HOST, TOKEN, client_of, once, sdk, signed
from tests.support.history import DOMAIN, JobMaker, claims_in, make_session, make_wallet
from tests.support.market_world import World, market_spec, one_chunk

COORDINATOR = make_wallet("coordinator")


async def stored(world: World, maker: JobMaker) -> int:
    """How many items the stream of a job has."""
    async with world.new_work() as work:
        return await work[MessageRow].count(job=maker.spec.job())


def encoded(items: Sequence[Kept]) -> list[bytes]:
    return [encode_kept(item) for item in items]


# ------------------------------------------------------------------------------ messages of a job


async def test_messages__claim_that_its_coordinator_never_had__is_refused_and_seals_go_on(
    world: World,
) -> None:
    maker = await world.start_job()
    (peer,) = maker.members
    step = maker.step_items()
    (honest,) = claims_in(step, "work")
    lie = peer.session.sign(honest.model_copy(update={"base": blob_digest(b"another")}))
    earlier = step[: [getattr(each, "message", None) for each in step].index(honest)]
    path, body = f"/jobs/{maker.spec.job().hex()}/messages", encode([encode_kept(lie)])
    signers: tuple[Signer, ...] = (peer.session, peer.wallet, make_wallet("poster"))
    headers = [{}, HOST, *(signed(world, by, "POST", path, body) for by in signers)]
    async with sdk(world) as client, client_of(world) as http:
        await client.post_messages(maker.spec.job(), encoded(maker.items), by=COORDINATOR)
        await client.post_messages(maker.spec.job(), encoded(earlier), by=COORDINATOR)
        before = await stored(world, maker)

        answers = [await http.post(path, content=body, headers=each) for each in headers]

        assert {each.status_code for each in answers} <= {401, 403}
        assert await stored(world, maker) == before
        maker.seal(step)
        await client.post_messages(maker.spec.job(), encoded(maker.items), by=COORDINATOR)
    assert (await world.job(maker.spec.job())).step == 1


async def test_signed_request__anything_else_than_was_signed__is_refused(world: World) -> None:
    maker = await world.start_job()
    path = f"/jobs/{maker.spec.job().hex()}/messages"
    maker.seal_step()
    body = encode([encode_kept(item) for item in maker.items])
    tries: list[tuple[dict[str, Any], str | None]] = [
        ({"domain": Domain(DOMAIN.chain_id + 1, DOMAIN.escrow)}, "bad_signature"),
        ({"domain": Domain(DOMAIN.chain_id, Address(bytes(20)))}, "bad_signature"),
        ({"method": "PUT"}, "bad_signature"),
        ({"target": f"/v1/jobs/{bytes(32).hex()}/messages"}, "bad_signature"),
        ({"body": blob_digest(b"another")}, "bad_signature"),
        ({"key": "another"}, "bad_signature"),
        ({"skew": 121_000}, "expired"),
        ({"skew": -121_000}, "expired"),
        ({"scheme": "bearer"}, "bad_signature"),
        ({"cut": 2}, "bad_signature"),
        ({"skew": 119_000}, None),
    ]
    before = await stored(world, maker)

    async with client_of(world) as http:
        for changed, code in tries:
            shown = signed_by(
                COORDINATOR,
                changed.get("domain", DOMAIN),
                changed.get("method", "POST"),
                changed.get("target", f"/v1{path}"),
                changed.get("body", blob_digest(body)),
                UnixMillis(world.now + changed.get("skew", 0)),
                key=changed.get("key", ""),
            )
            shown = shown.replace("Tallystick", changed.get("scheme", "Tallystick"))
            shown = shown[: len(shown) - changed.get("cut", 0)]
            answer = await http.post(path, content=body, headers={"authorization": shown})
            is_stored = await stored(world, maker) > before
            assert (answer.json().get("code"), is_stored) == (code, code is None), changed


async def test_client__market_clock_is_hours_away__signs_by_that_and_asks_again_if_it_jumps(
    world: World,
) -> None:
    maker = await world.start_job()
    maker.seal_step()
    async with sdk(world) as client:
        await client.post_messages(maker.spec.job(), encoded(maker.items[:2]), by=COORDINATOR)
        world.wait(4 * 3600)  # a machine that slept: its monotonic clock stood still
        found = await client.post_messages(maker.spec.job(), encoded(maker.items), by=COORDINATOR)

    assert found.known == 2


# ------------------------------------------------------------------------------ a feed that stops


async def test_heartbeat__job_stands_still__who_watches_the_job_reads_why_until_it_runs(
    world: World,
) -> None:
    maker = await world.start_job()
    job = maker.spec.job()
    await world.send(maker)
    standing = StandingJob(job=job, why="conflict: x")
    async with sdk(world, HostCredential("host").shown(TOKEN)) as host:
        await host.call(POST_CLAIM)
        for _ in range(2):
            await host.call(POST_HOST_HEARTBEAT, HostHeartbeat(jobs=(), standing=(standing,)))
        stands = (await host.call(GET_JOB, job=job)).failure
        await host.call(POST_HOST_HEARTBEAT, HostHeartbeat(jobs=(job,)))
        runs = (await host.call(GET_JOB, job=job)).failure

    assert stands == "stands still: conflict: x"
    assert runs is None
    async with world.new_reading() as work:
        told = await newest_events(job, work, limit=2, kinds=("state",))
    assert [b"stands still" in event.data for event in told] == [False, True]


# ------------------------------------------------------------------- coordinators, keys of callers


async def test_unsigned__coordinator_or_blob__is_refused_and_nothing_is_taken_or_stored(
    world: World,
) -> None:
    await world.register()
    before, blob = dict(world.blobs.blobs), b"a blob"
    async with client_of(world) as http:
        answers = [
            await http.post("/coordinators", headers=once("a")),
            await http.put(f"/blobs/{blob_digest(blob).hex()}", content=blob),
        ]

    codes = [(answer.status_code, answer.json()["code"]) for answer in answers]
    assert codes == [(401, "bad_signature")] * 2
    assert world.blobs.blobs == before
    async with world.new_work() as work:
        assert await work[CoordinatorRow].count(allocated_at=None) == 1


async def test_coordinators__one_account_takes_all_it_can__others_still_get_one(
    world: World,
) -> None:
    await world.register(names=[f"coordinator {number}" for number in range(6)])
    eve, ann = make_wallet("eve"), make_wallet("ann")
    async with sdk(world) as client:
        taken = [
            (await client.call(POST_COORDINATOR, by=eve, key=f"{n}")).coordinator for n in range(20)
        ]
        mine = (await client.call(POST_COORDINATOR, by=ann, key="0")).coordinator

    assert len(set(taken)) == UNPAID_AT_MOST
    assert mine not in taken


async def test_idempotency_key__stranger_uses_mine__neither_reads_my_answer_nor_takes_my_key(
    world: World,
) -> None:
    await world.register(names=("coordinator", "another coordinator"))
    eve, ann = make_wallet("eve"), make_wallet("ann")
    async with sdk(world) as client:
        theirs = (await client.call(POST_COORDINATOR, by=eve, key="order 7")).coordinator
        mine = (await client.call(POST_COORDINATOR, by=ann, key="order 7")).coordinator
        again = (await client.call(POST_COORDINATOR, by=ann, key="order 7")).coordinator

    assert theirs != mine == again


async def test_idempotency_key__of_a_job_that_another_signed__is_not_taken_by_a_bad_signature(
    world: World,
) -> None:
    await world.register()
    spec = market_spec()
    world.chain.give_tokens(spec.poster, spec.budget)
    permit = Permit(deadline=UnixSeconds(4_000_000_000), signature=bytes(65))
    forged = PostJob(signed=make_wallet("eve").sign(spec, DOMAIN).encoded(), permit=permit)
    mine = PostJob(signed=make_wallet("poster").sign(spec, DOMAIN).encoded(), permit=permit)
    async with sdk(world) as client:
        with pytest.raises(BadSignature):
            await client.call(POST_JOB, forged, key="order 7")
        posted = await client.call(POST_JOB, mine, key="order 7")

    assert posted.job == spec.job()


# ------------------------------------------------------------------------------------------- hosts


async def test_hosting__under_the_name_of_another_host__is_refused(world: World) -> None:
    maker = await world.start_job()
    job, wallet = maker.spec.job(), make_wallet("evil's own")
    claim = CoordinatorClaim(
        address=wallet.account,
        signature=wallet.sign_digest(hosting_digest("host", wallet.account)),
    )
    tokens = (
        TOKEN,
        HostCredential("evil").shown(TOKEN),
        HostCredential("host").shown("another market's"),
        HostCredential("host").shown(TOKEN)[:-1],
        HostCredential("evil").shown(TOKEN).replace("ZXZpbA", "aG9zdA"),
        "tsh_",
        "tsh_!.x.y",
        "tsh_aG9zdA.zz.00",
    )
    for token in tokens:
        async with sdk(world, token) as evil:
            with pytest.raises((Forbidden, BadSignature)):
                await evil.call(POST_HOST, RegisterHost(coordinators=(claim,)))
            with pytest.raises(Forbidden):
                await evil.call(POST_CLAIM)
            with pytest.raises(Forbidden):
                await evil.call(POST_HOST_HEARTBEAT, HostHeartbeat(jobs=(job,)))
    async with sdk(world, HostCredential("host").shown(TOKEN)) as host:
        held = (await host.call(POST_CLAIM)).jobs

    assert [each.job for each in held] == [job]


# ------------------------------------------------------------------------------------------- blobs


@pytest.mark.parametrize("by", [make_wallet("eve"), make_session("eve")])
async def test_blobs__body_is_signed_under_another_name__is_refused_before_a_byte_is_read(
    world: World, by: Signer
) -> None:
    body, num_read = b"other bytes", 0
    path = f"/blobs/{blob_digest(b'a name').hex()}"
    app = make_app(world.api())

    async def counted(scope: Scope, receive: Receive, send: Send) -> None:
        async def read() -> Message:
            nonlocal num_read
            num_read += 1
            return await receive()

        await app(scope, read, send)

    transport = httpx.ASGITransport(counted)
    async with httpx.AsyncClient(transport=transport, base_url="http://market/v1") as http:
        answer = await http.put(path, content=body, headers=signed(world, by, "PUT", path, body))

    code = "wrong_bytes" if isinstance(by, Wallet) else "bad_signature"
    assert (answer.json()["code"], num_read) == (code, 0)
    async with world.new_reading() as work:
        assert await work[BlobUploadRow].count() == 0


async def test_blobs__length_is_not_said_or_is_a_lie__is_refused_and_costs_nothing(
    world: World,
) -> None:
    eve, blob = make_wallet("eve"), b"a blob" * 1000
    name = blob_digest(blob)
    path = f"/blobs/{name.hex()}"
    async with client_of(world) as http:
        shown = signed(world, eve, "PUT", path, blob)
        answers = [await http.put(path, content=one_chunk(blob), headers=shown)]
        for said in ("1", "9" * 5000):
            headers = {**shown, "Content-Length": said}
            answers.append(await http.put(path, content=blob, headers=headers))

    assert [each.json()["code"] for each in answers] == ["malformed", "too_large", "too_large"]
    assert await world.blobs.size(name) is None
    assert {row.num_bytes for row in await world.rows(BlobUseRow)} == {0}
