"""What coordinator and peers ask of each other: the methods of a job.

Signed messages and kept items travel as tensors (raw bytes), so that a header stays small; who asks
is proved by TLS, what binds is signed. Every method may be repeated: it answers the same again.
Units: bytes; moments in Unix milliseconds.
"""

from typing import Annotated, Literal

from annotated_types import Ge, Le, Len

from contracts.terms.chunks import MAX_CHUNK_BYTES
from contracts.terms.encoding import MAX_MESSAGE_BYTES
from contracts.terms.ids import (
    MAX_CHUNKS,
    MAX_PEERS,
    MAX_UNITS,
    ZERO_DIGEST,
    ChunkField,
    DigestField,
    JobIdField,
    PeerIdField,
    SessionKeyField,
    StageField,
    UnitField,
)
from contracts.terms.messages import Count, Positive, Record, Text, UnitLeaf
from training.transport.port import MIB
from training.transport.wire import (
    KIB,
    MAX_TENSORS,
    PING,
    RELAY,
    Method,
    Methods,
    Request,
    WireMessage,
)

MAX_HEADER = 2 * MIB
MAX_ITEMS_BYTES = 64 * MIB
LONGEST_SEARCH = 120.0
"""Seconds that the coordinator may take to ask all holders of what an auditor lacks."""
StepOrZero = Annotated[Count, Le(10_000_000)]


class PlaceView(Record):
    """One unit in one stage."""

    stage: StageField
    unit: UnitField


class MemberView(Record):
    """Whom to trust and where to dial: a member's key, stage and address."""

    session_key: SessionKeyField
    stage: StageField
    address: Text  # empty: through the coordinator


class Held(Record):
    """A boundary tensor, and the peers that keep it, in the order in which they are to be asked."""

    digest: DigestField
    holders: Annotated[tuple[PeerIdField, ...], Len(1, 8)]


Members = Annotated[tuple[MemberView, ...], Len(0, MAX_PEERS)]
Places = Annotated[tuple[PlaceView, ...], Len(0, MAX_UNITS)]
Direction = Literal["forward", "backward", "evaluate"]
"""Forward also counts the unit in the last stage, as backward does in the others; evaluate: the
forward pass of a group of validation rows, of which nothing counts."""


class TaskName(Record):
    """One pass of one peer, while nobody has lost it."""

    direction: Direction
    step: StepOrZero  # of an evaluation: whose seal the state holds
    unit: UnitField  # of an evaluation: of the group (`training.stages.torch_free`)
    attempt: Count


class Task(TaskName):
    """What a peer is to compute in its stage.

    `y` and `dx`, where they are not zero, are the tensors that the neighbours really used: a copy
    that replaces a lost one carries their digests (docs/protocol.md 3.4).
    """

    x: Held | None = None  # none on the first stage
    dy: Held | None = None  # of a backward pass alone
    y: DigestField = ZERO_DIGEST
    dx: DigestField = ZERO_DIGEST

    @property
    def name(self) -> TaskName:
        """Which pass it is."""
        return TaskName(
            direction=self.direction, step=self.step, unit=self.unit, attempt=self.attempt
        )


class Result(Record):
    """What a pass came to; a digest is zero where there is no such tensor (yet)."""

    direction: Direction
    step: StepOrZero
    attempt: Count
    leaf: UnitLeaf

    @property
    def name(self) -> TaskName:
        """Of which pass."""
        return TaskName(
            direction=self.direction, step=self.step, unit=self.leaf.unit, attempt=self.attempt
        )


class Failure(Record):
    """A pass that could not be made."""

    task: TaskName
    code: Text
    reason: Text
    lacks: DigestField  # x or dy: no holder has it any more, or nobody can use it; else zero


TaskNames = Annotated[tuple[TaskName, ...], Len(0, 2 * MAX_UNITS)]
Tasks = Annotated[tuple[Task, ...], Len(0, MAX_UNITS)]
Results = Annotated[tuple[Result, ...], Len(0, 2 * MAX_UNITS)]
Failures = Annotated[tuple[Failure, ...], Len(0, MAX_UNITS)]


class Done(WireMessage):
    """It is done, and stored where it has to be."""

    kind: Literal["done.v1"] = "done.v1"


# ------------------------------------------------------------------- asked of the coordinator


class Join(WireMessage):
    """A peer is here; tensor 0 is its signed LeaseAccept."""

    kind: Literal["join.v2"] = "join.v2"
    job: JobIdField
    address: Text
    bandwidth: Positive  # bytes per second, its own estimate: for its part in the sums
    applied: StepOrZero  # the last step whose seal it has applied
    held: Places  # units of the step after, counted or committed


class Joined(WireMessage):
    """A peer's place; seals that it has not stored come as calls.

    A peer whose state is older than `state_step` loads a checkpoint of that step from the members
    of its stage as soon as the seals up to it are stored.
    """

    kind: Literal["joined.v2"] = "joined.v2"
    stage: StageField
    step: StepOrZero
    state_step: StepOrZero
    members: Members


class GetMembers(WireMessage):
    """A peer asks who the members are now: somebody whom it does not know has what it needs."""

    kind: Literal["get_members.v1"] = "get_members.v1"
    job: JobIdField


class MembersView(WireMessage):
    """All members."""

    kind: Literal["members_view.v1"] = "members_view.v1"
    members: Members


class Leave(WireMessage):
    """A peer wants to go: it gets no more units, and stays until this step is sealed.

    It asks again until the answer is `Conflict`, because it is no member (any more).
    """

    kind: Literal["leave.v1"] = "leave.v1"
    job: JobIdField


class Report(WireMessage):
    """An auditor hands in a signed AuditReport, the request's tensor, to be sealed.

    The same one again is no error: it asks until the report is in a seal, or wanted no more.
    """

    kind: Literal["report.v1"] = "report.v1"
    job: JobIdField


class Find(WireMessage):
    """An auditor asks for bytes that nobody gave it: a boundary tensor, or a gradient's part.

    The coordinator asks whoever sent, received or audited them. The answer's tensors: a signed
    TensorHeader and the wire bytes, or the part. `NotFound`: nothing fitting came, and a Notice
    says so.
    """

    kind: Literal["find.v1"] = "find.v1"
    job: JobIdField
    digest: DigestField


class NextItem(WireMessage):
    """A peer asks for tasks, and hands in what came of others, until that is answered.

    The answer comes at once if anything is handed in, else when there is news, or after a while.
    """

    kind: Literal["next_item.v1"] = "next_item.v1"
    job: JobIdField
    is_first: bool  # of its session: `results` are all of the step that it is not bound to
    results: Results
    failed: Failures
    holding: TaskNames  # taken, and neither handed in nor dropped


class ItemTasks(WireMessage):
    """Tasks that the peer does not hold yet, and those that it holds and nobody wants any more."""

    kind: Literal["item_tasks.v1"] = "item_tasks.v1"
    tasks: Tasks
    drops: TaskNames


# --------------------------------------------------------------------------- asked of a peer


class GetTensor(WireMessage):
    """A peer asks for a boundary tensor that the other sent or received in this job.

    The answer's tensors: the sender's signed TensorHeader, then the wire bytes.
    """

    kind: Literal["get_tensor.v1"] = "get_tensor.v1"
    job: JobIdField
    step: StepOrZero
    digest: DigestField


class Measure(WireMessage):
    """The coordinator times one seeded reference unit, forward and backward, in a stage.

    A newcomer builds the stage on the first call: the second one shows its rate.
    """

    kind: Literal["measure.v1"] = "measure.v1"
    job: JobIdField
    stage: StageField
    seed: Count


class CloseStep(WireMessage):
    """The coordinator asks for GradCommits; tensor 0 is the signed StepClose."""

    kind: Literal["close_step.v1"] = "close_step.v1"
    members: Members


class StepCommitted(WireMessage):
    """What the peer lacks, or else GradCommits.

    The tensors: the signed AuditReports that they name, then GradCommits each followed by its
    leaves.
    """

    kind: Literal["step_committed.v2"] = "step_committed.v2"
    lacks: Places
    num_reports: Annotated[int, Ge(0), Le(MAX_PEERS)]


class PartName(Record):
    """One chunk of the gradient that a GradCommit bound."""

    grad_commit: DigestField
    chunk: ChunkField


PartNames = Annotated[tuple[PartName, ...], Len(0, MAX_UNITS)]


class FetchParts(WireMessage):
    """The coordinator asks a peer to hold parts; the tensors are the signed GradCommits."""

    kind: Literal["fetch_parts.v1"] = "fetch_parts.v1"
    members: Members
    parts: PartNames


class PartsHeld(WireMessage):
    """Parts that the peer holds now, each with the bytes that its GradCommit bound."""

    kind: Literal["parts_held.v1"] = "parts_held.v1"
    parts: PartNames


class TakeParts(WireMessage):
    """The coordinator relays parts that a summing peer says it lacks.

    The tensors: the signed GradCommits that the parts belong to, then the parts in order.
    """

    kind: Literal["take_parts.v1"] = "take_parts.v1"
    members: Members
    num_commits: Annotated[int, Ge(1), Le(MAX_PEERS)]
    parts: PartNames


class SumChunks(WireMessage):
    """The coordinator asks for means; the tensors are the signed AverageSet and its GradCommits."""

    kind: Literal["sum_chunks.v1"] = "sum_chunks.v1"
    members: Members
    chunks: Annotated[tuple[ChunkField, ...], Len(1, MAX_CHUNKS)]


class ChunksSummed(WireMessage):
    """The tensors are the signed AveragedChunks."""

    kind: Literal["chunks_summed.v1"] = "chunks_summed.v1"


class ChunkName(Record):
    """An averaged chunk of the step in work."""

    stage: StageField
    chunk: ChunkField


class HoldChunks(WireMessage):
    """The coordinator asks a peer to hold means, before it seals them.

    The tensors: the signed AveragedChunks; where one has to be summed again also the signed
    AverageSet and its GradCommits.
    """

    kind: Literal["hold_chunks.v1"] = "hold_chunks.v1"
    members: Members
    num_chunks: Annotated[int, Ge(1), Le(MAX_CHUNKS)]


class ChunksHeld(WireMessage):
    """Means that the peer holds now, each with the bytes that its AveragedChunk bound."""

    kind: Literal["chunks_held.v1"] = "chunks_held.v1"
    chunks: Annotated[tuple[ChunkName, ...], Len(0, MAX_CHUNKS)]


class TakeChunk(WireMessage):
    """The coordinator brings a mean that a peer could not fetch; it answers with `ChunksHeld`.

    The tensors: the signed AveragedChunk, and the bytes of the mean.
    """

    kind: Literal["take_chunk.v1"] = "take_chunk.v1"
    members: Members


class TakeSeal(WireMessage):
    """The coordinator hands over a seal; the tensors are all kept items under it, itself last."""

    kind: Literal["take_seal.v1"] = "take_seal.v1"
    members: Members
    all_applied: StepOrZero  # chunks of later steps are still wanted by somebody


class SealTaken(WireMessage):
    """The seal is stored and applied; the state that it led to.

    Zero while a newcomer only stores seals, because its state is still to be loaded.
    """

    kind: Literal["seal_taken.v2"] = "seal_taken.v2"
    step: StepOrZero
    state_root: DigestField


class GetPart(WireMessage):
    """A peer asks the owner of a GradCommit for one part; the answer's tensor."""

    kind: Literal["get_part.v1"] = "get_part.v1"
    part: PartName


class GetChunk(WireMessage):
    """A peer asks for an averaged chunk of a sealed step; the answer's tensor."""

    kind: Literal["get_chunk.v1"] = "get_chunk.v1"
    step: StepOrZero
    stage: StageField
    chunk: ChunkField


class GetState(WireMessage):
    """A newcomer asks which checkpoint of a step a member has."""

    kind: Literal["get_state.v1"] = "get_state.v1"
    job: JobIdField
    stage: StageField
    step: StepOrZero


class StateView(WireMessage):
    """A checkpoint file: blob digest and size in bytes. Members of a stage hold equal ones."""

    kind: Literal["state_view.v1"] = "state_view.v1"
    digest: DigestField
    num_bytes: Positive


class GetStateRange(WireMessage):
    """A newcomer asks for bytes [start, end) of a checkpoint file; the answer's tensor."""

    kind: Literal["get_state_range.v1"] = "get_state_range.v1"
    job: JobIdField
    stage: StageField
    step: StepOrZero
    start: Count
    end: Count


class GetWeights(WireMessage):
    """An auditor asks for the weights after a step, which the next one was computed on."""

    kind: Literal["get_weights.v1"] = "get_weights.v1"
    job: JobIdField
    stage: StageField
    step: StepOrZero


class WeightsView(WireMessage):
    """A file of weights: blob digest and size in bytes, and the roots that it lies under.

    The digest of the last three is the state root of the GradCommits of the next step
    (`training.stages.torch_free`). Members of a stage hold equal files.
    """

    kind: Literal["weights_view.v1"] = "weights_view.v1"
    digest: DigestField
    num_bytes: Positive
    weights_root: DigestField
    moments_root: DigestField
    counter: Count


class GetWeightsRange(WireMessage):
    """An auditor asks for bytes [start, end) of a file of weights; the answer's tensor."""

    kind: Literal["get_weights_range.v1"] = "get_weights_range.v1"
    job: JobIdField
    stage: StageField
    step: StepOrZero
    start: Count
    end: Count


def _for_bytes(name: str, request: type[Request], *, tensors: int = 1) -> Method[Request, Done]:
    """A method whose answer is no more than bytes of the size of a chunk."""
    return Method(
        name,
        request,
        Done,
        KIB,
        max_reply_tensor_bytes=MAX_CHUNK_BYTES,
        max_reply_tensors=tensors,
    )


JOIN = Method(
    "job.join", Join, Joined, MAX_HEADER, MAX_MESSAGE_BYTES, 1, max_reply_header_bytes=MAX_HEADER
)
GET_MEMBERS = Method("job.members", GetMembers, MembersView, KIB, max_reply_header_bytes=MAX_HEADER)
NEXT_ITEM = Method("item.next", NextItem, ItemTasks, MAX_HEADER, max_reply_header_bytes=MAX_HEADER)
LEAVE = Method("job.leave", Leave, Done, KIB)
REPORT = Method("job.report", Report, Done, KIB, MAX_MESSAGE_BYTES, 1)
FIND = _for_bytes("job.find", Find, tensors=2)
MEASURE = Method("stage.measure", Measure, Done, KIB)
GET_TENSOR = _for_bytes("peer.get_tensor", GetTensor, tensors=2)
CLOSE_STEP = Method(
    "step.close",
    CloseStep,
    StepCommitted,
    MAX_HEADER,
    MAX_MESSAGE_BYTES,
    1,
    max_reply_header_bytes=MAX_HEADER,
    max_reply_tensor_bytes=MAX_ITEMS_BYTES,
    max_reply_tensors=MAX_TENSORS,
)
FETCH_PARTS = Method(
    "step.fetch_parts",
    FetchParts,
    PartsHeld,
    2 * MAX_HEADER,
    MAX_ITEMS_BYTES,
    MAX_TENSORS,
    max_reply_header_bytes=2 * MAX_HEADER,
)
TAKE_PARTS = Method(
    "step.take_parts",
    TakeParts,
    PartsHeld,
    2 * MAX_HEADER,
    MAX_CHUNK_BYTES,
    MAX_TENSORS,
    max_reply_header_bytes=2 * MAX_HEADER,
)
SUM_CHUNKS = Method(
    "step.sum_chunks",
    SumChunks,
    ChunksSummed,
    MAX_HEADER,
    MAX_ITEMS_BYTES,
    MAX_TENSORS,
    max_reply_tensor_bytes=MAX_ITEMS_BYTES,
    max_reply_tensors=MAX_TENSORS,
)
HOLD_CHUNKS = Method(
    "step.hold_chunks",
    HoldChunks,
    ChunksHeld,
    MAX_HEADER,
    MAX_ITEMS_BYTES,
    MAX_TENSORS,
    max_reply_header_bytes=MAX_HEADER,
)
TAKE_CHUNK = Method(
    "step.take_chunk",
    TakeChunk,
    ChunksHeld,
    MAX_HEADER,
    MAX_MESSAGE_BYTES + MAX_CHUNK_BYTES,
    2,
    max_reply_header_bytes=MAX_HEADER,
)
TAKE_SEAL = Method("step.take_seal", TakeSeal, SealTaken, MAX_HEADER, MAX_ITEMS_BYTES, MAX_TENSORS)
GET_PART = _for_bytes("peer.get_part", GetPart)
GET_CHUNK = _for_bytes("peer.get_chunk", GetChunk)

GET_STATE = Method("peer.get_state", GetState, StateView, KIB)
GET_STATE_RANGE = _for_bytes("peer.get_state_range", GetStateRange)
GET_WEIGHTS = Method("peer.get_weights", GetWeights, WeightsView, KIB)
GET_WEIGHTS_RANGE = _for_bytes("peer.get_weights_range", GetWeightsRange)

FOR_AUDITORS = (GET_TENSOR.name, GET_PART.name, GET_WEIGHTS.name, GET_WEIGHTS_RANGE.name)
"""What an outside auditor may ask members for."""
RELAYED = Methods(
    (
        GET_TENSOR,
        GET_PART,
        GET_CHUNK,
        GET_STATE,
        GET_STATE_RANGE,
        GET_WEIGHTS,
        GET_WEIGHTS_RANGE,
        PING,
    )
)
"""What the coordinator passes on to a peer that cannot be dialled."""

METHODS = Methods(
    (
        PING,
        RELAY,
        JOIN,
        GET_MEMBERS,
        NEXT_ITEM,
        LEAVE,
        REPORT,
        FIND,
        MEASURE,
        GET_TENSOR,
        CLOSE_STEP,
        FETCH_PARTS,
        TAKE_PARTS,
        SUM_CHUNKS,
        HOLD_CHUNKS,
        TAKE_CHUNK,
        TAKE_SEAL,
        GET_PART,
        GET_CHUNK,
        GET_STATE,
        GET_STATE_RANGE,
        GET_WEIGHTS,
        GET_WEIGHTS_RANGE,
    )
)
"""Everything that the processes of a job speak."""
