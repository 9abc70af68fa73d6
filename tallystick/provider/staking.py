"""What an account needs before it offers: gas, tokens, stake; from the faucet if there is one."""

from contracts.terms.amounts import BaseUnits, format_tokens
from contracts.terms.errors import DeadlineExceeded, InsufficientStake, Refused
from contracts.terms.ids import Address
from market.bodies.network import FaucetRequest, NetworkView
from market.bodies.routes import POST_FAUCET
from tallystick.provider.faults import Say
from tallystick.sdk.client import MarketClient
from tallystick.sdk.sending import OnChain

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
        raise DeadlineExceeded(
            f"{num_waiting} earlier transactions of 0x{account.hex()} are not mined yet; what "
            "stake is missing is known after them"
        )
    held = await contracts.token.balance(account, head)
    gas = await contracts.chain.balance(account)
    if (gas < MIN_GAS_WEI or held < missing) and network.embedded:
        key = f"faucet-{account.hex()}-{head.number}"
        try:
            await client.call(POST_FAUCET, FaucetRequest(account=account), key=key)
        except Refused as error:  # what is held may be enough
            say(f"faucet: {error}")
        head = await contracts.chain.head()
        held = await contracts.token.balance(account, head)
    if held < missing:
        raise InsufficientStake(
            f"0x{account.hex()} holds {format_tokens(held)} tokens and "
            f"{format_tokens(missing)} more are to be staked: send tokens to this account "
            "or lower --stake",
            wanted=missing,
            free=held,
        )
    if missing:
        await _stake(account, missing, own, say)


async def _stake(account: Address, amount: BaseUnits, own: OnChain, say: Say) -> None:
    contracts, sender = own.contracts, own.sender
    # The keys name the nonce they would get, so that topping up again is another intention.
    number = await contracts.chain.nonce(account)
    call = contracts.token.approve(contracts.stakes.address, amount)
    await sender.send(f"approve:{number}:{amount}", call)
    await sender.send(f"stake:{number}:{amount}", contracts.stakes.add(amount))
    say(f"staked {format_tokens(amount)} tokens")
