"""What can be said of a corpus before it is trained on: are there enough rows, how hard is it?"""

import math
from collections import Counter
from functools import partial

from contracts.terms.errors import Refused
from training.config import TrainConfig
from training.data.loading import BlobSource, CheckedBlobs
from training.data.manifest import PIECE_BYTES, Manifest
from training.data.order import index_rows
from training.data.tokens import token_values


def need_enough_rows(manifest: Manifest, config: TrainConfig) -> int:
    """The number of training rows, at least one step's; and there is a validation row.

    Raises:
        Refused: with how much text would do.
    """
    length = config.model.sequence_length
    number = partial(
        index_rows,
        sequence_length=length,
        token_bytes=manifest.token_bytes,
        is_marked=manifest.is_marked,
    )
    number(manifest.validation)
    num_rows = number(manifest.train).num_rows
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
        WrongBytes, NotFound, ServiceUnreachable: as `CheckedBlobs.read`.
    """
    blobs = CheckedBlobs(source)
    counts: Counter[int] = Counter()
    for shard in manifest.validation:
        for start in range(0, shard.num_bytes, PIECE_BYTES):
            piece = blobs.read(shard, start, min(start + PIECE_BYTES, shard.num_bytes))
            counts.update(token_values(piece, manifest.tokens))
    total = sum(counts.values())
    entropy = -math.fsum(n / total * math.log(n / total) for n in counts.values())
    return math.exp(entropy)
