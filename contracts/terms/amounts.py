"""How much: money, work and the price that joins them. Integers only, rounded towards the payer.

Units: 1 base unit = 1e-6 token; work in model FLOPs; price in base units for 1e15 FLOPs (a PFLOP).
"""

import decimal
from decimal import Decimal
from typing import Annotated, NewType

from annotated_types import Ge, Le
from pydantic import BeforeValidator, PlainSerializer

BaseUnits = NewType("BaseUnits", int)  # 1e-6 token, a uint96 on chain
Flops = NewType("Flops", int)  # floating-point operations of the model, not of the device
PricePerPflop = NewType("PricePerPflop", int)  # base units for 1e15 FLOPs

NOTHING = BaseUnits(0)
UINT64_MAX = 2**64 - 1
UINT96_MAX = 2**96 - 1
UINT80_MAX = 2**80 - 1
"""Of every amount in a job: 10^18 tokens."""
FLOPS_PER_PFLOP = 10**15
BASE_UNITS_PER_TOKEN = 10**6
TOKEN_DECIMALS = 6

# Wide enough for every amount; a digit that does not fit is refused, never rounded.
_EXACT = decimal.Context(
    prec=64, traps=[decimal.InvalidOperation, decimal.Overflow, decimal.Inexact]
)


def _from_wire(value: object) -> object:
    """Integers above 2^63-1 travel as 16 bytes (see `encoding`)."""
    return int.from_bytes(value, "big") if isinstance(value, bytes) and len(value) == 16 else value


_WIRE = BeforeValidator(_from_wire)
_TEXT = PlainSerializer(str, return_type=str, when_used="json")  # JSON numbers lose digits

WideIntField = Annotated[int, _WIRE, Ge(0), Le(2**127 - 1), _TEXT]
BaseUnitsField = Annotated[BaseUnits, _WIRE, Ge(0), Le(UINT96_MAX), _TEXT]
EscrowAmountField = Annotated[BaseUnitsField, Le(UINT80_MAX)]
FlopsField = Annotated[Flops, _WIRE, Ge(0), Le(2**120), _TEXT]
PriceField = Annotated[PricePerPflop, _WIRE, Ge(1), Le(UINT64_MAX), _TEXT]


def pay_for(work: Flops, price: PricePerPflop) -> BaseUnits:
    """Value of cumulative `work` at `price`, rounded down (docs/protocol.md 6).

    Callers pass the cumulative FLOPs of a lease, not those of one step: the value of a small unit
    alone floors to zero.
    """
    return BaseUnits(work * price // FLOPS_PER_PFLOP)


def format_tokens(amount: int) -> str:
    """`amount` base units as tokens with all six decimals, e.g. `12.340000`."""
    sign, amount = ("-", -amount) if amount < 0 else ("", amount)
    whole, part = divmod(amount, BASE_UNITS_PER_TOKEN)
    return f"{sign}{whole}.{part:0{TOKEN_DECIMALS}d}"


def in_tokens(amount: int) -> str:
    """`amount` base units as tokens without zeros that say nothing, e.g. `12.34`."""
    return format_tokens(amount).rstrip("0").rstrip(".")


def read_tokens(value: object) -> BaseUnits:
    """Base units of an amount that a person wrote in tokens, e.g. `12.5`.

    Raises:
        ValueError: no number, negative, or finer than a base unit.
    """
    if isinstance(value, bool):  # YAML's yes and no
        raise ValueError("an amount in tokens is a number, e.g. 12.5")
    try:
        scaled = _EXACT.multiply(Decimal(str(value)), BASE_UNITS_PER_TOKEN)
    except (ArithmeticError, ValueError) as error:
        raise ValueError("an amount in tokens is a number, e.g. 12.5") from error
    if not scaled.is_finite() or scaled < 0 or scaled > UINT96_MAX or scaled != int(scaled):
        raise ValueError("an amount in tokens is 0 or more, with at most six decimals")
    return BaseUnits(int(scaled))
