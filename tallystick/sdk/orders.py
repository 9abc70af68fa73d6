"""What a poster ordered, on disk before it leaves: one order for one job file, wallet and market.

An order has a number for each time that it was placed on purpose. It is signed once, and what was
signed stays, also after the market has it, so a repeated call finds the very job.
Invariant: no JobSpec leaves that is not stored here, and a stored one is replaced only when the
market is known to have had it, has refused it, or when it can no longer be opened.
A market that refuses may lie: the order that takes its place has a permit of the same nonce, so the
chain runs one of the two.
"""

import contextlib
import fcntl
import hashlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator

from contracts.disk import lock_file
from contracts.terms.errors import BadSignature, Conflict
from contracts.terms.ids import Address, JobId
from contracts.terms.messages import JobSpec
from contracts.terms.signatures import Signed, decode_signed, expect
from market.bodies.market import NetworkView
from tallystick.files import replace_file
from tallystick.reading import read_kept
from tallystick.sdk.job_file import JobFile
from tallystick.sdk.job_spec import Prepared

NETWORK_FILE = "network.json"
"""What the market said of its chain, so that money can be moved when the market is gone."""
KEPT = ("*.json", "*.lock", "permit")
"""What a folder of orders keeps of a chain."""


class Order(BaseModel):
    """One order, as far as it has come."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        ser_json_bytes="hex",
        val_json_bytes="hex",
    )

    key: str = Field(default_factory=lambda: secrets.token_hex(16))
    """Under which the market gives this order a coordinator, and the wallet its test tokens."""
    signed: bytes | None = None  # JobSpec and signature; None: nothing has left
    is_posted: bool = False  # the market said that it has the job

    @field_validator("signed")
    @classmethod
    def _is_a_job(cls, signed: bytes | None) -> bytes | None:
        if signed is not None:
            expect(decode_signed(signed), JobSpec)
        return signed

    def next(self) -> "Order":
        """The one after it, of the same file; the same however often it is asked for."""
        return Order(key=hashlib.sha256(f"next order|{self.key}".encode()).hexdigest()[:32])

    def spec(self) -> Signed[JobSpec] | None:
        """What was signed, if anything was."""
        return None if self.signed is None else expect(decode_signed(self.signed), JobSpec)


class Permitted(BaseModel):
    """The last permit that left a wallet, while the market does not have the job that it pays."""

    model_config = Order.model_config

    nonce: int
    job: bytes
    is_refused: bool = False  # the market said so


@dataclass
class OrderFile:
    """The order of one fingerprint; this process alone has it."""

    path: Path
    order: Order

    def save(self, order: Order) -> None:
        """Replace what is stored, at once and for good."""
        self._write(self.path, order)
        self.order = order

    def permitted(self) -> Permitted | None:
        """The permit of any order in this folder that may still be used.

        Raises:
            Malformed: its file is damaged.
        """
        remedy = ": look whether the last job that you submitted is in escrow, then delete it"
        return read_kept(Permitted, self._permit_path, remedy)

    def save_permitted(self, permitted: Permitted) -> None:
        """Store a permit before it leaves."""
        self._write(self._permit_path, permitted)

    def settle_permitted(self, job: JobId) -> None:
        """The market has this job: its permit is used by it alone."""
        known = self.permitted()
        if known is not None and known.job == job:
            self._permit_path.unlink(missing_ok=True)

    @property
    def _permit_path(self) -> Path:
        return self.path.with_name("permit")

    def _write(self, path: Path, value: BaseModel) -> None:
        replace_file(path, value.model_dump_json().encode())


@contextlib.contextmanager
def open_order(folder: Path, fingerprint: str) -> Iterator[OrderFile]:
    """The order of a fingerprint, a new one if there is none; nothing is written yet.

    Raises:
        Conflict: another process places this very order.
        Malformed: its file is damaged.
    """
    path = folder / f"{fingerprint}.json"
    with path.with_suffix(".lock").open("w") as lock:
        try:
            lock_file(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, Path(lock.name))
        except BlockingIOError as error:
            raise Conflict(
                "another process submits this very job file: wait for it, the same command then "
                "finds its job"
            ) from error
        yield OrderFile(path, _load(path))


def orders_in(folder: Path) -> list[JobSpec]:
    """All jobs that a folder holds orders of, as they were signed."""
    signed = (
        _load(path).spec() for path in sorted(folder.glob("*.json")) if path.name != NETWORK_FILE
    )
    return [each.message for each in signed if each is not None]


def signed_spec(data: bytes, job: JobId) -> Signed[JobSpec]:
    """The spec of a job as a market shows it.

    Raises:
        BadSignature: it is of another job. Malformed: it is none.
    """
    spec = expect(decode_signed(data), JobSpec)
    if spec.message.job() != job:
        raise BadSignature(f"the market answered with another job than {job.hex()}")
    return spec


def fingerprint_of(job: JobFile, poster: Address, network: NetworkView, prepared: Prepared) -> str:
    """What names an order: all that its poster asked for, and nothing that a moment decides.

    Where data, tokenizer and model lie is no part of it; what is in them is.
    """
    said = job.model_dump_json(
        exclude_defaults=True,
        exclude={"data", "tokenizer"} | ({"model"} if job.model_folder else set()),
    )
    parts = (
        said.encode(),
        repr(prepared.config.model).encode(),
        poster,
        str(network.chain_id).encode(),
        network.contracts.escrow,
        prepared.corpus.manifest.digest(),
        prepared.tokenizer,
        prepared.weights,
        prepared.names.targets,
    )
    return hashlib.sha256(b"|".join(parts)).hexdigest()[:24]


def _load(path: Path) -> Order:
    remedy = ": look whether its job is in `tallystick job list`, then delete it to submit afresh"
    return read_kept(Order, path, remedy) or Order()
