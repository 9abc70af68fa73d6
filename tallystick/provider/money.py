"""A provider's money: what it deposits, what jobs owe it, and how it gets everything back.

Gas and tokens come from the faucet if there is one. The deposit lies free in the escrow and backs
one job after another; pay goes to the same balance. In each job of its folder the account has a
limit and a bond in the escrow, and the newest seal says what it earned: `next_action` decides what
to do about that, `Money` does it. Nothing here needs a market but an order to quit, which is sent
by ourselves where no market relays it.

Invariants: every step is safe to repeat; a transaction is named by what it would change, so it
happens once; a Quit keeps what was earned and may still vest. Amounts are base units.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from contracts.chain.blocks import Block
from contracts.chain.connection import Call
from contracts.governance.claims import PayTree, SealedPay
from contracts.governance.escrow import (
    Budget,
    Channel,
    EscrowTimes,
    due_of,
    end_of,
    signing_seconds,
)
from contracts.governance.pay import PayLeaf
from contracts.keys.wallet import Wallet
from contracts.terms import errors
from contracts.terms.amounts import UINT80_MAX, BaseUnits, format_tokens
from contracts.terms.escrow_messages import Bond, Quit
from contracts.terms.ids import Address, Digest, JobId
from contracts.terms.messages import JobSpec, Seal
from contracts.terms.moments import UnixSeconds
from contracts.terms.signatures import Signed, decode_signed, expect, verify_wallet
from contracts.terms.typed_data import Domain
from market.bodies.money import PostOrder
from market.bodies.routes import GET_PAY, POST_ORDER
from tallystick.provider.background import Say
from tallystick.provider.folder import (
    OwnJob,
    is_settled,
    load_signed,
    note_settled,
    quits_until,
    save_pay,
    save_signed,
)
from tallystick.provider.limits import leaf_of
from tallystick.sdk.client import MarketClient
from tallystick.sdk.on_chain import OnChain

# -------------------------------------------------------------------------------- before it offers


async def prepare(
    client: MarketClient, wanted: BaseUnits, jobs: Sequence[OwnJob], own: OnChain, say: Say
) -> None:
    """Gas and tokens, and as much in the escrow as is missing to `wanted`.

    What is bonded in `jobs` counts as well as what is free.

    Raises:
        InsufficientStake: the account holds too few tokens, and there is no faucet.
        Unavailable: chain or market do not answer, or what was sent before is not mined yet; safe
            to repeat.
    """
    account, chain, escrow = own.wallet.account, own.contracts.chain, own.contracts.escrow
    num_waiting = await own.sender.resend()
    head = await chain.head()
    free = await free_of(own, head)
    bonded = await escrow.channels([(each.job, account) for each in jobs], head) if jobs else {}
    missing = BaseUnits(max(0, wanted - free - sum(each.stake for each in bonded.values())))
    if missing and num_waiting:  # which may be the very deposit that is missing
        raise errors.DeadlineExceeded(
            f"{num_waiting} earlier transactions of 0x{account.hex()} are not mined yet; what "
            "stake is missing is known after them"
        )
    held = await own.fund(client, missing, f"faucet-{account.hex()}-{head.number}")
    if held < missing:
        raise errors.InsufficientStake(
            f"0x{account.hex()} holds {format_tokens(held)} tokens and "
            f"{format_tokens(missing)} more are to be deposited: send tokens to this account "
            "or lower --stake",
            wanted=missing,
            free=held,
        )
    if missing:
        call = await own.permitted(missing, escrow.deposit(account, missing), await chain.head())
        await send_anew(own, f"deposit:{missing}", call)
        say(f"deposited {format_tokens(missing)} tokens, to be bonded in jobs")


async def free_of(own: OnChain, at: Block) -> BaseUnits:
    """What the account has free in the escrow."""
    account = own.wallet.account
    return (await own.contracts.escrow.balances([account], at))[account][0]


async def send_anew(own: OnChain, what: str, call: Call) -> Digest:
    """Send `call` as an intention of its own; asked for again before it is mined it is the same."""
    number = await own.contracts.chain.nonce(own.sender.account)
    return (await own.sender.send(f"{what}:{number}", call)).transaction


async def signed_until(own: OnChain, times: EscrowTimes) -> UnixSeconds:
    """How long we sign for: less than the escrow allows, as clocks differ."""
    return UnixSeconds(await own.contracts.chain.next_time() + signing_seconds(times.margin))


HAS_QUIT = "a Quit that we have signed there still counts"


async def bond_for(
    own: OnChain, times: EscrowTimes, folder: Path, job: JobId, stake: BaseUnits
) -> Signed[Bond] | None:
    """A Bond of `stake` in a job, which is on disk; None where what we have bonded is enough.

    Raises:
        InsufficientStake: less is free. Unavailable: the chain does not answer.
        Conflict: a Quit that we have signed still counts: whoever holds it could end what we begin,
            and our limit would fall to what it keeps.
    """
    account, escrow = own.wallet.account, own.contracts.escrow
    head, now = await own.contracts.chain.head(), await own.contracts.chain.next_time()
    if quits_until(folder.parent.parent, job) >= now:
        raise errors.Conflict(f"job {job.hex()[:12]}: {HAS_QUIT}")
    bonded = (await escrow.channels([(job, account)], head))[job, account].stake
    if bonded >= stake:
        return None
    kept = load_signed(folder, Bond)
    if kept is not None and kept.message.stake == stake and kept.message.by > now:
        return kept
    free = await free_of(own, head)
    if stake - bonded > free:
        raise errors.InsufficientStake(
            f"job {job.hex()[:12]} asks for {format_tokens(stake)} tokens of stake; "
            f"{format_tokens(free)} are free in the escrow",
            wanted=stake - bonded,
            free=free,
        )
    bond = Bond(job=job, account=account, stake=stake, by=await signed_until(own, times))
    signed = own.wallet.sign(bond, own.contracts.deployment.domain)
    save_signed(folder, signed)
    return signed


# ------------------------------------------------------------------- what there is of ours in a job


@dataclass(frozen=True)
class Position:
    """What an account has in a job: by the escrow, and by the newest seal that it keeps."""

    account: Address
    channel: Channel
    budget: Budget
    pay: SealedPay | None

    @property
    def leaf(self) -> PayLeaf:
        """What the seal says of us."""
        return leaf_of(self.pay, self.account)

    @property
    def due(self) -> BaseUnits:
        """What a claim would pay now."""
        return due_of(self.leaf.vested, self.channel.limit, self.channel.claimed)

    @property
    def unshown(self) -> bool:
        """Whether the escrow does not know yet how much we earned."""
        return min(self.leaf.earned, self.channel.limit) > self.channel.earned

    @property
    def can_quit(self) -> bool:
        """Whether a Quit would free stake of ours, or give the poster a limit that we do not need.

        A close ends our stake, too, but gives no limit back before `TAIL` is over.
        """
        channel = self.channel
        is_idle = channel.limit > max(channel.claimed, channel.earned, self.leaf.earned)
        return not channel.end and (is_idle or bool(channel.stake and not self.end))

    @property
    def end(self) -> int:
        """When our work there ended; 0: it has not."""
        return end_of(self.channel.end, self.budget.closed_at)

    @property
    def is_last(self) -> bool:
        """Whether no further seal can come."""
        return self.pay is not None and self.pay.seal.message.last and not self.waiting

    @property
    def waiting(self) -> int:
        """What was earned, not vested and not forfeited; after a valid last seal it is nothing."""
        lost = 0 if self.pay is None else self.pay.forfeited.get(self.account, 0)
        return max(0, self.leaf.earned - self.leaf.vested - lost)


async def positions(own: OnChain, jobs: Sequence[OwnJob], at: Block) -> dict[JobId, Position]:
    """What we have in each job at a block."""
    account, escrow, names = own.wallet.account, own.contracts.escrow, [each.job for each in jobs]
    budgets = await escrow.budgets(names, at) if names else {}
    channels = await escrow.channels([(job, account) for job in names], at) if names else {}
    return {
        each.job: Position(
            account, channels[each.job, account], budgets[each.job], each.pay(account)
        )
        for each in jobs
    }


# ---------------------------------------------------------------------------------- what to do next

SETTLE_SECONDS = 15.0  # in which the market claims for all, before we do it ourselves
LEAVE_SECONDS = 600.0  # without a lease, until a job that goes on is left for good
SHARE_OF_TAIL = 7
"""This part of TAIL passes between two looks at whose work has ended, and before we release."""

Action: TypeAlias = Literal["claim", "show", "quit", "release", "settled"]


def next_action(
    at: Position,
    *,
    is_live: bool,
    quiet_seconds: float,
    may_show: bool,
    may_bond: bool,
    now: int,
    tail: int,
    claim_at: int,
) -> Action | None:
    """What to do in a job now; None: wait.

    Args:
        at: What we have there.
        is_live: Whether a machine of ours works there, or a lease says that one will.
        quiet_seconds: Since the newest seal that we have came, or our last lease there ended.
        may_show: Whether the seal may say of accounts that have ended what the escrow does not
            know. What nobody shows before `TAIL` is over is lost to them.
        may_bond: Whether a Bond that we have signed may still be sent.
        now: Time of the chain.
        tail: Seconds of the escrow.
        claim_at: What is worth a transaction while the job goes on.
    """
    is_leaving = at.is_last or not is_live
    is_over = is_leaving or bool(at.end)  # nothing is worked for any more, whatever a market says
    is_quiet = quiet_seconds >= SETTLE_SECONDS
    if at.due and (at.due >= claim_at or (is_over and is_quiet)):
        return "claim"
    if at.unshown and is_over and is_quiet:
        return "claim"  # pays nothing, and makes what we earned ours for ever
    if may_show and (is_quiet or not at.budget.closed_at):
        return "show"
    if at.can_quit and is_leaving:
        # A round that was under way may still be sealed, and would be above what we keep.
        return (
            "quit" if quiet_seconds >= (SETTLE_SECONDS if at.is_last else LEAVE_SECONDS) else None
        )
    if at.channel.stake and at.end and now >= at.end + tail + tail // SHARE_OF_TAIL:
        return "release"
    if not (is_live or may_bond or at.channel.stake or at.due or at.waiting):
        return "settled"
    return None


@dataclass
class _Watched:
    """What we remember of a job while we run."""

    seal: Digest | None = None
    quiet_since: float = 0.0
    shown: Digest | None = None  # the newest seal by which the ended were looked at
    shown_at: float = 0.0
    ordered_at: float | None = None  # when the market took our Quit
    asked_at: float | None = None  # when the market was asked for newer pay


ORDER_SECONDS = 120.0
"""Until a Quit that the market took, and did not send, is sent by ourselves."""
ASK_SECONDS = 60.0
"""Between two questions for the pay of a job in which nobody of ours works."""


class Money:
    """Claims, shows and leaves for one account, in all jobs of its folder."""

    def __init__(
        self,
        client: MarketClient,
        own: OnChain,
        times: EscrowTimes,
        claim_at: BaseUnits,
        say: Say,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._own, self._times = client, own, times
        self._claim_at, self._say, self._monotonic = claim_at, say, monotonic
        self._watched: dict[JobId, _Watched] = {}

    async def look(self, jobs: Sequence[OwnJob], live: Collection[JobId]) -> bool:
        """Do what is due in each job; safe to repeat.

        Args:
            jobs: All that are not settled.
            live: Those in which a machine of ours works, or is about to.

        Returns:
            Whether anything may be due soon.

        Raises:
            Refused, Unavailable: of the first that failed; the others were done.
        """
        failed: errors.TallystickError | None = None
        chain = self._own.contracts.chain
        head, now = await chain.head(), await chain.next_time()
        found = await positions(self._own, jobs, head)
        is_soon = False
        for each in jobs:
            try:
                is_live = each.job in live
                is_soon |= await self._look(each, found[each.job], is_live=is_live, now=now)
            except (errors.Refused, errors.Unavailable) as error:
                failed, is_soon = failed or error, True
        if failed is not None:
            raise failed
        return is_soon

    async def _look(self, job: OwnJob, at: Position, *, is_live: bool, now: int) -> bool:
        clock = self._monotonic()
        seen = self._watched.setdefault(job.job, _Watched(quiet_since=clock, shown_at=clock))
        seal = None if at.pay is None else at.pay.seal.message.digest()
        if seal != seen.seal or (is_live and not (at.is_last or at.end)):
            seen.seal, seen.quiet_since = seal, clock
        has_peer = is_live and any(each.parent.name == "leases" for each in job.folders)
        if not has_peer and not at.is_last:
            await self._refresh(job, at, seen)
        bonds = [load_signed(folder, Bond) for folder in job.folders]
        pause = self._times.tail / SHARE_OF_TAIL
        action = next_action(
            at,
            is_live=is_live,
            quiet_seconds=clock - seen.quiet_since,
            may_show=seen.shown != seal
            and bool(at.budget.closed_at or clock - seen.shown_at >= pause),
            may_bond=any(each is not None and each.message.by >= now for each in bonds),
            now=now,
            tail=self._times.tail,
            claim_at=self._claim_at,
        )
        match action:
            case "claim":
                await self._own.sender.send(*claim_call(self._own, job.spec, at))
                if at.due:
                    tokens = format_tokens(at.due)
                    self._say(f"claimed {tokens} tokens of job {job.job.hex()[:12]}")
            case "show":
                if await show_ended(self._own, job.spec, at):
                    self._say(f"showed what the ended have earned in job {job.job.hex()[:12]}")
                seen.shown, seen.shown_at = seal, clock
            case "quit":
                await self._quit(job, at, seen)
            case "release":
                call = self._own.contracts.escrow.release(job.job, [at.account])
                await send_anew(self._own, f"release:{job.job.hex()}", call)
            case "settled":
                for folder in job.folders:
                    if not is_settled(folder):
                        note_settled(folder)
                self._watched.pop(job.job, None)
        return is_live or not at.end or action in ("claim", "quit")

    async def _refresh(self, job: OwnJob, at: Position, seen: _Watched) -> None:
        """Ask the market for newer pay: what was earned may vest after we have left."""
        now = self._monotonic()
        if seen.asked_at is not None and now - seen.asked_at < ASK_SECONDS:
            return
        seen.asked_at = now
        try:
            newer = await pay_at_market(self._client, job, self._own.contracts.deployment.domain)
        except (errors.NotFound, errors.Unavailable):
            return  # it is gone; what we have is enough to be paid by
        if newer is not None and (at.pay is None or _extends(newer, at.pay)):
            save_pay(job.folders[0], newer)

    async def _quit(self, job: OwnJob, at: Position, seen: _Watched) -> None:
        """Sign a Quit and hand it in; send it ourselves where no market does."""
        now = self._monotonic()
        if seen.ordered_at is not None and now - seen.ordered_at < ORDER_SECONDS:
            return
        signed = await sign_quit(self._own, job, at, self._times)
        if seen.ordered_at is None:
            try:
                await self._client.call(POST_ORDER, PostOrder(signed=signed.encoded()), job=job.job)
            except (errors.Refused, errors.Unavailable):
                pass
            else:
                seen.ordered_at = now
                self._say(f"quits job {job.job.hex()[:12]}: {_after(self._times)}")
                return
        await send_quit(self._own, signed)
        seen.ordered_at = now
        self._say(f"has quit job {job.job.hex()[:12]}: {_after(self._times)}")


def _extends(newer: SealedPay, known: SealedPay) -> bool:
    """Whether it may take the place of `known`: no valid seal takes back what one before it said.

    Nobody here has checked it. So a coordinator that signs one without our pay does not make us
    throw away the seal that pays us, and quit as if we had earned nothing.
    """
    said = {leaf.account: leaf for leaf in newer.pay}
    rises = newer.seal.message.step > known.seal.message.step
    for leaf in known.pay:
        now = said.get(leaf.account)
        if now is None or now.earned < leaf.earned or now.vested < leaf.vested:
            return False
        rises |= now.vested > leaf.vested
    return rises


def _after(times: EscrowTimes) -> str:
    return f"its stake there is free {times.tail} s later"


# ------------------------------------------------------------------------------------- single steps


def claim_call(own: OnChain, spec: JobSpec, at: Position) -> tuple[str, Call]:
    """The name of a claim, and the call; raises as `claim`."""
    pay = _need(at.pay)
    leaf, path = PayTree(pay.pay).prove(at.account)
    # The limit may have risen under the same seal: then it is another claim.
    paid, shown = min(leaf.vested, at.channel.limit), min(leaf.earned, at.channel.limit)
    call = own.contracts.escrow.claim(
        spec.header(), pay.seal.message.details(), pay.seal.signature, leaf, path
    )
    return f"claim:{pay.seal.message.digest().hex()}:{paid}:{shown}", call


async def show_ended(own: OnChain, spec: JobSpec, at: Position) -> int:
    """Claim for those whose work has ended, if the escrow lacks it; how many calls it took."""
    channels = await _channels(own, spec, at)
    ended = [
        account
        for account, channel in channels.items()
        if channel.end or at.budget.closed_at
        if min(leaf_of(at.pay, account).earned, channel.limit) > channel.earned
    ]
    calls = await claim_all_calls(own, spec, at, ended) if ended else ()
    for key, call in calls:
        await own.sender.send(key, call)
    return len(calls)


async def _channels(own: OnChain, spec: JobSpec, at: Position) -> dict[Address, Channel]:
    """Of all who earned something."""
    places = [(spec.job(), leaf.account) for leaf in _need(at.pay).pay]
    found = await own.contracts.escrow.channels(places, await own.contracts.chain.head())
    return {account: channel for (_, account), channel in found.items()}


async def claim_all_calls(
    own: OnChain, spec: JobSpec, at: Position, accounts: Collection[Address] | None = None
) -> list[tuple[str, Call]]:
    """The calls that pay `accounts`, or everybody, what the escrow does not know yet, by name."""
    pay, escrow = _need(at.pay), own.contracts.escrow
    channels = await _channels(own, spec, at)
    calls = []
    for subtree in PayTree(pay.pay).subtrees(accounts):
        known = wanted = 0
        for leaf in subtree.leaves:
            channel = channels[leaf.account]
            known += channel.claimed + channel.earned
            wanted += max(channel.claimed, min(leaf.vested, channel.limit))
            wanted += max(channel.earned, min(leaf.earned, channel.limit))
        if wanted > known:
            call = escrow.claim_all(
                spec.header(), pay.seal.message.details(), pay.seal.signature, subtree
            )
            first = subtree.leaves[0].account.hex()
            calls.append((f"show:{pay.seal.message.digest().hex()}:{first}:{wanted}", call))
    return calls


def _need(pay: SealedPay | None) -> SealedPay:
    if pay is None:
        raise errors.NotFound("this folder has no seal of the job: nothing can be claimed by it")
    return pay


async def sign_quit(own: OnChain, job: OwnJob, at: Position, times: EscrowTimes) -> Signed[Quit]:
    """A Quit that is on disk: the one that was signed last while it counts, or another."""
    kept = load_signed(job.folders[0], Quit)
    if kept is not None and kept.message.by > await own.contracts.chain.next_time():
        return kept
    by = await signed_until(own, times)
    signed = quit_of(own.wallet, job.job, at, by, own.contracts.deployment.domain)
    for folder in job.folders:
        save_signed(folder, signed)
    return signed


def quit_of(
    wallet: Wallet, job: JobId, at: Position, by: UnixSeconds, domain: Domain
) -> Signed[Quit]:
    """A signed Quit that keeps what vested, and what was earned and may still vest."""
    keep = BaseUnits(min(at.leaf.vested + at.waiting, UINT80_MAX))
    return wallet.sign(Quit(job=job, account=wallet.account, keep=keep, by=by), domain)


async def send_quit(own: OnChain, signed: Signed[Quit]) -> Digest:
    """Send a Quit by our own transaction."""
    key = f"quit:{signed.message.digest().hex()}"
    return (await own.sender.send(key, own.contracts.escrow.quit(signed))).transaction


async def pay_at_market(client: MarketClient, job: OwnJob, domain: Domain) -> SealedPay | None:
    """The newest seal that the market has, with its pay; None: it has none.

    Raises:
        BadSignature: the job's coordinator did not sign it. Malformed: the leaves are not its.
        NotFound, Unavailable: the market.
    """
    view = await client.call(GET_PAY, job=job.job)
    if view.seal is None:
        return None
    seal = expect(decode_signed(view.seal), Seal)
    verify_wallet(seal, job.spec.coordinator, domain)
    leaves = tuple(PayLeaf(each.account, each.earned, each.vested) for each in view.leaves)
    if seal.message.job != job.job or PayTree(leaves).root != seal.message.pay_root:
        raise errors.Malformed(f"the market shows pay that is none of job {job.job.hex()}")
    return SealedPay(seal, leaves)
