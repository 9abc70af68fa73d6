"""Work of sealed steps, by the names under which it is audited.

What is kept here is what seals hold; it stays for as long as a draw may still ask for it. Who has a
boundary tensor of a sealed unit follows from the GradCommits: who sent it, and who received it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from contracts.governance.job import JobHistory
from contracts.governance.pay import Lease
from contracts.terms.chunks import Chunking
from contracts.terms.errors import NotFound
from contracts.terms.ids import ZERO_DIGEST, Address, Digest, PeerId, StageIndex, StepNumber, UnitId
from contracts.terms.messages import (
    AuditReport,
    AveragedChunk,
    AverageSet,
    GradCommit,
    Message,
    StepBeacon,
    StepClose,
    UnitLeaf,
)
from contracts.terms.signatures import Signed

T = TypeVar("T")

Said: TypeAlias = StepClose | GradCommit | AverageSet | AveragedChunk | AuditReport | StepBeacon
KINDS = (StepClose, GradCommit, AverageSet, AveragedChunk, AuditReport, StepBeacon)
"""What audits are about."""


@dataclass(frozen=True)
class SealedCommit:
    """A GradCommit with its leaves."""

    commit: GradCommit
    leaves: tuple[UnitLeaf, ...]
    taken_over: frozenset[UnitId] = frozenset()  # that somebody else was given before


@dataclass(frozen=True)
class SealedMean:
    """An AveragedChunk with what it was made of."""

    chunk: AveragedChunk
    average: AverageSet
    commits: tuple[GradCommit, ...]


@dataclass
class SealedWork:
    """Of the steps since the oldest that a draw may ask for."""

    _commits: dict[Digest, SealedCommit] = field(default_factory=dict)
    _means: dict[Digest, SealedMean] = field(default_factory=dict)
    _said: dict[Digest, Signed[Said]] = field(default_factory=dict)
    _doers: dict[tuple[StepNumber, StageIndex, UnitId], list[PeerId]] = field(default_factory=dict)
    _averaged: dict[StepNumber, tuple[GradCommit, ...]] = field(default_factory=dict)

    def note(self, under: JobHistory) -> None:
        """Take in what the seal that comes next holds."""
        messages = [signed.message for signed in under.pending.values()]
        commits = [each for each in messages if isinstance(each, GradCommit)]
        closes = [each for each in messages if isinstance(each, StepClose)]
        for commit in commits:
            leaves = under.leaves[commit.digest()]
            self._note_commit(SealedCommit(commit, leaves, _taken_over(commit, closes)))
        averages = [each for each in messages if isinstance(each, AverageSet)]
        names = {member.grad_commit for each in averages for member in each.members}
        if averaged := tuple(commit for commit in commits if commit.digest() in names):
            self._averaged[averaged[0].step] = averaged
        for chunk in (each for each in messages if isinstance(each, AveragedChunk)):
            self._means[chunk.digest()] = SealedMean(chunk, averages[0], tuple(commits))
        self._note_said(under.pending.values())

    def _note_said(self, signed: Iterable[Signed[Message]]) -> None:
        for message, signature in ((each.message, each.signature) for each in signed):
            if isinstance(message, KINDS):
                self._said[message.digest()] = Signed(message, signature)

    def _note_commit(self, sealed: SealedCommit) -> None:
        commit = sealed.commit
        self._commits[commit.digest()] = sealed
        for leaf in sealed.leaves:
            place = (commit.step, commit.stage, leaf.unit)
            self._doers.setdefault(place, []).append(commit.peer)

    def forget_before(self, step: StepNumber) -> None:
        """Nobody asks for anything of an earlier step any more."""
        self._commits = {n: each for n, each in self._commits.items() if each.commit.step >= step}
        self._means = {n: each for n, each in self._means.items() if each.chunk.step >= step}
        self._said = {n: each for n, each in self._said.items() if each.message.step >= step}
        self._doers = {place: peers for place, peers in self._doers.items() if place[0] >= step}
        self._averaged = {at: each for at, each in self._averaged.items() if at >= step}

    def commit(self, name: Digest) -> SealedCommit:
        """A GradCommit with its leaves; raises NotFound."""
        return _found(self._commits.get(name), name)

    def state_of(self, commit: GradCommit, leases: Mapping[PeerId, Lease]) -> Digest | None:
        """Root of the state in which a sealed GradCommit is judged; None: not known yet.

        That of its stage, on which two owners agree: in the next AverageSet, as a step without one
        changes no state, or until it is sealed in the step itself. Where a single owner stands
        behind each, nothing tells who is right: then the claim's own counts.
        """
        step, stage = commit.step, commit.stage
        following = [at for at in self._averaged if at >= step]
        said = self._averaged[min(following)] if following else self._commits_in(step)
        owners = defaultdict[Digest, set[Address]](set)
        for each in (each for each in said if each.stage == stage):
            owners[each.state_root].add(leases[each.peer].account)
        agreed = [root for root, behind in owners.items() if len(behind) > 1]
        if len(agreed) == 1:
            return agreed[0]
        return Digest(commit.state_root) if following or len(owners) == 1 else None

    def _commits_in(self, step: int) -> tuple[GradCommit, ...]:
        sealed = (each.commit for each in self._commits.values())
        return tuple(commit for commit in sealed if commit.step == step)

    def mean(self, name: Digest) -> SealedMean:
        """An averaged chunk with what it was made of; raises NotFound."""
        return _found(self._means.get(name), name)

    def report(self, name: Digest) -> AuditReport:
        """A sealed report; raises NotFound."""
        return _found(self._report(name), name)

    def said(self) -> Mapping[Digest, Signed[Message]]:
        """What was noted, by name and with signatures: what a bundle of evidence is made of."""
        return self._said

    def _report(self, name: Digest) -> AuditReport | None:
        signed = self._said.get(name)
        message = signed.message if signed else None
        return message if isinstance(message, AuditReport) else None

    def beside(
        self, stage: StageIndex, chunking: Chunking, names: Iterable[Digest]
    ) -> tuple[frozenset[UnitId], frozenset[Digest]]:
        """What a member of `stage` may hold of these GradCommits and AveragedChunks.

        Returns:
            Units whose boundary tensors pass it, and GradCommits whose parts it deals with.
        """
        units, commits = set[UnitId](), set[Digest]()
        for name in names:
            if (mean := self._means.get(name)) is not None:
                if stage in chunking.stages_of((mean.chunk.stage, mean.chunk.chunk)):
                    commits |= {each.digest() for each in mean.commits}
                continue
            sealed = self.commit(name)
            commit, own = sealed.commit, sealed.commit.stage
            if abs(own - stage) <= 1:
                units |= {leaf.unit for leaf in sealed.leaves}
            if any(stage in chunking.stages_beside(own, each.chunk) for each in commit.parts):
                commits.add(name)
        return frozenset(units), frozenset(commits)

    def find_mean(self, subject: Digest) -> SealedMean | None:
        """The sum that an audit is of: that of an AveragedChunk, or of a report on one."""
        return self._means.get(self._audited_by(subject))

    def find_work(self, subject: Digest) -> SealedCommit | None:
        """The work that an audit is of: that of a GradCommit, or of a report on one."""
        return self._commits.get(self._audited_by(subject))

    def _audited_by(self, subject: Digest) -> Digest:
        report = self._report(subject)
        return subject if report is None else report.subject

    def doer_of(self, subject: Digest) -> PeerId | None:
        """Who did the work, or the sum, that an audit of `subject` repeats."""
        if (mean := self.find_mean(subject)) is not None:
            return mean.chunk.peer
        sealed = self.find_work(subject)
        return None if sealed is None else sealed.commit.peer

    def boundary_of(self, sealed: SealedCommit) -> list[tuple[Digest, tuple[PeerId, ...]]]:
        """Boundary tensors that an audit of this work takes, with who may have each."""
        commit, found = sealed.commit, []
        for leaf in sealed.leaves:
            below = self.doers(commit.step, (commit.stage - 1, commit.stage), leaf.unit)
            above = self.doers(commit.step, (commit.stage, commit.stage + 1), leaf.unit)
            if commit.stage > 0:  # else x is rows of the corpus
                found.append((leaf.x, below))
            found.append((leaf.dy, above))
            if leaf.unit not in sealed.taken_over:
                found += [(leaf.y, above), (leaf.dx, below)]
        return [(digest, holders) for digest, holders in found if digest != ZERO_DIGEST]

    def doers(self, step: StepNumber, stages: Iterable[int], unit: UnitId) -> tuple[PeerId, ...]:
        """Who committed to a unit in these stages: holders of the tensors between them."""
        found = (self._doers.get((step, StageIndex(stage), unit), ()) for stage in stages)
        return tuple(dict.fromkeys(peer for peers in found for peer in peers))


def _taken_over(commit: GradCommit, closes: Sequence[StepClose]) -> frozenset[UnitId]:
    """Units that a StepClose before that of the commit gave to another peer of the stage.

    That one is gone. The neighbours may have used its y and dx, which our leaves then name.
    """
    named = (each.revision for each in closes if each.digest() == commit.step_close)
    own = next(named, 0)
    return frozenset(
        unit
        for close in closes
        for each in close.assignments
        if close.revision < own and each.stage == commit.stage and each.peer != commit.peer
        for unit in each.units
    )


def _found(value: T | None, name: Digest) -> T:
    if value is None:
        raise NotFound("no such message in a sealed step that is still open", name=name.hex())
    return value
