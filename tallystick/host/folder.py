"""What a host keeps of a hosted job, for the coordinator that it runs.

`jobs/<id>/`: `job.json` (what the processes are told), `spec.msgpack` (the signed JobSpec),
`auditors.msgpack` (of a checked job: who may be drawn from outside), `coordinator.key` (its session
key), `address` (where it listens), and the journals; `wish.json` (what the poster wants of the job
now) and `heeded` (the number of the newest wish that it is as wanted by); `stands_still` (why the
job does: the market took no more of its messages, or somebody is missing);
`network.json` (contracts and node, as the market said last) and `transactions-*.db` (what the
coordinator sent itself). The coordinator's wallet lies with the other keys of the host.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from contracts.keys.store import load_or_create_session
from contracts.terms.auditors import AuditorList
from contracts.terms.errors import Malformed
from contracts.terms.ids import Address
from contracts.terms.messages import JobSpec
from contracts.terms.signatures import Signed, decode_signed, expect
from tallystick.files import replace_file
from training.coordinator.ports import Wish

_WISH = TypeAdapter(Wish)


@dataclass(frozen=True)
class JobFileOnHost:
    """`job.json`."""

    market: str
    job: str
    wallet: str  # path of the coordinator's keystore
    listen: str
    opening_block: int | None = None  # as of which the list of outside auditors is


def wallet_path(keys: Path, coordinator: Address) -> Path:
    """Keystore of a coordinator."""
    return keys / "coordinators" / f"{coordinator.hex()}.json"


def prepare(
    folder: Path,
    told: JobFileOnHost,
    spec: bytes,
    *,
    auditors: bytes | None = None,
) -> None:
    """Write a job's folder; repeating it changes nothing."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    load_or_create_session(folder / "coordinator.key")
    if auditors is not None:
        replace_file(folder / "auditors.msgpack", auditors, durable=False)
    replace_file(folder / "spec.msgpack", spec, durable=False)
    replace_file(folder / "job.json", json.dumps(asdict(told)).encode(), durable=False)


def load_job(folder: Path) -> tuple[JobFileOnHost, Signed[JobSpec]]:
    """What `prepare` wrote.

    Raises:
        Malformed: the folder is none, or damaged.
    """
    try:
        told = JobFileOnHost(**json.loads((folder / "job.json").read_text()))
        return told, expect(decode_signed((folder / "spec.msgpack").read_bytes()), JobSpec)
    except (OSError, ValueError, TypeError) as error:
        raise Malformed(f"{folder} is no folder of a hosted job: {error}") from error


def load_auditors(folder: Path) -> AuditorList | None:
    """Who may be drawn from outside; None for a job that nobody checks.

    Raises:
        TooLarge, Malformed, UnknownVersion: the file holds no such list.
    """
    try:
        return AuditorList.decoded((folder / "auditors.msgpack").read_bytes())
    except FileNotFoundError:
        return None


def announce(folder: Path, address: str) -> None:
    """Say where the coordinator listens."""
    replace_file(folder / "address", address.encode(), durable=False)


def listening(folder: Path, told: str) -> str:
    """Where a coordinator that starts listens: its last port, unless its host's address is new."""
    last = announced(folder)
    is_same = last is not None and last.rpartition(":")[0] == told.rpartition(":")[0]
    return last if last is not None and is_same else told


def announced(folder: Path) -> str | None:
    """Where the coordinator listens, or listened last."""
    return _said(folder / "address")


@dataclass(frozen=True)
class WishFile:
    """Satisfies `training.coordinator.ports.Wishes`: the host writes `wish.json`, we the rest."""

    folder: Path

    def newest(self) -> Wish | None:
        """What the host was told last.

        Raises:
            Malformed: the file is damaged; the host writes it anew at every start.
        """
        try:
            return _WISH.validate_json((self.folder / "wish.json").read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise Malformed(f"{self.folder / 'wish.json'} is damaged: {error}") from error

    def heeded(self, number: int) -> None:
        """Say that the job is as the wish `number` wants it."""
        replace_file(self.folder / "heeded", str(number).encode(), durable=False)

    def stands_still(self, why: str) -> None:
        """Say why the job cannot go on; "" once it can."""
        replace_file(self.folder / "stands_still", why.encode(), durable=False)


def tell_wish(folder: Path, wish: Wish) -> None:
    """Hand the coordinator what the poster wants."""
    replace_file(folder / "wish.json", json.dumps(asdict(wish)).encode(), durable=False)


def heeded(folder: Path) -> int | None:
    """Number of the newest wish that the job is as wanted by; None while there is none."""
    text = _said(folder / "heeded") or ""
    return int(text) if text.isascii() and text.isdecimal() else None


def standstill(folder: Path) -> str | None:
    """Why the job stands still; None if it does not."""
    return _said(folder / "stands_still")


def _said(file: Path) -> str | None:
    try:
        return file.read_text() or None
    except FileNotFoundError:
        return None
