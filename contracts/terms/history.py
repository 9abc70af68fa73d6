"""What is kept of a job: one ordered list, from the signed spec to the last seal.

The coordinator's journal, the table of messages, the API and the audit file all hold these items
in this form. A claim of work or a report is followed by its leaves, whose root it names; the
opening of a checked job by the list of outside auditors, which it names; in a job on chats they
are followed by the counts of targets, which its JobSpec names.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from contracts.terms import merkle
from contracts.terms.auditors import AuditorList
from contracts.terms.digest import digest
from contracts.terms.encoding import Value, decode, encode
from contracts.terms.errors import Malformed, NotFound
from contracts.terms.ids import Digest
from contracts.terms.items import MAX_ITEMS
from contracts.terms.merkle import Proof, plain_leaf, plain_root
from contracts.terms.messages import Message
from contracts.terms.signatures import Signed, signed_from_value
from contracts.terms.targets import TargetCounts
from contracts.terms.work import Leaf


@dataclass(frozen=True)
class Leaves:
    """The leaves that travel with a claim of work, in ascending order of items, or a report."""

    claim: Digest
    leaves: tuple[Leaf, ...]


Kept: TypeAlias = Signed[Message] | Leaves | AuditorList | TargetCounts


def claim_leaves_root(leaves: Sequence[Leaf]) -> Digest:
    """What WorkClaim.leaves binds: plain Merkle root over the encoded leaves, in order."""
    return plain_root([leaf.encoded() for leaf in leaves])


def messages_root(messages: Sequence[Message]) -> Digest:
    """Root over the messages that a seal covers, ordered by kind and digest."""
    return plain_root(names_under(messages))


def names_under(messages: Sequence[Message]) -> list[Digest]:
    """Digests of the messages that a seal covers, in the order of its root."""
    return [name for _, name in sorted((each.kind, each.digest()) for each in messages)]


def prove_message(names: Sequence[Digest], name: Digest) -> tuple[int, Proof]:
    """Place of a message under the root over `names`, see `names_under`, and its path there.

    Raises:
        NotFound: it is none of them.
    """
    if name not in names:
        raise NotFound("the seal holds no such message", digest=name.hex())
    index = names.index(name)
    return index, merkle.prove([plain_leaf(each) for each in names], index)


def encode_kept(item: Kept) -> bytes:
    """Canonical bytes of one item."""
    return encode(kept_value(item))


def kept_value(item: Kept) -> dict[str, Value]:
    """One item as a part of what is encoded."""
    match item:
        case Signed():
            return {"type": "signed", **item.value()}
        case Leaves(claim, leaves):
            return {"type": "leaves", "claim": claim, "leaves": [leaf.value() for leaf in leaves]}
        case AuditorList():
            return {"type": "auditors", "data": item.value()}
        case TargetCounts():
            return {"type": "targets", "data": item.value()}


def decode_kept(data: bytes) -> Kept:
    """The item that `data` spells; signatures and roots are not checked here.

    Raises:
        TooLarge, Malformed, UnknownVersion: see `kinds.decode_message`.
    """
    match decode(data):
        case {"type": "signed", **signed}:
            return signed_from_value(signed)
        case {"type": "leaves", "claim": bytes(name), "leaves": list(leaves), **rest} if (
            not rest and len(name) == 32 and len(leaves) <= MAX_ITEMS
        ):
            return Leaves(Digest(name), tuple(Leaf.from_value(leaf) for leaf in leaves))
        case {"type": "auditors", "data": listed, **rest} if not rest:
            return AuditorList.decoded(encode(listed))
        case {"type": "targets", "data": counted, **rest} if not rest:
            return TargetCounts.decoded(encode(counted))
    raise Malformed("a kept item is a signed message, leaves of a claim, auditors or targets")


def kept_digest(item: Kept) -> Digest:
    """Name under which an item is stored once."""
    return kept_name(encode_kept(item))


def kept_name(data: bytes) -> Digest:
    """The same of its canonical bytes."""
    return digest("kept", data)
