"""`tallystick audit equivocation` and `compare`: two values of one signer, proved by a file.

Both work offline with the base dependencies. Exit codes of `equivocation`: 0 proven, 11 the file
proves nothing, 12 it cannot be read; `compare` exits 3 where two histories do not contradict each
other.
"""

from pathlib import Path
from typing import Annotated

import typer

from contracts.terms.errors import Conflict, NotFound, Unreadable
from contracts.terms.ids import Digest
from tallystick.cli.audit_bodies import Proven
from tallystick.cli.files import read, write
from tallystick.cli.output import answer, shows
from verification.audit.audit_file import MAX_FILE_BYTES, AuditFile, read_file
from verification.equivocation import (
    MAX_PROOF_BYTES,
    Equivocated,
    contradictions,
    prove,
    read_proof,
)


@shows(Proven, lines=lambda proven: [proven.file])
def equivocation_command(
    file: Annotated[Path, typer.Argument(help="Proof: two signed messages.")],
) -> None:
    """Check offline that one key signed two values of what may be said once.

    Exit codes: 0 proven, 11 the file proves nothing, 12 it cannot be read.

    Example: tallystick audit equivocation seal.equivocation
    """
    found = prove(read_proof(read(file, MAX_PROOF_BYTES)))
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
        raise Conflict("the two files are of different chains or contracts")
    two = next(contradictions(ours.items, theirs.items, ours.domain), None)
    if two is None:
        raise NotFound("no key has said two things in these files that it may say once")
    write(to, two.encoded())
    found = prove(two)
    answer(_proven(found, to), [f"wrote {to}: {_line(found)}"])


def _audit_file(path: Path) -> AuditFile:
    try:
        return read_file(read(path, MAX_FILE_BYTES))
    except Unreadable as error:  # which of the two
        raise Unreadable(f"{path}: {error.message}") from error


def _line(found: Equivocated) -> str:
    """What is proved, in one line."""
    signer = f"session key {found.key.hex()}" if found.key else "a wallet"
    whose = "" if found.account is None else f" of account 0x{found.account.hex()}"
    bound = "" if found.is_bound else " (nothing in the file binds it to the job)"
    return f"proven: {signer}{whose} signed two {found.kind} of job {found.job.hex()}{bound}"


def _proven(found: Equivocated, file: Path) -> Proven:
    return Proven(
        file=str(file),
        kind=found.kind,
        job=found.job,
        key=Digest(found.key) if found.key else None,
        account=found.account,
        bound=found.is_bound,
    )
