"""Jobs by browser wallets: what a wallet is shown is what we hash, what it signed is a job."""

from typing import Any

import httpx
from eth_account import Account
from eth_account.messages import encode_typed_data

from contracts.keys.wallet import Wallet
from contracts.terms.digest import keccak
from contracts.terms.ids import JobId
from contracts.terms.kinds import decode_message
from contracts.terms.messages import JobSpec
from contracts.terms.typed_data import PERMIT
from tests.integration.market.client import client_of, once
from tests.support.history import make_wallet
from tests.support.market_world import CEILING, World

POSTER = make_wallet("somebody with a browser")
BUDGET = 20 * 10**6
DEADLINE = 4_000_000_000


def order(job: JobId, **changed: Any) -> dict[str, Any]:
    """What somebody wants."""
    wanted: dict[str, Any] = {
        "like": job.hex(),
        "poster": POSTER.account.hex(),
        "name": "mine",
        "steps": 5,
        "budget": str(BUDGET),
        "price_ceiling": str(CEILING),
        "deadline": DEADLINE,
    }
    return wanted | changed


def signed(typed: dict[str, Any], wallet: Wallet = POSTER) -> str:
    """By the library that wallets are compared with."""
    found = Account.sign_message(encode_typed_data(full_message=typed), wallet.secret)
    return bytes(found.signature).hex()


async def drafted(client: httpx.AsyncClient, world: World, **changed: Any) -> dict[str, Any]:
    """What the wallet is to sign."""
    like = (await world.start_job()).spec.job()
    world.chain.give_tokens(POSTER.account, BUDGET)
    answer = await client.post("/jobs/typed-data", json=order(like, **changed), headers=once())
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def body(typed: dict[str, Any], wallet: Wallet = POSTER) -> dict[str, Any]:
    """The job as it is posted."""
    permit = {"deadline": typed["permit_deadline"], "signature": signed(typed["permit"], wallet)}
    return {"spec": typed["spec"], "signature": signed(typed["header"], wallet), "permit": permit}


async def test_job__signed_by_a_wallet__is_the_one_that_was_drafted(world: World) -> None:
    async with client_of(world) as client:
        typed = await drafted(client, world)
        posted = await client.post("/jobs/typed", json=body(typed), headers=once("k2"))
        again = await client.post("/jobs/typed", json=body(typed), headers=once("k2"))
        job = (await client.get(f"/jobs/{typed['job']}")).json()

    assert (posted.status_code, posted.json()["job"]) == (202, typed["job"])
    assert again.json() == posted.json()
    assert (job["spec"]["name"], job["spec"]["batch"]["steps"]) == ("mine", 5)
    assert job["spec"]["budget"] == str(BUDGET)


async def test_typed_data__as_a_wallet_hashes_it__is_our_struct_hash(world: World) -> None:
    async with client_of(world) as client:
        typed = await drafted(client, world)
    spec = decode_message(bytes.fromhex(typed["spec"]))
    network = await world.chain.network("0", world.now)
    nonce = (await world.chain.account(POSTER.account)).permit_nonce
    values = (POSTER.account, network.contracts.escrow, BUDGET, nonce, typed["permit_deadline"])

    assert isinstance(spec, JobSpec)
    shown = encode_typed_data(full_message=typed["header"])
    assert (shown.header, shown.body) == (world.domain.separator, spec.digest())
    assert encode_typed_data(full_message=typed["permit"]).body == PERMIT.hash(values)
    assert keccak(b"\x19\x01" + shown.header + shown.body) == world.domain.signing_digest(
        spec.digest()
    )


async def test_job__signed_by_another__is_refused(world: World) -> None:
    async with client_of(world) as client:
        typed = await drafted(client, world)
        answer = await client.post(
            "/jobs/typed", json=body(typed, make_wallet("eve")), headers=once()
        )
        missing = await client.get(f"/jobs/{typed['job']}")

    assert (answer.status_code, answer.json()["code"]) == (401, "bad_signature")
    assert missing.status_code == 404


async def test_typed_data__job_that_cannot_be__is_refused(world: World) -> None:
    like = (await world.start_job()).spec.job()
    world.chain.give_tokens(POSTER.account, BUDGET)
    wrong: list[tuple[dict[str, Any], int, str]] = [
        ({"budget": str(BUDGET + 1)}, 402, "unaffordable"),
        ({"like": "00" * 32}, 404, "not_found"),
        ({"steps": 0}, 400, "malformed"),
        ({"name": "x" * 257}, 400, "malformed"),
    ]
    async with client_of(world) as client:
        for changed, status, code in wrong:
            wanted = order(like, **changed)
            answer = await client.post("/jobs/typed-data", json=wanted, headers=once())
            assert (answer.status_code, answer.json()["code"]) == (status, code)
