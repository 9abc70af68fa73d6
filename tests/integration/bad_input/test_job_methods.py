"""Every method of a job, asked with more than it takes: refused by the side that is asked.

The caller's own registry knows larger bounds, as a peer's that breaks the rules would; the loop is
over the registry that the processes of a job really hold. What handlers say to garbage and to the
wrong party is in tests/faults/test_bad_calls.py.
"""

from dataclasses import replace

import pytest

from contracts.terms.errors import TooLarge
from tests.integration.transport.harness import DEADLINE, MemoryNet, Peer, pair
from training.transport.calls import METHODS
from training.transport.wire import MAX_TENSORS, AnyMethod, Methods

LIBERAL = Methods(
    replace(
        method,
        max_header_bytes=method.max_header_bytes + 1,
        max_tensor_bytes=method.max_tensor_bytes + 1,
        max_tensors=MAX_TENSORS,
    )
    for method in METHODS.values()
)


def oversized(method: AnyMethod) -> list[tuple[bytes, list[bytes]]]:
    """Header and tensors, each over one bound of the method alone."""
    calls: list[tuple[bytes, list[bytes]]] = [(bytes(method.max_header_bytes + 1), [])]
    if method.max_tensors:
        calls.append((b"", [bytes(method.max_tensor_bytes + 1)]))
    if method.max_tensors < MAX_TENSORS:
        calls.append((b"", [b""] * (method.max_tensors + 1)))
    return calls


@pytest.mark.parametrize("name", sorted(METHODS))
async def test_method__one_byte_or_tensor_more_than_it_takes__is_too_large(name: str) -> None:
    net, server = MemoryNet(), Peer()
    one, two, address = await pair(
        net, server=server, server_methods=METHODS, client_methods=LIBERAL
    )
    session = await two.dial(one.key, [address], deadline=DEADLINE)

    for header, tensors in oversized(METHODS[name]):
        with pytest.raises(TooLarge) as refused:
            await session.call(name, header, tensors, deadline=DEADLINE)
        assert refused.value.data["peer"] == one.key.hex()  # it was asked, and said no

    assert server.calls == []
    assert not session.closed
    await net.close()
