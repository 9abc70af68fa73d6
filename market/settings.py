"""How the market is deployed: `TALLYSTICK_*` variables, read once, by entry points only.

What a job costs and how it is checked is not here: jobs say it themselves, or the Parameters
contract does (docs/architecture.md 1).
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from annotated_types import Ge
from pydantic import Field, SecretStr, field_validator

from contracts.settings import ProcessSettings

DEFAULT_PORT = 8420
S3 = "s3://"


class Settings(ProcessSettings):
    """`TALLYSTICK_*` variables. A wrong value stops the process before it starts."""

    database_url: SecretStr
    """PostgreSQL, `postgresql://user:password@host:port/name`."""
    redis_url: SecretStr
    """Redis >= 6.2 or Valkey."""
    rpc_url: str
    """JSON-RPC that everybody uses (the gateway of an embedded chain)."""
    mine_url: str = ""
    """The embedded chain itself, where the market mines an empty block; empty: a public chain."""
    contracts: Path
    """The deployment file."""
    blobs: str
    """Folder of the blob store; or `s3://bucket/prefix`, with the usual AWS_* variables."""
    keys: Path
    """Folder of the role keystores."""
    home: Path
    """The data folder; `run/failpoints-market` in it is for chaos tests."""
    host_token: SecretStr = SecretStr("")
    """The operator's, of which each host's credential is made; empty: `host-token` in the folder of
    keys, made on first use. Whoever has it is every host: it stays here."""
    api_port: Annotated[int, Field(ge=0, le=65_535)] = DEFAULT_PORT
    listen_address: str = ""
    """Where the API listens beside loopback: an address under which others reach this machine."""
    public_url: Annotated[str, Field(pattern=r"^(https?://[^/\s?#]+)?$")] = ""
    """Origin under which people reach the API, `https://market.example`; empty: this machine."""
    rate_per_second: Annotated[int, Field(ge=1, le=1_000_000)] = 300
    """Requests of one caller, which is a network address, for any length of time.

    A provider asks about six times a second, so fifty of them may share an address.
    """
    rate_burst: Annotated[int, Field(ge=1, le=1_000_000)] = 3000
    """Requests of one caller at once."""
    blob_quota: Annotated[int, Ge(0)] = 2 * 2**30
    """Bytes of blobs that any account may store; wallets are free to make, see `blob_reserve`."""
    blob_quota_known: Annotated[int, Ge(0)] = 20 * 2**30
    """Of one with stake, a paid job or a lease; and 8 for each parameter of its jobs' models."""
    blob_known_from: Annotated[int, Ge(0)] = 1_000_000
    """Stake, or budget of a job, that makes an account known; base units."""
    blob_reserve: Annotated[int, Ge(0)] = 2 * 2**30
    """Bytes that accounts which are not known leave on the disk of the blobs, beside the next."""
    blob_keep_free: Annotated[int, Ge(0)] = 2**30
    """Bytes of that disk that no blob takes: the database and the chain may lie on it, too."""
    blob_unnamed_days: Annotated[float, Field(gt=0, le=36_500)] = 7
    """For how long a blob stays that nothing names, since it was stored."""
    blob_ended_days: Annotated[float, Field(gt=0, le=36_500)] = 30
    """For how long a job that ended keeps its blobs; if it sealed nothing, `blob_unnamed_days`."""
    confirmations: Annotated[int, Ge(1)] = 1
    """Blocks until an event counts; 1 is the block itself."""
    settling_seconds: Annotated[float, Field(ge=0)] = 2.0
    """Age at which a block of the embedded chain is surely in its state file."""
    max_fee_gwei: Annotated[int, Field(ge=1, le=1_000_000)] = 200
    """What a transaction of the market offers for its gas at most; above it things wait."""
    transaction_seconds: Annotated[float, Field(gt=0)] = 15.0
    """How long a worker waits for one; an account whose transaction waits holds up nobody else."""
    anchor_seconds: Annotated[float, Field(gt=0)] = 3.0
    """Pause between two anchored batches; longer is cheaper and draws later."""
    faucet_gas: Annotated[int, Ge(0)] = 10**18
    """Wei that the faucet gives at once."""
    faucet_tokens: Annotated[int, Ge(0)] = 10_000 * 10**6
    """Base units that the faucet gives at once; the token contract has caps of its own."""
    faucet_grants: Annotated[int, Ge(0)] = 10
    """How often one account is given something."""

    @field_validator("blobs")
    @classmethod
    def _need_extra(cls, blobs: str) -> str:
        if blobs.startswith(S3) and find_spec("aiobotocore") is None:
            raise ValueError("a bucket needs more packages: pip install 'tallystick[s3]'")
        return blobs

    def site(self) -> str:
        """Origin under which people reach the API."""
        return self.public_url or f"http://127.0.0.1:{self.api_port}"
