"""The audit explorer: sealed steps, their lines, and the whole trace of a peer-step."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response

from contracts.terms.errors import NotFound
from contracts.terms.ids import MAX_STEPS, Digest, JobId, PeerId, StepNumber
from contracts.terms.merkle import Proof, SumNode, plain_leaf
from contracts.terms.messages import StepCoin
from market.api.context import ApiDep, JobPath, WorkDep, answer, parse_bytes
from market.api.refusals import refused
from market.api.routes.earnings import anchor_view, drawn_view, paid_view, parts_view, spelled_rate
from market.bodies import (
    STEP_LINES_PAGE,
    STEPS_PAGE,
    AnchoredView,
    AuditsView,
    CommitView,
    DistanceView,
    DrawablesView,
    DrawView,
    EpochSlipView,
    OutcomesView,
    PaySlipView,
    PayStep,
    PlainStep,
    ProofStep,
    ReportView,
    RoundView,
    RulingView,
    SealedView,
    StepCoinView,
    StepLinesView,
    StepLineView,
    StepsView,
    StepView,
    WorkTraceView,
)
from market.service.show_steps import SealedStep, StepLine, lines_of_step, steps_of
from market.service.trace_work import (
    AnchoredSeal,
    Audits,
    Draw,
    EpochSlip,
    HeardReport,
    PaySlip,
    SealedMessage,
    WorkTrace,
    trace_work,
)

router = APIRouter(tags=["audit explorer"])

StepPath = Annotated[int, Path(ge=1, lt=MAX_STEPS, description="number of a step")]


def _peer(peer: Annotated[str, Path(description="32 bytes in hex")]) -> PeerId:
    return PeerId(parse_bytes(peer, 32))


PeerPath = Annotated[PeerId, Depends(_peer)]


@router.get("/jobs/{name}/steps", response_model=StepsView, responses=refused(NotFound))
async def get_steps(
    job: JobPath,
    api: ApiDep,
    work: WorkDep,
    after: Annotated[int, Query(ge=0, le=MAX_STEPS, description="steps beyond this one")] = 0,
    limit: Annotated[int, Query(ge=1, le=STEPS_PAGE, description="steps at most")] = STEPS_PAGE,
) -> Response:
    """Sealed steps beyond `after`: seal, anchor, coin, and what was drawn and came of it."""
    async with work:
        steps = await steps_of(job, work, api.followed, after=after, limit=limit)
    return answer(StepsView(job=job, steps=tuple(step_view(each) for each in steps)))


@router.get("/jobs/{name}/steps/{step}", response_model=StepLinesView, responses=refused(NotFound))
async def get_step(
    job: JobPath,
    step: StepPath,
    api: ApiDep,
    work: WorkDep,
    after: Annotated[int, Query(ge=0, le=2**40, description="so many lines are left out")] = 0,
    limit: Annotated[
        int, Query(ge=1, le=STEP_LINES_PAGE, description="lines at most")
    ] = STEP_LINES_PAGE,
) -> Response:
    """A step's peer-steps and paid audits."""
    async with work:
        sealed, num_lines, lines = await lines_of_step(
            job, StepNumber(step), work, api.followed, after=after, limit=limit
        )
    end = after + len(lines)
    return answer(
        StepLinesView(
            job=job,
            step=step_view(sealed),
            num_lines=num_lines,
            lines=tuple(line_view(each) for each in lines),
            next=end if lines and end < num_lines else None,
        )
    )


@router.get(
    "/jobs/{name}/steps/{step}/work/{peer}",
    response_model=WorkTraceView,
    responses=refused(NotFound),
)
async def get_work(
    job: JobPath,
    step: StepPath,
    peer: PeerPath,
    api: ApiDep,
    work: WorkDep,
    number: Annotated[int, Query(alias="round", ge=0, le=2**40, description="of the work")] = 0,
) -> Response:
    """A peer-step from its GradCommit to the transactions that paid it, with all Merkle paths."""
    async with work:
        found = await trace_work(
            job, StepNumber(step), peer, number, work=work, followed=api.followed
        )
    return answer(work_view(job, found))


def step_view(found: SealedStep) -> StepView:
    """A sealed step."""
    seal, outcomes = found.seal, found.outcomes
    return StepView(
        step=seal.step,
        seal=found.digest,
        previous=seal.previous,
        messages_root=seal.messages_root,
        pay_root=seal.pay_root,
        gradient_norm=seal.gradient_norm,
        earned=seal.earned,
        vested=seal.vested,
        last=seal.last,
        stored_at=found.stored_at,
        close=found.close,
        closed_at=found.closed_at,
        average=found.average,
        members=found.members,
        anchor=None if found.batch is None else anchor_view(found.batch),
        coin=None if found.coin is None else _coin_view(found.coin),
        drawables=DrawablesView(
            work=found.drawables.get("work", 0),
            sums=found.drawables.get("sum", 0),
            reports=found.drawables.get("report", 0),
        ),
        drawn=found.drawn,
        outcomes=OutcomesView(
            matched=outcomes.get("matched", 0),
            mismatched=outcomes.get("mismatched", 0),
            unrepeated=outcomes.get("unrepeated", 0),
            missing=outcomes.get("missing", 0),
            open=outcomes.get("open", 0),
        ),
    )


def _coin_view(coin: StepCoin) -> StepCoinView:
    return StepCoinView(said_in=coin.step, batch=coin.batch, block=coin.block, coin=coin.coin)


def line_view(found: StepLine) -> StepLineView:
    """A line of a step."""
    line = found.standing.line
    return StepLineView(
        kind=line.kind,
        subject=line.subject,
        account=line.account,
        peer=line.peer,
        stage=line.stage,
        work_step=line.step,
        worker=line.worker,
        round=line.round,
        units=line.num_units,
        flops=line.flops,
        price=line.price,
        amount=found.standing.amount,
        state=found.standing.held,
        draw=drawn_view(line.rate, found.drawing),
    )


def work_view(job: JobId, found: WorkTrace) -> WorkTraceView:
    """A trace."""
    line = found.standing.line
    return WorkTraceView(
        job=job,
        step=line.step,
        peer=line.peer,
        round=line.round,
        account=line.account,
        stage=line.stage,
        flops=line.flops,
        price=line.price,
        amount=found.standing.amount,
        state=found.state,
        parts=parts_view(found.parts, whole=True),
        commit=_commit_view(line.subject, found),
        sealed=_sealed_view(line.subject, found.sealed),
        anchored=_anchored_view(found.anchor),
        audits=None if found.audits is None else _audits_view(found.audits),
        pay=None if found.pay is None else _pay_view(found.pay),
        epochs=tuple(_epoch_view(each) for each in found.epochs),
    )


def _commit_view(name: Digest, found: WorkTrace) -> CommitView:
    commit = found.commit
    return CommitView(
        grad_commit=name,
        step_close=commit.step_close,
        previous_seal=commit.previous_seal,
        state_root=commit.state_root,
        units_root=commit.units_root,
        units=commit.num_units,
        samples=commit.num_samples,
        parts=len(commit.parts),
        reports=commit.reports,
    )


def _sealed_view(name: Digest, found: SealedMessage) -> SealedView:
    return SealedView(
        step=found.seal.step,
        seal=found.digest,
        messages_root=found.seal.messages_root,
        leaf=plain_leaf(name),
        index=found.index,
        siblings=_plain(found.proof),
    )


def _anchored_view(found: AnchoredSeal | None) -> AnchoredView | None:
    if found is None:
        return None
    return AnchoredView(
        anchor=anchor_view(found.batch),
        leaf=found.leaf,
        index=found.index,
        siblings=_plain(found.proof),
    )


def _plain(proof: Proof[Digest]) -> tuple[PlainStep, ...]:
    return tuple(PlainStep(hash=sibling, left=left) for sibling, left in proof.siblings)


def _sums(proof: Proof[SumNode]) -> tuple[ProofStep, ...]:
    return tuple(
        ProofStep(hash=node.hash, sum=node.sum, left=left) for node, left in proof.siblings
    )


def _audits_view(found: Audits) -> AuditsView:
    return AuditsView(
        subject=found.subject,
        draw=_draw_view(found.draw),
        rounds=tuple(
            RoundView(
                round=each.number,
                drawn_in=each.drawn,
                coin=each.coin,
                auditors=each.order,
                first_attempt=each.first,
            )
            for each in found.rounds
        ),
        reports=tuple(_report_view(each) for each in found.reports),
        rulings=tuple(
            RulingView(what=each.what, step=each.step, peer=each.peer, by=each.by)
            for each in found.rulings
        ),
        outcome=found.outcome,
    )


def _draw_view(found: Draw) -> DrawView:
    return DrawView(
        name=found.name,
        rate=spelled_rate(found.rate),
        coin=None if found.coin is None else _coin_view(found.coin),
        step_coin=found.step_coin,
        ordering_coin=found.ordering,
        prf=None if found.prf is None else Digest(found.prf.to_bytes(32, "big")),
        drawn=found.drawing.is_drawn,
        outcome=found.drawing.outcome,
    )


def _report_view(found: HeardReport) -> ReportView:
    report, allowed = found.report, dict(found.limits)
    return ReportView(
        report=report.report,
        auditor=report.auditor,
        round=report.round,
        attempt=report.attempt,
        verdict=report.verdict,
        sealed=report.sealed,
        distances=tuple(
            DistanceView(name=name, distance=distance, allowed=allowed.get(name))
            for name, distance in found.message.distances
        ),
        repeat=None if found.repeat is None else _audits_view(found.repeat),
    )


def _pay_view(found: PaySlip) -> PaySlipView:
    return PaySlipView(
        step=found.step,
        seal=found.seal,
        pay_root=found.root,
        account=found.leaf.account,
        earned=found.leaf.earned,
        vested=found.leaf.vested,
        index=found.index,
        siblings=tuple(
            PayStep(hash=node.hash, earned=node.earned, vested=node.vested, left=left)
            for node, left in found.proof.siblings
        ),
        anchored=_anchored_view(found.anchor),
    )


def _epoch_view(found: EpochSlip) -> EpochSlipView:
    return EpochSlipView(
        part=paid_view(found.part, found.claimed_by),
        root_sum=found.root_sum,
        account=found.account.account,
        jobs_root=found.account.jobs_root.hash,
        cumulative=found.account.cumulative,
        account_siblings=_sums(found.account_proof),
        job_cumulative=found.cumulative,
        job_siblings=_sums(found.job_proof),
    )
