"""Rows as the bodies of `/v1`: queries and translation, no decision.

The caller is inside a transaction.
"""

from collections.abc import Iterable, Sequence
from typing import Any, cast

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import NotFound
from contracts.terms.ids import Address, Digest, EpochNumber, JobId, StageIndex, StepNumber
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixMillis
from market.api.quotes import advised, excluded
from market.bodies import (
    BatchEntryView,
    BatchView,
    DebitView,
    EpochLeafView,
    EpochState,
    EpochSummary,
    EpochView,
    JobOutcome,
    JobPay,
    JobState,
    JobSummary,
    JobView,
    JobWanted,
    LeaseState,
    LeaseView,
    LedgerEntryView,
    OfferView,
    ProgressView,
    ProofStep,
    ProofView,
    ProviderView,
    StepReport,
    UnpublishedView,
)
from market.domain import ledger
from market.domain.advice import WhyNot
from market.domain.jobs import JobState as JobStates
from market.domain.jobs import Wanted
from market.domain.offers import offer_state
from market.domain.outcomes import outcome
from market.domain.reputation import is_trusted
from market.service.account_pay import claimed_of, jobs_of
from market.service.booking import balances_of
from market.service.coding import decode_why_not, spec_of
from market.service.ports import UnitOfWork
from market.service.reconcile import Booked, reconcile_job
from market.service.reputation import reputation_view, reputations_of
from market.service.rows import (
    BatchEntryRow,
    BatchRow,
    ChainEventRow,
    CheckpointRow,
    DebitRow,
    EpochLeafRow,
    EpochRow,
    HeartbeatRow,
    HostedJobRow,
    JobRow,
    LeaseRow,
    LedgerEntryRow,
    OfferRow,
    ReportRow,
)
from market.service.settle_epoch import load_settlement
from market.service.store_checkpoints import failures

MAX_ENTRIES = 1000
_NAMED = {
    "JobOpened": "opened",
    "CloseRequested": "closed",
    "Refunded": "refunded",
}
"""Events of a job whose transactions a job view names."""
_MATCHED = (JobStates.MATCHED, JobStates.RUNNING, JobStates.FINISHED)
"""States in which nobody asks any more why a job was not matched once."""


async def offer_views(
    rows: Sequence[OfferRow], now: UnixMillis, work: UnitOfWork
) -> tuple[OfferView, ...]:
    """Offers, in the given order."""
    names = tuple(row.offer for row in rows)
    beats = await work[HeartbeatRow].where(subject=names) if names else []
    heard = {beat.subject: beat.heard_at for beat in beats}
    return tuple(
        OfferView(
            offer=row.offer,
            signed=row.signed,
            account=row.account,
            price=row.price,
            device_class=row.device_class,
            memory_bytes=row.memory_bytes,
            flops_per_second=row.flops_per_second,
            expires_at=row.expires_at,
            heard_at=heard.get(row.offer),
            state=offer_state(
                withdrawn=row.withdrawn,
                leased=row.lease is not None,
                expires_at=row.expires_at,
                now=now,
            ).value,
        )
        for row in rows
    )


async def standing_offers(
    now: UnixMillis, work: UnitOfWork, account: Address | None = None
) -> tuple[OfferView, ...]:
    """Offers that stand or are leased, cheapest first; of one account, or of all."""
    of: dict[str, Any] = {} if account is None else {"account": account}
    rows = await work[OfferRow].where(withdrawn=False, order="price", **of)
    return await offer_views([row for row in rows if row.expires_at * 1000 > now], now, work)


async def provider_view(account: Address, now: UnixMillis, work: UnitOfWork) -> ProviderView:
    """An account's reputation and offers; a stranger has a reputation too."""
    reputation = (await reputations_of([account], work))[account]
    return ProviderView(
        account=account,
        is_matched=is_trusted(reputation),
        reputation=reputation_view(reputation),
        offers=await standing_offers(now, work, account),
    )


async def lease_views(rows: Sequence[LeaseRow], work: UnitOfWork) -> tuple[LeaseView, ...]:
    """Leases, in the given order."""
    names = tuple(row.lease for row in rows)
    beats = await work[HeartbeatRow].where(subject=names) if names else []
    heard = {beat.subject: beat.heard_at for beat in beats}
    jobs = {name: await work[JobRow].get(name) for name in sorted({row.job for row in rows})}
    return tuple(
        lease_view(row, job.signed, heard.get(row.lease))
        for row in rows
        if (job := jobs[row.job]) is not None
    )


def lease_state(row: LeaseRow) -> LeaseState:
    """The state of a lease, by the names of the API."""
    return cast(LeaseState, row.state)


def lease_view(row: LeaseRow, signed: bytes, heard_at: UnixMillis | None) -> LeaseView:
    """A lease of the job that was `signed` so."""
    return LeaseView(
        lease=row.lease,
        state=lease_state(row),
        offer=row.offer,
        job=row.job,
        account=row.account,
        stage=row.stage,
        price=row.price,
        stake=row.stake,
        accept_ends=row.accept_ends,
        spec=signed,
        accept=row.accept,
        session_key=row.session_key,
        heard_at=heard_at,
    )


# ------------------------------------------------------------------------------------------- jobs


async def job_row(job: JobId, work: UnitOfWork) -> JobRow:
    """A job's row.

    Raises:
        NotFound: no such job.
    """
    row = await work[JobRow].get(job)
    if row is None:
        raise NotFound("no such job", job=job.hex())
    return row


def job_outcome(row: JobRow) -> JobOutcome:
    """What became of a job, by the names of the API."""
    found = outcome(JobStates(row.state), Wanted(row.wanted), step=row.step, steps=row.steps)
    return found.value


async def job_summary(row: JobRow, work: UnitOfWork) -> JobSummary:
    """A job in a list."""
    return JobSummary(
        job=row.job,
        name=row.name,
        state=cast(JobState, row.state),
        outcome=job_outcome(row),
        poster=row.poster,
        budget=row.budget,
        paid=await claimed_of(row.job, work),
        step=row.step,
        steps=row.steps,
    )


async def job_view(row: JobRow, work: UnitOfWork, booked: Booked) -> JobView:
    """A job with everything."""
    spec: JobSpec = spec_of(row).message
    hosted = await work[HostedJobRow].get(row.job)
    reports = await work[ReportRow].where(job=row.job, order="step")
    money = await reconcile_job(row.job, work, booked)
    totals = money.totals
    vested = BaseUnits(totals.vested + totals.debited)
    why = WhyNot() if row.state in _MATCHED else decode_why_not(row.not_matched)
    return JobView(
        job=row.job,
        state=cast(JobState, row.state),
        outcome=job_outcome(row),
        failure=row.failure,
        wanted=cast(JobWanted, row.wanted),
        spec=spec.model_dump(mode="json"),
        signed=row.signed,
        opening=row.opening,
        coordinator=row.coordinator,
        coordinator_address=hosted.address if hosted else None,
        leases=await lease_views(await work[LeaseRow].where(job=row.job), work),
        progress=progress_view(row, reports),
        reports=tuple(step_report(each) for each in reports),
        num_messages=row.num_messages,
        escrowed=totals.escrowed,
        earned=BaseUnits(totals.earned + vested),
        vested=vested,
        debited=totals.debited,
        paid=await claimed_of(row.job, work),
        refunded=totals.refunded,
        reconciled=not money.differences,
        not_matched=excluded(why.exclusions),
        advice=advised(why.advice),
        transactions=await _transactions(row.job, work),
        unpublished=unpublished_views(
            failures(await work[CheckpointRow].where(job=row.job, order="peer"))
        ),
    )


def unpublished_views(failed: Iterable[CheckpointRow]) -> tuple[UnpublishedView, ...]:
    """What members could not upload, and why."""
    return tuple(
        UnpublishedView(
            stage=StageIndex(each.stage),
            step=StepNumber(each.step),
            peer=each.peer,
            reason=each.failure,
        )
        for each in failed
    )


def step_report(row: ReportRow) -> StepReport:
    """What a coordinator said of a step."""
    return StepReport(
        step=row.step,
        loss_millionths=row.loss_millionths,
        tokens_per_second=row.tokens_per_second,
        at=row.at,
        validation_millionths=row.validation_millionths,
    )


def progress_view(row: JobRow, reports: Sequence[ReportRow]) -> ProgressView:
    """How far a job is, by its newest reports."""
    newest = reports[-1] if reports else None
    return ProgressView(
        step=row.step,
        steps=row.steps,
        loss_millionths=newest.loss_millionths if newest else None,
        tokens_per_second=newest.tokens_per_second if newest else None,
    )


async def _transactions(job: JobId, work: UnitOfWork) -> dict[str, Digest]:
    events = await work[ChainEventRow].where(job=job, event=tuple(_NAMED))
    return {_NAMED[event.event]: event.transaction for event in events}


# --------------------------------------------------------------------------------------- accounts


async def entry_views(account: Address, work: UnitOfWork) -> tuple[LedgerEntryView, ...]:
    """Newest entries of everything that an account owns, newest first."""
    owned = [ledger.due(account), ledger.paid(account)]
    for job in await jobs_of(account, work):
        owned += [ledger.earned(job, account), ledger.vested(job, account)]
    entries, names = work[LedgerEntryRow], tuple(owned)
    out = await entries.where(order="-sequence", limit=MAX_ENTRIES, source=names)
    into = await entries.where(order="-sequence", limit=MAX_ENTRIES, target=names)
    rows = {row.sequence: row for row in (*out, *into)}
    newest = [rows[sequence] for sequence in sorted(rows, reverse=True)][:MAX_ENTRIES]
    return tuple(
        LedgerEntryView(
            event=row.event, debit=row.source, credit=row.target, amount=row.amount, job=row.job
        )
        for row in newest
    )


async def earned_by(
    account: Address, work: UnitOfWork, *, claimed: BaseUnits
) -> tuple[BaseUnits, BaseUnits, BaseUnits]:
    """What an account has earned, what of it has vested, and what of that it may claim.

    Args:
        account: Whose.
        work: To read in.
        claimed: What the chain says it has claimed; the ledger hears of it later.
    """
    jobs = await jobs_of(account, work)
    waiting = [ledger.earned(job, account) for job in jobs]
    ripe = [ledger.vested(job, account) for job in jobs]
    settled = [ledger.due(account), ledger.paid(account)]
    balances = await balances_of([*waiting, *ripe, *settled], work)
    vested = sum(balances.get(name, 0) for name in (*ripe, *settled))
    earned = vested + sum(balances.get(name, 0) for name in waiting)
    return BaseUnits(earned), BaseUnits(vested), await _claimable(account, claimed, work)


async def _claimable(account: Address, claimed: BaseUnits, work: UnitOfWork) -> BaseUnits:
    final = await work[EpochRow].where(state="final", order="-epoch", limit=1)
    if not final:
        return BaseUnits(0)
    leaves = await work[EpochLeafRow].where(epoch=final[0].epoch, account=account)
    name = ledger.paid(account)
    paid = (await balances_of([name], work)).get(name, 0)
    return BaseUnits(max(0, sum(leaf.cumulative for leaf in leaves) - max(paid, claimed)))


# ----------------------------------------------------------------------------- epochs and batches


async def epoch_row(number: int, work: UnitOfWork) -> EpochRow:
    """An epoch's row.

    Raises:
        NotFound: no such epoch.
    """
    row = await work[EpochRow].get(EpochNumber(number))
    if row is None:
        raise NotFound("no such epoch", epoch=number)
    return row


def epoch_summary(row: EpochRow) -> EpochSummary:
    """An epoch in a list."""
    return EpochSummary(
        epoch=row.epoch,
        state=cast(EpochState, row.state),
        root=row.root,
        sum=row.sum,
        window_ends=row.window_ends,
        transaction=row.transaction,
    )


async def epoch_view(row: EpochRow, work: UnitOfWork) -> EpochView:
    """An epoch with everything that its root is made of."""
    debits = await work[DebitRow].where(epoch=row.epoch)
    settlement = await load_settlement(work, row.epoch)
    return EpochView(
        **epoch_summary(row).model_dump(),
        debits=tuple(
            DebitView(job=each.job, amount=each.amount, step=each.step, seal=each.seal)
            for each in debits
        ),
        leaves=tuple(
            EpochLeafView(
                account=each.account,
                jobs_root=each.jobs_root.hash,
                cumulative=each.cumulative,
                jobs=tuple(JobPay(job=job, cumulative=amount) for job, amount in each.jobs),
            )
            for each in settlement.accounts
        ),
    )


async def proof_view(row: EpochRow, account: Address, work: UnitOfWork) -> ProofView:
    """What a claim of `account` wants.

    Raises:
        NotFound: the account was never paid.
    """
    settlement = await load_settlement(work, row.epoch)
    leaf, proof = settlement.claim_proof(account)
    return ProofView(
        account=account,
        jobs_root=leaf.jobs_root.hash,
        cumulative=leaf.cumulative,
        jobs=tuple(JobPay(job=job, cumulative=amount) for job, amount in leaf.jobs),
        epoch=row.epoch,
        state=cast(EpochState, row.state),
        root=row.root,
        root_sum=row.sum,
        index=[each.account for each in settlement.accounts].index(account),
        siblings=tuple(
            ProofStep(hash=node.hash, sum=node.sum, left=left) for node, left in proof.siblings
        ),
    )


async def batch_view(row: BatchRow, work: UnitOfWork) -> BatchView:
    """A batch with its leaves."""
    entries = await work[BatchEntryRow].where(root=row.root)
    return BatchView(
        root=row.root,
        entries=tuple(
            BatchEntryView(job=each.job, step=each.step, seal=each.seal) for each in entries
        ),
        transaction=row.transaction,
        block=row.block,
        coin=row.coin,
    )
