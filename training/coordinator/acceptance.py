"""What a coordinator takes from a peer: only messages from which a valid seal can follow. Pure.

Governance refuses a seal over anything else (`contracts.governance.rounds`), so what would make the
step unsealable is refused here, at its door, and costs its sender the step.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise

from contracts.governance.record import JobRecord
from contracts.governance.rounds import is_no_longer
from contracts.terms.errors import Malformed
from contracts.terms.history import unit_leaves_root
from contracts.terms.ids import ZERO_DIGEST, Digest
from contracts.terms.messages import AveragedChunk, AverageSet, GradCommit, JobSpec, UnitLeaf


def check_commit(
    record: JobRecord,
    commit: GradCommit,
    leaves: Sequence[UnitLeaf],
    reports: Collection[Digest] = (),
) -> None:
    """Refuse a GradCommit that no seal could hold; units are the state machine's to compare.

    `reports`: that the next seal will hold.

    Raises:
        Malformed: it does not extend the last seal, or contradicts its leaves or the JobSpec.
    """
    batch = record.spec.batch
    is_first, is_last = commit.stage == 0, commit.stage == batch.stages - 1
    _need(commit.previous_seal == record.previous, "extends another seal")
    _need(commit.num_units == len(leaves), "num_units differs from its leaves")
    _need(commit.units_root == unit_leaves_root(leaves), "binds other leaves")
    _need(commit.num_samples == len(leaves) * batch.rows_per_unit, "num_samples is wrong")
    numbers = [number for _, number in record.spec.chunking.of_stage(commit.stage)]
    _need([part.chunk for part in commit.parts] == numbers, "parts are wrong")
    _need(set(commit.reports) <= set(reports), "names reports that were never handed in")
    _need(all(a.unit < b.unit for a, b in pairwise(leaves)), "leaves do not ascend")
    for leaf in leaves:
        _need((leaf.loss is not None) == is_last, "a loss belongs to the last stage")
        _need(not is_first or leaf.dx == ZERO_DIGEST, "the first stage has no dx")
        _need(not is_last or leaf.y == leaf.dy == ZERO_DIGEST, "the last stage has no y and dy")


def check_chunk(
    spec: JobSpec, chunk: AveragedChunk, average: AverageSet, commits: Iterable[GradCommit]
) -> None:
    """Refuse a mean that is longer than the weighted mean of its parts (docs/protocol.md 3.5).

    Raises:
        Malformed: it is, or it is of another AverageSet.
    """
    _need(chunk.average_set == average.digest(), "is of another AverageSet")
    _need((chunk.job, chunk.step) == (average.job, average.step), "is of another job or step")
    weights = {member.grad_commit: member.weight for member in average.members}
    members = [commit for commit in commits if commit.digest() in weights]
    _need(is_no_longer(spec, chunk, members, weights), "is longer than its parts")


def _need(holds: bool, problem: str) -> None:
    if not holds:
        raise Malformed(f"the message {problem}")
