"""`tallystick audit`: export a job's audit file; verify one offline; run an audit again.

`verify` opens no socket and needs the base dependencies only. Its exit codes: 0 everything fits and
leads to the reader's own block hash and contracts, 10 everything fits but the reader named none, 11
something does not fit, or chain and seals disagree on money, 12 the file cannot be read (damage, or
another version): it says nothing.
`rerun` opens none either and needs torch: 0 this machine confirms what the auditor says, 10 it does
not, 11 no valid bundle, 12 as above.

`anchor` asks a node which hash it gives to the block that a file is pinned to. What `verify
--anchor` wants is a hash from a node that its reader trusts: the node is asked for it by number,
and nothing that the file says of itself is taken.

`equivocation` and `compare` show two values of one signer, proved by a file. Both work offline with
the base dependencies. Exit codes of `equivocation`: 0 proven, 11 the file proves nothing, 12 it
cannot be read; `compare` exits 3 where two histories do not contradict each other.
"""

import asyncio
from pathlib import Path
from typing import Annotated, Literal

import typer

from contracts.http_clients import server_of
from contracts.json_rpc import JsonRpc
from contracts.terms import errors
from contracts.terms.ids import AddressField, Digest, DigestField, JobId, JobIdField
from contracts.terms.typed_names import parse_address
from market.bodies.base import Body, Money
from market.bodies.jobs import JobState
from market.bodies.routes import GET_JOBS, GET_NETWORK
from tallystick.audit import report, rerun_report
from tallystick.audit.export import SHIPS, export
from tallystick.cli.options import Job, Market, ask, ask_of_job, needs_provider, parse_digest
from tallystick.cli.output import answer, notice, shows
from tallystick.cli.shown import lines_of
from tallystick.files import write_whole
from tallystick.reading import read_whole
from tallystick.sdk.client import MarketClient
from tallystick.sdk.http import http_url
from verification.audit.audit_file import MAX_FILE_BYTES, AuditFile, Pins, read_file, verify
from verification.audit.collecting import read_header
from verification.equivocation import (
    MAX_PROOF_BYTES,
    Equivocated,
    contradictions,
    prove,
    read_proof,
)

# -------------------------------------------------------- what the verbs answer with, for programs


class AuditableJob(Body):
    """A job that can be exported; `complete` once nothing is added to it any more."""

    job: JobIdField
    name: str
    state: JobState
    step: int
    steps: int
    claimed: Money
    complete: bool


class AuditableJobs(Body):
    """Jobs that can be audited, newest first."""

    jobs: tuple[AuditableJob, ...]


class Exported(Body):
    """An audit file that was written; a reader takes the block's hash from a node of his own."""

    file: str
    num_bytes: int
    job: JobIdField
    block_number: int
    block_hash: DigestField
    proved: bool  # its storage; else the node could not
    disagreements: tuple[str, ...]


class Proven(Body):
    """Two values that one key signed under one name; `file` where they were written to."""

    proven: Literal[True] = True
    file: str
    kind: str
    job: JobIdField
    key: DigestField | None  # session key; none: a wallet signed
    account: AddressField | None
    bound: bool


# ------------------------------------------------------------------------------------------ anchor


class Anchor(Body):
    """The block that a file is pinned to, as a node knows it."""

    node: str
    chain_id: int
    block_number: int
    block_hash: DigestField


@shows(Anchor, lines=lambda anchor: [f"0x{anchor.block_hash.hex()}"])
def anchor_command(
    file: Annotated[Path, typer.Argument(help="Audit file.")],
    rpc: Annotated[
        str | None, typer.Option(help="URL of your own node; else the one that the market names.")
    ] = None,
    market: Market = None,
) -> Anchor:
    """Ask a node for the hash of the block that an audit file is pinned to.

    The hash is worth as much as the node: name one of your own with --rpc.

    Exit codes: 0, or 12 if the file cannot be read as an audit file.

    Example: tallystick audit anchor job.tally --rpc http://127.0.0.1:8545
    """
    if rpc is not None:
        return asyncio.run(_anchor(file, http_url(rpc, "a node")))
    return ask(market, lambda client: _as_the_market_says(file, client))


async def _as_the_market_says(file: Path, client: MarketClient) -> Anchor:
    named = http_url((await client.call(GET_NETWORK)).rpc_url, "a node")
    notice(f"asked {named}, the market's own node; name yours with --rpc")
    return await _anchor(file, named)


async def _anchor(file: Path, url: str) -> Anchor:
    async with JsonRpc(url) as node:
        chain_id = await _chain_id(node)
        held = read_file(read_whole(file, MAX_FILE_BYTES))
        if held.domain.chain_id != chain_id:
            raise errors.Refused(
                f"{server_of(url)} is of chain {chain_id}, {file} of {held.domain.chain_id}"
            )
        header = await read_header(node, held.block.header.number)
    return Anchor(node=url, chain_id=chain_id, block_number=header.number, block_hash=header.hash)


async def _chain_id(node: JsonRpc) -> int:
    found = await node.request("eth_chainId", [])
    try:
        return int(found, 16)
    except (TypeError, ValueError) as error:
        raise errors.ChainUnreachable(f"{server_of(node.url)} names no chain") from error


# ------------------------------------------------------------------------ equivocation and compare


@shows(Proven, lines=lambda proven: [proven.file])
def equivocation_command(
    file: Annotated[Path, typer.Argument(help="Proof: two signed messages.")],
) -> None:
    """Check offline that one key signed two values of what may be said once.

    Exit codes: 0 proven, 11 the file proves nothing, 12 it cannot be read.

    Example: tallystick audit equivocation seal.equivocation
    """
    found = prove(read_proof(read_whole(file, MAX_PROOF_BYTES)))
    answer(_proven(found, file), [_line(found)])


@shows(Proven, lines=lambda proven: [proven.file])
def compare_command(
    file: Annotated[Path, typer.Argument(help="Audit file of a job.")],
    other: Annotated[Path, typer.Argument(help="Another one of the same job.")],
    to: Annotated[Path, typer.Option("--to", help="Proof to write.", metavar="FILE")],
) -> None:
    """Find what one key has said twice in two histories of a job, and write the proof of it.

    Example: tallystick audit compare mine.tally theirs.tally --to seal.equivocation
    """
    ours, theirs = _audit_file(file), _audit_file(other)
    if ours.domain != theirs.domain:
        raise errors.Conflict("the two files are of different chains or contracts")
    two = next(contradictions(ours.items, theirs.items, ours.domain), None)
    if two is None:
        raise errors.NotFound("no key has said two things in these files that it may say once")
    write_whole(to, two.encoded())
    found = prove(two)
    answer(_proven(found, to), [f"wrote {to}: {_line(found)}"])


def _audit_file(path: Path) -> AuditFile:
    try:
        return read_file(read_whole(path, MAX_FILE_BYTES))
    except errors.Unreadable as error:  # which of the two
        raise errors.Unreadable(f"{path}: {error.message}") from error


def _line(found: Equivocated) -> str:
    """What is proved, in one line."""
    signer = f"session key {found.key.hex()}" if found.key else "a wallet"
    whose = "" if found.account is None else f" of account 0x{found.account.hex()}"
    bound = "" if found.is_bound else " (nothing in the file binds it to the job)"
    return f"proven: {signer}{whose} signed two {found.kind} of job {found.job.hex()}{bound}"


def _proven(found: Equivocated, file: Path) -> Proven:
    key = Digest(found.key) if found.key else None
    return Proven.of(found, proven=True, file=str(file), key=key, bound=found.is_bound)


# --------------------------------------------------------------------- list, export, verify, rerun

app = typer.Typer(
    no_args_is_help=True,
    help="Export a job's audit file; verify one offline; run an audit again.",
)

EXIT_UNANCHORED = 10
EXIT_DISAGREES = 11
EXIT_NOT_CONFIRMED = 10
COMPLETE = ("finished", "closed")


@app.command("list")
@shows(AuditableJobs, lines=lines_of, rows="jobs")
def list_command(market: Market = None) -> AuditableJobs:
    """List the jobs that can be audited: those with a sealed step, newest first.

    A job that has not ended can be audited so far; `audit export` writes the file of one.

    Example: tallystick audit list
    """
    view = ask(market, lambda client: client.call(GET_JOBS))
    found = (each for each in view.jobs if each.step)
    jobs = tuple(AuditableJob.of(each, complete=each.state in COMPLETE) for each in found)
    return AuditableJobs(jobs=jobs)


@app.command("verify")
@shows(report.Verified, lines=lambda verified: [verified.verdict])
def verify_command(
    file: Annotated[Path, typer.Argument(help="Audit file.")],
    anchor: Annotated[
        str | None, typer.Option(help="Block hash that you got from a node you trust.")
    ] = None,
    escrow: Annotated[
        str | None, typer.Option(help="Address of JobEscrow, from a source you trust.")
    ] = None,
    seals: Annotated[
        str | None, typer.Option(help="Address of SealAnchor, from a source you trust.")
    ] = None,
) -> None:
    """Check everything that was signed, anchored and paid in a job, offline.

    Exit codes: 0 anchored, 10 self-consistent but unanchored, 11 mismatch, 12 no readable file.

    Example: tallystick audit verify job.tally --anchor 0x... --escrow 0x... --seals 0x...
    """
    block = None if anchor is None else parse_digest(anchor, "block hash (--anchor)")
    own_escrow = None if escrow is None else parse_address(escrow, "contract (--escrow)")
    own_seals = None if seals is None else parse_address(seals, "contract (--seals)")
    pins = None
    if block is not None and own_escrow is not None and own_seals is not None:
        pins = Pins(block, own_escrow, own_seals)
    elif (block, own_escrow, own_seals) != (None, None, None):
        raise errors.Malformed("--anchor, --escrow and --seals belong together: give all, or none")
    verdict = verify(read_whole(file, MAX_FILE_BYTES), SHIPS, pins=pins)
    answer(report.body(verdict), report.lines(verdict))
    if verdict.disagreements:
        raise typer.Exit(EXIT_DISAGREES)
    if not verdict.anchored:
        raise typer.Exit(EXIT_UNANCHORED)


def _exported_lines(exported: Exported) -> list[str]:
    proved = "" if exported.proved else ", whose node proves no storage"
    return [
        *(f"disagreement: {each}" for each in exported.disagreements),
        f"wrote {exported.file} ({exported.num_bytes} bytes), pinned to block "
        f"{exported.block_number} 0x{exported.block_hash.hex()}{proved}",
    ]


@app.command("export")
@shows(Exported, lines=_exported_lines)
def export_command(
    job: Job,
    to: Annotated[Path, typer.Option("--to", help="File to write.", metavar="FILE")],
    market: Market = None,
    rpc: Annotated[
        str | None, typer.Option(help="URL of a node; else the one that the market names.")
    ] = None,
    block: Annotated[
        int | None, typer.Option(help="Block to pin it to; else the newest.", min=0, max=2**63)
    ] = None,
) -> Exported:
    """Write a job's audit file, pinned to a block whose state a node proves.

    The last line names the pinned block; a reader takes its hash from a node of his own.

    Example: tallystick audit export JOB --to job.tally
    """

    async def run(client: MarketClient, wanted: JobId) -> AuditFile:
        named = (await client.call(GET_NETWORK)).rpc_url if rpc is None else rpc
        async with JsonRpc(http_url(named, "a node")) as node:
            return await export(client, node, wanted, block=block)

    try:
        file = ask_of_job(market, job, run)
        header, data = file.block.header, file.encoded()
        verdict = verify(data, SHIPS, pins=Pins(header.hash, file.domain.escrow, file.seals))
    except errors.AuditMismatch as error:
        message = f"the market's records do not fit: {error.message}"
        raise errors.AuditMismatch(message, **error.data) from error
    write_whole(to, data)
    return Exported(
        file=str(to),
        num_bytes=len(data),
        job=verdict.job,
        block_number=header.number,
        block_hash=header.hash,
        proved=verdict.escrow is not None,
        disagreements=verdict.disagreements,
    )


@app.command("rerun")
@shows(rerun_report.Rerun, lines=lambda rerun: [rerun.verdict])
def rerun_command(
    file: Annotated[Path, typer.Argument(help="Evidence bundle.", metavar="BUNDLE")],
    threads: Annotated[int, typer.Option(help="CPU threads to compute on.", min=1, max=1024)] = 1,
    device: Annotated[str, typer.Option(help="Device to compute on, as torch names it.")] = "cpu",
    start: Annotated[
        Path | None,
        typer.Option(help="Of a job that trains an adapter: its model's folder.", metavar="FOLDER"),
    ] = None,
) -> None:
    """Run an audit again from its evidence bundle, offline: is the auditor's verdict confirmed?

    Needs torch, and memory for two copies of the stage's weights.

    Exit codes: 0 confirmed here, 10 not confirmed here, 11 no valid bundle, 12 no readable file.

    Example: tallystick audit rerun 0f3a.bundle --threads 4
    """
    with needs_provider("a rerun repeats work"):
        from tallystick.sdk.job_spec import model_in, start_of
        from training.stages.exact import set_threads
        from verification.auditing.rerun import rerun
    set_threads(threads)
    base = None if start is None else start_of(model_in(start))
    found = asyncio.run(rerun(file, device=device, start=base))
    answer(rerun_report.body(found), rerun_report.lines(found))
    if not found.is_confirmed:
        raise typer.Exit(EXIT_NOT_CONFIRMED)


app.command("anchor")(anchor_command)
app.command("equivocation")(equivocation_command)
app.command("compare")(compare_command)
