"""A member audits others beside its own work: on its own weights, with tensors from its disk."""

from collections.abc import Sequence
from functools import partial

from typing_extensions import Buffer

from contracts.terms.ids import StageIndex
from training.averaging.slices import Slice
from training.worker.work import Work
from verification.auditing.fetching import Fetcher
from verification.auditing.job import AuditedJob
from verification.auditing.loop import Auditing
from verification.auditing.replays import Replays


class MemberAuditor:
    """Satisfies `training.worker.checking.Auditor`."""

    def __init__(self, auditing: Auditing) -> None:
        self._auditing = auditing

    async def run(self, work: Work) -> None:
        """See `Auditor.run`."""
        await self._auditing.run(MemberJob(work))


class MemberJob(AuditedJob):
    """A job as a member's auditor sees it: the member is drawn in its own stage only."""

    def __init__(self, work: Work) -> None:
        at = work.station
        super().__init__(
            work.book,
            at.folder,
            at.peers,
            at.session,
            fetcher=Fetcher(at.engine, at.peers, work.averages.claimed_part, lambda: at.on_disk),
            changes=at.sealed_changes,
            behaviour=work.behaviour,
            tell=at.tell,
        )
        self._station = at
        self._replays = Replays(
            at.engine,
            lambda: at.compute.replayer(),  # of the stage that we have by then
            lambda step, _root: work.keeping.weights_before(step),
            at.tell,
        )

    def replays_in(self, stage: StageIndex) -> Replays:
        """See `Source.replays_in`."""
        assert stage == self._station.stage  # by `docket`
        return self._replays

    async def _mean(
        self, parts: Sequence[Buffer], weights: Sequence[int], totals: Sequence[int]
    ) -> Slice:
        at = self._station
        return await at.engine.run(partial(at.compute.mean, parts, weights, totals))

    async def _reach_coordinator(self) -> None:
        """A member has a session with it already."""
