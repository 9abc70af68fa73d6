"""What a job file names, read once: the corpus as shards, a tokenizer, a model to start from.

Everything that peers need of it becomes a blob named by its digest; the poster puts them into the
market's store. Reading a folder of `transformers` or a tokenizer needs the extra `models`.
"""

from dataclasses import dataclass
from pathlib import Path

from contracts.terms.digest import blob_digest
from contracts.terms.errors import Refused, TooLarge
from contracts.terms.ids import ZERO_DIGEST, Digest
from market.api.schemas import MAX_BLOB_BYTES
from tallystick.sdk.job_file import JobFile
from training.config import ModelConfig, TrainConfig
from training.data.corpus import ShardedCorpus, corpus_bytes, need_enough_rows, shard_corpus
from training.data.tokens import TokenFile, read_token_file


@dataclass(frozen=True)
class Prepared:
    """A job that is ready to be signed; `corpus.blobs` holds all of its blobs."""

    config: TrainConfig
    corpus: ShardedCorpus
    tokenizer: Digest  # zero: a byte is a token
    weights: Digest  # zero: drawn from the seed


def prepare(job: JobFile) -> Prepared:
    """Read, check, cut and hash everything that `job` names.

    Raises:
        NotFound, Refused, Malformed, TooLarge: missing, unreadable, unfit, too large or too small.
    """
    blobs: dict[Digest, bytes] = {}
    started, weights, own_tokenizer = None, ZERO_DIGEST, None
    if job.model_folder is not None:
        started, blob, own_tokenizer = _model_in(job.model_folder)
        weights = _add(blobs, blob, "the weights of the model")
    tokenizer = _tokenizer(job, own_tokenizer)
    vocab_size = None if tokenizer is None else tokenizer.vocab_size
    config = job.train_config(started=started, vocab_size=vocab_size)
    corpus = _sharded(job, tokenizer)
    need_enough_rows(corpus.manifest, config)
    named = ZERO_DIGEST if tokenizer is None else _add(blobs, tokenizer.data, "the tokenizer")
    return Prepared(config, ShardedCorpus(corpus.manifest, corpus.blobs | blobs), named, weights)


def _model_in(folder: Path) -> tuple[ModelConfig, bytes, Path | None]:
    try:
        from training.models.folder import read_folder
        from training.models.weights import encode_weights
    except ImportError as error:
        raise Refused(
            f"model: reading {folder} needs numpy and safetensors: pip install 'tallystick[models]'"
        ) from error
    found = read_folder(folder)
    return found.config, encode_weights(found.weights), found.tokenizer


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
