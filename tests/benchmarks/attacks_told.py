"""What a finished job of an attack says: its sealed history, every message checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeVar

from contracts.governance.job import JobHistory, follow
from contracts.terms.amounts import BaseUnits
from contracts.terms.history import Kept
from contracts.terms.ids import Address, Digest, JobId, PeerId
from contracts.terms.merkle import FORFEITED
from contracts.terms.messages import (
    AuditReport,
    AveragedChunk,
    AverageSet,
    GradCommit,
    JobSpec,
    Message,
    Seal,
    StepClose,
)
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from tallystick.demo.shares import JobWork, read_work
from verification.docket import Docket, begin_job
from verification.draws.cases import Ruling

M = TypeVar("M", bound=Message)
Outcome = Literal["convicted", "missing", "harmless"]


@dataclass(frozen=True)
class Told:
    """What the sealed history of a job establishes."""

    work: JobWork
    owners: Mapping[PeerId, Address]  # of members and outside auditors
    rulings: tuple[Ruling, ...]
    messages: tuple[Message, ...]

    def of(self, kind: type[M]) -> list[M]:
        """All messages of a kind."""
        return [each for each in self.messages if isinstance(each, kind)]

    def step_of(self, subject: Digest) -> int:
        """Of the work or the sum that a ruling is about, directly or by a report on it."""
        return next(
            each.step
            for each in self.messages
            if isinstance(each, GradCommit | AveragedChunk | AuditReport)
            and each.digest() == subject
        )

    def peer_of(self, account: Address) -> PeerId:
        """The one peer of an owner."""
        return next(peer for peer, owner in self.owners.items() if owner == account)

    def commits_of(self, account: Address) -> list[GradCommit]:
        """The peer-steps of an owner."""
        return [each for each in self.of(GradCommit) if self.owners[each.peer] == account]

    def weight_of(self, commit: GradCommit) -> Fraction:
        """Of a sample of its gradient in the mean, beside that which weighs most of its stage."""
        samples = {
            each.digest(): each.num_samples
            for each in self.of(GradCommit)
            if (each.step, each.stage) == (commit.step, commit.stage)
        }
        weights = {
            member.grad_commit: Fraction(member.weight, samples[member.grad_commit])
            for average in self.of(AverageSet)
            for member in average.members
            if average.step == commit.step and member.grad_commit in samples
        }
        own = weights.get(commit.digest(), Fraction(0))  # zero: it is not in the mean
        return own / max(weights.values(), default=Fraction(1))

    def units_of(self, account: Address) -> frozenset[tuple[int, int]]:
        """Steps and units that an owner was to do, by the StepCloses."""
        return frozenset(
            (close.step, unit)
            for close in self.of(StepClose)
            for each in close.assignments
            if self.owners[each.peer] == account
            for unit in each.units
        )


def read_job(items: Sequence[Kept], domain: Domain) -> Told:
    """Everything that a finished job's history says, with every message checked."""
    history, rulings, messages = JobHistory(domain, begin_job), list[Ruling](), list[Message]()
    for item in items:
        history = follow(history, item)
        if isinstance(item, Signed):
            messages.append(item.message)
            if isinstance(item.message, Seal):
                rulings += _rulings_after(history)
    assert history.record is not None  # it was opened
    owners = {peer: lease.account for peer, lease in history.record.pay_leases().items()}
    return Told(read_work(items, domain), owners, tuple(rulings), tuple(messages))


def _rulings_after(history: JobHistory) -> tuple[Ruling, ...]:
    checking = history.record.checking if history.record else None
    return checking.rulings if isinstance(checking, Docket) else ()


@dataclass(frozen=True)
class Run:
    """A job that was played to its end."""

    job: JobId
    spec: JobSpec
    told: Told
    names: Mapping[Address, str]  # roles, and who audits outside

    def account(self, role: str) -> Address:
        """Whose wallet played a role."""
        return next(account for account, name in self.names.items() if name == role)

    def earned(self, role: str) -> BaseUnits:
        """When the job ended: after forfeits."""
        return self.told.work.pay.get(self.account(role), BaseUnits(0))

    @property
    def forfeited(self) -> BaseUnits:
        """By everybody."""
        return self.told.work.pay.get(FORFEITED, BaseUnits(0))

    def are_neighbours(self, one: str, other: str) -> bool:
        """Whether two of the cast handed tensors to each other."""
        units = (self.told.units_of(self.account(role)) for role in (one, other))
        return self.stage(one) != self.stage(other) and not frozenset.isdisjoint(*units)

    def stage(self, role: str) -> int:
        """That it worked in."""
        return self.told.work.workers[self.told.peer_of(self.account(role))].stage

    def rulings(self, what: str, role: str) -> list[Ruling]:
        """About one of the cast, the first seal first."""
        account = self.account(role)
        found = [each for each in self.told.rulings if each.what == what]
        own = [each for each in found if self.told.owners[each.peer] == account]
        return sorted(own, key=lambda each: (each.step, self.told.step_of(each.subject)))

    def outcome(self, role: str) -> Outcome:
        """What became of one of the cast."""
        if self.rulings("convicted", role):
            return "convicted"
        return "missing" if self.rulings("missing", role) else "harmless"

    def by(self, ruling: Ruling) -> tuple[str, ...]:
        """Names of who was heard."""
        return tuple(self.names[self.told.owners[peer]] for peer in ruling.by)
