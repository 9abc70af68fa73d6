"""`tallystick audit equivocation` and `compare`: two values of one signer, proved by a file.

Both work offline with the base dependencies. Exit codes of `equivocation`: 0 proven, 11 the file
proves nothing; `compare` exits 3 where two histories do not contradict each other.
"""

import json
from pathlib import Path
from typing import Annotated

import typer

from contracts.terms.errors import AuditMismatch, Conflict, NotFound
from tallystick.cli.files import read, write
from verification.audit_file import MAX_FILE_BYTES, AuditFile, read_file
from verification.equivocation import (
    MAX_PROOF_BYTES,
    Equivocated,
    contradictions,
    prove,
    read_proof,
)

EXIT_UNPROVEN = 11


def equivocation_command(
    file: Annotated[Path, typer.Argument(help="Proof: two signed messages.")],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Check offline that one key signed two values of what may be said once.

    Exit codes: 0 proven, 11 the file proves nothing.

    Example: tallystick audit equivocation seal.equivocation
    """
    try:
        found = prove(read_proof(read(file, MAX_PROOF_BYTES)))
    except AuditMismatch as error:
        typer.echo(f"mismatch: {error.message}", err=True)
        raise typer.Exit(EXIT_UNPROVEN) from error
    typer.echo(json.dumps(_data(found), indent=2) if as_json else _line(found))


def compare_command(
    file: Annotated[Path, typer.Argument(help="Audit file of a job.")],
    other: Annotated[Path, typer.Argument(help="Another one of the same job.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Proof to write.")],
) -> None:
    """Find what one key has said twice in two histories of a job, and write the proof of it.

    Example: tallystick audit compare mine.tally theirs.tally -o seal.equivocation
    """
    ours, theirs = _audit_file(file), _audit_file(other)
    if ours.domain != theirs.domain:
        raise Conflict("the two files are of different chains or contracts")
    two = next(contradictions(ours.items, theirs.items, ours.domain), None)
    if two is None:
        raise NotFound("no key has said two things in these files that it may say once")
    write(out, two.encoded())
    typer.echo(f"wrote {out}: {_line(prove(two))}")


def _audit_file(path: Path) -> AuditFile:
    return read_file(read(path, MAX_FILE_BYTES))


def _line(found: Equivocated) -> str:
    """What is proved, in one line."""
    signer = f"session key {found.key.hex()}" if found.key else "a wallet"
    whose = "" if found.account is None else f" of account 0x{found.account.hex()}"
    bound = "" if found.is_bound else " (nothing in the file binds it to the job)"
    return f"proven: {signer}{whose} signed two {found.kind} of job {found.job.hex()}{bound}"


def _data(found: Equivocated) -> dict[str, object]:
    return {
        "proven": True,
        "kind": found.kind,
        "job": found.job.hex(),
        "key": found.key.hex() or None,
        "account": None if found.account is None else found.account.hex(),
        "bound": found.is_bound,
    }
