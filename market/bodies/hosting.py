"""Hosts, and the jobs that they run."""

from typing import Annotated

from annotated_types import Len

from contracts.terms.auditors import MAX_LIST_BYTES
from contracts.terms.ids import AddressField, Hex, JobIdField
from contracts.terms.moments import UnixMillisField
from market.bodies.base import Body, Endpoint, HostName, SignedField
from market.bodies.jobs import JobState, JobWanted, WishNumber

MAX_REASON = 500  # characters


class CoordinatorClaim(Body):
    """`signature` by the coordinator's wallet over `hosting_digest`."""

    address: AddressField
    signature: Annotated[bytes, Len(65, 65), Hex()]


class RegisterHost(Body):
    """A host and the coordinators whose keys it holds."""

    host: HostName
    coordinators: Annotated[tuple[CoordinatorClaim, ...], Len(1, 1000)]


class HostRegistered(Body):
    """How many coordinators of this host no job has been promised yet."""

    coordinators: int


class ClaimJobs(Body):
    """A host that has room."""

    host: HostName


class HostedJob(Body):
    """A job leased to a host until `until`."""

    job: JobIdField
    state: JobState
    spec: SignedField  # the signed JobSpec
    until: UnixMillisField
    wanted: JobWanted = "running"
    wish: WishNumber = 0  # of what is wanted: grows with every change
    opening_block: int | None = None  # that the opening of a checked job has to name
    auditors: Annotated[bytes, Len(1, MAX_LIST_BYTES), Hex()] | None = None  # and the list


class HostedJobs(Body):
    """All jobs that the host holds."""

    jobs: tuple[HostedJob, ...]


class JobEndpoint(Body):
    """Where a job's coordinator listens."""

    job: JobIdField
    address: Endpoint


class HeededWish(Body):
    """A job is as its poster's wish of this number wants it."""

    job: JobIdField
    wish: WishNumber


class RefusedJob(Body):
    """A job whose coordinator has ended because this market refused its messages."""

    job: JobIdField
    why: Annotated[str, Len(1, MAX_REASON)]


class HostHeartbeat(Body):
    """Renews the rows of `jobs`, whose coordinators run; `endpoints` of those that listen."""

    host: HostName
    jobs: Annotated[tuple[JobIdField, ...], Len(0, 1000)]
    endpoints: Annotated[tuple[JobEndpoint, ...], Len(0, 1000)] = ()
    heeded: Annotated[tuple[HeededWish, ...], Len(0, 1000)] = ()
    refused: Annotated[tuple[RefusedJob, ...], Len(0, 1000)] = ()
