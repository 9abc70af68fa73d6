"""Who may ask a worker for what?"""

from types import SimpleNamespace
from typing import Any

import pytest

from contracts.terms.errors import Forbidden
from tests.support.history import make_session
from training.transport import calls
from training.transport.wire import AnyMethod
from training.worker.answers import Answers

COORDINATOR, OUTSIDE = make_session("coordinator").key, make_session("out").key


@pytest.mark.parametrize("method", [calls.GET_STATE, calls.GET_STATE_RANGE, calls.TAKE_SEAL])
async def test_outside_auditor__asks_for_what_no_audit_needs__is_refused(method: AnyMethod) -> None:
    opening = SimpleNamespace(session_key=COORDINATOR)
    peers = SimpleNamespace(outside=frozenset({OUTSIDE}), job=None)
    book = SimpleNamespace(record=SimpleNamespace(opening=opening))
    work: Any = SimpleNamespace(station=SimpleNamespace(book=book, peers=peers))

    with pytest.raises(Forbidden):
        await Answers(work).dispatcher().handle(OUTSIDE, method.name, b"", ())
