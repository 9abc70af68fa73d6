"""Bytes on a worker's disk, by their digest: boundary tensors, shards, buckets. One store for all.

    tensors   that our passes took and made     shards       of our own gradients
    lent      shards of others that we reduce   audited      what audits of ours took
    buckets   reduced, that our group applies   validation   tensors of validation rows

Invariants: a file is there whole or not at all, whenever the process is killed; nothing is synced,
because another owner has what a seal covers before it is given, so what an earlier process left is
compared with its name again before it is used (`is_checked`).
All of it blocks, so it is for threads; several of them may keep the same file at once.
Layout: `<kind>/<round>/<digest>.bin`; and `pay.bin`, what the newest seal pays to whom
(`contracts.governance.claims.SealedPay`).
"""

import os
import shutil
import threading
from collections import defaultdict
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from typing_extensions import Buffer

from contracts.terms.errors import NotFound, Unavailable
from contracts.terms.ids import Digest, StepNumber

PAY_FILE = "pay.bin"
Kind: TypeAlias = Literal["tensors", "shards", "lent", "audited", "buckets", "validation"]
KINDS: tuple[Kind, ...] = get_args(Kind)
EVIDENCE: tuple[Kind, ...] = ("tensors", "shards", "lent", "audited")
"""What draws decide on; buckets go when everybody has applied them, `validation` with its state."""

_Place: TypeAlias = tuple[Kind, StepNumber]


class Store:
    """The files under one folder."""

    def __init__(self, folder: Path) -> None:
        """Find again what processes before this one have left."""
        self._folder = folder
        self._noting = threading.Lock()
        self._places: defaultdict[Digest, set[_Place]] = defaultdict(set)
        self._checked: set[Digest] = set()
        for kind in KINDS:
            for path in (folder / kind).glob("*/*.bin"):
                place = kind, StepNumber(int(path.parent.name))
                self._places[Digest(bytes.fromhex(path.stem))].add(place)

    def put_pay(self, data: bytes) -> None:
        """Keep what the newest seal pays, in place of the one before; errors as `put`."""
        write_whole(self._folder / PAY_FILE, data)

    def put(self, kind: Kind, round: StepNumber, digest: Digest, data: Buffer) -> None:
        """Keep bytes that were compared with their digest.

        Raises:
            Unavailable: the disk is full or cannot be written.
        """
        write_whole(self._path((kind, round), digest), data)
        with self._noting:
            self._places[digest].add((kind, round))
            self._checked.add(digest)

    def has(self, digest: Digest) -> bool:
        """Whether these bytes are here, as far as names tell."""
        return bool(self._places.get(digest))

    def is_checked(self, digest: Digest) -> bool:
        """Whether they were compared with their digest since this process began."""
        return digest in self._checked

    def note_checked(self, digest: Digest, *, is_right: bool) -> None:
        """Remember what a comparison has shown; wrong bytes go."""
        with self._noting:
            if is_right:
                self._checked.add(digest)
            else:
                for place in self._places.pop(digest, ()):
                    self._path(place, digest).unlink(missing_ok=True)

    def newest_round(self, digest: Digest) -> StepNumber:
        """Of those under which bytes are here, the last; raises NotFound."""
        with self._noting:
            if not (places := self._places.get(digest)):
                raise _not_here(digest)
            return max(round for _, round in places)

    def read(self, digest: Digest) -> bytes:
        """The bytes of a digest.

        Raises:
            NotFound: they are not here. Unavailable: they cannot be read.
        """
        with self._noting:
            places = sorted(self._places.get(digest, ()))
        for place in places:
            try:
                return self._path(place, digest).read_bytes()
            except FileNotFoundError:
                continue  # it went at this moment
            except OSError as error:
                raise Unavailable(f"cannot read {digest.hex()}: {error.strerror}") from error
        raise _not_here(digest)

    def rounds(self) -> frozenset[StepNumber]:
        """Rounds of which evidence is here."""
        with self._noting:
            places = [place for each in self._places.values() for place in each]
        return frozenset(round for kind, round in places if kind in EVIDENCE)

    def drop(self, kinds: Collection[Kind], is_wanted: Callable[[StepNumber], bool]) -> None:
        """Forget some kinds of all rounds that are not wanted."""
        self._forget(lambda _, place: place[0] in kinds and not is_wanted(place[1]))
        for kind in kinds:
            for each in (self._folder / kind).glob("*"):
                if each.name.isdecimal() and not is_wanted(StepNumber(int(each.name))):
                    shutil.rmtree(each, ignore_errors=True)

    def narrow(self, round: StepNumber, digests: Collection[Digest]) -> None:
        """Forget the evidence of a round but this; what audits took is of other rounds, too."""
        places = [(kind, round) for kind in EVIDENCE if kind != "audited"]
        gone = self._forget(lambda digest, place: place in places and digest not in digests)
        for digest, place in gone:
            self._path(place, digest).unlink(missing_ok=True)

    def _forget(self, is_unwanted: Callable[[Digest, _Place], bool]) -> list[tuple[Digest, _Place]]:
        with self._noting:
            gone = [
                (digest, place)
                for digest, places in self._places.items()
                for place in places
                if is_unwanted(digest, place)
            ]
            for digest, place in gone:
                self._places[digest].discard(place)
                if not self._places[digest]:
                    del self._places[digest]
                    self._checked.discard(digest)
        return gone

    def _path(self, place: _Place, digest: Digest) -> Path:
        kind, round = place
        return self._folder / kind / f"{round:08d}" / f"{digest.hex()}.bin"


def _not_here(digest: Digest) -> NotFound:
    return NotFound(f"{digest.hex()} is not here", digest=digest.hex())


def write_whole(path: Path, data: Buffer) -> None:
    """Replace a file so that it is there whole or not at all; raises Unavailable."""
    aside = path.with_name(f"{path.name}.{threading.get_ident()}.tmp")  # another thread has its own
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_bytes(data)
        os.replace(aside, path)
    except OSError as error:
        raise Unavailable(f"cannot write {path}: {error.strerror}") from error
