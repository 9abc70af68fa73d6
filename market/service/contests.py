"""What a convict says against a slash, and what becomes of it.

While a slash is announced the convicted account's wallet may name one bundle against it: a bundle
of the declared format, about the work that the evidence is about (the evidence itself, if that
shows nothing). Anything else is refused here, and the slash goes on. From then on nothing is
executed until a judge has run both bundles again: the market's operator, or a host that is no party
(docs/protocol.md 5: until disputes on chain replace them, they are trusted with this).

The rule for a judge who is slow: the slash waits with its case open (`slash`), for as long as it
takes. A convict gains nothing by a contest, because the stake stays in the case and is slashed when
it is rejected; nobody is slashed because a judge is slow; and a job's refund waits for it only so
long (`close_jobs`), so that neither holds a poster's money up. What a slow judge costs is the
convict's use of its stake, which whoever holds the slasher's key can take from anybody anyhow.

An upheld contest ends the slash by this bundle, not the conviction: the next auditor's bundle is
announced, if one was shown, or may be shown still. Each auditor shows one, so this ends.
"""

from dataclasses import replace

from contracts.terms.errors import BadSignature, Conflict, Forbidden, NotFound
from contracts.terms.ids import Address, Digest
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import recover
from market.bodies.signing import contest_digest
from market.service.convictions import accusers_of, show_next
from market.service.evidence import Bundles, need_contest
from market.service.ports import Chain, UnitOfWork
from market.service.rows import CoordinatorRow, SlashRow
from market.service.slash_events import blocks_of_case, is_renewing, tell_of_slash


async def contest_slash(
    evidence: Digest,
    bundle: Digest,
    signature: bytes,
    *,
    now: UnixMillis,
    work: UnitOfWork,
    bundles: Bundles,
    chain: Chain,
) -> SlashRow:
    """The convicted shows a bundle that speaks for it. Safe to repeat.

    Raises:
        NotFound: no such slash, or the bundle is no blob of this market.
        Malformed: it is no whole bundle, or not about this work.
        BadSignature: not by the convicted account's wallet.
        Conflict: it is not announced, its case ran out, or it was contested with another bundle.
    """
    async with work:
        row = await _held(evidence, work)
    if recover(contest_digest(evidence, bundle), signature) != row.account:
        raise BadSignature(f"not signed by 0x{row.account.hex()}")
    says = await bundles.read(bundle)
    need_contest(says, row, await bundles.read(evidence), chain.domain)
    # Nobody could judge it any more: it is announced again first.
    if row.state == "announced" and not await _can_be_answered(row, now, chain):
        raise Conflict("its case ran out, and is announced again", state=row.state)
    async with work:
        row = await _held(evidence, work)
        if row.contest == bundle:
            return row
        if row.state != "announced" or row.contest is not None:
            raise Conflict(f"a slash that is {row.state} cannot be contested so", state=row.state)
        row = replace(row, state="contested", contest=bundle)
        await _put(row, now, work)
    return row


async def accounts_of_judge(
    host: str | None, owner: Address | None, work: UnitOfWork
) -> frozenset[Address]:
    """Whom a judge speaks for: none for the operator; of a host its owner and its coordinators.

    Raises:
        Forbidden: a host that does not say whose it is.
    """
    if host is None:
        return frozenset()
    if owner is None:
        raise Forbidden("this host's credential does not say whose it is: it judges nothing")
    async with work:
        mine = await work[CoordinatorRow].where(host=host)
    return frozenset({owner, *(row.address for row in mine)})


async def judge_contest(
    evidence: Digest,
    *,
    upheld: bool,
    by: frozenset[Address] = frozenset(),
    now: UnixMillis,
    work: UnitOfWork,
) -> SlashRow:
    """Somebody ran the bundles again: `upheld` ends the case without a slash.

    Args:
        evidence: Names the slash.
        upheld: Whether the contest is right.
        by: Accounts that the judge speaks for; the operator speaks for none.
        now: The market's clock.
        work: Holds the rows.

    Raises:
        NotFound: no such slash. Conflict: it is not contested.
        Forbidden: the judge is the accused, or one of who accuse.
    """
    async with work:
        row = await _held(evidence, work)
        if by & ({row.account, row.challenger} | await accusers_of(row, work)):
            raise Forbidden("a party to a contest does not judge it")
        if row.state != "contested":
            raise Conflict(f"a slash that is {row.state} is not contested", state=row.state)
        has_ended = row.case is not None and len(await blocks_of_case(row.case, work)) > 1
        row = replace(row, state=_judged(row, upheld=upheld, has_ended=has_ended))
        await _put(row, now, work)
        if upheld:
            await show_next(row, now, work)
    return row


def _judged(row: SlashRow, *, upheld: bool, has_ended: bool) -> str:
    """The state that follows; `has_ended`: its newest known case is over."""
    if upheld:
        return "dropped" if has_ended else "dropping"
    if row.case is None:  # a chain that went back may not have it again yet
        return "announcing"
    return "convicted" if has_ended and not is_renewing(row) else "announced"


async def _can_be_answered(row: SlashRow, now: UnixMillis, chain: Chain) -> bool:
    found = None if row.case is None else await chain.slash_case(row.case)
    return found is not None and now < found.executable_until * 1000


async def _held(evidence: Digest, work: UnitOfWork) -> SlashRow:
    row = await work[SlashRow].lock(evidence)
    if row is None:
        raise NotFound("no such slash", evidence=evidence.hex())
    return row


async def _put(row: SlashRow, now: UnixMillis, work: UnitOfWork) -> None:
    await work[SlashRow].put(row)
    await work.emit("slash", row.evidence)
    tell_of_slash(row, now, work)
