"""What coordinator, trainers and peers ask of each other: the methods of a job.

Signed messages and kept items travel as tensors (raw bytes), so that a header stays small; who asks
is proved by TLS, what binds is signed. Every method may be repeated: it answers the same again.
Units: bytes; moments in Unix milliseconds.
"""

from typing import Annotated, Literal

from annotated_types import Ge, Le, Len

from contracts.terms.encoding import MAX_MESSAGE_BYTES
from contracts.terms.ids import (
    MAX_CHUNKS,
    MAX_PEERS,
    MAX_UNITS,
    ChunkField,
    DigestField,
    JobIdField,
    PeerIdField,
    SessionKeyField,
    StageField,
    UnitField,
)
from contracts.terms.messages import Count, Record, Signed64, Text
from training.transport.port import MIB
from training.transport.wire import KIB, MAX_TENSORS, PING, Method, Methods, WireMessage

MAX_HEADER = 2 * MIB
MAX_CHUNK_BYTES = 255 * MIB
MAX_ITEMS_BYTES = 64 * MIB
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


Keys = Annotated[tuple[SessionKeyField, ...], Len(0, MAX_PEERS)]
Members = Annotated[tuple[MemberView, ...], Len(0, MAX_PEERS)]
Places = Annotated[tuple[PlaceView, ...], Len(0, MAX_UNITS)]


class Done(WireMessage):
    """It is done, and stored where it has to be."""

    kind: Literal["done.v1"] = "done.v1"


# ------------------------------------------------------------------- asked of the coordinator


class Join(WireMessage):
    """A peer is here; tensor 0 is its signed LeaseAccept."""

    kind: Literal["join.v1"] = "join.v1"
    job: JobIdField
    address: Text
    applied: StepOrZero  # the last step whose seal it has applied
    held: Places  # units of the step after, computed or committed


class Joined(WireMessage):
    """A peer's place; seals that it has not applied come as calls."""

    kind: Literal["joined.v1"] = "joined.v1"
    stage: StageField
    step: StepOrZero
    members: Members


class NextStep(WireMessage):
    """A trainer asks for work; the answer comes when there is some, or after a while without."""

    kind: Literal["next_step.v1"] = "next_step.v1"
    job: JobIdField
    seen: Count  # the version of the answer before; 0 at first
    known: Keys  # workers that the trainer uses already: it waits for others


class StepWork(WireMessage):
    """Units that nobody has done yet, in ascending order, and who may be given them."""

    kind: Literal["step_work.v1"] = "step_work.v1"
    version: Count
    step: StepOrZero
    places: Places
    workers: Members
    finished: bool


class UnitReport(Record):
    """A unit that a peer has computed."""

    stage: StageField
    unit: UnitField
    peer: PeerIdField


class UnitsReport(WireMessage):
    """A trainer reports what came back."""

    kind: Literal["units_report.v1"] = "units_report.v1"
    job: JobIdField
    step: StepOrZero
    done: Annotated[tuple[UnitReport, ...], Len(1, MAX_UNITS)]


# --------------------------------------------------------------------------- asked of a peer


class Compute(WireMessage):
    """A trainer asks for forward and backward of one unit through the whole of a stage."""

    kind: Literal["compute.v1"] = "compute.v1"
    job: JobIdField
    step: StepOrZero
    stage: StageField
    unit: UnitField
    attempt: Annotated[int, Ge(0), Le(2**31)]


class Computed(WireMessage):
    """The unit is in the peer's gradient; its loss on the last stage, 1e-6 nats per token."""

    kind: Literal["computed.v1"] = "computed.v1"
    loss: Signed64 | None


class CloseStep(WireMessage):
    """The coordinator asks for GradCommits; tensor 0 is the signed StepClose."""

    kind: Literal["close_step.v1"] = "close_step.v1"
    members: Members


class StepCommitted(WireMessage):
    """What the peer lacks, or else, as tensors, GradCommits each followed by its leaves."""

    kind: Literal["step_committed.v1"] = "step_committed.v1"
    lacks: Places


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


class SumChunks(WireMessage):
    """The coordinator asks for means; the tensors are the signed AverageSet and its GradCommits."""

    kind: Literal["sum_chunks.v1"] = "sum_chunks.v1"
    members: Members
    chunks: Annotated[tuple[ChunkField, ...], Len(1, MAX_CHUNKS)]


class ChunksSummed(WireMessage):
    """The tensors are the signed AveragedChunks."""

    kind: Literal["chunks_summed.v1"] = "chunks_summed.v1"


class TakeSeal(WireMessage):
    """The coordinator hands over a seal; the tensors are all kept items under it, itself last."""

    kind: Literal["take_seal.v1"] = "take_seal.v1"
    members: Members
    all_applied: StepOrZero  # chunks of later steps are still wanted by somebody


class SealTaken(WireMessage):
    """The seal is stored and applied; the state that it led to, and a validation if one was due."""

    kind: Literal["seal_taken.v1"] = "seal_taken.v1"
    step: StepOrZero
    state_root: DigestField
    validation_loss: Signed64 | None  # 1e-6 nats per token


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


JOIN = Method(
    "job.join", Join, Joined, MAX_HEADER, MAX_MESSAGE_BYTES, 1, max_reply_header_bytes=MAX_HEADER
)
NEXT_STEP = Method(
    "job.next_step", NextStep, StepWork, MAX_HEADER, max_reply_header_bytes=MAX_HEADER
)
UNITS_DONE = Method("job.units_done", UnitsReport, Done, 2 * MAX_HEADER)
COMPUTE = Method("stage.compute", Compute, Computed, KIB)
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
TAKE_SEAL = Method("step.take_seal", TakeSeal, SealTaken, MAX_HEADER, MAX_ITEMS_BYTES, MAX_TENSORS)
GET_PART = Method(
    "peer.get_part",
    GetPart,
    Done,
    KIB,
    max_reply_tensor_bytes=MAX_CHUNK_BYTES,
    max_reply_tensors=1,
)
GET_CHUNK = Method(
    "peer.get_chunk",
    GetChunk,
    Done,
    KIB,
    max_reply_tensor_bytes=MAX_CHUNK_BYTES,
    max_reply_tensors=1,
)

METHODS = Methods(
    (
        PING,
        JOIN,
        NEXT_STEP,
        UNITS_DONE,
        COMPUTE,
        CLOSE_STEP,
        FETCH_PARTS,
        SUM_CHUNKS,
        TAKE_SEAL,
        GET_PART,
        GET_CHUNK,
    )
)
"""Everything that the processes of a job speak."""
