"""Of which chain is what a folder keeps, and where does it go on another one?

What is kept of a chain holds there alone. Chain id 31337 is everybody's, and a market that was made
anew with its old keys has its old addresses, too; so a development chain is its first block and its
contracts. Any other is its id and its escrow, which is what we sign for: a market that names the
rest otherwise must not make us forget what we have signed, and sign it once more.
A folder notes in `chain` of which it is. Used with another one, what it kept goes to
`chains/<name>` in it, and comes back when it is used with the first again.
Invariant: what lies in the folder itself is of the noted chain. Nothing but renames, in an order
that a kill at any moment leaves to the next call; who uses a folder holds it, so that nobody moves
anything meanwhile.
"""

import contextlib
import fcntl
import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO

from contracts.chain.deployment import DEVELOPMENT_CHAINS, NAMES
from contracts.terms.errors import Conflict, Refused
from market.bodies.market import NetworkView
from tallystick.files import replace_file

NOTE, ASIDE, UNKNOWN = "chain", "chains", "unknown"
_OWN = (NOTE, ASIDE, "chain.lock")


def chain_name(network: NetworkView) -> str:
    """What tells the chain and the contracts of a market from all others; names a folder."""
    if network.chain_id not in DEVELOPMENT_CHAINS:
        return f"{network.chain_id}-{network.contracts.escrow.hex()}"
    addresses = b"".join(getattr(network.contracts, name) for name in NAMES)
    contracts = hashlib.sha256(addresses).hexdigest()
    return f"{network.chain_id}-{network.genesis.hex()[:16]}-{contracts[:16]}"


def noted_chain(folder: Path) -> str | None:
    """The chain that `folder` keeps things of; None: nobody has said yet."""
    try:
        return (folder / NOTE).read_text() or None
    except FileNotFoundError:
        return None


def hold_for(
    folder: Path,
    chain: str,
    kept: Sequence[str],
    say: Callable[[str], None],
) -> IO[str]:
    """Return the open lock of a folder; until it is closed, what lies there is of `chain`.

    Args:
        folder: Made on first use.
        chain: What `chain_name` says.
        kept: Patterns of what it keeps of a chain; all else is of none.
        say: Told in one line what was put aside, and what came back.

    Raises:
        Conflict: another process uses it on another chain.
        Refused: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        held = (folder / "chain.lock").open("a")
        try:
            with contextlib.suppress(BlockingIOError):  # somebody uses it: then it stays as it is
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _turn(folder, chain, kept, say)
            fcntl.flock(held, fcntl.LOCK_SH)  # waits for somebody who turns it, which is quick
            if noted_chain(folder) != chain:
                raise Conflict(
                    f"another process uses {folder} on another chain: wait for it, or name another"
                    " folder"
                )
        except BaseException:
            held.close()
            raise
    except OSError as error:
        raise Refused(f"cannot write {folder}: {error.strerror}") from error
    return held


def _turn(folder: Path, chain: str, kept: Sequence[str], say: Callable[[str], None]) -> None:
    """Put aside what is of another chain, note the new one, and bring back what is of it."""
    was = noted_chain(folder) or UNKNOWN  # of versions that noted no chain: it is not read
    told = []
    if was != chain:
        found = [each for each in _matching(folder, kept) if each.name not in _OWN]
        _move(found, folder / ASIDE / was)
        if found:
            told.append(f"what it keeps of that one is put aside in {ASIDE}/{was}")
        replace_file(folder / NOTE, chain.encode())
    aside = folder / ASIDE / chain
    if aside.exists():
        _move(list(aside.iterdir()), folder)
        aside.rmdir()
        told.append("what it kept of this one is back")
    if told:
        say(f"{folder} was used on another chain: {', and '.join(told)}")


def _matching(folder: Path, patterns: Sequence[str]) -> list[Path]:
    return sorted({each for pattern in patterns for each in folder.glob(pattern)})


def _move(paths: Iterable[Path], to: Path) -> None:
    for path in paths:
        to.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (to / path.name).exists():
            raise Conflict(f"{to / path.name} is there already: move it away, or {path}")
        path.rename(to / path.name)
