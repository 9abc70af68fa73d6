"""What the newest seal of a job vests is paid, and what it says is earned is shown.

While a job runs, agents claim for themselves. Once it is over, and before an account's limit is
released, the market shows the newest pay tree for everybody: what was shown as earned never goes
back to the poster. Any seal pays at any time, so nothing is lost by being late but by a release.
"""

import logging
from collections.abc import Collection, Mapping, Sequence

from contracts.governance.claims import PayTree, Subtree
from contracts.governance.pay import PayLeaf
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import ContractRefused
from contracts.terms.ids import Address, JobId
from contracts.terms.moments import UnixMillis
from market.domain.jobs import HAS_ENDED
from market.service.coding import decode_pay, seal_of, spec_of
from market.service.due import SOON_MILLIS
from market.service.ports import Chain, Claim, UnitOfWork
from market.service.rows import JobRow, LimitRow, SealRow

REFUSED_MILLIS = 60_000
PAUSE_MILLIS = 60_000
"""Between two claims for the seals of a job that is over: a coordinator could go on sealing."""
log = logging.getLogger(__name__)


async def claim_job(
    job: JobId,
    now: UnixMillis,
    work: UnitOfWork,
    chain: Chain,
    accounts: Collection[Address] | None = None,
) -> UnixMillis | None:
    """Show the escrow what it does not know of a job's pay. Safe to repeat and to interrupt.

    Args:
        job: Which.
        now: The market's clock.
        work: Holds the rows.
        chain: Where to.
        accounts: Whose pay; None: everybody's, once the job is over.

    Returns:
        When to look again; None: the chain knows all of it.
    """
    async with work:
        claims = await _claims(job, work, accounts)
    again = None
    soon = SOON_MILLIS if accounts is not None else PAUSE_MILLIS
    for claim in claims:
        try:
            await chain.claim(claim)
            again = again or UnixMillis(now + soon)
        except ContractRefused as refusal:
            log.warning("claim of job %s: %s", job.hex(), refusal.message)
            again = UnixMillis(now + REFUSED_MILLIS)
    return again


async def _claims(
    job: JobId, work: UnitOfWork, accounts: Collection[Address] | None
) -> list[Claim]:
    row = await work[JobRow].get(job)
    seal = None if row is None else await work[SealRow].get(job, row.step)
    if row is None or seal is None or (accounts is None and row.state not in HAS_ENDED):
        return []
    leaves = decode_pay(seal.pay)
    limits = {each.account: each for each in await work[LimitRow].where(job=job)}
    wanted = {leaf.account for leaf in leaves if is_news(leaf, limits)}
    if accounts is not None:
        wanted.intersection_update(accounts)
    header, signed = spec_of(row).message.header(), seal_of(seal)
    return [
        Claim(header, signed, part, _total(part.leaves, limits)) for part in parts(leaves, wanted)
    ]


async def unshown_in(job: JobId, work: UnitOfWork) -> set[Address]:
    """Accounts of whose pay the chain does not know all yet; in the caller's transaction."""
    row = await work[JobRow].get(job)
    seal = None if row is None else await work[SealRow].get(job, row.step)
    if seal is None:
        return set()
    limits = {each.account: each for each in await work[LimitRow].where(job=job)}
    return {leaf.account for leaf in decode_pay(seal.pay) if is_news(leaf, limits)}


def is_news(leaf: PayLeaf, limits: Mapping[Address, LimitRow]) -> bool:
    """Whether the escrow would pay or note anything."""
    held = limits.get(leaf.account)
    if held is None:
        return False
    return min(leaf.vested, held.limit) > held.claimed or min(leaf.earned, held.limit) > held.earned


def parts(leaves: Sequence[PayLeaf], wanted: Collection[Address]) -> list[Subtree]:
    """The fewest calls that show `wanted`."""
    if not wanted:
        return []
    tree = PayTree(tuple(leaves))
    if len(wanted) == 1:
        (account,) = wanted
        leaf, path = tree.prove(account)
        return [Subtree((leaf,), path)]
    return tree.subtrees(wanted)


def _total(leaves: Sequence[PayLeaf], limits: Mapping[Address, LimitRow]) -> BaseUnits:
    """Grows with what a claim can still change: so it tells claims of one seal apart."""
    known = [(leaf, limits[leaf.account].limit) for leaf in leaves if leaf.account in limits]
    shown = (min(leaf.vested, limit) + min(leaf.earned, limit) for leaf, limit in known)
    return BaseUnits(sum(shown))
