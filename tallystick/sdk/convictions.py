"""A conviction in words: where it stands, what it costs, and what its owner can do about it."""

from datetime import UTC, datetime

from contracts.terms.amounts import format_tokens
from contracts.terms.moments import UnixSeconds
from market.bodies.slashes import ConvictionView, SlashState, SlashView

ENDED = ("burned", "dropped", "lapsed", "nothing")
"""States of a slash that do not change any more."""

_STATES: dict[SlashState, str] = {
    "convicted": "convicted: is not announced yet",
    "announcing": "convicted: is being announced",
    "burned": "burned",
    "dropped": "dropped: nothing was taken",
    "lapsed": "lapsed: it was not burned in time, and nothing was taken",
    "nothing": "over: the account had no stake there",
}


def state_of(conviction: ConvictionView) -> str:
    """Where it stands, for people."""
    if conviction.slash is None:
        return "noted: no auditor has shown its evidence yet"
    return state_of_slash(conviction.slash)


def state_of_slash(slash: SlashView) -> str:
    """The same once there is evidence."""
    if slash.state == "announced":
        return f"announced: burned from {_moment(slash.burns_from)} on, if it is not dropped"
    return _STATES[slash.state]


def told_to_owner(conviction: ConvictionView) -> str:
    """What a convicted account is told, in one line."""
    line = f"convicted in job {conviction.job.hex()[:12]}: {state_of(conviction)}"
    slash = conviction.slash
    if slash is None:
        return f"{line}; {format_tokens(conviction.wanted)} tokens of stake are at risk"
    if slash.state == "burned" and slash.ended_by is not None:
        amount = format_tokens(slash.amount)
        return f"{line}: {amount} tokens of stake, transaction 0x{slash.ended_by.hex()}"
    return f"{line}; {_what_to_do(slash)}" if slash.state == "announced" else line


def _what_to_do(slash: SlashView) -> str:
    evidence = slash.evidence.hex()
    return (
        f"{format_tokens(slash.amount)} tokens will be taken; get the evidence with `tallystick "
        f"job evidence {evidence} --to FILE` and run it again with `tallystick audit rerun FILE`; "
        "if it does not show it, tell whoever holds the canceller's key before then"
    )


def _moment(at: UnixSeconds | None) -> str:
    return "now" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"
