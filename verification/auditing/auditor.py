"""An auditor, whole: work and reports on it by replay, sums and theirs by bytes. Uses torch.

Whoever may be slashed by what it says can be shown why: see `recording`.
"""

from contracts.terms.messages import AuditReport
from verification.auditing.job import AuditedJob
from verification.auditing.loop import (
    compared_with_report,
    make_report,
    report_on_sum,
    seed_for,
    verdict_on,
)
from verification.auditing.recording import Recording, is_evidence, recording
from verification.auditing.replaying import replay_peer_step
from verification.draws.cases import Case


async def report_on(audited: AuditedJob, case: Case) -> AuditReport:
    """Audit one case that is ours, and say what was found; nothing is sent here.

    Raises:
        NotFound: data are missing. Unavailable: try again. Refused: this kind of device cannot
            judge it.
    """
    if case.is_of_sum:
        report = await report_on_sum(audited, case)
        if is_evidence(case, report):
            async with recording(audited) as recorded:
                await recorded.keep(case, report)
        return report
    async with recording(audited) as recorded:
        report = await _replayed(audited, case, recorded)
        if is_evidence(case, report):
            await recorded.keep(case, report)
    return report


async def _replayed(audited: AuditedJob, case: Case, recorded: Recording) -> AuditReport:
    sealed = audited.commit(case.work)
    found = await replay_peer_step(recorded, sealed, seed_for(case, audited.peer))
    distances = compared_with_report(recorded, case, found.distances, found.projections)
    verdict = verdict_on(audited, case, distances)
    return make_report(audited, case, verdict, distances, found.projections)
