"""What peers say they did, and which of it a round merges: claims, their leaves, RoundClosed.

A claim is the one unit of paid work. It names items, the state that it started from, the root of
its leaves and the digests of its outputs; a replay compares these. FLOPs and samples are never
stated: they follow from the JobSpec. A leaf says of one item which tensors went in and came out, by
names that are the same for whoever makes and whoever takes a tensor:

    rows/STAGE/ITEM   rows that a stage read   y/STAGE/ITEM    output of a stage
                                               dx/STAGE/ITEM   gradient of its input

so one name has one digest in a seal. Rows are of the manifest, and each stage names its own: else
whoever named false ones first would have all others refused.
Units: losses 1e-6, norms squared 1e-12, distances 1e-9.
Source: docs/protocol.md 2.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple, Self, TypeAlias

from annotated_types import Ge, Le, Len
from pydantic import StringConstraints, model_validator

from contracts.terms.amounts import WideIntField
from contracts.terms.encoding import Value, encode
from contracts.terms.errors import Malformed
from contracts.terms.ids import (
    MAX_CHUNKS,
    MAX_PEERS,
    MAX_STAGES,
    ZERO_DIGEST,
    ChunkField,
    ChunkIndex,
    Digest,
    DigestField,
    JobIdField,
    PeerIdField,
    StageField,
    StageIndex,
    StepField,
)
from contracts.terms.items import MAX_ITEMS, ItemField, ItemNumber, Ranges, count, numbers_of
from contracts.terms.messages import (
    Count,
    Message,
    Notice,
    Record,
    Signed64,
    StepBeacon,
    Validation,
)
from contracts.terms.moments import UnixMillisField

MAX_TENSORS = 16
MAX_NUMBERS = 2**14
MAX_DISTANCES = 64
MAX_REPORTS = 256
MAX_SEQ = 15

Verdict = Literal["match", "mismatch", "missing"]
_VERDICTS: tuple[Verdict, ...] = ("match", "mismatch", "missing")

Sort: TypeAlias = Literal["boundary", "part", "rows"]
"""What the bytes behind a digest spell, which decides how they are digested."""

TensorName = Annotated[str, StringConstraints(min_length=1, max_length=32, pattern="^[!-~]+$")]
WhatField = Literal["work", "bucket", "report", "state"]


# ------------------------------------------------------------------------------------------ leaves


class Leaf(Record):
    """What a claim says of one item: its tensors by name, and numbers beside them."""

    item: ItemField
    base_round: Annotated[int, Ge(0), Le(9_999_999)]
    """In whose sealed state, that before the round, the item was computed; of a report 0.

    Of work ahead of its round (`BatchSpec.works_ahead`) the round before the claim's.
    """
    given: bool
    """Whether the tensors are those that the neighbours used, computed by a peer that is gone."""
    tensors: Annotated[tuple[tuple[TensorName, DigestField], ...], Len(0, MAX_TENSORS)]
    numbers: Annotated[tuple[Signed64, ...], Len(0, MAX_NUMBERS)]

    @model_validator(mode="after")
    def _ascends(self) -> Self:
        if any(a >= b for (a, _), (b, _) in pairwise(self.tensors)):
            raise ValueError("names of tensors must ascend")
        return self

    def tensor(self, name: str) -> Digest:
        """Digest of the tensor of this name; zero if the leaf names none."""
        return next((digest for each, digest in self.tensors if each == name), ZERO_DIGEST)


def tensor_name(kind: Literal["rows", "y", "dx"], group: int, item: ItemNumber) -> str:
    """What leaves call rows that `group` reads, or what it makes: y for above, dx for below."""
    return f"{kind}/{group}/{item}"


class LeafNames(NamedTuple):
    """What a leaf of one stage calls its tensors; empty where the stage has no such tensor."""

    rows: str  # in the first and the last stage
    x: str  # input: `y` of the stage below
    y: str
    dy: str  # gradient of the output: `dx` of the stage above
    dx: str

    @property
    def all(self) -> tuple[str, ...]:
        """The names that a leaf has to have, ascending."""
        return tuple(sorted(filter(None, self)))


def leaf_names(group: StageIndex, num_groups: int, item: ItemNumber) -> LeafNames:
    """What a leaf of stage `group` of `num_groups` calls its tensors."""
    is_first, is_last = group == 0, group == num_groups - 1
    return LeafNames(
        rows=tensor_name("rows", group, item) if is_first or is_last else "",
        x="" if is_first else tensor_name("y", group - 1, item),
        y="" if is_last else tensor_name("y", group, item),
        dy="" if is_last else tensor_name("dx", group + 1, item),
        dx="" if is_first else tensor_name("dx", group, item),
    )


# ---------------------------------------------------------------------------------------- findings


@dataclass(frozen=True)
class Findings:
    """What an audit found: the content of the one leaf of a report."""

    verdict: Verdict
    distances: tuple[int, ...] = ()  # 1e-9, in the ascending order of their names
    projections: tuple[int, ...] = ()  # 1e-6, after each item


def findings_leaf(
    verdict: Verdict, distances: Sequence[int] = (), projections: Sequence[int] = ()
) -> Leaf:
    """The leaf of a report.

    Args:
        verdict: What follows from `distances`.
        distances: 1e-9, in the ascending order of the names that the job compares (at most 64).
        projections: Of the gradient after each item, 1e-6.
    """
    numbers = (_VERDICTS.index(verdict), len(distances), *distances, *projections)
    return Leaf(item=ItemNumber(0), base_round=0, given=False, tensors=(), numbers=numbers)


def findings_of(leaves: Sequence[Leaf]) -> Findings:
    """What the leaves of a report say.

    Raises:
        Malformed: they are not one leaf of a report.
    """
    numbers = leaves[0].numbers if len(leaves) == 1 else ()
    verdict, length, *rest = (*numbers, -1, -1)
    stated = tuple(rest[: len(numbers) - 2])
    if not (0 <= verdict < len(_VERDICTS) and 0 <= length <= min(MAX_DISTANCES, len(stated))):
        raise Malformed("a report has one leaf: verdict, number of distances, these, projections")
    found = Findings(_VERDICTS[verdict], stated[:length], stated[length:])
    if min(found.distances, default=0) < 0:
        raise Malformed("a distance is negative")
    if leaves[0] != findings_leaf(found.verdict, found.distances, found.projections):
        raise Malformed("the leaf of a report has number 0 and names no tensors")
    return found


# ------------------------------------------------------------------------------------------ claims


class Output(Record):
    """One bucket of what a peer made, as it is about to be sent, or of what a reducer made."""

    bucket: ChunkField  # number in its group
    digest: DigestField  # tensor digest after the codec
    norm_squared: WideIntField  # 1e-12


class WorkClaim(Message):
    """Message 3: what `peer` says it did, before anybody knows what will be replayed.

    `work`: gradients of items. `bucket`: the weighted mean of one bucket. `report`: what an audit
    of `subject` found. `state`: which weights the job ends with; `governance.job` refuses it yet.
    """

    kind: Literal["work_claim.v1"] = "work_claim.v1"

    job: JobIdField
    peer: PeerIdField
    previous: DigestField  # the seal before `round`; of a report zero
    round: StepField  # in which it was done; of a report that of its subject
    what: WhatField
    group: StageField
    seq: Annotated[int, Ge(0), Le(MAX_SEQ)]  # of work: one higher for each later set of items
    attempt: Count  # of a report: whose turn of the subject's audits it is, rounds included
    base: DigestField  # work: root of the state used; state: the final one; else zero
    items: Ranges  # of work
    subject: DigestField  # bucket: RoundClosed; report: the claim it is about; else zero
    leaves: DigestField  # root over the leaves of work and reports; else zero
    outputs: Annotated[tuple[Output, ...], Len(0, MAX_CHUNKS)]
    """Work: all buckets of the group, ascending; bucket: that one; state: 0, digest of weights."""
    reports: Annotated[tuple[DigestField, ...], Len(0, MAX_REPORTS)]
    """Of work: reports that the peer holds and no seal has, ascending."""

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        is_work, is_report = self.what == "work", self.what == "report"
        fields = {
            "previous": (self.previous != ZERO_DIGEST, not is_report),
            "items": (bool(self.items), is_work),
            "base": (self.base != ZERO_DIGEST, is_work or self.what == "state"),
            "subject": (self.subject != ZERO_DIGEST, is_report or self.what == "bucket"),
            "leaves": (self.leaves != ZERO_DIGEST, is_work or is_report),
            "outputs": (bool(self.outputs), not is_report),
        }
        for name, (is_set, is_needed) in fields.items():
            if is_set != is_needed:
                raise ValueError(f"{name}: {'missing' if is_needed else 'unused'} in {self.what}")
        if not is_work and (self.seq or self.reports or len(self.outputs) > 1):
            raise ValueError(f"a {self.what} has no seq, no reports and one output at most")
        if self.attempt and not is_report:
            raise ValueError("attempts are those of a report")
        if count(self.items) > MAX_ITEMS:
            raise ValueError(f"at most {MAX_ITEMS} items")
        if any(a.bucket >= b.bucket for a, b in pairwise(self.outputs)):
            raise ValueError("outputs must ascend, each bucket once")
        if any(a >= b for a, b in pairwise(self.reports)):
            raise ValueError("reports must ascend, each once")
        return self

    @property
    def bucket(self) -> ChunkIndex:
        """Which bucket of its group a claim of a bucket is about; 0 of other claims."""
        return self.outputs[0].bucket if self.what == "bucket" else ChunkIndex(0)

    @property
    def numbers(self) -> tuple[ItemNumber, ...]:
        """Its items, ascending."""
        return numbers_of(self.items)

    def stated_name(self) -> tuple[object, ...]:
        """See `Message.stated_name`: a report's is without its round, a bucket's with its place."""
        match self.what:
            case "report":
                about: tuple[object, ...] = (self.subject, self.attempt)
            case "bucket":
                about = (self.round, self.seq, self.group, self.bucket)
            case _:
                about = (self.round, self.seq)
        return (self.kind, self.job, self.peer, self.what, *about)

    def draw_name(self) -> bytes:
        """What the PRF of a draw is taken of; nothing of the claim's content is in it."""
        name: list[Value] = [self.what, self.peer, self.round, self.seq, self.group, self.bucket]
        if self.what == "report":
            name += [self.subject, self.attempt]
        return encode(name)


class RoundClosed(Message):
    """Message 4: which claims a round merges and who reduces which bucket, for all groups."""

    kind: Literal["round_closed.v2"] = "round_closed.v2"
    named_by = ("job", "round")

    job: JobIdField
    round: StepField
    bases: Annotated[tuple[DigestField, ...], Len(1, MAX_STAGES)]
    """One a group: root of the state that its claims started from."""
    claims: Annotated[tuple[tuple[DigestField, Count], ...], Len(1, MAX_PEERS)]
    """(claim, weight) of each claim that is merged, ascending."""
    reducers: Annotated[tuple[PeerIdField, ...], Len(1, MAX_CHUNKS)]
    """One a bucket of the job, in the order of `Chunking.all`."""
    given: Annotated[tuple[tuple[StageField, Ranges], ...], Len(0, MAX_STAGES)]
    """(group, items) whose leaves may be `given`, groups ascending."""
    opened_at: UnixMillisField
    commit_ends: UnixMillisField  # until which claims were taken
    closed_at: UnixMillisField

    @model_validator(mode="after")
    def _ascends(self) -> Self:
        if any(a >= b for (a, _), (b, _) in pairwise(self.claims)):
            raise ValueError("claims must ascend, each once")
        if any(a >= b for (a, _), (b, _) in pairwise(self.given)):
            raise ValueError("groups of given items must ascend, each once")
        return self

    @property
    def weights(self) -> dict[Digest, int]:
        """The weight of each claim that is merged."""
        return dict(self.claims)


UNDER_A_SEAL = (WorkClaim, RoundClosed, StepBeacon, Validation, Notice)
"""Messages 3 to 5: what a seal's `messages_root` may cover."""
