"""What a job file names, read once: the corpus as shards, a tokenizer, a model to start from.

Everything that peers need of it becomes a blob named by its digest; the poster puts them into the
market's store. Weights stay where they are until they are sent, in parts that an index lists.
Reading a folder of `transformers` or a tokenizer needs the extra `models`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from contracts.terms.digest import blob_digest
from contracts.terms.errors import Refused, TooLarge
from contracts.terms.ids import ZERO_DIGEST, Digest
from contracts.terms.parts import MAX_PART_BYTES, MAX_WHOLE_BYTES, Parts
from market.bodies.base import MAX_BLOB_BYTES
from tallystick.sdk.job_file import JobFile
from tallystick.sdk.job_spec import DataNames
from training.config import BYTE_VOCABULARY, TrainConfig
from training.data.corpus import ShardedCorpus, corpus_bytes, need_enough_rows, shard_corpus
from training.data.tokens import TokenFile, read_token_file
from training.models.sources import Source, parts_of

if TYPE_CHECKING:
    from training.models.folder import ModelFolder


@dataclass(frozen=True)
class Start:
    """The weights that a job starts from: where they are, and in which parts they travel."""

    file: Source
    index: Parts
    beside: tuple[str, ...]  # names of the files that travel with them


@dataclass(frozen=True)
class Prepared:
    """A job that is ready to be signed; `corpus.blobs` holds all of its blobs but `start`."""

    config: TrainConfig
    corpus: ShardedCorpus
    tokenizer: Digest  # zero: a byte is a token
    start: Start | None  # None: drawn from the seed

    @property
    def weights(self) -> Digest:
        """Name of the weights to start from."""
        return ZERO_DIGEST if self.start is None else self.start.index.digest()

    @property
    def names(self) -> DataNames:
        """What the job that is signed says of its data."""
        return DataNames(self.corpus.manifest.digest(), self.tokenizer, self.weights)

    @property
    def num_bytes(self) -> int:
        """Of everything that the market is brought."""
        start = 0 if self.start is None else self.start.index.num_bytes
        return start + sum(map(len, self.corpus.blobs.values()))


def prepare(job: JobFile, *, part_bytes: int = MAX_PART_BYTES) -> Prepared:
    """Read, check, cut and hash everything that `job` names; weights in parts of `part_bytes`.

    Raises:
        NotFound, Refused, Malformed, TooLarge: missing, unreadable, unfit, too large or too small.
    """
    blobs: dict[Digest, bytes] = {}
    model = None if job.model_folder is None else _model_in(job.model_folder)
    tokenizer = _tokenizer(job, None if model is None else model.tokenizer)
    if tokenizer is None and model is not None and model.config.vocab_size != BYTE_VOCABULARY:
        folder = str(job.model_folder)
        raise Refused(
            f"model: {folder} has no tokenizer.json, and without it its tokens mean nothing: make "
            f"it with AutoTokenizer.from_pretrained({folder!r}).save_pretrained({folder!r}), or "
            "name one as `tokenizer`"
        )
    vocab_size = None if tokenizer is None else tokenizer.vocab_size
    started = None if model is None else model.config
    config = job.train_config(started=started, vocab_size=vocab_size)
    corpus = _sharded(job, tokenizer)
    need_enough_rows(corpus.manifest, config)
    named = ZERO_DIGEST if tokenizer is None else _add(blobs, tokenizer.data, "the tokenizer")
    corpus = ShardedCorpus(corpus.manifest, corpus.blobs | blobs)
    start = None if model is None else _start(model, part_bytes)
    return Prepared(config, corpus, named, start)


def _model_in(folder: Path) -> "ModelFolder":
    try:
        from training.models.folder import read_folder
    except ImportError as error:
        raise Refused(
            f"model: reading {folder} needs numpy and safetensors: pip install 'tallystick[models]'"
        ) from error
    return read_folder(folder)


def _start(model: "ModelFolder", part_bytes: int) -> Start:
    from training.models.folder import beside_bytes
    from training.models.weights import weights_source

    file = weights_source(model.weights, beside_bytes(model.beside))
    if file.num_bytes > MAX_WHOLE_BYTES:
        raise TooLarge(
            f"the weights of the model have {file.num_bytes} bytes, a job starts from at most "
            f"{MAX_WHOLE_BYTES}: use a smaller one",
            size=file.num_bytes,
            limit=MAX_WHOLE_BYTES,
        )
    return Start(file, parts_of(file, part_bytes=part_bytes), tuple(model.beside))


def _tokenizer(job: JobFile, own: Path | None) -> TokenFile | None:
    """The one that the file names, else the model's own."""
    path = own if job.tokenizer is None else Path(job.tokenizer)
    return None if path is None else read_token_file(path)


def _sharded(job: JobFile, tokenizer: TokenFile | None) -> ShardedCorpus:
    text = corpus_bytes(job.data)
    if tokenizer is None:
        return shard_corpus(text)
    return shard_corpus(tokenizer.encode(text), tokens=tokenizer.kind)


def _add(blobs: dict[Digest, bytes], data: bytes, what: str) -> Digest:
    if len(data) > MAX_BLOB_BYTES:
        raise TooLarge(
            f"{what} has {len(data)} bytes, a blob at most {MAX_BLOB_BYTES}: use a smaller one",
            size=len(data),
            limit=MAX_BLOB_BYTES,
        )
    name = blob_digest(data)
    blobs[name] = data
    return name
