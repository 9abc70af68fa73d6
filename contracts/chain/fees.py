"""What a transaction offers for its gas, and what it takes to replace one that waits. Pure.

EIP-1559: a block takes a transaction whose maximum is at least the block's base fee; of the rest up
to the tip goes to who makes the block. From block to block a base fee rises by an eighth at most. A
node replaces a waiting transaction by one of the same nonce only if both numbers are an eighth
higher. Units: wei for one unit of gas. Rounding: up, as a node refuses a wei too little.
"""

from dataclasses import dataclass

GWEI = 10**9
CAP = 200 * GWEI
"""No transaction offers a higher maximum, if nothing else is said; above it things wait."""
TIP = GWEI
HEADROOM = 2
"""How often the base fee may double before a new transaction is priced again."""


@dataclass(frozen=True)
class Fees:
    """Of one transaction."""

    maximum: int  # maxFeePerGas
    tip: int  # maxPriorityFeePerGas, at most the maximum


def first_fees(base_fee: int, cap: int) -> Fees | None:
    """For a new transaction; None where the next blocks would not take it below the cap."""
    if _eighth_more(base_fee) + TIP > cap:
        return None
    return Fees(min(cap, HEADROOM * base_fee + TIP), TIP)


def is_outbid(fees: Fees, base_fee: int) -> bool:
    """Whether the block after the next one may not take it."""
    return fees.maximum < _eighth_more(base_fee)


def replacement(fees: Fees, base_fee: int, cap: int) -> Fees | None:
    """What replaces a transaction that waits; None where that is above the cap, or helps nothing.

    Both numbers are an eighth higher at least, and the maximum is what a new one would offer.
    """
    tip = _eighth_more(fees.tip)
    least = max(_eighth_more(fees.maximum), tip)
    if max(least, _eighth_more(base_fee)) > cap:
        return None
    return Fees(min(cap, max(least, HEADROOM * base_fee + tip)), tip)


def _eighth_more(number: int) -> int:
    """Of a base fee: the highest that the next block can have."""
    return -(-number * 9 // 8)
