"""What distances say: match or mismatch, and nothing that was left out or never measured."""

import json
from dataclasses import replace

import pytest

from bench.calibration_table import calibration_text
from contracts.terms.errors import Malformed, Refused
from contracts.terms.messages import DISTANCE_SCALE, Exchanged, class_name
from verification.distances.thresholds import (
    MEASURES,
    Calibration,
    PairThresholds,
    Recipe,
    decide,
    read_calibration,
    shipped_calibration,
    stage_kinds,
)

KINDS = ("dx", "gradient.q_proj", "y")
CPU, OTHER, THIRD = "cpu/a/torch-1", "cpu/b/torch-1", "cpu/c/torch-1"
LIMITS = {
    "y/none": (10, 20, 30, 40),
    "y/bfloat16": (100, 200, 300, 400),
    "dx/none": (11, 21, 31, 41),
    "gradient.q_proj/none": (12, 22, 32, 42),
}
PLAIN = Recipe()


def table(*pairs: tuple[str, str]) -> Calibration:
    return Calibration(
        samples="made by hand",
        comparisons=1,
        measures=MEASURES,
        pairs=tuple(
            PairThresholds(dtype="float32", classes=classes, limits=LIMITS) for classes in pairs
        ),
    )


TABLE = table((CPU, CPU), (CPU, OTHER), (CPU, THIRD), (OTHER, THIRD))
THRESHOLDS = TABLE.thresholds(PLAIN, KINDS, CPU, OTHER)


def test_holds__two_classes__by_their_names_and_in_any_order() -> None:
    assert TABLE.holds(OTHER, CPU) and TABLE.holds(f"{CPU}+cpu", OTHER)
    assert not TABLE.holds(OTHER, OTHER) and not TABLE.holds(CPU, OTHER, "bfloat16")


def test_thresholds__order_of_the_classes__does_not_matter() -> None:
    assert TABLE.thresholds(PLAIN, KINDS, OTHER, CPU) == THRESHOLDS
    assert THRESHOLDS["y/norm_ratio"] == 20
    assert THRESHOLDS["gradient.q_proj/largest"] == 42


def test_thresholds__boundary_codec__is_that_of_y_and_not_of_the_gradient() -> None:
    coded = TABLE.thresholds(replace(PLAIN, boundary_codec="bfloat16"), ("y",), CPU, OTHER)

    assert coded["y/relative_l2"] == 100
    assert Recipe("bfloat16", "float16").codec_of("gradient.q_proj") == "float16"
    assert Recipe("bfloat16", "float16").codec_of("loss") == "none"


def test_thresholds__class_pair_that_was_never_measured__is_refused() -> None:
    with pytest.raises(Refused, match="does not hold") as refused:
        TABLE.thresholds(PLAIN, KINDS, OTHER, OTHER)

    assert refused.value.data == {"classes": (OTHER, OTHER)}


@pytest.mark.parametrize(
    ("recipe", "kinds"),
    [
        (Recipe(dtype="bfloat16"), KINDS),
        (Recipe("blockwise8"), KINDS),
        (PLAIN, ("gradient.invented",)),
    ],
)
def test_thresholds__recipe_or_kind_that_was_never_measured__is_refused(
    recipe: Recipe, kinds: tuple[str, ...]
) -> None:
    with pytest.raises(Refused, match="does not hold"):
        TABLE.thresholds(recipe, kinds, CPU, OTHER)


def test_decide__every_distance_at_its_threshold__is_a_match() -> None:
    assert decide(tuple(THRESHOLDS.items()), THRESHOLDS) == "match"


@pytest.mark.parametrize("name", THRESHOLDS)
def test_decide__any_one_distance_above_its_threshold__is_a_mismatch(name: str) -> None:
    distances = THRESHOLDS | {name: THRESHOLDS[name] + 1}

    assert decide(tuple(distances.items()), THRESHOLDS) == "mismatch"


@pytest.mark.parametrize(
    ("stated", "why"),
    [
        ([pair for pair in THRESHOLDS.items() if pair[0] != "dx/signs"], "dx/signs"),
        ([*THRESHOLDS.items(), ("y/signs", 0)], "twice"),
        ([*THRESHOLDS.items(), ("loss/signs", 0)], "loss/signs"),
    ],
    ids=["left out", "twice", "of another stage"],
)
def test_decide__other_distances_than_are_wanted__are_refused(
    stated: list[tuple[str, int]], why: str
) -> None:
    with pytest.raises(Malformed, match=why):
        decide(stated, THRESHOLDS)


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("tied_head", [True, False])
def test_stage_kinds__any_stage__leave_room_in_a_report(
    is_first: bool, is_last: bool, tied_head: bool
) -> None:
    kinds = stage_kinds(is_first=is_first, is_last=is_last, tied_head=tied_head)

    assert len(set(kinds)) == len(kinds)
    assert len(kinds) * len(MEASURES) < 64  # numbers of a report, with the projections


@pytest.mark.parametrize(
    ("exchanged", "others"), [("gradient", ["loss"]), ("difference", ["loss", "trace"])]
)
def test_stage_kinds__adapter__are_its_two_factors_and_the_shipped_table_holds_them(
    exchanged: Exchanged, others: list[str]
) -> None:
    recipe, table = Recipe(exchanged=exchanged), shipped_calibration()

    kinds = stage_kinds(
        is_first=True, is_last=True, tied_head=True, has_adapter=True, exchanged=exchanged
    )

    assert kinds == (f"{exchanged}.lora_A", f"{exchanged}.lora_B", *others)
    assert recipe.kind_of("model.layers.3.mlp.up_proj.lora_A.weight") == kinds[0]
    for pair in table.pairs:
        if pair.dtype == "float32":
            assert len(table.thresholds(recipe, kinds, *pair.classes)) == 4 * len(kinds)


def test_kind_of__same_role_in_two_layers__is_one_kind() -> None:
    names = [f"model.layers.{number}.self_attn.q_proj.weight" for number in (0, 7)]

    assert {PLAIN.kind_of(name) for name in names} == {"gradient.q_proj"}
    assert PLAIN.kind_of("lm_head.weight") == "gradient.lm_head"


def test_kind_of__bias_or_norm_of_heads__is_that_of_its_matrix() -> None:
    of_keys = [f"model.layers.1.self_attn.{name}" for name in ("k_proj.bias", "k_norm.weight")]

    assert {PLAIN.kind_of(name) for name in of_keys} == {"gradient.k_proj"}


def test_stage_kinds__whole_model_that_exchanges_differences__has_a_trace_beside_them() -> None:
    kinds = stage_kinds(is_first=True, is_last=True, exchanged="difference")

    assert {kind for kind in kinds if "." not in kind} == {"loss", "trace"}
    recipe = Recipe("bfloat16", "bfloat16", exchanged="difference")
    assert recipe.kind_of("lm_head.weight") in kinds
    assert {recipe.codec_of(kind) for kind in kinds} == {"none"}


def test_admits__class__needs_itself_and_two_others() -> None:
    assert [TABLE.admits(each) for each in (CPU, OTHER, THIRD, "cpu")] == [True] + [False] * 3
    assert not table((CPU, CPU), (CPU, OTHER)).admits(CPU)


def test_class_name__build_label_of_torch__is_left_out() -> None:
    assert class_name("cpu/x86_64/AVX2/torch-2.13.0+cpu") == "cpu/x86_64/AVX2/torch-2.13.0"
    assert TABLE.admits(CPU + "+cu130")


def test_digest__changed_threshold__is_another() -> None:
    changed = dict(LIMITS, **{"y/none": (10, 20, 30, 41)})
    other = TABLE.model_copy(
        update={
            "pairs": (
                PairThresholds(dtype="float32", classes=(CPU, CPU), limits=changed),
                *TABLE.pairs[1:],
            )
        }
    )

    assert other.digest() != TABLE.digest()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "calibration.v2"),
        ("measures", ["cosine"]),
        ("comparisons", 1.5),
        ("pairs", [{"dtype": "float32", "classes": [OTHER, CPU], "limits": {}}]),
        ("pairs", [{"dtype": "float32", "classes": [CPU, CPU], "limits": {}}] * 2),
        ("pairs", [{"dtype": "float32", "classes": [CPU, CPU], "limits": {"y/none": [1, 2]}}]),
        ("invented", 1),
    ],
)
def test_read_calibration__field_that_is_off__is_malformed(field: str, value: object) -> None:
    text = json.dumps(json.loads(calibration_text(TABLE)) | {field: value})

    with pytest.raises(Malformed):
        read_calibration(text)


def test_read_calibration__no_json__is_malformed() -> None:
    with pytest.raises(Malformed, match="JSON"):
        read_calibration("{")


def test_shipped_calibration__every_stage_and_recipe__has_thresholds_for_its_classes() -> None:
    shipped = shipped_calibration()
    real = [name for name in shipped.classes if name.startswith("cpu/")]
    ends = [(True, False), (False, False), (False, True)]
    kinds = {kind for first, last in ends for kind in stage_kinds(is_first=first, is_last=last)}

    for recipe in (PLAIN, Recipe("blockwise8", "bfloat16"), Recipe("float16", "float16")):
        for name in real:
            limits = shipped.thresholds(recipe, kinds, real[0], name)
            assert all(0 < limit < DISTANCE_SCALE // 2 for limit in limits.values())
    assert len(real) >= 3
    assert all(shipped.admits(name) for name in real)
