"""Orders that a browser wallet signs: a job like one that is here, and what the wallet is shown."""

from typing import Annotated, Any

from annotated_types import Ge, Le, Len

from contracts.terms.ids import MAX_STEPS, AddressField, Hex, JobIdField
from contracts.terms.messages import Text
from contracts.terms.moments import UnixSecondsField
from market.bodies.base import Body, Money, Price, SignedField
from market.bodies.jobs import Permit


class OrderLike(Body):
    """The same model, data and rules as the job `like`; the rest as said here."""

    like: JobIdField
    poster: AddressField
    name: Text
    steps: Annotated[int, Ge(1), Le(MAX_STEPS)]
    budget: Money
    price_ceiling: Price
    deadline: UnixSecondsField


class OrderTyped(Body):
    """The JobSpec of an order, and the two requests (`eth_signTypedData_v4`) that bind a wallet."""

    job: JobIdField
    spec: SignedField  # `JobSpec.encoded()`, which nobody signed yet
    order: dict[str, Any]
    permit: dict[str, Any]
    permit_deadline: UnixSecondsField


class PostOrder(Body):
    """A JobSpec, its poster's signature, and the permit that pays for it."""

    spec: SignedField
    signature: Annotated[bytes, Len(65, 65), Hex()]
    permit: Permit
