"""Who did how much of a job, and what a loss and a newcomer cost: from its history and logs. Pure.

What counts is what seals hold: units are items of claims that are paid, as the fold of pay says; a
paid audit is no unit. Log lines only add when, and what was tried in vain. Units: moments in Unix
milliseconds, spans in seconds.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from contracts.governance.checking import Begin
from contracts.governance.job import JobHistory, follow
from contracts.governance.pay import PayLeaf
from contracts.governance.rounds import claims_of
from contracts.governance.vesting import forfeited_by, pay_after
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import Malformed
from contracts.terms.history import Kept
from contracts.terms.ids import Address, PeerId, StageIndex, StepNumber
from contracts.terms.items import count
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

    num_stages: int
    num_steps: int  # updates of the model
    lost: int  # units of some stage that no seal holds, though one holds later ones
    workers: Mapping[PeerId, Worker]
    steps: tuple[Mapping[PeerId, int], ...]
    """Units by peer, of every seal from step 1 on; a checked job adds some without work, in pauses
    and to end its draws."""
    pay: Mapping[Address, PayLeaf]
    forfeited: Mapping[Address, BaseUnits]  # of what each has earned

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
                steps.append(_units_under(before, history))
    record = history.record
    if record is None:
        raise Malformed("the job was never opened")
    leases = record.pay_leases()
    return JobWork(
        num_stages=record.spec.batch.stages,
        num_steps=record.updates,
        lost=count(record.cursor.unsealed) * record.spec.batch.stages,
        workers={p: Worker(record.leases[p].account, stage) for p, stage in stages.items()},
        steps=tuple(steps),
        pay={leaf.account: leaf for leaf in pay_after(record.pay, leases)},
        forfeited={who: BaseUnits(lost) for who, lost in forfeited_by(record.pay, leases).items()},
    )


def _units_under(before: JobHistory, after: JobHistory) -> Counter[PeerId]:
    """Units that the newest seal pays for, by peer: audits are paid, and are no units."""
    assert after.newest is not None  # as a seal was taken
    units = Counter[PeerId]()
    for claim in claims_of(before.pending_of(after.newest.paid), "work"):
        units[claim.peer] += count(claim.items)
    return units


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
        (line["step"], line["stage"], line["item"])
        for line in within
        if line["event"] == "item_failed" and line.get("peer") == peer.hex()
    }
    redone = sum(line["items"] for line in within if line["event"] == "reopened")
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
