"""Health, network, faucet, accounts and coordinators: where a newcomer begins."""

from typing import Annotated

from fastapi import Response

from contracts.terms.errors import ContractRefused, DeadlineExceeded, WrongConfiguration
from market.api.callers import Caller, caller
from market.api.context import AccountPath, Api, ApiDep, KeyedDep, WorkDep, answer, carry_out
from market.api.routing import Routes
from market.bodies.base import Money
from market.bodies.market import (
    AccountView,
    CoordinatorView,
    FaucetRequest,
    FaucetView,
    HealthView,
    NetworkView,
)
from market.bodies.routes import GET_ACCOUNT, GET_HEALTH, GET_NETWORK, POST_COORDINATOR, POST_FAUCET
from market.service.coordinators import allocate_coordinator
from market.service.faucet import ask_faucet
from market.service.ports import UnitOfWork
from market.service.rows import FaucetRow
from market.service.show_network import show_account

router = Routes(tags=["network"])

FAUCET_SECONDS = 20.0
_LOOK_SECONDS = 0.5


@router.on(GET_HEALTH)
async def get_health() -> HealthView:
    """The process answers; says nothing of what is behind it."""
    return HealthView()


@router.on(GET_NETWORK)
async def get_network(api: ApiDep) -> NetworkView:
    """Chain, contracts, parameters: all that a newcomer needs."""
    return await api.network_view()


@router.on(POST_FAUCET)
async def post_faucet(
    api: ApiDep,
    work: WorkDep,
    asked: FaucetRequest,
    this: KeyedDep,
) -> Response:
    """Gas and test tokens, on an embedded chain; waits until they are there."""
    once = this.of(asked.account)
    async with work:
        if (known := await once.find(work)) is not None:
            return known
    if not (await api.network()).embedded:
        raise WrongConfiguration(
            "this market runs on a public chain and gives nothing away: get gas and tokens there"
        )
    row = await ask_faucet(
        asked.account,
        gas=api.faucet_gas,
        tokens=Money(api.faucet_tokens),
        max_grants=api.faucet_grants,
        now=api.market.clock(),
        work=work,
    )
    response = answer(await _given(row, api, work))
    async with work:
        if await once.find(work) is None:
            await once.store(response, work)
    return response


async def _given(row: FaucetRow, api: Api, work: UnitOfWork) -> FaucetView:
    """Wait for the chain worker; a client that gives up asks again and meets the same grant."""
    ends = api.market.clock() + FAUCET_SECONDS * 1000
    while row.state == "asked":
        if api.market.clock() > ends:
            raise DeadlineExceeded("the faucet has not answered yet: ask again")
        await api.market.wakeup.wait("given", _LOOK_SECONDS)
        async with work:
            row = await work[FaucetRow].get(row.account, row.number) or row
    if row.state == "refused":
        raise ContractRefused(f"the faucet was refused: {row.refusal}", error=row.refusal)
    sent = [each for each in (row.gas_transaction, row.token_transaction) if each is not None]
    return FaucetView(gas=row.gas, tokens=row.tokens, transactions=tuple(sent))


@router.on(GET_ACCOUNT)
async def get_account(account: AccountPath, api: ApiDep, work: WorkDep) -> AccountView:
    """What an account has, on chain and in the ledger."""
    return await show_account(account, api.market.chain, work)


@router.on(POST_COORDINATOR)
async def post_coordinator(
    api: ApiDep, work: WorkDep, this: KeyedDep, who: Annotated[Caller, caller("jobs")]
) -> Response:
    """Allocate a hosted coordinator to the caller's next job.

    It is kept for ten minutes, and for good once that job is in escrow. An account has four that it
    has not paid for, then its oldest again.
    """

    async def make(work: UnitOfWork) -> Response:
        coordinator = await allocate_coordinator(who.account, api.market.clock(), work)
        return answer(CoordinatorView(coordinator=coordinator), 201)

    return await carry_out(this.of(who.account), work, make)
