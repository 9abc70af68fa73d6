"""Who did how much of a job, and what a loss and a newcomer cost: from its history and logs. Pure.

What counts is what seals hold: units are those of GradCommits that count, read by the function that
pay is read by (`contracts.governance.rounds`); a paid audit is no unit. Log lines only add when, and
what was tried in vain. Units: moments in Unix milliseconds, spans in seconds.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from contracts.governance.checking import Begin
from contracts.governance.job import JobHistory, follow
from contracts.governance.pay import PayLeaf
from contracts.governance.rounds import read_step
from contracts.governance.vesting import forfeited_by, pay_after
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import Malformed
from contracts.terms.history import Kept
from contracts.terms.ids import Address, PeerId, StageIndex, StepNumber
from contracts.terms.messages import Notice, Seal
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from verification.docket import begin_job

LogLine: TypeAlias = Mapping[str, Any]
"""One event of a process: `at`, `process`, `event`, and what else it says; bytes are hex."""


@dataclass(frozen=True)
class Worker:
    """A peer that joined: whose it is, and in which stage it works."""

    account: Address
    stage: StageIndex


@dataclass(frozen=True)
class JobWork:
    """What the seals of a job establish about work."""

    units_per_step: int  # of each stage
    num_stages: int
    workers: Mapping[PeerId, Worker]
    steps_of_job: int  # those that hold its work
    steps: tuple[Mapping[PeerId, int], ...]
    """Units by peer, of every seal from step 1 on; a checked job adds some without work, in pauses
    and to end its draws."""
    pay: Mapping[Address, PayLeaf]
    forfeited: Mapping[Address, BaseUnits]  # of what each has earned

    @property
    def num_steps(self) -> int:
        """Steps so far that were to hold work."""
        return min(len(self.steps), self.steps_of_job)

    @property
    def lost(self) -> int:
        """Units of some stage that no seal holds."""
        counted = sum(units for step in self.steps for units in step.values())
        return self.num_steps * self.units_per_step * self.num_stages - counted

    def first_step(self, account: Address) -> StepNumber | None:
        """The first step that a seal holds work of `account` for."""
        for number, step in enumerate(self.steps, 1):
            if any(self.workers[peer].account == account for peer in step):
                return StepNumber(number)
        return None


@dataclass(frozen=True)
class Share:
    """What one account did in one stage."""

    account: Address
    stage: StageIndex
    units: int
    of_stage: int  # units of the stage, by everybody
    by_speed: float  # units that it would have done, had speed alone split every step
    pay: BaseUnits  # of the account, in this job


def read_work(items: Iterable[Kept], domain: Domain, begin: Begin = begin_job) -> JobWork:
    """What a job's history establishes, with every message checked; draws are folded by `begin`.

    Raises:
        Malformed: no history of a job that was opened.
        BadSignature, Conflict, Equivocation, InvalidSeal: see `contracts.governance.job.follow`.
    """
    history = JobHistory(domain, begin)
    stages: dict[PeerId, StageIndex] = {}
    steps: list[Mapping[PeerId, int]] = []
    for item in items:
        before, history = history, follow(history, item)
        match item:
            case Signed(message=Notice(what="join", peer=peer, stage=stage)):
                stages[peer] = stage
            case Signed(message=Seal()):
                steps.append(_units_under(before, stages))
    record = history.record
    if record is None:
        raise Malformed("the job was never opened")
    leases = record.pay_leases()
    return JobWork(
        units_per_step=record.spec.batch.units_per_step,
        num_stages=record.spec.batch.stages,
        workers={p: Worker(record.leases[p].account, stage) for p, stage in stages.items()},
        steps_of_job=record.spec.batch.steps,
        steps=tuple(steps),
        pay={leaf.account: leaf for leaf in pay_after(record.pay, leases)},
        forfeited={who: BaseUnits(lost) for who, lost in forfeited_by(record.pay, leases).items()},
    )


def _units_under(history: JobHistory, stages: Mapping[PeerId, StageIndex]) -> dict[PeerId, int]:
    """Units that the next seal counts, by whose GradCommits: audits are paid, and are no units."""
    assert history.record is not None  # a seal was taken after it
    # Who joins in this seal is a member in it, and `follow` has checked who is none.
    record = replace(history.record, members=stages)
    messages = [signed.message for signed in history.pending.values()]
    work = read_step(record, messages, history.leaves).work
    return {peer: flops // record.spec.item_flops[stages[peer]] for peer, flops in work.items()}


def shares(work: JobWork, slowdowns: Mapping[Address, float]) -> tuple[Share, ...]:
    """Every account that joined, by stage and then by what it did."""
    units: Counter[tuple[StageIndex, Address]] = Counter()
    of_stage: Counter[StageIndex] = Counter()
    for worker in work.workers.values():
        units[worker.stage, worker.account] += 0  # who joined and did nothing has a row too
    for step in work.steps:
        for peer, done in step.items():
            worker = work.workers[peer]
            units[worker.stage, worker.account] += done
            of_stage[worker.stage] += done
    ideal = _by_speed(work, slowdowns)
    rows = [
        Share(
            account,
            stage,
            done,
            of_stage[stage],
            ideal[stage, account],
            work.pay[account].earned if account in work.pay else BaseUnits(0),
        )
        for (stage, account), done in units.items()
    ]
    return tuple(sorted(rows, key=lambda row: (row.stage, -row.units, row.account)))


def _by_speed(
    work: JobWork, slowdowns: Mapping[Address, float]
) -> Mapping[tuple[StageIndex, Address], float]:
    """Units of each account, were every step of a stage split by the speeds of its peers."""
    units: dict[tuple[StageIndex, Address], float] = defaultdict(float)
    for done, here in zip(work.steps, _present(work), strict=True):
        for stage in {worker.stage for worker in here}:
            of_stage = sum(n for peer, n in done.items() if work.workers[peer].stage == stage)
            speeds = {w.account: 1 / slowdowns[w.account] for w in here if w.stage == stage}
            for account, speed in speeds.items():
                units[stage, account] += of_stage * speed / sum(speeds.values())
    return units


def _present(work: JobWork) -> list[list[Worker]]:
    """Who takes part in each step: peers from the first to the last that a seal holds work of."""
    worked: dict[PeerId, list[int]] = {}
    for number, step in enumerate(work.steps):
        for peer in step:
            worked.setdefault(peer, []).append(number)
    return [
        [work.workers[peer] for peer, at in worked.items() if at[0] <= number <= at[-1]]
        for number in range(len(work.steps))
    ]


@dataclass(frozen=True)
class Loss:
    """What the end of one peer cost."""

    seconds: float  # from its end to the next sealed step
    rerouted: int  # units that were asked of it in vain and then done elsewhere
    redone: int  # units that were done, and had to be done again


def loss_of(peer: PeerId, killed_at: UnixMillis, lines: Sequence[LogLine]) -> Loss | None:
    """What the end of `peer` cost, by the lines of the coordinator; None: nothing sealed.

    A unit counts once for each stage, however often it was tried.
    """
    after = [line for line in lines if line["at"] >= killed_at]
    seals = [line["at"] for line in after if line["event"] == "seal_stored"]
    if not seals:
        return None
    sealed_at = min(seals)
    within = [line for line in after if line["at"] <= sealed_at]
    failed = {
        (line["step"], line["stage"], line["unit"])
        for line in within
        if line["event"] == "unit_failed" and line.get("peer") == peer.hex()
    }
    redone = sum(line["units"] for line in within if line["event"] == "redo")
    return Loss((sealed_at - killed_at) / 1000, len(failed), redone)


def sealed_at(step: StepNumber, lines: Iterable[LogLine]) -> UnixMillis | None:
    """When the coordinator stored the seal of `step`."""
    for line in lines:
        if line["event"] == "seal_stored" and line["step"] == step:
            return UnixMillis(line["at"])
    return None


def all_joined_at(num_peers: int, lines: Iterable[LogLine]) -> UnixMillis | None:
    """When the coordinator had `num_peers` different peers; None if it never had so many."""
    seen: set[str] = set()
    for line in lines:
        if line["event"] == "peer_joined":
            seen.add(line["peer"])
            if len(seen) == num_peers:
                return UnixMillis(line["at"])
    return None
