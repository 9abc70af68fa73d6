"""Where the contracts of one deployment are. No web3: the audit and the SDK read this file too."""

import json
from dataclasses import dataclass
from pathlib import Path

from contracts.terms.errors import Malformed, NotFound, Refused
from contracts.terms.ids import Address
from contracts.terms.typed_data import Domain
from contracts.terms.typed_names import parse_address

DEVELOPMENT_CHAINS = (1337, 31337)
"""Ids of chains that begin afresh."""
NAMES = ("token", "parameters", "escrow", "seals")


@dataclass(frozen=True)
class Deployment:
    """Addresses on one chain, and the first block that can hold an event of theirs."""

    chain_id: int
    block: int
    token: Address
    parameters: Address
    escrow: Address
    seals: Address

    @property
    def domain(self) -> Domain:
        """The EIP-712 domain of every message."""
        return Domain(self.chain_id, self.escrow)

    def encoded(self) -> str:
        """As JSON."""
        addresses = {name: f"0x{getattr(self, name).hex()}" for name in NAMES}
        return json.dumps(
            {"chain_id": self.chain_id, "block": self.block, **addresses}, indent=2, sort_keys=True
        )


def load_deployment(path: Path) -> Deployment:
    """Read a deployment file.

    Raises:
        NotFound: no such file.
        Refused: it cannot be read. Malformed: not what `Deployment.encoded` writes.
    """
    try:
        raw = json.loads(path.read_text())
        addresses = {name: parse_address(str(raw[name]), f"{name} in {path}") for name in NAMES}
        return Deployment(chain_id=raw["chain_id"], block=raw["block"], **addresses)
    except FileNotFoundError as error:
        raise NotFound(f"no deployment file {path}: run `tallystick deploy`") from error
    except OSError as error:
        raise Refused(
            f"cannot read {path}: {error.strerror}; name the file that `tallystick deploy` wrote"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise Malformed(f"{path} is no deployment file ({error!r})") from error
