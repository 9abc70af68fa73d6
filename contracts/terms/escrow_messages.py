"""What parties sign for the escrow of a job: limits, stakes and ends.

Each is an EIP-712 struct that `JobEscrow` checks and nothing else (docs/protocol.md 6). A signature
counts until `by`, which lies at most the contract's MARGIN ahead: one that was held back is worth
nothing tomorrow. Amounts are base units and have 80 bits, times are Unix seconds.
"""

from typing import Annotated, ClassVar, Literal, Self

from annotated_types import Ge, Le, Len
from pydantic import model_validator

from contracts.terms import typed_data
from contracts.terms.amounts import BaseUnitsField, EscrowAmountField
from contracts.terms.ids import AddressField, JobIdField
from contracts.terms.messages import Record, WalletMessage
from contracts.terms.moments import UnixSecondsField
from contracts.terms.typed_data import TypedStruct

MAX_ACCOUNTS = 256
"""In one grant or end: 256 first limits take 6.5 M gas, and a transaction has 16.8 M (EIP-7825)."""


class Limit(Record):
    """Most that an account can be paid in a job, in total."""

    account: AddressField
    limit: EscrowAmountField

    def word(self) -> int:
        """As the contract reads it: the account above 96 bits of the limit."""
        return int.from_bytes(self.account, "big") << 96 | self.limit


class Grant(WalletMessage):
    """The coordinator raises limits. One that does not rise is skipped, so that none can fall."""

    kind: Literal["grant.v1"] = "grant.v1"
    typed: ClassVar[TypedStruct] = typed_data.GRANT

    job: JobIdField
    limits: Annotated[tuple[Limit, ...], Len(1, MAX_ACCOUNTS)]
    by: UnixSecondsField

    def typed_values(self) -> tuple[object, ...]:
        """See `typed_data.GRANT`."""
        return (self.job, tuple(limit.word() for limit in self.limits), self.by)


class Bond(WalletMessage):
    """An account puts `stake` of its balance behind its work in a job; it only rises."""

    kind: Literal["bond.v1"] = "bond.v1"
    typed: ClassVar[TypedStruct] = typed_data.BOND

    job: JobIdField
    account: AddressField
    stake: EscrowAmountField
    by: UnixSecondsField


class Quit(WalletMessage):
    """An account stops working in a job; its limit above `keep` goes back to the budget."""

    kind: Literal["quit.v1"] = "quit.v1"
    typed: ClassVar[TypedStruct] = typed_data.QUIT

    job: JobIdField
    account: AddressField
    keep: EscrowAmountField
    by: UnixSecondsField


class End(WalletMessage):
    """The coordinator ends the work of accounts that are gone."""

    kind: Literal["end.v1"] = "end.v1"
    typed: ClassVar[TypedStruct] = typed_data.END

    job: JobIdField
    accounts: Annotated[tuple[AddressField, ...], Len(1, MAX_ACCOUNTS)]
    by: UnixSecondsField


class Close(WalletMessage):
    """The poster ends the work of all."""

    kind: Literal["close.v1"] = "close.v1"
    typed: ClassVar[TypedStruct] = typed_data.CLOSE

    job: JobIdField
    by: UnixSecondsField


class Withdraw(WalletMessage):
    """An account without gas takes free money out; `fee`, part of the amount, is the sender's."""

    kind: Literal["withdraw.v1"] = "withdraw.v1"
    typed: ClassVar[TypedStruct] = typed_data.WITHDRAW

    account: AddressField
    amount: BaseUnitsField
    fee: BaseUnitsField
    nonce: Annotated[int, Ge(0), Le(2**32 - 1)]
    by: UnixSecondsField

    @model_validator(mode="after")
    def _covers_its_fee(self) -> Self:
        if self.fee > self.amount:
            raise ValueError("the fee is more than the amount")
        return self
