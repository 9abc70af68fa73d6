"""How thresholds follow from honest distances, and how intervals follow from counts."""

from pathlib import Path

import pytest

from bench.calibration_table import (
    FACTOR,
    Honest,
    Sample,
    calibration_text,
    least,
    main,
    make_calibration,
    quantile,
    read_sample,
    two_digits,
)
from bench.measuring import clopper_pearson
from contracts.terms.errors import Malformed
from verification.distances.thresholds import (
    SATURATED,
    Calibration,
    DType,
    Recipe,
    read_calibration,
)

A, B, WIDE = "class-a", "class-b", "class-wide"
KEY = "y/none"


def sample(distance: int, one: str = A, other: str = B, *, dtype: DType = "float32") -> Sample:
    return Sample(dtype, (one, other), KEY, (distance, distance, 0, distance))


def made(*samples: Sample, apart: tuple[str, ...] = ()) -> Calibration:
    honest = Honest()
    for one in samples:
        honest.add(one)
    return make_calibration(honest, samples="test", comparisons=len(samples), apart=apart)


def limit(table: Calibration, one: str, other: str, measure: str = "relative_l2") -> int:
    return table.thresholds(Recipe(), ("y",), one, other)[f"y/{measure}"]


def test_quantile__fewer_than_1000_values__is_the_largest() -> None:
    assert quantile(range(999)) == 998


def test_quantile__10_000_values__leaves_ten_above() -> None:
    values = range(10_000)

    border = quantile(values)

    assert sum(value > border for value in values) == 10


@pytest.mark.parametrize(
    ("value", "rounded"), [(0, 0), (7, 7), (99, 99), (101, 110), (123_456, 130_000), (990, 990)]
)
def test_two_digits__any_value__is_never_rounded_down(value: int, rounded: int) -> None:
    assert two_digits(value) == rounded


def test_two_digits__saturated__stays_so() -> None:
    assert two_digits(SATURATED - 1) == SATURATED


def test_make_calibration__largest_honest_distance__is_a_fifth_of_the_threshold() -> None:
    table = made(sample(40_000), sample(100_000))

    assert limit(table, A, B) == FACTOR * 100_000


def test_make_calibration__nothing_but_zeros__leaves_the_least_threshold() -> None:
    table = made(sample(0))

    assert limit(table, A, B) == least("float32", KEY)[0]
    assert limit(table, A, B, "signs") == 1_000_000


def test_make_calibration__pair_of_equal_machines__is_no_tighter_than_all_together() -> None:
    table = made(sample(0, A, A), sample(200_000))

    assert limit(table, A, A) == limit(table, A, B) == FACTOR * 200_000


def test_make_calibration__class_apart__widens_its_own_pairs_alone() -> None:
    table = made(sample(200_000), sample(9_000_000, A, WIDE), apart=(WIDE,))

    assert limit(table, A, B) == FACTOR * 200_000
    assert limit(table, A, WIDE) == FACTOR * 9_000_000


def test_make_calibration__dtypes__do_not_mix() -> None:
    table = made(sample(200_000), sample(50_000_000, dtype="bfloat16"))

    assert limit(table, A, B) == FACTOR * 200_000


def test_least__codec_with_large_steps__is_one_step() -> None:
    assert least("float32", "dx/bfloat16")[0] == 8_000_000
    assert least("float32", "y/none") < least("bfloat16", "y/none")


def test_least__key_without_codec__is_malformed() -> None:
    with pytest.raises(Malformed):
        least("float32", "y/zip")


def test_sample__line__is_read_again_with_sorted_classes() -> None:
    one = Sample("bfloat16", (A, B), "dx/float16", (1, 2, 3, SATURATED))

    assert read_sample(one.line()) == one
    assert read_sample(Sample("bfloat16", (B, A), one.key, one.distances).line()) == one


@pytest.mark.parametrize(
    "line", ["", "[]", '["float8", "a", "b", "y/none", 1, 2, 3, 4]', '["float32", 1, 2, 3, 4]']
)
def test_read_sample__another_line__is_malformed(line: str) -> None:
    with pytest.raises(Malformed):
        read_sample(line)


def test_calibration_text__table__has_a_line_for_each_pair() -> None:
    table = made(sample(1), sample(2, A, A), sample(3, B, B))

    text = calibration_text(table)

    assert read_calibration(text) == table
    assert sum('"limits"' in line for line in text.splitlines()) == 3


def test_main__files_of_samples__writes_their_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / name for name in ("one", "two")]
    files[0].write_text(sample(200_000).line() + "\n\n")
    files[1].write_text(sample(9_000_000, A, WIDE).line() + "\n")

    names = ["--comparisons", "2", "--about", "test", "--apart", WIDE]
    main([*map(str, files), "--out", str(tmp_path / "table"), *names])

    table = read_calibration((tmp_path / "table").read_text())
    assert limit(table, A, B) == FACTOR * 200_000
    assert (table.samples, table.comparisons) == ("test", 2)
    assert table.digest().hex() in capsys.readouterr().out


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        # R: binom.test(successes, trials)$conf.int
        (0, 10, 0.0, 0.3084971),
        (10, 10, 0.6915029, 1.0),
        (3, 10, 0.0667395, 0.6524529),
        (99, 100, 0.9455406, 0.9997469),
        (300, 300, 0.9877790, 1.0),
    ],
)
def test_clopper_pearson__counts__are_the_textbook_interval(
    successes: int, trials: int, low: float, high: float
) -> None:
    assert clopper_pearson(successes, trials) == pytest.approx((low, high), abs=1e-6)
