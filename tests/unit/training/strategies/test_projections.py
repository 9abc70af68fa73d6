"""Is a projection the same everywhere, and another for another gradient or seed?"""

import numpy as np
import pytest
from numpy.typing import NDArray

from training.strategies.projections import Projector
from verification.distances.thresholds import projections_allowed

SEED, OTHER = bytes(range(32)), bytes(range(1, 33))


def vector(size: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.Generator(np.random.Philox(seed)).standard_normal(size).astype(np.float32)


def test_projector__known_seed_and_gradient__the_number_that_every_machine_has() -> None:
    ramp = np.arange(1, 201, dtype=np.float32)

    # Changes when the stream, its byte order or the scale changes: then reports do not repeat.
    assert Projector(SEED, 200).of(ramp) == 970_035


def test_projector__blocks_and_words_that_are_not_full__every_element_has_its_sign() -> None:
    size = 2**13 + 77
    whole = Projector(SEED, size)
    signs = np.array(
        [whole.of(row) for row in one_hot(size, [0, 63, 64, 2**13 - 1, 2**13, size - 1])]
    )

    assert set(np.abs(signs)) == {1_000_000}
    assert len(set(signs.tolist())) == 2


def one_hot(size: int, places: list[int]) -> NDArray[np.float32]:
    rows = np.zeros((len(places), size), np.float32)
    rows[range(len(places)), places] = 3
    return rows


def test_projector__scaled_gradient__the_same_number() -> None:
    given, projector = vector(999), Projector(SEED, 999)

    assert projector.of(given * np.float32(64)) == projector.of(given)


def test_projector__many_seeds__about_as_large_as_a_normal_number() -> None:
    given = vector(500)

    found = [Projector(bytes([seed]) * 32, 500).of(given) / 1e6 for seed in range(40)]

    assert 0.6 < float(np.std(found)) < 1.4
    assert len(set(found)) == 40


@pytest.mark.parametrize("seed", range(8))
def test_projections_allowed__gradient_that_is_off_by_a_distance__within_it(seed: int) -> None:
    given, noise = vector(500, seed), vector(500, 100 + seed)
    for share in (1e-5, 1e-3):
        scale = share * np.linalg.norm(given) / np.linalg.norm(noise)
        near = (given + scale * noise).astype(np.float32)
        projector = Projector(SEED, 500)

        apart = 1000 * abs(projector.of(near) - projector.of(given))
        assert apart <= projections_allowed(round(share * 1e9))


def test_projections_allowed__other_gradients__hardly_ever_within_it() -> None:
    projector, given = Projector(OTHER, 500), vector(500)

    claimed = [projector.of(vector(500, seed)) for seed in range(1, 41)]

    apart = min(1000 * abs(each - projector.of(given)) for each in claimed)
    assert apart > projections_allowed(10**5)
