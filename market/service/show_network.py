"""What is shown of the chain, and of accounts on it and in their jobs."""

from contracts.terms.ids import Address
from contracts.terms.moments import UnixMillis
from market.bodies.market import (
    AccountView,
    ContractsView,
    EscrowTimesView,
    NetworkView,
)
from market.service.account_pay import jobs_of, own_pay
from market.service.ports import Chain, Network, UnitOfWork
from market.service.rows import JobRow, LimitRow


async def show_network(
    network: Network, chain: Chain, *, version: str, now: UnixMillis
) -> NetworkView:
    """The chain, as it is seen from here.

    Args:
        network: What the chain said a moment ago.
        chain: Asked for its head.
        version: Of this software.
        now: The market's clock.
    """
    return NetworkView.of(
        network,
        version=version,
        chain_id=chain.domain.chain_id,
        contracts=ContractsView(**network.contracts),
        block=(await chain.head()).number,
        times=EscrowTimesView.of(network.times),
        parameters=dict(network.parameters),
        anchorer=chain.anchorer,
        clock=now,
    )


async def show_account(account: Address, chain: Chain, work: UnitOfWork) -> AccountView:
    """What an account has at the head of the chain, and in its jobs."""
    now = await chain.account(account)
    async with work:
        jobs = tuple(await jobs_of(account, work))
        limits = await work[LimitRow].where(account=account)  # also of jobs that nobody posted here
        rows = await work[JobRow].where(job=jobs)
        pay = (await own_pay(account, rows, work)).values()
    return AccountView.of(
        now,
        account=account,
        bonded=sum(each.stake for each in limits),
        earned=sum(each.earned for each in pay),
        vested=sum(each.vested for each in pay),
        due=sum(each.due for each in pay),
        claimed=sum(each.claimed for each in limits),
    )
