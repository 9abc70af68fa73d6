"""Which seals of a job were anchored in which batch, proved by Merkle paths. Pure.

For every batch since the job's opening all of its leaves are shown, and they are sorted. That none
is left out follows from the paths alone: the first turns nowhere left, the last nowhere right, and
where two that follow each other part, the left one turns right all the way down and the right one
left. The job's own leaves and their neighbours would not do: a tree that is not sorted may hold the
job's leaf elsewhere, and whoever anchored it would choose, with the coin before him, to show it
there or neighbours between which it is not. A list that is not sorted is as good as none.

Invariants: two different seals of one step are an equivocation, in whatever batches; a coin counts
for the first batch that holds a step. A batch whose list nobody serves may hold any step that is in
no batch before it and that could be sealed by then: all of such a step is drawn (`drawn_by`).
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from contracts.governance.lane import AnchoredBatch
from contracts.terms import merkle
from contracts.terms.errors import AuditMismatch
from contracts.terms.ids import ZERO_DIGEST, Digest, JobId, StepNumber
from contracts.terms.merkle import Proof, batch_leaf, plain_node
from verification.reading import Field, require

MAY_HOLD = 5
"""Steps that may be sealed before the coin of the first is said (`economics.MAX_UNDRAWN`)."""

Entry = tuple[JobId, int, Digest]
"""A leaf of a batch: job, step, seal."""


@dataclass(frozen=True)
class ShownLeaf:
    """A leaf of a batch with its path."""

    job: JobId
    step: StepNumber
    seal: Digest
    proof: Proof[Digest]

    @property
    def key(self) -> tuple[JobId, int]:
        """What batches are sorted by."""
        return self.job, self.step


@dataclass(frozen=True)
class ShownBatch:
    """A batch of the lane, and all of its leaves; none for one before a job's opening."""

    batch: AnchoredBatch
    leaves: tuple[ShownLeaf, ...]
    is_served: bool = True  # False: nobody shows us its list

    def of(self, job: JobId) -> list[ShownLeaf]:
        """The leaves of one job."""
        return [leaf for leaf in self.leaves if leaf.job == job]


def show_batch(entries: Sequence[Entry]) -> tuple[ShownLeaf, ...]:
    """The leaves of a batch of `entries`."""
    proofs = merkle.prove_all([batch_leaf(*entry) for entry in entries], plain_node)
    return tuple(
        ShownLeaf(job, StepNumber(step), seal, proof)
        for (job, step, seal), proof in zip(entries, proofs, strict=True)
    )


def read_batch(field: Field) -> ShownBatch:
    """A batch as the file shows it. Nothing is checked but its form."""
    fields = field.record("root", "block", "coin", "leaves")
    coin = None if fields["coin"].value is None else Digest(fields["coin"].bytes(32))
    batch = AnchoredBatch(Digest(fields["root"].bytes(32)), fields["block"].integer(), coin)
    require(batch.block < 2**64, fields["block"].path, "no block number")
    if fields["leaves"].value is None:
        return ShownBatch(batch, (), is_served=False)
    return ShownBatch(batch, tuple(_read_leaf(leaf) for leaf in fields["leaves"].list()))


def batch_value(shown: ShownBatch) -> dict[str, object]:
    """`shown` as the file holds it."""
    return {
        "root": shown.batch.root,
        "block": shown.batch.block,
        "coin": shown.batch.coin,
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
        node = merkle.fold(batch_leaf(leaf.job, leaf.step, leaf.seal), leaf.proof, plain_node)
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
        check_batch(shown, "lane")
    except AuditMismatch:
        return False
    return True


def drawn_by(
    batch: AnchoredBatch, steps: Iterable[StepNumber] | None, told: set[StepNumber]
) -> list[tuple[StepNumber, AnchoredBatch]]:
    """Steps whose coin is that of `batch`, as it counts for them; notes them in `told`.

    Args:
        batch: The next one of the lane.
        steps: Of the job that its list holds; None: nobody serves the list. Then all of the steps
            is drawn, which a root of zero says, of as many as may wait for their coins.
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


def _turns(proof: Proof[Digest], left: bool) -> bool:
    """Whether any sibling of the path stands on that side."""
    return any(is_left == left for _, is_left in proof.siblings)


def _are_neighbours(left: Proof[Digest], right: Proof[Digest]) -> bool:
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
