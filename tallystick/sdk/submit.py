"""Posting a job: corpus, signatures, deposit. Interrupted at any point, a second call resumes.

A draft of what is about to be signed is on disk before anything leaves, so a repeated call signs
the same JobSpec, which has the same id and is paid for once. The draft goes when the job is posted.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from contracts.keys.wallet import Wallet
from contracts.terms.amounts import format_tokens
from contracts.terms.errors import Expired, Malformed, Unaffordable
from contracts.terms.ids import Address, JobId
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixSeconds
from contracts.terms.typed_data import PERMIT, Domain
from market.api import schemas
from tallystick.sdk.client import MarketClient
from tallystick.sdk.job_file import JobFile, build_spec
from training.data.corpus import ShardedCorpus, corpus_bytes, need_enough_rows, shard_corpus

PERMIT_SECONDS = 3600
MAX_SKEW_MILLIS = 120_000


@dataclass(frozen=True)
class Submitted:
    """A job that the market accepted."""

    job: JobId
    spec: JobSpec
    corpus: ShardedCorpus


@dataclass(frozen=True)
class _Draft:
    """What makes a repeated submission the same job."""

    nonce: int
    posted_at: int
    key: str
    coordinator: str = ""


def shard(job: JobFile) -> ShardedCorpus:
    """Read, cut and hash the job's corpus.

    Raises:
        NotFound, Refused, TooLarge: missing, unreadable, too large or too small data.
    """
    corpus = shard_corpus(corpus_bytes(job.data))
    need_enough_rows(corpus.manifest, job.train_config())
    return corpus


async def submit(
    client: MarketClient,
    wallet: Wallet,
    job: JobFile,
    *,
    drafts: Path,
    now: UnixSeconds,
    say: Callable[[str], None] = lambda line: None,
) -> Submitted:
    """Post `job` for `wallet`.

    Args:
        client: The market.
        wallet: The poster; pays the budget by a permit and needs no gas.
        job: What to train.
        drafts: Folder for what an interrupted call resumes from.
        now: This machine's clock; must agree with the market's within two minutes.
        say: Told each phase, for a person.

    Raises:
        Unaffordable: the wallet holds less than the budget.
        Expired: the clocks differ.
        Refused, Unavailable: as the market answers.
    """
    corpus = shard(job)
    say(f"corpus: {len(corpus.manifest.train)} shards to train, "
        f"{len(corpus.manifest.validation)} to validate")  # fmt: skip
    network = await client.network()
    check_clock(network.clock, now)
    path = drafts / f"{_fingerprint(job, wallet.account, network, corpus)}.json"
    draft = await _draft(client, path, now)
    spec = build_spec(
        job,
        poster=wallet.account,
        coordinator=Address(bytes.fromhex(draft.coordinator)),
        nonce=draft.nonce,
        manifest=corpus.manifest.digest(),
        now=UnixSeconds(draft.posted_at),
    )
    await _fund(client, wallet, spec, network, draft, say)
    for data in corpus.blobs.values():
        await client.put_blob(data)
    say(f"data: {len(corpus.blobs)} blobs are with the market")
    signed = wallet.sign(spec, Domain(network.chain_id, network.contracts.settlement))
    permit = await _permit(client, wallet, spec, network, now)
    body = schemas.PostJob(signed=signed.encoded(), permit=permit)
    posted = await client.post_job(body, idempotency_key=draft.key)
    path.unlink(missing_ok=True)
    return Submitted(posted.job, spec, corpus)


def check_clock(market_millis: int, now: UnixSeconds) -> None:
    """Raises Expired if this machine and the market are more than two minutes apart."""
    apart = abs(market_millis - now * 1000)
    if apart > MAX_SKEW_MILLIS:
        raise Expired(
            f"this machine's clock and the market's are {apart // 1000} s apart; "
            "at most 120 s are allowed: set the clock (NTP) and try again"
        )


async def _draft(client: MarketClient, path: Path, now: UnixSeconds) -> _Draft:
    draft = _load(path) or _Draft(secrets.randbits(52), now, secrets.token_hex(16))
    _save(path, draft)
    if not draft.coordinator:
        address = await client.coordinator(idempotency_key=f"coordinator-{draft.key}")
        draft = _Draft(draft.nonce, draft.posted_at, draft.key, address.hex())
        _save(path, draft)
    return draft


async def _fund(
    client: MarketClient,
    wallet: Wallet,
    spec: JobSpec,
    network: schemas.NetworkView,
    draft: _Draft,
    say: Callable[[str], None],
) -> None:
    held = (await client.account(wallet.account)).token
    if held < spec.budget and network.embedded:
        await client.faucet(wallet.account, idempotency_key=f"faucet-{draft.key}")
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
    job: JobFile, account: Address, network: schemas.NetworkView, corpus: ShardedCorpus
) -> str:
    parts = (
        job.model_dump_json().encode(),
        account,
        network.contracts.settlement,
        corpus.manifest.digest(),
    )
    return hashlib.sha256(b"|".join(parts)).hexdigest()[:24]


def _load(path: Path) -> _Draft | None:
    try:
        return _Draft(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise Malformed(f"{path} is damaged: delete it to submit afresh") from error


def _save(path: Path, draft: _Draft) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_suffix(".new")
    with temporary.open("w") as file:
        json.dump(asdict(draft), file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
