"""Stake on its way back: what may be asked back, what is on its way, what can be taken."""

from dataclasses import dataclass

from contracts.chain.connection import Call
from contracts.chain.wrappers.stakes import Stake
from contracts.terms.amounts import BaseUnits, format_tokens
from contracts.terms.errors import InsufficientStake
from contracts.terms.ids import Digest
from tallystick.sdk.sending import OnChain


@dataclass(frozen=True)
class Moved:
    """What one call did: `asked` will come after the delay, `taken` is in the wallet."""

    asked: BaseUnits
    taken: BaseUnits
    stake: Stake
    transactions: tuple[Digest, ...]


async def move(own: OnChain, amount: BaseUnits | None) -> Moved:
    """Take what is ripe, then ask for `amount` (None: all that is free) back.

    In this order, since what is already on its way waits anew with what is asked for.

    Raises:
        InsufficientStake: less is free.
    """
    stake, is_ripe = await _stake(own)
    wanted = stake.free if amount is None else amount
    if wanted > stake.free:
        raise InsufficientStake(
            f"{format_tokens(wanted)} tokens are asked back, {format_tokens(stake.free)} are not "
            "reserved for jobs",
            wanted=wanted,
            free=stake.free,
        )
    sent, taken = [], BaseUnits(0)
    if is_ripe:
        taken = stake.unbonding
        sent.append(await _send(own, "withdraw", own.contracts.stakes.withdraw()))
    if wanted:
        sent.append(
            await _send(own, f"unbond:{wanted}", own.contracts.stakes.request_unbond(wanted))
        )
    return Moved(wanted, taken, (await _stake(own))[0], tuple(sent))


async def _stake(own: OnChain) -> tuple[Stake, bool]:
    """The stake now, and whether what is on its way can be taken."""
    chain = own.contracts.chain
    stake = await own.contracts.stakes.stake(own.sender.account, await chain.head())
    is_ripe = bool(stake.unbonding) and await chain.next_time() >= stake.withdrawable_at
    return stake, is_ripe


async def _send(own: OnChain, what: str, call: Call) -> Digest:
    # The key names the nonce it would get, so that asking again later is another intention.
    number = await own.contracts.chain.nonce(own.sender.account)
    return (await own.sender.send(f"{what}:{number}", call)).transaction
