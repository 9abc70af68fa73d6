"""From text files to shards: what the poster does once, before a job is posted.

Invariants: equal inputs give an equal manifest; equal shards are kept once; a shard is in train or
in validation, never in both. Providers never come here: they fetch shards by hash.

The built-in corpus is the source text of the running Python's standard library: its `*.py` files
sorted by path, without tests and installed packages, up to `BUILTIN_BYTES`. It differs between
Python versions, so the poster's manifest, not the recipe, is what a job means.
"""

import glob
import math
import os
import sysconfig
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from contracts.terms.digest import blob_digest
from contracts.terms.errors import NotFound, Refused, TooLarge
from contracts.terms.ids import Digest
from training.config import TrainConfig
from training.content import LOOKED_AT, UTF8_MARK, need_target
from training.data.loading import BlobSource, CheckedBlobs
from training.data.manifest import (
    MAX_SHARD_BYTES,
    MAX_SHARDS,
    TOKEN_BYTES,
    Manifest,
    Shard,
    TokenKind,
    version_of,
)
from training.data.order import index_rows
from training.data.plain_text import need_plain_start, need_plain_text
from training.data.tokens import token_values

BUILTIN = "builtin"
BUILTIN_BYTES = 4_000_000
MAX_DEFAULT_SHARD = 32_768
MIN_DEFAULT_SHARD = 1024
DEFAULT_SHARDS = 64
VALIDATION_FRACTION = 1 / 32
MAX_CORPUS_BYTES = 2**30
MIN_SHARDS = 4
MIN_SHARD_BYTES = 256
_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests"})
_REMEDY = "give text files as `data: path/to/*.txt`, or `data: builtin`"


@dataclass(frozen=True, slots=True)
class ShardedCorpus:
    """A manifest and the blobs it names, itself among them."""

    manifest: Manifest
    blobs: dict[Digest, bytes]

    def write(self, folder: Path) -> None:
        """Store each blob as a file named by its hexadecimal digest; repeating it is safe."""
        folder.mkdir(parents=True, exist_ok=True)
        for digest, data in self.blobs.items():
            (folder / digest.hex()).write_bytes(data)


def builtin_files() -> list[Path]:
    """Files of the built-in corpus, in order."""
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    found = [
        path.relative_to(stdlib)
        for path in stdlib.rglob("*.py")
        if not _SKIPPED_FOLDERS.intersection(path.relative_to(stdlib).parts)
    ]
    return [stdlib / path for path in sorted(found, key=lambda path: path.as_posix())]


def matching_files(patterns: Sequence[str]) -> list[Path]:
    """Files that the patterns name, sorted, each once.

    Raises:
        Refused: a folder is named.
        NotFound: a pattern matches no file, or a link to one that is not here.
    """
    found: set[str] = set()
    for pattern in patterns:
        if os.path.isdir(pattern):
            raise Refused(f"data: {pattern} is a folder; write {Path(pattern, '*.txt')}")
        matched = _named(pattern)
        for name in matched:
            need_target(Path(name), "data")
        names = [name for name in matched if os.path.isfile(name)]
        if not names:
            raise NotFound(f"data: no file matches {pattern!r}; {_REMEDY}")
        found.update(names)
    return [Path(name) for name in sorted(found)]


def _named(pattern: str) -> list[str]:
    """What exists under its literal name is no pattern: a folder may be called `[work]`."""
    if os.path.isfile(pattern):
        return [pattern]
    folder = next((str(each) for each in Path(pattern).parents if os.path.isdir(each)), "")
    rest = os.path.relpath(pattern, folder)
    return glob.glob(os.path.join(glob.escape(folder), rest), recursive=True)


def read_corpus(files: Iterable[Path], *, max_bytes: int | None = None) -> bytes:
    """The files' bytes, a newline after each, in order; cut at `max_bytes` where it is given.

    A byte order mark of UTF-8 is left out, as it is no part of the text.

    Raises:
        Refused: a file cannot be read, or is no plain text (see `need_plain_text`).
        TooLarge: no `max_bytes`, and more than `MAX_CORPUS_BYTES`.
    """
    corpus = bytearray()
    for path in files:
        try:
            with path.open("rb") as file:
                data = file.read(LOOKED_AT)
                if max_bytes is None and len(data) == LOOKED_AT:  # before all of it is read
                    need_plain_start(str(path), data)
                data += file.read(MAX_CORPUS_BYTES)
        except OSError as error:
            raise Refused(f"data: cannot read {path}: {error.strerror}; {_REMEDY}") from error
        if max_bytes is None and len(data) <= MAX_CORPUS_BYTES:
            need_plain_text(str(path), data)  # the built-in corpus is Python's own, and cut
        corpus += data.removeprefix(UTF8_MARK) + b"\n"
        if max_bytes is not None and len(corpus) >= max_bytes:
            break
        if len(corpus) > MAX_CORPUS_BYTES:
            raise TooLarge(
                f"data: the corpus has more than {MAX_CORPUS_BYTES} bytes: use fewer files",
                size=len(corpus),
                limit=MAX_CORPUS_BYTES,
            )
    return bytes(corpus[:max_bytes])


def corpus_bytes(data: str | Sequence[str]) -> bytes:
    """The corpus that a job file's `data` names: `builtin`, a pattern, or several patterns."""
    if data == BUILTIN:
        return read_corpus(builtin_files(), max_bytes=BUILTIN_BYTES)
    return read_corpus(matching_files([data] if isinstance(data, str) else data))


def shard_corpus(
    corpus: bytes,
    *,
    tokens: TokenKind = "bytes",
    shard_bytes: int | None = None,
    validation_fraction: float = VALIDATION_FRACTION,
) -> ShardedCorpus:
    """Cut a corpus into shards of equal length and set an even sample of them aside.

    Args:
        corpus: The text, see `corpus_bytes`; or its tokens, see `TokenFile.encode`.
        tokens: What a token is.
        shard_bytes: Length of a shard, whole tokens, the last one is shorter; by default a 64th of
            the corpus between 1 and 32 KiB.
        validation_fraction: Part of the shards that is only validated on, above 0, at most 1/2.

    Raises:
        Refused: too little text for `MIN_SHARDS` different shards, or an argument out of range.
    """
    if shard_bytes is None:
        wanted = max(MIN_DEFAULT_SHARD, len(corpus) // DEFAULT_SHARDS)
        wanted -= wanted % TOKEN_BYTES[tokens]
        shard_bytes = min(MAX_DEFAULT_SHARD, wanted)
    if not MIN_SHARD_BYTES <= shard_bytes <= MAX_SHARD_BYTES or shard_bytes % TOKEN_BYTES[tokens]:
        raise Refused(
            f"shard_bytes must be {MIN_SHARD_BYTES} to {MAX_SHARD_BYTES}, and whole tokens"
        )
    if not 0 < validation_fraction <= 0.5:
        raise Refused("validation_fraction must be above 0 and at most one half")
    pieces = [corpus[at : at + shard_bytes] for at in range(0, len(corpus), shard_bytes)]
    # A dict keeps the first of equal shards and their order.
    blobs = {blob_digest(piece): piece for piece in pieces}
    if len(blobs) < MIN_SHARDS or len(blobs) > MAX_SHARDS:
        raise Refused(
            f"data: {len(corpus)} bytes give {len(blobs)} different shards of {shard_bytes} bytes, "
            f"and a job needs {MIN_SHARDS} to {MAX_SHARDS}: "
            + ("use more text" if len(blobs) < MIN_SHARDS else "use longer shards")
        )
    manifest = _split(blobs, tokens, validation_fraction)
    return ShardedCorpus(manifest, blobs | {manifest.digest(): manifest.encoded()})


def _split(blobs: dict[Digest, bytes], tokens: TokenKind, validation_fraction: float) -> Manifest:
    every = round(1 / validation_fraction)
    shards = [Shard(digest=digest, num_bytes=len(piece)) for digest, piece in blobs.items()]
    every = min(every, len(shards))
    chosen = {i for i in range(len(shards)) if i % every == every // 2}
    return Manifest(
        kind=version_of(tokens),
        tokens=tokens,
        train=tuple(shard for i, shard in enumerate(shards) if i not in chosen),
        validation=tuple(shard for i, shard in enumerate(shards) if i in chosen),
    )


def need_enough_rows(manifest: Manifest, config: TrainConfig) -> int:
    """The number of training rows, at least one step's; and there is a validation row.

    Raises:
        Refused: with how much text would do.
    """
    length = config.model.sequence_length
    _, num_rows = (
        index_rows(
            shards, length, token_bytes=manifest.token_bytes, is_marked=manifest.is_marked
        ).num_rows
        for shards in (manifest.validation, manifest.train)
    )
    if num_rows < config.data.rows_per_step:
        what = "bytes" if manifest.tokens == "bytes" else "tokens"
        raise Refused(
            f"data: {num_rows} training rows of {length} {what}, and one step takes "
            f"{config.data.rows_per_step}: use at least "
            f"{config.data.rows_per_step * (length + 1)} {what} of training text"
        )
    return num_rows


def unigram_perplexity(manifest: Manifest, source: BlobSource) -> float:
    """Perplexity per token of the best model without context on the validation shards.

    The exponential of the entropy of their own token frequencies, in (1, vocabulary]: what a model
    that learned nothing but how often each token occurs could reach at best.

    Raises:
        WrongBytes, NotFound, ServiceUnreachable: as `CheckedBlobs.fetch`.
    """
    blobs = CheckedBlobs(source)
    counts: Counter[int] = Counter()
    for shard in manifest.validation:
        counts.update(token_values(blobs.fetch(shard.digest), manifest.tokens))
    total = sum(counts.values())
    entropy = -math.fsum(n / total * math.log(n / total) for n in counts.values())
    return math.exp(entropy)
