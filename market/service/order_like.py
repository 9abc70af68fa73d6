"""A new order from one that the market knows: same model, data and rules, another poster and price.

Weights, tokenizer and data of the first are blobs that are here already, so nothing is uploaded.
"""

from contracts.governance.escrow import signing_seconds
from contracts.terms.errors import Unaffordable
from contracts.terms.ids import Address
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixMillis, UnixSeconds
from contracts.terms.typed_data import (
    PERMIT,
    WalletDomain,
    wallet_request,
)
from market.bodies.jobs import CloneJob, TypedJob
from market.bodies.market import NetworkView
from market.service.coding import spec_of
from market.service.coordinators import allocate_coordinator
from market.service.find_job import find_job
from market.service.ports import Chain, UnitOfWork

PERMIT_SECONDS = 3600


def order_like(
    spec: JobSpec,
    wish: CloneJob,
    *,
    coordinator: Address,
    salt: int,
    open_by: UnixSeconds | None = None,
) -> JobSpec:
    """`spec` as somebody else orders it. Whether it is admitted is for `check_job` to say.

    A warm-up that is longer than the job ends with it, as in a job file of that many steps. What
    the coordinator may commit is as much of the budget as in `spec`.

    Raises:
        Malformed: a value that no JobSpec may have.
    """
    batch = spec.batch.model_copy(update={"steps": wish.steps})
    warmup = min(spec.optimizer.warmup_steps, batch.optimizer_steps)
    changes = {
        "poster": wish.poster,
        "coordinator": coordinator,
        "salt": salt,
        "name": wish.name,
        "budget": wish.budget,
        "burst": spec.burst * wish.budget // max(1, spec.budget),
        "rate": max(1, spec.rate * wish.budget // max(1, spec.budget)),
        "open_by": wish.deadline if open_by is None else open_by,
        "price_ceiling": wish.price_ceiling,
        "deadline": wish.deadline,
        "batch": batch.value(),
        "optimizer": spec.optimizer.value() | {"warmup_steps": warmup},
    }
    return JobSpec.from_value(spec.value() | changes)


async def check_budget(wanted: CloneJob, chain: Chain) -> None:
    """Refuse an order that its poster has not the tokens for.

    Raises:
        Unaffordable: the account holds less than the budget.
    """
    held = (await chain.account(wanted.poster)).token
    if held < wanted.budget:
        raise Unaffordable(
            "the account holds less than the budget", held=held, budget=wanted.budget
        )


async def write_order(
    wanted: CloneJob, *, now: UnixMillis, salt: int, margin: int, work: UnitOfWork
) -> JobSpec:
    """The JobSpec of an order; a coordinator is allocated to it.

    It can be opened as long as signatures count, by the `margin` of the escrow.

    Raises:
        NotFound: no such job to be like.
        NoMatch: no host has a coordinator left.
        Malformed: a value that no JobSpec may have.
    """
    async with work:
        like = spec_of(await find_job(wanted.like, work)).message
        coordinator = await allocate_coordinator(wanted.poster, now, work)
    return order_like(
        like,
        wanted,
        coordinator=coordinator,
        salt=salt,
        open_by=UnixSeconds(now // 1000 + signing_seconds(margin)),
    )


async def typed_order(
    spec: JobSpec, network: NetworkView, chain: Chain, *, now: UnixMillis
) -> TypedJob:
    """What the wallet of an order's poster is asked to sign: the order, and the permit for it."""
    chain_id, permit_deadline = chain.domain.chain_id, UnixSeconds(now // 1000 + PERMIT_SECONDS)
    nonce = (await chain.account(spec.poster)).permit_nonce
    tokens = WalletDomain(
        network.token.name, network.token.version, chain_id, network.contracts.token
    )
    permit = (spec.poster, network.contracts.escrow, spec.budget, nonce, permit_deadline)
    return TypedJob(
        job=spec.job(),
        spec=spec.encoded(),
        header=wallet_request(spec.typed, spec.typed_values(), chain.domain),
        permit=wallet_request(PERMIT, permit, tokens),
        permit_deadline=permit_deadline,
    )
