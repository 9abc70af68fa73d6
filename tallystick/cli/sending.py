"""What a verb that sends a transaction needs, and says when it is not there."""

from collections.abc import Iterator
from contextlib import contextmanager

from contracts.terms.errors import WrongConfiguration


@contextmanager
def needs_chain() -> Iterator[None]:
    """Around the imports that only the extra `provider` brings."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise WrongConfiguration(
            f"this sends a transaction, and {error.name} is not installed: install the extra "
            "`provider` (pip install 'tallystick[provider]')"
        ) from error
