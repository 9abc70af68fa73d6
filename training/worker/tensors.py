"""Boundary tensors on a worker's disk, with their headers: what it sent, received or audited.

Invariants
- Under one name (step, unit, attempt, kind) this peer signs one tensor, restarts included; also
  when the step is sealed, as validation in its state signs under the same names.
- Nothing is handed out that does not have its digest: files of a killed process are whole (written
  aside, renamed), and after a power cut they are compared again before they are used.
- They stay until their step is sealed, or for as long as `retention` says (docs/protocol.md 3.1);
  headers stay at least until the next one is sealed.
Safe to use from several threads. Files are not synced: a peer that loses its machine has lost its
share of the step anyway.
Layout: `tensors/<step>/<digest>.bin`, wire bytes, and `<digest>-<attempt>.head`, signed headers.
"""

import shutil
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from contracts.terms.digest import formed_tensor, tensor_digest
from contracts.terms.errors import Conflict, NotFound, Refused, Unavailable, WrongBytes
from contracts.terms.ids import Digest, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import TensorHeader
from contracts.terms.signatures import Signed, decode_signed, expect
from training.worker.store import write_whole

_Name: TypeAlias = tuple[int, int, int, str]  # step, unit, attempt, kind
_Key: TypeAlias = tuple[int, Digest]  # step, digest
_HEAD = ".head"


@dataclass(frozen=True)
class Kept:
    """A tensor with the header that binds its sender to it."""

    header: Signed[TensorHeader]
    data: bytes

    @property
    def formed(self) -> bytes:
        """What its digest is taken of."""
        header = self.header.message
        return formed_tensor(header.dtype, header.shape, self.data)

    def check(self) -> None:
        """Refuse bytes that are not those that the header binds.

        Raises:
            WrongBytes: they differ.
        """
        header = self.header.message
        actual = tensor_digest(header.dtype, header.shape, self.data)
        if actual != header.tensor_digest:
            raise WrongBytes(
                "a boundary tensor has other bytes than its header says",
                expected=header.tensor_digest.hex(),
                actual=actual.hex(),
            )


class Tensors:
    """The files under one folder, and what was signed in `stage`; None: nothing of it is ours."""

    def __init__(self, folder: Path, stage: StageIndex | None) -> None:
        """Read again what processes before this one have left."""
        self._folder, self._stage = folder / "tensors", stage
        self._newest: dict[_Key, int] = {}  # attempt of the newest header
        self._units: dict[_Key, set[int]] = {}  # that have sent or received just these bytes
        self._sent: dict[_Name, Digest] = {}
        self._noting = threading.Lock()
        for path in sorted(self._folder.glob("*/*" + _HEAD)):
            try:
                self._note(expect(decode_signed(_read(path)), TensorHeader).message)
            except Refused:  # a power cut left a name without its bytes
                path.unlink()

    def put(self, kept: Kept) -> None:
        """Keep a tensor that somebody sent us, or that we are about to send.

        Raises:
            Conflict: we have sent another one under this name.
            Unavailable: the disk is full or cannot be written.
        """
        header = kept.header.message
        self.need_unsent(header)
        path = self._path(header.step, header.tensor_digest)
        if not path.exists():
            write_whole(path, kept.data)
        write_whole(
            self._head(header.step, header.tensor_digest, header.attempt), kept.header.encoded()
        )
        self._note(header)

    def renew(
        self,
        step: StepNumber,
        digest: Digest,
        attempt: int,
        sign: Callable[[TensorHeader], Signed[TensorHeader]],
    ) -> None:
        """Sign a tensor that we sent once more, as of a higher attempt; errors as `put`."""
        header = self.header(step, digest).model_copy(update={"attempt": attempt})
        self.need_unsent(header)
        write_whole(self._head(step, digest, attempt), sign(header).encoded())
        self._note(header)

    def need_unsent(self, header: TensorHeader) -> None:
        """Refuse a second tensor of ours under one name; raises Conflict."""
        if header.stage == self._stage:
            before = self._sent.get(_name(header), header.tensor_digest)
            if before != header.tensor_digest:
                raise Conflict(
                    f"unit {header.unit}: attempt {header.attempt} had another {header.tensor}"
                )

    def has(self, step: StepNumber, digest: Digest) -> bool:
        """Whether this tensor is here."""
        return (step, digest) in self._newest

    def get(self, step: StepNumber, digest: Digest) -> Kept:
        """A tensor that is here, with its newest header.

        Raises:
            NotFound: it is not. WrongBytes: the disk has lost it. Unavailable: it cannot be read.
        """
        head = expect(decode_signed(self._read_head(step, digest)), TensorHeader)
        kept = Kept(head, _read(self._path(step, digest)))
        kept.check()
        return kept

    def _read_head(self, step: StepNumber, digest: Digest) -> bytes:
        attempt = self._newest.get((step, digest))
        if attempt is None:
            raise NotFound(f"no tensor {digest.hex()} of step {step} is here", digest=digest.hex())
        return _read(self._head(step, digest, attempt))

    def steps(self) -> frozenset[StepNumber]:
        """Steps of which tensors are here."""
        with self._noting:
            return frozenset(StepNumber(step) for step, _ in self._newest)

    def drop(self, step: StepNumber, but: Collection[StepNumber] = ()) -> None:
        """Forget the tensors of all steps up to `step` but some."""
        with self._noting:
            self._forget(lambda of, _: of <= step and of not in but)
            self._sent = {
                name: digest
                for name, digest in self._sent.items()
                if name[0] >= step or name[0] in but
            }
        for each in self._folder.glob("*"):
            if each.name.isdecimal() and int(each.name) < step and int(each.name) not in but:
                shutil.rmtree(each, ignore_errors=True)
        if step not in but:
            for path in self._folder.glob(f"{step:08d}/*.bin"):
                path.unlink(missing_ok=True)

    def narrow(self, step: StepNumber, units: Collection[ItemNumber]) -> None:
        """Forget the tensors of a step but those of some units; their names stay taken."""
        with self._noting:
            gone = self._forget(lambda of, key: of == step and self._units[key].isdisjoint(units))
        for key in gone:
            self._path(*key).unlink(missing_ok=True)

    def _forget(self, is_unwanted: Callable[[int, _Key], bool]) -> list[_Key]:
        gone = [key for key in self._newest if is_unwanted(key[0], key)]
        for key in gone:
            del self._newest[key], self._units[key]
        return gone

    def _note(self, header: TensorHeader) -> None:
        key = (header.step, header.tensor_digest)
        with self._noting:
            if self._path(*key).exists():
                self._newest[key] = max(header.attempt, self._newest.get(key, 0))
                self._units.setdefault(key, set()).add(header.unit)
            if header.stage == self._stage:
                self._sent[_name(header)] = header.tensor_digest

    def header(self, step: StepNumber, digest: Digest) -> TensorHeader:
        """The newest header of a tensor that is here; raises NotFound, Unavailable."""
        return expect(decode_signed(self._read_head(step, digest)), TensorHeader).message

    def _path(self, step: int, digest: Digest) -> Path:
        return self._folder / f"{step:08d}" / f"{digest.hex()}.bin"

    def _head(self, step: StepNumber, digest: Digest, attempt: int) -> Path:
        return self._folder / f"{step:08d}" / f"{digest.hex()}-{attempt:020d}{_HEAD}"


def _name(header: TensorHeader) -> _Name:
    return (header.step, header.unit, header.attempt, header.tensor)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Unavailable(f"cannot read {path}: {error.strerror}") from error


@dataclass(frozen=True)
class OnDisk:
    """Tensors of a member: of its own work, and those of others that it has audited."""

    own: Tensors
    audited: Tensors

    def get(self, step: StepNumber, digest: Digest) -> Kept:
        """A tensor that is in one of the two; raises as `Tensors.get`."""
        is_own = self.own.has(step, digest)
        return (self.own if is_own else self.audited).get(step, digest)
