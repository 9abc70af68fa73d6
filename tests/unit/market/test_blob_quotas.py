"""Who may store how much, and when the disk says no first."""

import pytest

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import ServiceUnreachable, TooLarge
from market.domain.limits import (
    BLOCK,
    STRANGER,
    BlobBounds,
    Standing,
    charged,
    check_disk,
    check_quota,
    quota_of,
)

BOUNDS = BlobBounds(anybody=100, known=1000, known_from=BaseUnits(5_000_000), reserve=300)
KNOWN = Standing(is_known=True)


@pytest.mark.parametrize(
    ("num_bytes", "blocks"), [(0, 1), (1, 1), (BLOCK, 1), (BLOCK + 1, 2), (2**31, 2**31 // BLOCK)]
)
def test_charged__any_size__is_whole_blocks_and_at_least_one(num_bytes: int, blocks: int) -> None:
    assert charged(num_bytes) == blocks * BLOCK


@pytest.mark.parametrize(
    ("standing", "quota"),
    [(STRANGER, 100), (KNOWN, 1000), (Standing(is_known=True, parameters=7), 1056)],
)
def test_check_quota__last_byte_fits__one_more_does_not(standing: Standing, quota: int) -> None:
    assert quota_of(standing, BOUNDS) == quota
    check_quota(60, quota - 60, standing, BOUNDS)
    with pytest.raises(TooLarge) as refusal:
        check_quota(60, quota - 59, standing, BOUNDS)

    assert refusal.value.data == {"used": 60, "size": quota - 59, "limit": quota}


def test_quota_of__operator_gives_strangers_more__known_accounts_have_no_less() -> None:
    assert quota_of(KNOWN, BlobBounds(anybody=5000, known=1000)) == 5000


@pytest.mark.parametrize(("standing", "fits"), [(STRANGER, 150), (KNOWN, 450)])
def test_check_disk__uploads_are_coming__leaves_room_for_them_and_the_reserve(
    standing: Standing, fits: int
) -> None:
    check_disk(500, 50, fits, standing, BOUNDS)
    check_disk(None, 50, 10**15, standing, BOUNDS)
    with pytest.raises(ServiceUnreachable, match="blob store"):
        check_disk(500, 50, fits + 1, standing, BOUNDS)
