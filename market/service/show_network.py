"""What is shown of accounts, on the chain and in their jobs."""

from contracts.terms.ids import Address
from market.bodies.market import AccountView
from market.service.account_pay import jobs_of, own_pay
from market.service.ports import Chain, UnitOfWork
from market.service.rows import JobRow, LimitRow


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
