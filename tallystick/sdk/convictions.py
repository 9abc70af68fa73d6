"""A conviction in words: where it stands, what it costs, and what its owner can do about it."""

from datetime import UTC, datetime

from contracts.terms.amounts import format_tokens
from market.bodies.settlement import ConvictionView, SlashView

ENDED = ("executed", "dropped", "nothing")
"""States of a slash that do not change any more."""


def state_of(conviction: ConvictionView) -> str:
    """Where it stands, for people."""
    if conviction.slash is None:
        return "noted: no auditor has shown its evidence yet"
    return state_of_slash(conviction.slash)


def state_of_slash(slash: SlashView) -> str:
    """The same once there is evidence."""
    match slash.state:
        case "convicted":
            return "convicted: announced when others against the same stake had time to come"
        case "announcing":
            return "convicted: is being announced"
        case "announced":
            return f"announced: can be contested until {_moment(slash)}"
        case "contested":
            return "contested: nothing is taken until the market's operator has judged it"
        case "dropping":
            return "contested: the operator agrees, and ends it"
        case "executed":
            return "executed"
        case "dropped":
            return "dropped: nothing was taken"
    return "over: nothing was left of the stake"


def split_of(slash: SlashView) -> str:
    """Where what is announced, or was taken, goes."""
    given = slash.restitution + slash.bounty
    total = given + slash.burned if slash.state == "executed" else slash.amount
    return (
        f"{format_tokens(total)} = {format_tokens(slash.restitution)} to the job + "
        f"{format_tokens(slash.bounty)} to 0x{slash.challenger.hex()} + "
        f"{format_tokens(total - given)} burned"
    )


def told_to_owner(conviction: ConvictionView) -> str:
    """What a convicted account is told, in one line."""
    line = f"convicted in job {conviction.job.hex()[:12]}: {state_of(conviction)}"
    slash = conviction.slash
    if slash is None:
        return f"{line}; {format_tokens(conviction.wanted)} tokens of stake are at risk"
    if slash.state == "executed" and slash.ended_by is not None:
        return f"{line}: {split_of(slash)}, transaction 0x{slash.ended_by.hex()}"
    return f"{line}; {_what_to_do(slash)}" if slash.state == "announced" else line


def _what_to_do(slash: SlashView) -> str:
    evidence = slash.evidence.hex()
    return (
        f"{format_tokens(slash.amount)} tokens will be taken; get the evidence with `tallystick "
        f"job evidence {evidence} --to FILE`, run it again with `tallystick audit rerun FILE`, and "
        f"if it does not show it: `tallystick provider contest {evidence}`"
    )


def _moment(slash: SlashView) -> str:
    if slash.window_ends is None:
        return "its window ends"
    return f"{datetime.fromtimestamp(slash.window_ends, UTC):%Y-%m-%d %H:%M:%S} UTC"
