"""The market itself, its chain, the faucet and accounts."""

from typing import Literal

from contracts.terms.ids import AddressField, DigestField, JobIdField
from contracts.terms.moments import UnixMillisField
from market.bodies.base import Body, Money, Wide


class HealthView(Body):
    """The process answers."""

    status: Literal["ok"] = "ok"


class ContractsView(Body):
    """Addresses of the deployed contracts."""

    token: AddressField
    parameters: AddressField
    escrow: AddressField
    stakes: AddressField
    seals: AddressField
    settlement: AddressField
    vault: AddressField


class TokenView(Body):
    """What a permit (EIP-2612) is signed under, with the token's address and the chain id."""

    name: str
    version: str
    symbol: str
    decimals: int
    domain_separator: DigestField


class NetworkView(Body):
    """All that a newcomer needs (docs/architecture.md 5)."""

    version: str
    chain_id: int
    genesis: DigestField  # of the chain's first block: ids are shared
    rpc_url: str
    embedded: bool  # the market runs this chain and has a faucet
    contracts: ContractsView
    deployed_block: int
    token: TokenView
    parameters: dict[str, Wide]
    anchorer: AddressField
    epoch_seconds: int
    confirmations: int
    block: int = 0  # head of the chain, as the market last saw it
    clock: UnixMillisField


class FaucetRequest(Body):
    """Who wants to start."""

    account: AddressField


class FaucetView(Body):
    """What was sent; zero where the account has had its share."""

    gas: Wide  # wei
    tokens: Money
    transactions: tuple[DigestField, ...]


class StakeView(Body):
    """An account in StakeRegistry."""

    active: Money
    reserved: Money
    unbonding: Money


class LedgerEntryView(Body):
    """One line of the ledger: `amount` left `debit` for `credit`."""

    event: str
    debit: str
    credit: str
    amount: Money
    job: JobIdField | None


class AccountView(Body):
    """What an account has, at the head of the chain and in the ledger."""

    account: AddressField
    gas: Wide
    token: Money
    permit_nonce: Wide
    stake: StakeView
    earned: Money
    vested: Money
    claimable: Money
    claimed: Money
    entries: tuple[LedgerEntryView, ...]


class CoordinatorView(Body):
    """A hosted coordinator, allocated to the caller."""

    coordinator: AddressField
