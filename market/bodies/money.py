"""A job's money: orders for the escrow, what it holds for whom, and the newest seal's pay."""

from typing import Literal

from contracts.terms.ids import AddressField, DigestField, JobIdField
from contracts.terms.moments import UnixMillisField, UnixSecondsField
from market.bodies.base import Body, Money, Page, SignedField

OrderKind = Literal["grant", "bond", "quit", "end", "close"]
OrderState = Literal["waiting", "sent", "refused"]
"""`sent`: a transaction holds it. `refused`: no transaction will, `refusal` says why."""


class PostOrder(Body):
    """A signed Grant, Bond, Quit, End or Close that the market is to send to the escrow."""

    signed: SignedField  # `Signed.encoded()`


class OrderView(Body):
    """An order that was handed in."""

    digest: DigestField  # of the message
    job: JobIdField
    kind: OrderKind
    state: OrderState
    asked_at: UnixMillisField
    transaction: DigestField | None
    refusal: str | None


class AnnouncedView(Body):
    """A slash that the escrow announces."""

    amount: Money
    burns_from: UnixSecondsField  # until then only the canceller can stop it


class AccountMoney(Body):
    """What the escrow holds for an account in a job, and what the newest seal says of it."""

    columns = ("account", "limit", "earned", "vested", "claimed", "stake", "end")

    account: AddressField
    limit: Money  # most that it can be paid, in total
    claimed: Money
    earned: Money
    vested: Money
    due: Money  # vested, within the limit and not claimed: anybody may claim it for the account
    stake: Money
    end: UnixSecondsField | None  # when it ended; None: it works, or may
    releasable_at: UnixSecondsField | None  # then stake and unspent limit come free
    slash: AnnouncedView | None


class ReturnView(Body):
    """What can come back to the poster, and when; more may be earned or claimed until then."""

    at: UnixSecondsField | None  # None: now, by `tallystick job reclaim`
    amount: Money
    what: Literal["free", "unspent"]  # not committed; limits above what was earned


class JobMoney(Page):
    """A job's budget in the escrow, by confirmed events, and its accounts by address.

    free = funded - committed; claimed <= committed. `committed` is the sum of all limits.
    """

    rows = "accounts"

    job: JobIdField
    poster: AddressField
    clock: UnixMillisField
    funded: Money
    committed: Money
    free: Money  # the poster can take it back now
    claimed: Money  # by all
    earned: Money  # by all, by the newest seal
    vested: Money
    burst: Money  # may be committed at once
    rate: Money  # an hour by which that refills
    allowance: Money  # may be committed now, as far as the bucket goes
    committed_an_hour: Money  # by grants of the last hour
    warning: str | None  # the coordinator commits faster than work comes in
    closed_at: UnixSecondsField | None
    releasable_at: UnixSecondsField | None  # of a closed job: then anybody may send back the rest
    returns: tuple[ReturnView, ...]  # by time, what can be had now first
    num_accounts: int
    accounts: tuple[AccountMoney, ...]


class PayLeafView(Body):
    """What an account has earned in the job, and what of it has vested; in total."""

    account: AddressField
    earned: Money
    vested: Money


class PayView(Body):
    """The newest seal and all leaves of its pay tree, by account: all that a claim needs."""

    job: JobIdField
    step: int  # 0: nothing is sealed yet
    seal: SignedField | None  # signed
    leaves: tuple[PayLeafView, ...]
