"""Health, network, faucet, accounts and coordinators: where a newcomer begins."""

from typing import Annotated

from fastapi import APIRouter, Response

from contracts.terms.errors import (
    Conflict,
    ContractRefused,
    DeadlineExceeded,
    Forbidden,
    NoMatch,
    WrongConfiguration,
)
from contracts.terms.ids import Address
from market.api.callers import Caller, caller
from market.api.context import (
    AccountPath,
    Api,
    ApiDep,
    KeyedDep,
    WorkDep,
    answer,
    body,
    carry_out,
    documented,
)
from market.api.refusals import CHAIN, refused
from market.api.views import earned_by, entry_views
from market.bodies import (
    AccountView,
    ContractsView,
    CoordinatorView,
    FaucetRequest,
    FaucetView,
    HealthView,
    Money,
    NetworkView,
    StakeView,
    TokenView,
)
from market.service.coordinators import allocate_coordinator
from market.service.faucet import ask_faucet
from market.service.ports import UnitOfWork
from market.service.rows import FaucetRow

router = APIRouter(tags=["network"])

FAUCET_SECONDS = 20.0
_LOOK_SECONDS = 0.5


@router.get("/health", response_model=HealthView)
async def get_health() -> Response:
    """The process answers; says nothing of what is behind it."""
    return answer(HealthView())


@router.get("/network", response_model=NetworkView, responses=refused(*CHAIN))
async def get_network(api: ApiDep) -> Response:
    """Chain, contracts, parameters: all that a newcomer needs."""
    return answer(await network_view(api))


async def network_view(api: Api) -> NetworkView:
    """The chain, as it is seen from here."""
    network, chain = await api.network(), api.market.chain
    return NetworkView(
        version=api.version,
        chain_id=chain.domain.chain_id,
        rpc_url=network.rpc_url,
        embedded=network.embedded,
        contracts=ContractsView(**network.contracts),
        deployed_block=network.deployed_block,
        block=(await chain.head()).number,
        token=TokenView(
            name=network.token_name,
            version=network.token_version,
            symbol=network.token_symbol,
            decimals=network.token_decimals,
            domain_separator=network.token_separator,
        ),
        parameters=dict(network.parameters),
        anchorer=chain.anchorer,
        epoch_seconds=network.parameters["epoch_length"],
        confirmations=api.confirmations,
        clock=api.market.clock(),
    )


@router.post(
    "/faucet",
    response_model=FaucetView,
    openapi_extra=documented(FaucetRequest),
    responses=refused(
        WrongConfiguration, Forbidden, Conflict, ContractRefused, DeadlineExceeded, *CHAIN
    ),
)
async def post_faucet(
    api: ApiDep,
    work: WorkDep,
    asked: Annotated[FaucetRequest, body(FaucetRequest)],
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


@router.get("/accounts/{name}", response_model=AccountView, responses=refused(*CHAIN))
async def get_account(account: AccountPath, api: ApiDep, work: WorkDep) -> Response:
    """What an account has, on chain and in the ledger."""
    return answer(await account_view(account, api, work))


async def account_view(account: Address, api: Api, work: UnitOfWork) -> AccountView:
    """What an account has, at the head of the chain and in the ledger."""
    now = await api.market.chain.account(account)
    async with work:
        earned, vested, claimable = await earned_by(account, work, claimed=now.claimed)
        entries = await entry_views(account, work)
    stake = now.stake
    return AccountView(
        account=Address(account),
        gas=now.gas,
        token=now.token,
        permit_nonce=now.permit_nonce,
        stake=StakeView(active=stake.active, reserved=stake.reserved, unbonding=stake.unbonding),
        earned=earned,
        vested=vested,
        claimable=claimable,
        claimed=now.claimed,
        entries=entries,
    )


@router.post(
    "/coordinators",
    response_model=CoordinatorView,
    status_code=201,
    responses=refused(NoMatch, Conflict),
)
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
