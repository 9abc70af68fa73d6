"""Posting a job: agreement, data, signatures, deposit. A repeated call finds the job of the first.

Order of things: the market is asked what it has, its answer is agreed to, the data is brought, the
JobSpec is signed, stored (`orders`), and only then sent. Interrupted at any point, the next call
with the same file, wallet and market goes on: before the signature it begins afresh, after it, it
sends what was signed, which has the same id and is paid for once, whatever changed meanwhile.
What a market refused is paid for only instead of what comes after it (`Permitted`).
"""

import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from contracts.governance.escrow import signing_seconds
from contracts.keys.wallet import Wallet
from contracts.terms import errors
from contracts.terms.amounts import format_tokens
from contracts.terms.ids import Digest, JobId
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixSeconds
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import PERMIT, Domain, WalletDomain
from market.bodies.advice import in_words
from market.bodies.jobs import Permit, PostJob, QuoteView
from market.bodies.market import FaucetRequest, NetworkView
from market.bodies.routes import (
    GET_ACCOUNT,
    GET_JOB,
    GET_NETWORK,
    POST_COORDINATOR,
    POST_FAUCET,
    POST_JOB,
)
from tallystick.chains import chain_name, hold_for
from tallystick.files import replace_file
from tallystick.sdk.client import MarketClient
from tallystick.sdk.job_file import JobFile
from tallystick.sdk.job_spec import OPEN_SECONDS, Prepared, prepare
from tallystick.sdk.orders import (
    KEPT,
    NETWORK_FILE,
    Order,
    OrderFile,
    Permitted,
    fingerprint_of,
    open_order,
)
from tallystick.sdk.parts import few_at_once, put_parts, with_model_of_job
from tallystick.sdk.plan import Plan, draft, plan_of_draft
from tallystick.sdk.watch import DONE_STATES
from training.data.prepare import PreparedData

PERMIT_SECONDS = 3600
MAX_SKEW_MILLIS = 120_000
SAY_SECONDS = 2.0  # between two lines about an upload
LASTING = ("price", "memory", "device", "window")
"""Constraints of matching that an offer fails for good; others pass with time."""

Say = Callable[[str], None]
Wait = Callable[[], Awaitable[None]]
Agree = Callable[[Plan], None]


async def at_once() -> None:
    """Waits for nothing."""


@dataclass(frozen=True)
class Submitted:
    """A job that the market has."""

    job: JobId
    spec: JobSpec
    corpus: PreparedData
    state: str = "draft"
    is_new: bool = True  # False: ordered before, and found again

    @property
    def is_over(self) -> bool:
        """Whether it was ordered before, and nothing of it is trained any more."""
        return self.state in DONE_STATES


@dataclass(frozen=True)
class Consent:
    """What a poster agrees to before anything is signed."""

    agree: Agree = lambda plan: None
    """Given what it would cost before anything is asked for or signed; raises if the poster does
    not agree. What was signed before was agreed to."""
    again: bool = False
    """Order once more what the market has had already, under way or over. Whatever was signed and
    is not known to have arrived comes first."""
    unmatched: bool = False
    """Post it even if it fits none of the offers that there are."""


EVERYTHING = Consent()


async def submit(
    client: MarketClient,
    wallet: Wallet,
    job: JobFile,
    *,
    orders: Path,
    data: Path,
    now: UnixSeconds,
    consent: Consent = EVERYTHING,
    offered: Wait = at_once,
    say: Say = lambda line: None,
) -> Submitted:
    """Post `job` for `wallet`, or find the job that it was posted as.

    Args:
        client: The market.
        wallet: The poster; pays the budget by a permit and needs no gas.
        job: What to train.
        orders: Folder of this wallet's orders.
        data: Folder for shards of its data.
        now: This machine's clock; must agree with the market's within two minutes.
        consent: What the poster agrees to.
        offered: Awaited before the market is asked what the job would meet: until the offers are
            there that it is to be matched with.
        say: Told each phase, for a person.

    Raises:
        Unaffordable: the wallet holds less than the budget, or the budget does not cover the job.
        NoMatch: it fits none of the offers that there are, and never would.
        Expired: the clocks differ.
        Unconfirmed: as `Consent.agree` says.
        Conflict: another process places this order now, the market lost it, or one that it does not
            have may be in escrow.
        WrongChain: the market names the domain of another token.
        Refused, Unavailable: as the market answers.
    """
    job = await with_model_of_job(client, job, data, say=say)
    prepared = prepare(job, data, say=say)
    corpus = prepared.corpus
    say(f"{corpus.in_words}; {prepared.length}")
    network = await client.call(GET_NETWORK)
    check_clock(network.clock, now)
    name = fingerprint_of(job, wallet.account, network, prepared)
    with hold_for(orders, chain_name(network), KEPT, say), open_order(orders, name) as file:
        replace_file(orders / NETWORK_FILE, network.model_dump_json().encode())
        if found := await _ordered(client, file, corpus, again=consent.again):
            return found
        placing = _Placing(client, wallet, network, prepared, file, consent, say)
        stored = file.order.spec()
        if (
            stored is None
            or file.order.is_posted
            or stored.message.open_by * 1000 <= network.clock  # nobody can open it any more
        ):
            await offered()
            spec = await placing.place(job, now)
        else:
            spec = await placing.send_stored(stored, now)
        return Submitted(spec.job(), spec, corpus)


async def _ordered(
    client: MarketClient, file: OrderFile, corpus: PreparedData, *, again: bool
) -> Submitted | None:
    """The job of the stored order, if the market has it; None if there is something to send.

    Raises:
        Conflict: the market had it once, and does not know it any more.
    """
    order, signed = file.order, file.order.spec()
    if signed is None or (again and order.is_posted):
        return None
    name = signed.message.job()
    try:
        view = await client.call(GET_JOB, job=name)
    except errors.NotFound as error:
        if not order.is_posted:
            return None
        raise errors.Conflict(
            f"this file was ordered as job {name.hex()}, which {client.url} does not know any "
            "more: --again orders it once more",
            job=name.hex(),
        ) from error
    _note_posted(file, name)
    return Submitted(name, signed.message, corpus, view.state, is_new=False)


def _note_posted(file: OrderFile, job: JobId) -> None:
    file.save(file.order.model_copy(update={"is_posted": True}))
    file.settle_permitted(job)


@dataclass(frozen=True)
class _Placing:
    """One order on its way; `file` is this process's alone."""

    client: MarketClient
    wallet: Wallet
    network: NetworkView
    prepared: Prepared
    file: OrderFile
    consent: Consent
    say: Say

    async def place(self, job: JobFile, now: UnixSeconds) -> JobSpec:
        """Ask, sign, store and send a new order."""
        poster, prepared, before = self.wallet.account, self.prepared, self.file.order
        drafted, quote = await draft(
            self.client,
            job,
            prepared,
            poster=poster,
            now=now,
            confirmations=self.network.confirmations,
        )
        if not self.consent.unmatched:
            _need_match(quote, drafted, now)
        self.consent.agree(plan_of_draft(drafted, prepared, quote, now))
        order = before
        if before.signed is None:
            self.file.save(order)  # so that whatever is given to its key is found again
        else:
            order = before.next()
        await self._fund(drafted, order.key)
        key = f"coordinator-{order.key}"
        coordinator = (
            await self.client.call(POST_COORDINATOR, by=self.wallet, key=key)
        ).coordinator
        await self._bring()
        signed_at = (await self.client.call(GET_NETWORK)).clock // 1000  # to bring it takes a while
        spec = drafted.model_copy(
            update={
                "coordinator": coordinator,
                "salt": secrets.randbits(52),
                "open_by": signed_at + open_seconds(self.network.times.margin),
            }
        )
        domain = Domain(self.network.chain_id, self.network.contracts.escrow)
        signed = self.wallet.sign(spec, domain)
        self.file.save(order.model_copy(update={"signed": signed.encoded()}))
        await self._send(signed, now, refused=before)
        return spec

    async def send_stored(self, signed: Signed[JobSpec], now: UnixSeconds) -> JobSpec:
        """Send what an interrupted call has signed; its poster agreed then."""
        self.say(f"an interrupted call signed this order: it is sent now ({self.file.path})")
        await self._fund(signed.message, self.file.order.key)
        await self._bring()
        await self._send(signed, now, refused=self.file.order)
        return signed.message

    async def _bring(self) -> None:
        files = [*self.prepared.corpus.files()]
        stored = self._counted("data", len(files), "blobs")

        async def put(name: Digest, path: Path) -> None:
            await self.client.put_file(path, by=self.wallet, name=name)
            stored()

        await few_at_once(partial(put, *each) for each in files)
        if (tokenizer := self.prepared.tokenizer_file) is not None:
            await self.client.put_blob(tokenizer, by=self.wallet)
        self.say(f"data: {len(files)} blobs are with the market")
        if (start := self.prepared.start) is not None:
            stored = self._counted("weights", len(start.index.parts), "parts")
            await put_parts(self.client, start.file, start.index, by=self.wallet, stored=stored)
            self.say(f"weights: {start.index.num_bytes} bytes in {len(start.index.parts)} parts, "
                     f"with {', '.join(start.beside)}")  # fmt: skip

    def _counted(self, what: str, num_all: int, things: str) -> Callable[[], None]:
        """To be called for each that is stored; says now and then how far it is."""
        num_stored, said_at = 0, time.monotonic()

        def stored() -> None:
            nonlocal num_stored, said_at
            num_stored += 1
            if num_stored < num_all and time.monotonic() > said_at + SAY_SECONDS:
                said_at = time.monotonic()
                self.say(f"{what}: {num_stored} of {num_all} {things} are with the market")

        return stored

    async def _send(self, signed: Signed[JobSpec], now: UnixSeconds, *, refused: Order) -> None:
        """Send an order; if the market refuses it and does not have it, `refused` is stored."""
        job = signed.message.job()
        permit = await self._permit(signed.message, now)
        body = PostJob(signed=signed.encoded(), permit=permit)
        # A later call signs another permit: the answer that is stored belongs to this very request.
        key = hashlib.sha256(body.json_bytes()).hexdigest()
        try:
            await self.client.call(POST_JOB, body, key=key)
        except (
            errors.Refused
        ):  # or an answer that cannot be read: then it may have the job all the same
            if not await self._is_known(job):
                self._note_refused()
                self.file.save(refused)
                raise
        _note_posted(self.file, job)

    def _note_refused(self) -> None:
        permitted = self.file.permitted()
        if permitted is not None:
            self.file.save_permitted(permitted.model_copy(update={"is_refused": True}))

    async def _is_known(self, job: JobId) -> bool:
        try:
            await self.client.call(GET_JOB, job=job)
        except errors.NotFound:
            return False
        return True

    async def _fund(self, spec: JobSpec, key: str) -> None:
        """Tokens for the budget, from the faucet where there is one and they are missing."""
        client, account = self.client, self.wallet.account
        held = (await client.call(GET_ACCOUNT, account=account)).token
        if held < spec.budget and self.network.embedded:
            try:
                await client.call(POST_FAUCET, FaucetRequest(account=account), key=f"faucet-{key}")
            except errors.Refused as error:
                self.say(f"faucet: {error}")
            held = (await client.call(GET_ACCOUNT, account=account)).token
            self.say(f"faucet: the wallet holds {format_tokens(held)} test tokens")
        if held < spec.budget:
            raise errors.Unaffordable(
                f"0x{account.hex()} holds {format_tokens(held)} tokens, the budget is "
                f"{format_tokens(spec.budget)}: lower the budget or send tokens to this account",
                held=held,
                budget=spec.budget,
            )

    async def _permit(self, spec: JobSpec, now: UnixSeconds) -> Permit:
        account, network = self.wallet.account, self.network
        deadline = UnixSeconds(now + PERMIT_SECONDS)
        token = token_domain(network)
        nonce = await self._nonce()
        self.file.save_permitted(Permitted(nonce=nonce, job=spec.job()))
        values = (account, network.contracts.escrow, spec.budget, nonce, deadline)
        signature = self.wallet.sign_permit(PERMIT, values, token.separator)
        return Permit(deadline=deadline, signature=signature)

    async def _nonce(self) -> int:
        """Of the next permit; the one that the last had, while its job is not with the market.

        Raises:
            Conflict: that one was used, so that job may be in escrow.
        """
        nonce = (await self.client.call(GET_ACCOUNT, account=self.wallet.account)).permit_nonce
        last = self.file.permitted()
        if last is None or last.nonce == nonce or self.consent.again:
            return nonce
        job = JobId(last.job)
        if last.is_refused or not await self._is_known(job):
            raise errors.Conflict(
                f"{self.client.url} does not have job {job.hex()}, which you signed last, and says "
                "that its permit was used: the budget may be in escrow. Look there; --again orders "
                "all the same",
                job=job.hex(),
            )
        return nonce


def token_domain(network: NetworkView) -> WalletDomain:
    """What permits of a network's token are signed under.

    Raises:
        WrongChain: the market says it otherwise; that would be a permit for another token.
    """
    token, address = network.token, network.contracts.token
    domain = WalletDomain(token.name, token.version, network.chain_id, address)
    if domain.separator != token.domain_separator:
        raise errors.WrongChain(
            f"the market wants a permit that is none of its token 0x{address.hex()} on chain "
            f"{network.chain_id}: it is not signed",
            chain_id=network.chain_id,
        )
    return domain


def open_seconds(margin: int) -> int:
    """How long after its signature a job may be opened; a contract takes none beyond its margin."""
    return min(OPEN_SECONDS, signing_seconds(margin))


def check_clock(market_millis: int, now: UnixSeconds) -> None:
    """Raises Expired if this machine and the market are more than two minutes apart."""
    ahead = now * 1000 - market_millis
    if abs(ahead) > MAX_SKEW_MILLIS:
        raise errors.Expired(
            f"{clock_sentence(ahead)}; at most 120 s are allowed: set the clock (NTP) and try again"
        )


def clock_sentence(ahead_millis: int) -> str:
    """How far this machine's clock is from the market's."""
    where = "ahead of" if ahead_millis > 0 else "behind"
    return f"this machine's clock is {abs(ahead_millis) // 1000} s {where} the market's"


def _need_match(quote: QuoteView, spec: JobSpec, now: UnixSeconds) -> None:
    """Refuse a job that fails all offers there are for good; without any it waits for some.

    Raises:
        NoMatch: with what would fit.
    """
    for excluded in quote.not_matched:
        if excluded.constraint in LASTING and excluded.offers >= quote.offers:
            advice = (
                None
                if quote.advice is None
                else in_words(quote.advice, now=now, budget=spec.budget)
            )
            raise errors.NoMatch(
                f"the job fits none of the {quote.offers} offers ({excluded.constraint}); would "
                f"fit: {excluded.would_fit}. {_remedy(advice)}, or post it with "
                "--unmatched",
                constraint=excluded.constraint,
                would_fit=excluded.would_fit,
                advice=advice,
            )


def _remedy(advice: str | None) -> str:
    return "Change the job" if advice is None else f"To match it now, {advice}"
