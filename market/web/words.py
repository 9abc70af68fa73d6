"""How values are spelled for people: amounts, moments, spans, sizes, states. Pure.

Nothing is rounded that is money. Units of the arguments are those of the API: base units,
milliseconds, bytes, flops per second, parts of 1e6 or 1e4.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction

from contracts.terms.amounts import in_tokens
from verification.draws.odds import read_exact

SHOWN_START, SHOWN_END = 8, 6
_SPANS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
_FAR_YEARS = datetime(9999, 1, 1, tzinfo=UTC).timestamp()


def tokens(amount: int) -> str:
    """An amount of base units in tokens, exactly: `12.5`."""
    whole, point, decimals = in_tokens(amount).partition(".")
    return f"{int(whole):,}{point}{decimals}"


def short(name: str) -> str:
    """A long name in hex, its middle left out."""
    if len(name) <= SHOWN_START + SHOWN_END + 1:
        return name
    return f"{name[:SHOWN_START]}\N{HORIZONTAL ELLIPSIS}{name[-SHOWN_END:]}"


def utc(millis: int) -> str:
    """A moment, to the second."""
    if not 0 <= millis / 1000 < _FAR_YEARS:
        return "never"
    return datetime.fromtimestamp(millis // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def iso(millis: int) -> str:
    """A moment for programs."""
    if not 0 <= millis / 1000 < _FAR_YEARS:
        return ""
    return datetime.fromtimestamp(millis // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def span(seconds: float) -> str:
    """A span in its two largest units: `2 h 5 min`."""
    left, parts = round(seconds), []
    for unit, length in _SPANS:
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count:,} {unit}")
    return " ".join(parts[:2]) or "0 s"


def relative(millis: int, now: int) -> str:
    """How far away a moment is: `3 min ago`, `in 2 h`."""
    away = (millis - now) / 1000
    if abs(away) < 1:
        return "now"
    largest = span(abs(away)).split(" ")
    words = " ".join(largest[:2])
    return f"in {words}" if away > 0 else f"{words} ago"


def size(num_bytes: int) -> str:
    """Bytes: `7.5 GiB`."""
    value, unit = float(num_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"


def flops(rate: int) -> str:
    """Flops, or flops per second, with a prefix: `1.25 T`."""
    value, prefix = float(rate), ""
    for prefix in ("", "k", "M", "G", "T", "P", "E"):
        if value < 1000 or prefix == "E":
            break
        value /= 1000
    return f"{value:,.3g} {prefix}".rstrip()


def millionths(value: int, digits: int = 4) -> str:
    """A number in parts of 1e6, as a loss is."""
    return f"{value / 10**6:.{digits}f}"


def percent(part: int, whole: int) -> str:
    """A part of something: `12.5 %`."""
    return f"{100 * part / whole:.1f} %" if whole else "0.0 %"


def chance(exact: str) -> str:
    """A probability that the API states as numerator/denominator, to two digits."""
    value = read_exact(exact)
    if value == 1:
        return "1"
    if value and value < Fraction(1, 10**6):
        return "below 0.000001"
    return f"{float(value):.2g}"


def odds(exact: str) -> str:
    """A rate that the API states as numerator/denominator: `1 in 20`."""
    value = read_exact(exact)
    if value >= 1:
        return "always"
    return f"1 in {value.denominator / value.numerator:,.3g}" if value else "never"


def words(name: str) -> str:
    """A name of the code as words: `peers_per_stage` is `peers per stage`."""
    return name.replace("_", " ")


@dataclass(frozen=True)
class Mark:
    """How a state looks: never by colour alone."""

    glyph: str
    tone: str  # a class of the style sheet: good, busy, calm, warn or bad


_GOOD, _BUSY, _CALM, _LATE, _BAD = (
    Mark("\N{CHECK MARK}", "good"),
    Mark("\N{BLACK RIGHT-POINTING SMALL TRIANGLE}", "busy"),
    Mark("\N{WHITE CIRCLE}", "calm"),
    Mark("\N{WHITE UP-POINTING TRIANGLE}", "warn"),
    Mark("\N{MULTIPLICATION X}", "bad"),
)
_MARKS = {
    _GOOD: "final finished closed matched match settled claimed vested serving open yes ok "
    "burned bonded sealed signed anchored known trained",
    _BUSY: "running active leased accepted announced announcing funded "
    "waiting drawn accused contradicted starting training settling cancelling",
    _CALM: "draft reserved ended withdrawn expired lapsed dropped nothing off none "
    "expected left unconfirmed uncounted paused unfunded stopped",
    _BAD: "failed silent rejected convicted no missing mismatched mismatch slashable frozen "
    "forfeited suspended cancelled down",
    _LATE: "late missed unrepeated over_limit",
}
_MARK_OF = {state: mark for mark, states in _MARKS.items() for state in states.split()}


def mark(state: str) -> Mark:
    """Glyph and tone of a state; one that is unknown here looks calm."""
    return _MARK_OF.get(state, _CALM)
