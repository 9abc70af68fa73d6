"""What kinds of names exist, and how they look as bytes and as text.

A digest, a job, a peer and a session key are each 32 bytes, an account 20. They are distinct
types, so that the checker refuses one where another is meant.
"""

from dataclasses import dataclass
from typing import Annotated, Any, NewType

from annotated_types import Ge, Len, Lt
from pydantic import GetJsonSchemaHandler
from pydantic_core import CoreSchema

Digest = NewType("Digest", bytes)  # 32 bytes, BLAKE3 or keccak-256 as the message says
JobId = NewType("JobId", bytes)  # 32 bytes, keccak-256 of the job's header
PeerId = NewType("PeerId", bytes)  # 32 bytes, BLAKE3 of the session public key
SessionKey = NewType("SessionKey", bytes)  # 32 bytes, Ed25519 public key
Address = NewType("Address", bytes)  # 20 bytes, a wallet or a contract

StageIndex = NewType("StageIndex", int)  # 0 holds the embedding
StepNumber = NewType("StepNumber", int)  # 1 is the first step of a job
ChunkIndex = NewType("ChunkIndex", int)  # within its stage's gradient

ZERO_DIGEST = Digest(bytes(32))
ZERO_ADDRESS = Address(bytes(20))

# What fits where: the limits that messages, contracts and the database share.
MAX_STAGES = 64
MAX_PEERS = 4096
MAX_CHUNKS = 4096
MAX_STEPS = 10_000_000


@dataclass(frozen=True)
class Hex:
    """Says in a JSON schema that bytes are written as hex: two digits each."""

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """See pydantic: the schema of the bytes, changed."""
        found = handler(schema)
        digits: dict[str, Any] = {
            bound: 2 * found[bound] for bound in ("minLength", "maxLength") if bound in found
        }
        return {"type": "string", "pattern": "^([0-9a-f]{2})*$", **digits}


DigestField = Annotated[Digest, Len(32, 32), Hex()]
JobIdField = Annotated[JobId, Len(32, 32), Hex()]
PeerIdField = Annotated[PeerId, Len(32, 32), Hex()]
SessionKeyField = Annotated[SessionKey, Len(32, 32), Hex()]
AddressField = Annotated[Address, Len(20, 20), Hex()]
StageField = Annotated[StageIndex, Ge(0), Lt(MAX_STAGES)]
StepField = Annotated[StepNumber, Ge(1), Lt(MAX_STEPS)]
ChunkField = Annotated[ChunkIndex, Ge(0), Lt(MAX_CHUNKS)]
