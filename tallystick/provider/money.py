"""A provider's money: gas, tokens and stake before it offers, claims, and stake on its way back.

Gas and tokens come from the faucet if there is one. A claim takes what the newest final epoch owes
an account beyond what it was paid: the amount is cumulative, so a claim that is repeated pays
nothing twice.
"""

from dataclasses import dataclass

from contracts.chain.connection import Call, Receipt
from contracts.chain.contracts import Contracts
from contracts.chain.sender import Sender
from contracts.chain.wrappers.stakes import Stake
from contracts.terms import errors
from contracts.terms.amounts import BaseUnits, format_tokens
from contracts.terms.ids import Address, Digest
from contracts.terms.merkle import Proof, SumNode
from market.bodies.market import FaucetRequest, NetworkView
from market.bodies.routes import GET_EPOCHS, GET_PROOF, POST_FAUCET
from market.bodies.settlement import ProofView
from tallystick.provider.background import Say
from tallystick.sdk.client import MarketClient
from tallystick.sdk.on_chain import OnChain

# -------------------------------------------------------------------------------- before it offers

MIN_GAS_WEI = 10**17


async def prepare(
    client: MarketClient,
    account: Address,
    wanted: BaseUnits,
    network: NetworkView,
    own: OnChain,
    say: Say,
) -> None:
    """Gas, tokens and stake up to `wanted`, as far as they are missing.

    Raises:
        InsufficientStake: the account holds too few tokens, and there is no faucet.
        Unavailable: chain or market do not answer, or what was sent before is not mined yet; safe
            to repeat.
    """
    contracts, sender = own.contracts, own.sender
    num_waiting = await sender.resend()
    head = await contracts.chain.head()
    staked = await contracts.stakes.stake(account, head)
    missing = BaseUnits(max(0, wanted - staked.active))
    if missing and num_waiting:  # which may be the very stake that is missing
        raise errors.DeadlineExceeded(
            f"{num_waiting} earlier transactions of 0x{account.hex()} are not mined yet; what "
            "stake is missing is known after them"
        )
    held = await contracts.token.balance(account, head)
    gas = await contracts.chain.balance(account)
    if (gas < MIN_GAS_WEI or held < missing) and network.embedded:
        key = f"faucet-{account.hex()}-{head.number}"
        try:
            await client.call(POST_FAUCET, FaucetRequest(account=account), key=key)
        except errors.Refused as error:  # what is held may be enough
            say(f"faucet: {error}")
        head = await contracts.chain.head()
        held = await contracts.token.balance(account, head)
    if held < missing:
        raise errors.InsufficientStake(
            f"0x{account.hex()} holds {format_tokens(held)} tokens and "
            f"{format_tokens(missing)} more are to be staked: send tokens to this account "
            "or lower --stake",
            wanted=missing,
            free=held,
        )
    if missing:
        await _raise_stake(account, missing, own, say)


async def _raise_stake(account: Address, amount: BaseUnits, own: OnChain, say: Say) -> None:
    contracts, sender = own.contracts, own.sender
    # The keys name the nonce they would get, so that topping up again is another intention.
    number = await contracts.chain.nonce(account)
    call = contracts.token.approve(contracts.stakes.address, amount)
    await sender.send(f"approve:{number}:{amount}", call)
    await sender.send(f"stake:{number}:{amount}", contracts.stakes.add(amount))
    say(f"staked {format_tokens(amount)} tokens")


# ------------------------------------------------------------------------------------------ claims


@dataclass(frozen=True)
class Due:
    """What can be claimed now."""

    proof: ProofView
    amount: BaseUnits


class Dues:
    """What an account can claim, looked for again and again."""

    def __init__(self, client: MarketClient, account: Address) -> None:
        self._client, self._account = client, account
        self._owed: tuple[int, BaseUnits] | None = None  # by an epoch that is final

    async def look(self, claimed: BaseUnits) -> Due | None:
        """What can be claimed beyond `claimed`, which was paid so far; None: nothing."""
        epochs = (await self._client.call(GET_EPOCHS)).epochs
        final = next((each.epoch for each in epochs if each.state == "final"), None)
        if final is None or self._is_paid(final, claimed):
            return None
        try:
            proof = await self._client.call(GET_PROOF, number=final, account=self._account)
        except errors.NotFound:
            self._owed = final, BaseUnits(0)
            return None
        self._owed = final, proof.cumulative
        amount = BaseUnits(max(0, proof.cumulative - claimed))
        return Due(proof, amount) if amount else None

    def _is_paid(self, final: int, claimed: BaseUnits) -> bool:
        """Whether the chain has paid all that this epoch owes: its leaves never change."""
        return self._owed is not None and self._owed[0] == final and self._owed[1] <= claimed


async def claim(due: Due, contracts: Contracts, sender: Sender) -> Receipt:
    """Claim it, once.

    Raises:
        ContractRefused: a newer epoch became final in between: look again.
    """
    proof = due.proof
    path = Proof(tuple((SumNode(s.hash, s.sum), s.left) for s in proof.siblings))
    call = contracts.settlement.claim(proof.account, proof.cumulative, proof.jobs_root, path)
    return await sender.send(f"claim:{proof.root.hex()}:{proof.cumulative}", call)


def refused_claim(error: errors.ContractRefused) -> str:
    """Why the contract refused a claim, as a sentence."""
    if "WrongProof" in error.message:
        return (
            "a claim was refused because a newer epoch became final before it was mined; nothing "
            "is lost, what is owed is claimed by the newer epoch's proof (WrongProof)"
        )
    return f"a claim was refused by the Settlement contract, and is tried again: {error.message}"


# --------------------------------------------------------------------------- stake on its way back


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
    stake, is_ripe = await _stake_now(own)
    wanted = stake.free if amount is None else amount
    if wanted > stake.free:
        raise errors.InsufficientStake(
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
    return Moved(wanted, taken, (await _stake_now(own))[0], tuple(sent))


async def _stake_now(own: OnChain) -> tuple[Stake, bool]:
    """The stake now, and whether what is on its way can be taken."""
    chain = own.contracts.chain
    stake = await own.contracts.stakes.stake(own.sender.account, await chain.head())
    is_ripe = bool(stake.unbonding) and await chain.next_time() >= stake.withdrawable_at
    return stake, is_ripe


async def _send(own: OnChain, what: str, call: Call) -> Digest:
    # The key names the nonce it would get, so that asking again later is another intention.
    number = await own.contracts.chain.nonce(own.sender.account)
    return (await own.sender.send(f"{what}:{number}", call)).transaction
