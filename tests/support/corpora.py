"""A corpus in memory, of bytes that a test has: its manifest, and the blobs that peers fetch."""

import shutil
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from contracts.terms.ids import Digest
from training.data.documents import Place, documents
from training.data.manifest import Manifest, ShardIndex, TokenKind, index_of
from training.data.prepare import PreparedData
from training.data.sources import BUILTIN, find_files


@dataclass(frozen=True)
class Corpus:
    """A manifest and the blobs it names, itself among them."""

    manifest: Manifest
    blobs: dict[Digest, bytes]

    def write(self, folder: Path) -> None:
        """Store each blob as a file named by its hexadecimal digest; repeating it is safe."""
        folder.mkdir(parents=True, exist_ok=True)
        for digest, data in self.blobs.items():
            (folder / digest.hex()).write_bytes(data)


def write_blobs(prepared: PreparedData, folder: Path) -> None:
    """Store each blob of a prepared folder as a file named by its hexadecimal digest."""
    folder.mkdir(parents=True, exist_ok=True)
    for digest, path in prepared.files():
        shutil.copy(path, folder / digest.hex())


def loaded(prepared: PreparedData) -> Corpus:
    """A prepared folder, read into memory."""
    blobs = {digest: path.read_bytes() for digest, path in prepared.files()}
    return Corpus(prepared.manifest, blobs)


def corpus_of(
    train: list[bytes], validation: list[bytes], *, tokens: TokenKind = "bytes"
) -> Corpus:
    """Each of these as a shard."""
    found = {data: index_of(BytesIO(data)) for data in (*train, *validation)}
    manifest = Manifest(
        tokens=tokens,
        train=tuple(found[data].shard() for data in train),
        validation=tuple(found[data].shard() for data in validation),
    )
    blobs = {manifest.digest(): manifest.encoded()}
    for data, index in found.items():
        blobs |= _blobs_of(data, index)
    return Corpus(manifest, blobs)


def _blobs_of(data: bytes, index: ShardIndex) -> dict[Digest, bytes]:
    return {index.blob: data, index.shard().digest: index.encoded()}


def cut_corpus(text: bytes, *, shard_bytes: int, every: int = 32) -> Corpus:
    """Shards of `shard_bytes`, of which one of `every` validates, equal ones once."""
    starts = range(0, len(text), shard_bytes)
    pieces = list(dict.fromkeys(text[at : at + shard_bytes] for at in starts))
    every = min(every, len(pieces))
    validation = pieces[every // 2 :: every]
    return corpus_of([piece for piece in pieces if piece not in validation], validation)


def builtin_text(num_bytes: int) -> bytes:
    """The first bytes of the built-in corpus."""
    files = find_files([BUILTIN])
    texts = (piece.text for file in files for piece in documents(file, "", Place()))
    return "".join(texts).encode()[:num_bytes]
