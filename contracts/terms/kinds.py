"""Which messages there are, by kind, and how one is read from its bytes."""

from contracts.terms import escrow_messages, messages, work
from contracts.terms.encoding import decode, encode
from contracts.terms.errors import Malformed, UnknownVersion
from contracts.terms.messages import Message

MESSAGES: dict[str, type[Message]] = {
    str(cls.model_fields["kind"].default): cls
    for cls in (
        messages.JobSpec,
        messages.Offer,
        messages.JobOpening,
        messages.LeaseAccept,
        work.WorkClaim,
        work.RoundClosed,
        messages.StepBeacon,
        messages.Validation,
        messages.Notice,
        messages.Seal,
        escrow_messages.Grant,
        escrow_messages.Bond,
        escrow_messages.Quit,
        escrow_messages.End,
        escrow_messages.Close,
        escrow_messages.Withdraw,
    )
}
"""Every message by its kind."""


def decode_message(data: bytes) -> Message:
    """The message that `data` spells.

    Raises:
        TooLarge: more than `MAX_MESSAGE_BYTES`.
        UnknownVersion: a kind or version that is not in `MESSAGES`.
        Malformed: anything else that does not fit, including another spelling of the same value.
    """
    return message_from_value(decode(data))


def message_from_value(value: object) -> Message:
    """The message in a decoded value; errors as `decode_message`."""
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        raise Malformed("no message: its kind is missing")
    cls = MESSAGES.get(value["kind"])
    if cls is None:
        raise UnknownVersion(f"unknown kind or version {value['kind']!r:.80}", kind=value["kind"])
    message = cls.from_value(value)
    if message.encoded() != encode(value):
        raise Malformed(f"{value['kind']}: not in canonical form")
    return message
