"""Posting a job: corpus, signatures, deposit. Interrupted at any point, a second call resumes.

A draft of what is about to be signed is on disk before anything leaves, so a repeated call signs
the same JobSpec, which has the same id and is paid for once. The draft goes when the market has the
job; it stays when the market does not answer, or refuses what may be mended without another job
file (an empty wallet, no offer that fits). Job files that cannot be signed leave none. A draft
whose deadline is over was not posted and is made anew.
"""

import hashlib
import os
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from contracts.keys.wallet import Wallet
from contracts.terms.amounts import format_tokens
from contracts.terms.errors import Expired, Malformed, NoMatch, NotFound, Refused, Unaffordable
from contracts.terms.ids import Address, AddressField, JobId
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixSeconds
from contracts.terms.typed_data import PERMIT, Domain
from market.api import schemas
from tallystick.sdk.advice import in_words
from tallystick.sdk.client import MarketClient
from tallystick.sdk.job_file import JobFile
from tallystick.sdk.job_spec import build_spec
from tallystick.sdk.prepare import Prepared, prepare
from training.data.corpus import ShardedCorpus

PERMIT_SECONDS = 3600
MAX_SKEW_MILLIS = 120_000
LASTING = ("price", "memory", "device", "window")
"""Constraints of matching that an offer fails for good; others pass with time."""

Say = Callable[[str], None]
Wait = Callable[[], Awaitable[None]]


async def at_once() -> None:
    """Waits for nothing."""


@dataclass(frozen=True)
class Submitted:
    """A job that the market accepted."""

    job: JobId
    spec: JobSpec
    corpus: ShardedCorpus


class Draft(BaseModel):
    """What makes a repeated submission the same job."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        ser_json_bytes="hex",
        val_json_bytes="hex",
    )

    nonce: int
    posted_at: int  # Unix seconds
    key: str
    coordinator: AddressField | None = None


async def submit(
    client: MarketClient,
    wallet: Wallet,
    job: JobFile,
    *,
    drafts: Path,
    now: UnixSeconds,
    unmatched: bool = False,
    offered: Wait = at_once,
    say: Say = lambda line: None,
) -> Submitted:
    """Post `job` for `wallet`.

    Args:
        client: The market.
        wallet: The poster; pays the budget by a permit and needs no gas.
        job: What to train.
        drafts: Folder for what an interrupted call resumes from.
        now: This machine's clock; must agree with the market's within two minutes.
        unmatched: Post it even if it fits none of the offers that there are.
        offered: Awaited when the data is with the market, before the job is posted: until the
            offers are there that it is to be matched with.
        say: Told each phase, for a person.

    Raises:
        Unaffordable: the wallet holds less than the budget, or the budget does not cover the job.
        NoMatch: it fits none of the offers that there are, and never would.
        Expired: the clocks differ.
        Refused, Unavailable: as the market answers.
    """
    prepared = prepare(job)
    corpus = prepared.corpus
    say(f"corpus: {len(corpus.manifest.train)} shards to train, "
        f"{len(corpus.manifest.validation)} to validate")  # fmt: skip
    network = await client.network()
    check_clock(network.clock, now)
    path = drafts / f"{_fingerprint(job, wallet.account, network, prepared)}.json"

    def spec_of(draft: Draft) -> JobSpec:
        coordinator = draft.coordinator or Address(bytes(20))
        return build_spec(
            job,
            prepared.config,
            poster=wallet.account,
            coordinator=coordinator,
            nonce=draft.nonce,
            manifest=corpus.manifest.digest(),
            now=UnixSeconds(draft.posted_at),
            tokenizer=prepared.tokenizer,
            weights=prepared.weights,
        )

    draft = _load(path)
    if draft and await _knows(client, spec_of(draft)):
        say("the market has this job already")
    else:
        if draft is None or spec_of(draft).deadline <= now:
            draft = Draft(nonce=secrets.randbits(52), posted_at=now, key=secrets.token_hex(16))
        spec_of(draft)  # refuses what cannot be signed before anything is asked for
        draft = await _allocated(client, path, draft)
        spec = spec_of(draft)
        await _bring(client, wallet, spec, corpus, network, draft, say)
        await offered()
        await _post(client, wallet, spec, network, now, unmatched)
    path.unlink(missing_ok=True)
    spec = spec_of(draft)
    return Submitted(spec.job(), spec, corpus)


def check_clock(market_millis: int, now: UnixSeconds) -> None:
    """Raises Expired if this machine and the market are more than two minutes apart."""
    ahead = now * 1000 - market_millis
    if abs(ahead) > MAX_SKEW_MILLIS:
        raise Expired(
            f"{clock_sentence(ahead)}; at most 120 s are allowed: set the clock (NTP) and try again"
        )


def clock_sentence(ahead_millis: int) -> str:
    """How far this machine's clock is from the market's."""
    where = "ahead of" if ahead_millis > 0 else "behind"
    return f"this machine's clock is {abs(ahead_millis) // 1000} s {where} the market's"


async def _knows(client: MarketClient, spec: JobSpec) -> bool:
    try:
        await client.job(spec.job())
    except NotFound:
        return False
    return True


async def _allocated(client: MarketClient, path: Path, draft: Draft) -> Draft:
    """The draft with a coordinator of its own, on disk."""
    _save(path, draft)
    if draft.coordinator is None:
        address = await client.coordinator(idempotency_key=f"coordinator-{draft.key}")
        draft = draft.model_copy(update={"coordinator": address})
        _save(path, draft)
    return draft


async def _bring(
    client: MarketClient,
    wallet: Wallet,
    spec: JobSpec,
    corpus: ShardedCorpus,
    network: schemas.NetworkView,
    draft: Draft,
    say: Say,
) -> None:
    """Everything that the job needs, before it is posted: the wallet's tokens, the data."""
    await _fund(client, wallet, spec, network, draft, say)
    for data in corpus.blobs.values():
        await client.put_blob(data)
    say(f"data: {len(corpus.blobs)} blobs are with the market")


async def _post(
    client: MarketClient,
    wallet: Wallet,
    spec: JobSpec,
    network: schemas.NetworkView,
    now: UnixSeconds,
    unmatched: bool,
) -> None:
    if not unmatched:
        await _need_match(client, spec, now)
    signed = wallet.sign(spec, Domain(network.chain_id, network.contracts.settlement))
    permit = await _permit(client, wallet, spec, network, now)
    body = schemas.PostJob(signed=signed.encoded(), permit=permit)
    # A later call signs another permit: the answer that is stored belongs to this very request.
    key = hashlib.sha256(body.json_bytes()).hexdigest()
    await client.post_job(body, idempotency_key=key)


async def _need_match(client: MarketClient, spec: JobSpec, now: UnixSeconds) -> None:
    """Refuse a job that fails all offers there are for good; without any it waits for some.

    Raises:
        NoMatch: with what would fit.
    """
    quote = await client.quote(spec.encoded())
    for excluded in quote.not_matched:
        if excluded.constraint in LASTING and excluded.offers >= quote.offers:
            advice = (
                None
                if quote.advice is None
                else in_words(quote.advice, now=now, budget=spec.budget)
            )
            raise NoMatch(
                f"the job fits none of the {quote.offers} offers ({excluded.constraint}); would "
                f"fit: {excluded.would_fit}. {_remedy(advice)}, or post it with --unmatched",
                constraint=excluded.constraint,
                would_fit=excluded.would_fit,
                advice=advice,
            )


def _remedy(advice: str | None) -> str:
    return "Change the job" if advice is None else f"To match it now, {advice}"


async def _fund(
    client: MarketClient,
    wallet: Wallet,
    spec: JobSpec,
    network: schemas.NetworkView,
    draft: Draft,
    say: Say,
) -> None:
    held = (await client.account(wallet.account)).token
    if held < spec.budget and network.embedded:
        try:
            await client.faucet(wallet.account, idempotency_key=f"faucet-{draft.key}")
        except Refused as error:
            say(f"faucet: {error}")
        held = (await client.account(wallet.account)).token
        say(f"faucet: the wallet holds {format_tokens(held)} test tokens")
    if held < spec.budget:
        raise Unaffordable(
            f"0x{wallet.account.hex()} holds {format_tokens(held)} tokens, the budget is "
            f"{format_tokens(spec.budget)}: lower the budget or send tokens to this account",
            held=held,
            budget=spec.budget,
        )


async def _permit(
    client: MarketClient,
    wallet: Wallet,
    spec: JobSpec,
    network: schemas.NetworkView,
    now: UnixSeconds,
) -> schemas.Permit:
    deadline = UnixSeconds(now + PERMIT_SECONDS)
    nonce = (await client.account(wallet.account)).permit_nonce
    values = (wallet.account, network.contracts.escrow, spec.budget, nonce, deadline)
    signature = wallet.sign_permit(PERMIT, values, network.token.domain_separator)
    return schemas.Permit(deadline=deadline, signature=signature)


def _fingerprint(
    job: JobFile, account: Address, network: schemas.NetworkView, prepared: Prepared
) -> str:
    parts = (
        job.model_dump_json().encode(),
        account,
        network.contracts.settlement,
        prepared.corpus.manifest.digest(),
        prepared.tokenizer,
        prepared.weights,
    )
    return hashlib.sha256(b"|".join(parts)).hexdigest()[:24]


def _load(path: Path) -> Draft | None:
    try:
        return Draft.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise Malformed(f"{path} is damaged: delete it to submit afresh") from error


def _save(path: Path, draft: Draft) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_suffix(".new")
    with temporary.open("w") as file:
        file.write(draft.model_dump_json())
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
