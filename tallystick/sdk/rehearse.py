"""What submitting a job would do: nothing is signed, stored or sent but a request for a quote."""

from dataclasses import dataclass

from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import ZERO_ADDRESS, Address
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixSeconds
from market.api.schemas import QuoteView
from tallystick.sdk.client import MarketClient
from tallystick.sdk.job_file import JobFile
from tallystick.sdk.job_spec import build_spec
from tallystick.sdk.prepare import prepare
from tallystick.sdk.submit import check_clock


@dataclass(frozen=True)
class Rehearsal:
    """What would be signed, and what the market says of it now."""

    spec: JobSpec
    quote: QuoteView
    held: BaseUnits  # by the poster
    num_bytes: int  # of data that would be brought to the market


async def rehearse(
    client: MarketClient, poster: Address, job: JobFile, *, now: UnixSeconds
) -> Rehearsal:
    """Ask for a quote of what `submit` would sign; raises as it does for what cannot be signed."""
    prepared = prepare(job)
    check_clock((await client.network()).clock, now)
    spec = build_spec(
        job,
        prepared.config,
        poster=poster,
        coordinator=ZERO_ADDRESS,
        nonce=0,
        manifest=prepared.corpus.manifest.digest(),
        now=now,
        tokenizer=prepared.tokenizer,
        weights=prepared.weights,
    )
    quote = _without_what_is_brought(await client.quote(spec.encoded()))
    held = (await client.account(poster)).token
    num_bytes = sum(map(len, prepared.corpus.blobs.values()))
    return Rehearsal(spec, quote, held, num_bytes)


def _without_what_is_brought(quote: QuoteView) -> QuoteView:
    """A quote without the reason that `submit` mends: it has a coordinator allocated first."""
    reasons = tuple(each for each in quote.reasons if f"0x{ZERO_ADDRESS.hex()}" not in each)
    return quote.model_copy(update={"reasons": reasons, "fits": not reasons})
