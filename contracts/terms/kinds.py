"""Which messages there are, by kind, and how one is read from its bytes."""

from contracts.terms.encoding import MAX_MESSAGE_BYTES, decode, encode
from contracts.terms.errors import Malformed, UnknownVersion
from contracts.terms.escrow_messages import Bond, Close, End, Grant, Quit, Withdraw
from contracts.terms.messages import (
    AuditReport,
    AveragedChunk,
    AverageSet,
    GradCommit,
    JobOpening,
    JobSpec,
    LeaseAccept,
    Message,
    Notice,
    Offer,
    Seal,
    StepClose,
    StepCoin,
    TensorHeader,
)

MESSAGES: dict[str, type[Message]] = {
    str(cls.model_fields["kind"].default): cls
    for cls in (
        JobSpec,
        Offer,
        JobOpening,
        LeaseAccept,
        TensorHeader,
        StepClose,
        GradCommit,
        AverageSet,
        AveragedChunk,
        AuditReport,
        StepCoin,
        Notice,
        Seal,
        Grant,
        Bond,
        Quit,
        End,
        Close,
        Withdraw,
    )
}
"""Every message by its kind."""


def decode_message(data: bytes, *, max_bytes: int = MAX_MESSAGE_BYTES) -> Message:
    """The message that `data` spells.

    Raises:
        TooLarge: more than `max_bytes`.
        UnknownVersion: a kind or version that is not in `MESSAGES`.
        Malformed: anything else that does not fit, including another spelling of the same value.
    """
    return message_from_value(decode(data, max_bytes=max_bytes))


def message_from_value(value: object) -> Message:
    """The message in a decoded value; errors as `decode_message`."""
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        raise Malformed("no message: its kind is missing")
    cls = MESSAGES.get(value["kind"])
    if cls is None:
        raise UnknownVersion(f"unknown kind or version {value['kind']!r:.80}", kind=value["kind"])
    message = cls.from_value(value)
    if encode(message.value()) != encode(value):
        raise Malformed(f"{value['kind']}: not in canonical form")
    return message
