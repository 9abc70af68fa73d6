"""What we know of the chain once it is read: blocks, and events of our contracts. No web3."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contracts.terms.ids import Digest
from contracts.terms.moments import UnixSeconds

NO_TIME = UnixSeconds(0)


@dataclass(frozen=True)
class Block:
    """A block that reads are pinned to."""

    number: int
    hash: Digest
    timestamp: UnixSeconds


@dataclass(frozen=True)
class Log:
    """An event of one of our contracts, decoded; addresses and hashes in `args` are bytes."""

    contract: str  # its role in a deployment
    event: str
    args: Mapping[str, Any]
    block: int
    block_hash: Digest
    transaction: Digest
    log_index: int
    at: UnixSeconds = NO_TIME  # of its block, from contracts whose state depends on it
