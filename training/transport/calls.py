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
    ChunkField,
    DigestField,
    PeerIdField,
    SessionKeyField,
    StageField,
)
from contracts.terms.items import MAX_ITEMS, ItemField, Ranges
from contracts.terms.messages import Count, Positive, Record, Signed64, Text
from contracts.terms.work import MAX_REPORTS, TensorName
from contracts.terms.work import MAX_TENSORS as MAX_TENSORS_OF_LEAF
from training.transport.port import MIB
from training.transport.wire import (
    KIB,
    MAX_TENSORS,
    PING,
    RELAY,
    Method,
    Methods,
    OfJob,
    WireMessage,
)

MAX_HEADER = 2 * MIB
MAX_ITEMS_BYTES = 64 * MIB
LONGEST_SEARCH = 120.0
"""Seconds that the coordinator may take to ask all holders of what an auditor lacks."""
MAX_NAMES = 2**16
RoundOrZero = Annotated[Count, Le(10_000_000)]


class MemberView(Record):
    """Whom to trust and where to dial: a member's key, group and address."""

    session_key: SessionKeyField
    group: StageField
    address: Text  # empty: through the coordinator


Members = Annotated[tuple[MemberView, ...], Len(0, MAX_PEERS)]
NamedTensors = Annotated[tuple[tuple[TensorName, DigestField], ...], Len(0, MAX_TENSORS_OF_LEAF)]
Digests = Annotated[tuple[DigestField, ...], Len(0, MAX_NAMES)]


class Done(WireMessage):
    """It is done, and stored where it has to be."""

    kind: Literal["done.v1"] = "done.v1"


# ------------------------------------------------------------------- asked of the coordinator


class Join(OfJob):
    """A peer is here; tensor 0 is its signed LeaseAccept."""

    kind: Literal["join.v3"] = "join.v3"
    address: Text
    bandwidth: Positive  # bytes per second, its own estimate: for its part in reducing
    applied: RoundOrZero  # the last round whose seal it has applied


class Joined(WireMessage):
    """A peer's place; seals that it has not stored come as calls.

    A peer whose state is older than `state_round` loads a checkpoint of that round from the members
    of its group as soon as the seals up to it are stored.
    """

    kind: Literal["joined.v3"] = "joined.v3"
    group: StageField
    round: RoundOrZero
    state_round: RoundOrZero
    members: Members


class GetMembers(OfJob):
    """A peer asks who the members are now: somebody whom it does not know has what it needs."""

    kind: Literal["get_members.v1"] = "get_members.v1"


class MembersView(WireMessage):
    """All members."""

    kind: Literal["members_view.v1"] = "members_view.v1"
    members: Members


class Leave(OfJob):
    """A peer wants to go: it gets no more items, and stays until what it has done is sealed.

    It asks again until the answer is `Conflict`, because it is no member (any more).
    """

    kind: Literal["leave.v1"] = "leave.v1"


class Report(OfJob):
    """An auditor hands in a signed report, to be sealed. The tensors: the claim, then its leaves.

    The same one again is no error: it asks until the report is in a seal, or wanted no more.
    """

    kind: Literal["report.v1"] = "report.v1"


# -------------------------------------------------------------------------------------- items

Direction = Literal["forward", "backward", "whole", "evaluate"]
"""Which pass; `evaluate`: forward of a group of validation rows, of which nothing counts."""


class TaskName(Record):
    """One pass of one peer, while nobody has lost it."""

    direction: Direction
    round: RoundOrZero  # of an evaluation: whose seal the state holds
    item: ItemField  # of an evaluation: the number of the group of rows


class Input(Record):
    """A tensor that a pass reads, and the peers that keep it, in the order to ask them in."""

    name: TensorName
    digest: DigestField
    holders: Annotated[tuple[PeerIdField, ...], Len(1, 8)]


class Task(TaskName):
    """What a peer is to compute.

    `used` names what the neighbours really used of what it makes, where another peer had made that
    and is gone: the leaf of a `given` item carries these digests.
    """

    inputs: Annotated[tuple[Input, ...], Len(0, 4)]
    used: NamedTensors


class TaskResult(TaskName):
    """What a pass came to: the tensors that went in and came out, by the names of leaves."""

    tensors: NamedTensors
    loss: Signed64 | None  # 1e-6 nats per token; where the group has one
    given: bool


class Failure(TaskName):
    """A pass that could not be made."""

    code: Text
    reason: Text
    lacks: DigestField  # an input: no holder has it any more, or nobody can use it; else zero


TaskNames = Annotated[tuple[TaskName, ...], Len(0, 2 * MAX_ITEMS)]
Tasks = Annotated[tuple[Task, ...], Len(0, MAX_ITEMS)]
Results = Annotated[tuple[TaskResult, ...], Len(0, 2 * MAX_ITEMS)]
Failures = Annotated[tuple[Failure, ...], Len(0, MAX_ITEMS)]


class NextItem(OfJob):
    """A peer asks for tasks, and hands in what came of others, until that is answered.

    The answer comes at once if anything is handed in, else when there is news, or after a while.
    """

    kind: Literal["next_item.v3"] = "next_item.v3"
    is_first: bool  # of its session: `results` are all of the round that no claim of its covers
    is_free: bool = False  # its work of the round is claimed: may it work for the next one?
    results: Results
    failed: Failures
    holding: TaskNames  # taken, and neither handed in nor dropped


class ItemTasks(WireMessage):
    """Tasks that the peer does not hold yet, and those that it holds and nobody wants any more."""

    kind: Literal["item_tasks.v3"] = "item_tasks.v3"
    tasks: Tasks
    drops: TaskNames
    ahead: ItemField | None = None
    """For who is free: an item of the next round, for which it will be asked as that begins."""


class Measure(OfJob):
    """The coordinator times one seeded reference item, forward and backward, in a group.

    A newcomer builds its state on the first call: the second one shows its rate.
    """

    kind: Literal["measure.v2"] = "measure.v2"
    group: StageField
    seed: Count


# -------------------------------------------------------------------------------------- rounds


class Commit(OfJob):
    """The coordinator asks a peer to claim all items that count as its own and no claim covers.

    `given`: those of them whose tensors were used as a peer that is gone had made them.
    """

    kind: Literal["commit.v1"] = "commit.v1"
    round: RoundOrZero
    items: Ranges
    given: Ranges


class Committed(WireMessage):
    """What the peer lacks, or else its claim.

    The tensors: the signed reports that the claim names, each followed by its leaves; then the
    claim and its leaves.
    """

    kind: Literal["committed.v1"] = "committed.v1"
    lacks: Ranges
    num_reports: Annotated[int, Ge(0), Le(MAX_REPORTS)]


class GetClaims(OfJob):
    """A member asks what the round merges and who reduces what, of its group and those beside it.

    A long poll. Whose own claims are not stored yet hears of others' only from RoundClosed on: what
    it is to reduce, it may not read before it has claimed.
    """

    kind: Literal["get_claims.v1"] = "get_claims.v1"
    round: RoundOrZero
    seen: Count  # how much of the round it has heard; more than there is: all of it, again


class Claims(WireMessage):
    """What is new; the tensors: signed claims of work, RoundClosed, and claims of buckets."""

    kind: Literal["claims.v1"] = "claims.v1"
    round: RoundOrZero  # that is worked on; another one than was asked for: nothing of that
    seen: Count
    reduces: Annotated[tuple[ChunkField, ...], Len(0, MAX_CHUNKS)]
    """Buckets that it is dealt, by their number in its group: it fetches their shards at once."""
    holds: Digests
    """Shards that it is to hold beside: of reducers, so that these do not hold them alone."""
    members: Members


class Reduce(WireMessage):
    """The coordinator asks for the mean of a bucket over a RoundClosed, which is the one tensor.

    The answer's tensor is the signed claim of the bucket.
    """

    kind: Literal["reduce.v1"] = "reduce.v1"
    bucket: ChunkField


class Held(OfJob):
    """A member has these shards or buckets of the round on its disk, and has checked them."""

    kind: Literal["held.v1"] = "held.v1"
    round: RoundOrZero
    digests: Digests


class TakeSeal(WireMessage):
    """The coordinator hands over a seal: the names of all kept items under it, itself last.

    The tensors are those items that this session has not carried yet.
    """

    kind: Literal["take_seal.v2"] = "take_seal.v2"
    members: Members
    names: Digests  # `history.kept_digest` of each item, in order
    all_applied: RoundOrZero  # buckets of later rounds are still wanted by somebody


class SealTaken(WireMessage):
    """The seal is stored and applied; the state that it led to.

    The root is zero while a newcomer only stores seals, because its state is still to be loaded.
    """

    kind: Literal["seal_taken.v3"] = "seal_taken.v3"
    round: RoundOrZero
    state_root: DigestField
    lacks: bool  # some items are not here: all of them are to be sent


# --------------------------------------------------------------------------------------- bytes


class GetBytes(OfJob):
    """Anybody asks anybody for bytes by their digest: a boundary tensor, a shard, or a bucket.

    The digest is the permission: claims are shown only to who may fetch. The coordinator fetches
    what it does not keep from whoever may have it; `NotFound` from it: nothing fitting came, and a
    Notice says so where an audit needed it.
    """

    kind: Literal["get_bytes.v1"] = "get_bytes.v1"
    digest: DigestField


class GetFile(OfJob):
    """Which file of a state after a round a member has: a checkpoint, or weights alone.

    Newcomers ask for checkpoints; auditors for weights, which the next round was computed on.
    """

    kind: Literal["get_file.v1"] = "get_file.v1"
    group: StageField
    round: RoundOrZero


class FileView(WireMessage):
    """A file: blob digest and size in bytes. Members of a stage hold equal ones."""

    kind: Literal["file_view.v1"] = "file_view.v1"
    digest: DigestField
    num_bytes: Positive
    state_root: DigestField  # of which weights are a part, says their holder; else zero


class GetFileRange(OfJob):
    """Somebody asks for bytes [start, end) of such a file; the answer's tensor."""

    kind: Literal["get_file_range.v1"] = "get_file_range.v1"
    group: StageField
    round: RoundOrZero
    start: Count
    end: Count


_BYTES = {"max_reply_tensor_bytes": MAX_CHUNK_BYTES, "max_reply_tensors": 1}
_MEMBERS = {"max_reply_header_bytes": MAX_HEADER}
_ITEMS = {"max_reply_tensor_bytes": MAX_ITEMS_BYTES, "max_reply_tensors": MAX_TENSORS}

JOIN = Method("job.join", Join, Joined, KIB, MAX_MESSAGE_BYTES, 1, **_MEMBERS)
GET_MEMBERS = Method("job.members", GetMembers, MembersView, KIB, **_MEMBERS)
LEAVE = Method("job.leave", Leave, Done, KIB)
REPORT = Method("job.report", Report, Done, KIB, 2 * MAX_MESSAGE_BYTES, 2)
NEXT_ITEM = Method("item.next", NextItem, ItemTasks, 2 * MAX_HEADER, **_MEMBERS)
MEASURE = Method("item.measure", Measure, Done, KIB)
COMMIT = Method("round.commit", Commit, Committed, MAX_HEADER, **_MEMBERS, **_ITEMS)
GET_CLAIMS = Method("round.claims", GetClaims, Claims, KIB, **_MEMBERS, **_ITEMS)
REDUCE = Method("round.reduce", Reduce, Done, KIB, MAX_MESSAGE_BYTES, 1, KIB, KIB, 1)
HELD = Method("round.held", Held, Done, MAX_HEADER)
TAKE_SEAL = Method("round.seal", TakeSeal, SealTaken, MAX_HEADER, MAX_ITEMS_BYTES, MAX_TENSORS)
GET_BYTES = Method("blob.get", GetBytes, Done, KIB, **_BYTES)
GET_STATE = Method("peer.get_state", GetFile, FileView, KIB)
GET_STATE_RANGE = Method("peer.get_state_range", GetFileRange, Done, KIB, **_BYTES)
GET_WEIGHTS = Method("peer.get_weights", GetFile, FileView, KIB)
GET_WEIGHTS_RANGE = Method("peer.get_weights_range", GetFileRange, Done, KIB, **_BYTES)

FOR_AUDITORS = (GET_BYTES.name, GET_WEIGHTS.name, GET_WEIGHTS_RANGE.name)
"""What an outside auditor may ask members for."""
RELAYED = Methods((GET_BYTES, GET_STATE, GET_STATE_RANGE, GET_WEIGHTS, GET_WEIGHTS_RANGE, PING))
"""What the coordinator passes on to a peer that cannot be dialled."""

METHODS = Methods(
    (
        *(PING, RELAY, JOIN, GET_MEMBERS, LEAVE, REPORT, NEXT_ITEM, MEASURE, COMMIT, GET_CLAIMS),
        *(REDUCE, HELD, TAKE_SEAL, GET_BYTES),
        *(GET_STATE, GET_STATE_RANGE, GET_WEIGHTS, GET_WEIGHTS_RANGE),
    )
)
"""Everything that the processes of a job speak."""
