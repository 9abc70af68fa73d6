"""What would match a job, in the words of its job file."""

from datetime import UTC, datetime

from contracts.terms.amounts import BaseUnits, in_tokens
from contracts.terms.moments import UnixSeconds
from market.bodies.jobs import AdviceView, ChangeView


def in_words(advice: AdviceView, *, now: UnixSeconds, budget: BaseUnits) -> str:
    """One sentence, e.g. `raise price_ceiling from 2000 to 2500 tokens per PFLOP`.

    Args:
        advice: What the market says.
        now: When the job would be posted.
        budget: Of the job as it is; a higher one is asked for where it is needed.
    """
    said = " and ".join(_change(each, now) for each in advice.changes)
    if advice.budget > budget:
        said += f", with a budget of at least {in_tokens(advice.budget)} tokens"
    return said


def _change(change: ChangeView, now: UnixSeconds) -> str:
    was, to = change.was, change.to
    match change.key:
        case "price_ceiling":
            return f"raise price_ceiling from {in_tokens(was)} to {in_tokens(to)} tokens per PFLOP"
        case "min_stake":
            return f"lower min_stake from {in_tokens(was)} to {in_tokens(to)} tokens"
        case "deadline":
            return f"bring the deadline forward from {was - now}s to {to - now}s"
        case "wait_until":
            then = datetime.fromtimestamp(to, UTC).isoformat(timespec="seconds")
            return f"wait {to - now} s, until {then}"
        case "stages" | "peers_per_stage":
            return f"change {change.key} from {was} to {to}"
