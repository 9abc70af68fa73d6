"""How a member learns beacons: the market's list of batches, checked against the chain. Pure.

SealAnchor keeps an anchorer's anchor chain: one running hash of its batches, and their number. A
member reads both by itself (`Sighting`). The market hands out the batches (`AnchorChainPage`). What
folds to that hash is the anchor chain: no other list does, and none that begins later, because it
has to begin with the first batch of all or with one that the job's opening came after. The market
may lag: a sighting waits until its list has come as far. Where a list never comes the caller gives
it up (`give_up`), with what the chain itself says of the batch; then all is drawn of the steps that
it may hold.

For every batch since the job's opening all of its leaves are shown, and they are sorted. That none
is left out follows from the Merkle paths alone: the first turns nowhere left, the last nowhere
right, and where two that follow each other part, the left one turns right all the way down and the
right one left. The job's own leaves and their neighbours would not do: a tree that is not sorted
may hold the job's leaf elsewhere, and whoever anchored it would choose, with the beacon before him,
to show it there or neighbours between which it is not. A batch that shows other leaves, or leaves
that are not sorted, shows none.

A batch may hold a step before its seal is known here, so a beacon says which seal it is of: whoever
holds that step's seal compares (`contracts.terms.beacons.check_beacon`).

Invariants: a beacon is told once, for the first batch that holds its step, and only when the hash
covers its recording; two different seals of one step are an equivocation, in whatever batches. A
batch whose list nobody serves may hold any step that is in no batch before it and that could be
sealed by then: all of such a step is drawn (`drawn_by`). Source: docs/protocol.md 4.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from contracts.governance.anchor_chain import AnchoredBatch, fold_anchor_chain
from contracts.terms import merkle
from contracts.terms.beacons import Beacon
from contracts.terms.encoding import decode, encode
from contracts.terms.errors import AuditMismatch, Equivocation
from contracts.terms.ids import ZERO_DIGEST, Digest, JobId, StepNumber
from contracts.terms.merkle import Proof, batch_leaf
from verification.reading import Field, at, require

# ----------------------------------------------------------------------------------------- batches

MAY_HOLD = 5
"""Steps that may be sealed before the beacon of the first is said (`economics.MAX_UNDRAWN`)."""

Entry = tuple[JobId, int, Digest]
"""A leaf of a batch: job, step, seal."""


@dataclass(frozen=True)
class ShownLeaf:
    """A leaf of a batch with its path."""

    job: JobId
    step: StepNumber
    seal: Digest
    proof: Proof

    @property
    def key(self) -> tuple[JobId, int]:
        """What batches are sorted by."""
        return self.job, self.step


@dataclass(frozen=True)
class ShownBatch:
    """A batch of the anchor chain, and all of its leaves; none for one before a job's opening."""

    batch: AnchoredBatch
    leaves: tuple[ShownLeaf, ...]
    is_served: bool = True  # False: nobody shows us its list

    def of(self, job: JobId) -> list[ShownLeaf]:
        """The leaves of one job."""
        return [leaf for leaf in self.leaves if leaf.job == job]


def show_batch(entries: Sequence[Entry]) -> tuple[ShownLeaf, ...]:
    """The leaves of a batch of `entries`."""
    proofs = merkle.prove_all([batch_leaf(*entry) for entry in entries])
    return tuple(
        ShownLeaf(job, StepNumber(step), seal, proof)
        for (job, step, seal), proof in zip(entries, proofs, strict=True)
    )


def read_batch(field: Field) -> ShownBatch:
    """A batch as the file shows it. Nothing is checked but its form."""
    fields = field.record("root", "block", "beacon", "leaves")
    beacon = None if fields["beacon"].value is None else Digest(fields["beacon"].bytes(32))
    batch = AnchoredBatch(Digest(fields["root"].bytes(32)), fields["block"].integer(), beacon)
    require(batch.block < 2**64, fields["block"].path, "no block number")
    if fields["leaves"].value is None:
        return ShownBatch(batch, (), is_served=False)
    return ShownBatch(batch, tuple(_read_leaf(leaf) for leaf in fields["leaves"].list()))


def batch_value(shown: ShownBatch) -> dict[str, object]:
    """`shown` as the file holds it."""
    return {
        "root": shown.batch.root,
        "block": shown.batch.block,
        "beacon": shown.batch.beacon,
        "leaves": None
        if not shown.is_served
        else [
            {
                "job": leaf.job,
                "step": leaf.step,
                "seal": leaf.seal,
                "proof": [
                    {"sibling": sibling, "left": left} for sibling, left in leaf.proof.siblings
                ],
            }
            for leaf in shown.leaves
        ],
    }


def check_batch(shown: ShownBatch, path: str) -> None:
    """That the leaves of a batch are sorted, and are all of it.

    Raises:
        AuditMismatch: a leaf is not in the batch or not in its place, or one is missing; data:
            `path`.
    """
    leaves, path = shown.leaves, f"{path}/leaves"
    require(bool(leaves), path, "a batch since the opening shows its leaves")
    for index, leaf in enumerate(leaves):
        node = merkle.fold(batch_leaf(leaf.job, leaf.step, leaf.seal), leaf.proof)
        require(node == shown.batch.root, f"{path}/{index}", "not under the batch's root")
    for index, (left, right) in enumerate(itertools.pairwise(leaves)):
        require(left.key < right.key, f"{path}/{index}", "not sorted by job and step")
        require(_are_neighbours(left.proof, right.proof), f"{path}/{index}", "not neighbours")
    require(not _turns(leaves[0].proof, True), f"{path}/0", "a leaf before it is missing")
    last = len(leaves) - 1
    require(not _turns(leaves[last].proof, False), f"{path}/{last}", "a leaf after it is missing")


def is_list(shown: ShownBatch) -> bool:
    """Whether we are shown what a batch is a list of: sorted, whole, and of its root."""
    try:
        check_batch(shown, "anchor_chain")
    except AuditMismatch:
        return False
    return True


def drawn_by(
    batch: AnchoredBatch, steps: Iterable[StepNumber] | None, told: set[StepNumber]
) -> list[tuple[StepNumber, AnchoredBatch]]:
    """Steps whose beacon is that of `batch`, as it counts for them; notes them in `told`.

    Args:
        batch: The next one of the anchor chain.
        steps: Of the job that its list holds; None: nobody serves the list. Then all of the steps
            is drawn, which a root of zero says, of as many as may wait for their beacons.
        told: Steps that batches before it hold, or may hold.
    """
    if steps is None:
        newest = max(told, default=0)
        steps = (StepNumber(newest + more) for more in range(1, MAY_HOLD + 1))
        batch = replace(batch, root=ZERO_DIGEST)
    found = [(step, batch) for step in steps if step not in told]
    told.update(step for step, _ in found)
    return found


def _read_leaf(field: Field) -> ShownLeaf:
    fields = field.record("job", "step", "seal", "proof")
    siblings = []
    for each in fields["proof"].list():
        sibling = each.record("sibling", "left")
        siblings.append((Digest(sibling["sibling"].bytes(32)), sibling["left"].boolean()))
    step = fields["step"].integer()
    require(step < 2**64, fields["step"].path, "no step number")
    return ShownLeaf(
        JobId(fields["job"].bytes(32)),
        StepNumber(step),
        Digest(fields["seal"].bytes(32)),
        Proof(tuple(siblings)),
    )


def _turns(proof: Proof, left: bool) -> bool:
    """Whether any sibling of the path stands on that side."""
    return any(is_left == left for _, is_left in proof.siblings)


def _are_neighbours(left: Proof, right: Proof) -> bool:
    """Whether no leaf lies between the two, whose paths lead to one root."""
    ours, theirs = list(left.siblings), list(right.siblings)
    while ours and theirs and ours[-1] == theirs[-1]:
        ours.pop()
        theirs.pop()
    if not ours or not theirs:
        return False
    (_, left_turns), (_, right_turns) = ours.pop(), theirs.pop()
    parts = not left_turns and right_turns  # the one's sibling is right of it, the other's left
    return parts and _all(ours, True) and _all(theirs, False)


def _all(siblings: Iterable[tuple[Digest, bool]], left: bool) -> bool:
    return all(is_left == left for _, is_left in siblings)


# --------------------------------------------------------------------------------- the anchor chain

MAX_PAGE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class AnchorChainPage:
    """A run of an anchorer's batches, each with its leaves."""

    first: int  # number of the first batch, from 0
    before: Digest  # the anchor chain before it
    batches: tuple[ShownBatch, ...]

    def encoded(self) -> bytes:
        """Canonical bytes."""
        batches = [batch_value(shown) for shown in self.batches]
        value = {"first": self.first, "before": self.before, "batches": batches}
        return encode(value)  # type: ignore[arg-type]  # nested dicts of Value, invariant to mypy


def decode_page(data: bytes) -> AnchorChainPage:
    """The page that `data` spells. Nothing is checked but its form.

    Raises:
        Malformed, TooLarge, AuditMismatch: it is none.
    """
    field = Field(decode(data, max_bytes=MAX_PAGE_BYTES), "anchor_chain")
    fields = field.record("first", "before", "batches")
    batches = tuple(read_batch(each) for each in fields["batches"].list())
    return AnchorChainPage(fields["first"].integer(), Digest(fields["before"].bytes(32)), batches)


@dataclass(frozen=True)
class Sighting:
    """What SealAnchor said of an anchor chain at the end of a block that counts."""

    hash: Digest
    count: int
    is_pending: bool  # the newest batch has no beacon yet


class FollowedAnchorChain:
    """One job's view of its anchorer's anchor chain, since the job was opened."""

    def __init__(self, job: JobId, opening_block: int) -> None:
        """Nothing is known yet."""
        self._job, self._opening_block = job, opening_block
        self._number = 0  # of the first batch that is not confirmed
        self._anchor_chain = ZERO_DIGEST  # before that batch
        self._waiting: tuple[ShownBatch, ...] = ()
        self._begun = False
        self._seals: dict[StepNumber, Digest] = {}
        self._told: set[StepNumber] = set()

    @property
    def wanted(self) -> int | None:
        """Number of the first batch to ask for; None: where the job begins."""
        if not self._begun:
            return None
        known = [shown for shown in self._waiting if shown.batch.beacon is not None]
        return self._number + len(known)

    def take(self, page: AnchorChainPage) -> bool:
        """Note what the market says; whether it says anything new.

        Raises:
            AuditMismatch: it leaves something out.
        """
        shown = tuple(itertools.takewhile(self._is_shown, page.batches))
        if not shown:
            return False
        if not self._begun:
            whole = page.first == 0 and page.before == ZERO_DIGEST
            early = self._is_early(shown[0].batch)
            require(whole or early, "anchor_chain", "it begins after the job's opening")
            self._number, self._anchor_chain, self._begun = page.first, page.before, True
        offset = page.first - self._number
        asked = 0 <= offset <= len(self._waiting)
        require(asked, "anchor_chain", f"batch {page.first} was not asked for")
        before, self._waiting = self._waiting, self._waiting[:offset] + shown
        return before != self._waiting

    def _is_shown(self, shown: ShownBatch) -> bool:
        return shown.is_served and (self._is_early(shown.batch) or is_list(shown))

    def _is_early(self, batch: AnchoredBatch) -> bool:
        """Whether no seal of the job is as old."""
        return batch.block <= self._opening_block

    def give_up(self, anchor_chain: Sequence[AnchoredBatch]) -> bool:
        """Take the batch that we wait for without its list, which nobody serves; whether we can.

        Args:
            anchor_chain: All batches from the very first one on, as the chain itself tells them.
        """
        number = self.wanted or 0
        early = sum(self._is_early(each) for each in anchor_chain)
        known = anchor_chain[number : max(number, early) + 1]
        if not known or known[-1].beacon is None:
            return False
        waiting = (shown for shown in self._waiting if shown.batch.beacon is not None)
        self._waiting = (*waiting, *(self._unserved(each) for each in known))
        self._begun = True
        return True

    def _unserved(self, batch: AnchoredBatch) -> ShownBatch:
        return ShownBatch(batch, (), is_served=self._is_early(batch))

    def forget(self) -> None:
        """Ask again for what is not certain: the market may have said something wrong."""
        self._waiting = ()

    def confirm(self, seen: Sighting) -> tuple[Beacon, ...] | None:
        """Beacons that a sighting makes certain; None while the list has not come as far.

        Raises:
            AuditMismatch: the list is not the chain's.
            Equivocation: two seals of one step were anchored.
        """
        covered = seen.count - self._number
        # A batch that has no beacon makes nothing certain: its list need not be asked for yet.
        if covered <= seen.is_pending if self._begun else not seen.count:
            return ()
        if not self._begun or covered > len(self._waiting):
            return None
        batches = [shown.batch for shown in self._waiting[:covered]]
        if seen.is_pending:
            batches[-1] = replace(batches[-1], beacon=None)
        elif batches[-1].beacon is None:
            return None
        with at("anchor_chain"):
            folded = fold_anchor_chain(batches, self._anchor_chain)
        same = folded == seen.hash
        require(same, "anchor_chain", f"its {seen.count} batches are not what SealAnchor says")
        return self._advance(batches[:-1] if seen.is_pending else batches)

    def _advance(self, certain: Sequence[AnchoredBatch]) -> tuple[Beacon, ...]:
        """Take over batches whose beacons are certain."""
        seals, told, beacons = dict(self._seals), set(self._told), list[Beacon]()
        for shown in self._waiting[: len(certain)]:
            steps = self._steps(shown, seals)
            for step, batch in drawn_by(shown.batch, steps, told):
                assert batch.beacon is not None  # it is certain
                beacons.append(Beacon(step, batch.root, batch.block, batch.beacon, seals.get(step)))
        self._anchor_chain = fold_anchor_chain(certain, self._anchor_chain)
        self._number += len(certain)
        self._waiting, self._seals, self._told = self._waiting[len(certain) :], seals, told
        return tuple(beacons)

    def _steps(self, shown: ShownBatch, seals: dict[StepNumber, Digest]) -> list[StepNumber] | None:
        """Steps of the job that a batch holds; None if nobody serves its list."""
        if not shown.is_served:
            return None
        leaves = shown.of(self._job)
        for leaf in leaves:
            known = seals.setdefault(leaf.step, leaf.seal)
            if known != leaf.seal:
                raise Equivocation(
                    f"two seals of step {leaf.step} were anchored",
                    first=known.hex(),
                    second=leaf.seal.hex(),
                )
        return [leaf.step for leaf in leaves]
