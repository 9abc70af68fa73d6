"""Every message: one form, typed refusals, names under which it may be said once."""

from functools import cache
from typing import Any

import pytest

from contracts.terms.encoding import decode, encode
from contracts.terms.errors import Malformed, UnknownVersion
from contracts.terms.ids import ZERO_DIGEST, Digest, StepNumber
from contracts.terms.kinds import decode_message
from contracts.terms.messages import (
    BatchSpec,
    Message,
    ModelSpec,
    Notice,
    StopEarlySpec,
    Validation,
    WalletMessage,
)
from contracts.terms.signatures import Signed
from tests.support.dockets import CheckedJob
from tests.support.history import JobMaker, make_digest, make_spec


@cache
def examples() -> dict[str, Message]:
    """A message of every kind that a history holds."""
    maker = JobMaker()
    maker.seal_step()
    messages = [item.message for item in maker.items if isinstance(item, Signed)]
    messages += [*checked_messages(), validation()]
    return {message.kind: message for message in messages}


def checked_messages() -> list[Message]:
    """What only a checked job has."""
    job = CheckedJob()
    job.seal(job.commit("ann"), job.commit("bob"))
    beacon = job.beacon(1)
    job.seal(beacon)
    return [beacon, job.report(job.case_of("ann"), "match").claim]


def validation() -> Validation:
    """What only a job that may stop early has."""
    job = make_spec(stop_early=StopEarlySpec(patience=2, min_delta=1000)).job()
    return Validation(job=job, step=StepNumber(6), of=StepNumber(5), loss=2_500_000)


def value_of(kind: str) -> dict[str, Any]:
    value = decode(examples()[kind].encoded())
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("seal.v3", {"step": 0}),
        ("seal.v3", {"step": True}),
        ("seal.v3", {"last": 1}),
        ("seal.v3", {"earned": -1}),
        ("seal.v3", {"job": b"short"}),
        ("seal.v3", {"more": 1}),
        ("seal.v3", {"earned": (5).to_bytes(16, "big")}),  # another spelling of 5
        ("seal.v3", {"pay_root": "00" * 32}),
        ("seal.v3", {"unsealed": [[3, 3]]}),
        ("validation.v1", {"loss": -1}),
        ("notice.v1", {"what": "vanish"}),
        ("notice.v1", {"address": "x" * 257}),
    ],
)
def test_decode_message__field_that_does_not_fit__is_malformed(
    kind: str, change: dict[str, Any]
) -> None:
    with pytest.raises(Malformed):
        decode_message(encode(value_of(kind) | change))


ADAPTER = {"rank": 8, "alpha": 16, "targets": ["q_proj", "v_proj"]}


@pytest.mark.parametrize(
    ("change", "weights", "why"),
    [
        ({}, ZERO_DIGEST, "needs weights to start from"),
        ({"rank": 0}, make_digest("start"), "rank"),
        ({"targets": ["v_proj", "q_proj"]}, make_digest("start"), "targets ascend"),
        ({"targets": ["q_proj", "q_proj"]}, make_digest("start"), "each is named once"),
        ({"targets": ["lm_head"]}, make_digest("start"), "targets"),
        ({"targets": []}, make_digest("start"), "targets"),
    ],
)
def test_model_spec__adapter_that_cannot_be__is_malformed(
    change: dict[str, Any], weights: Digest, why: str
) -> None:
    model = value_of("job_spec.v10")["model"]
    ModelSpec.from_value(model | {"weights": make_digest("start"), "adapter": ADAPTER})

    with pytest.raises(Malformed, match=why):
        ModelSpec.from_value(model | {"weights": weights, "adapter": ADAPTER | change})


def test_chunking__tied_head_beside_an_adapter__nothing_is_shared() -> None:
    model = value_of("job_spec.v10")["model"] | {"tied_head": True}
    adapted = model | {"weights": make_digest("start"), "adapter": ADAPTER}

    spec, other = (
        make_spec(stages=2, layer_ends=(1, 2), model=ModelSpec.from_value(each))
        for each in (model, adapted)
    )

    assert (spec.chunking.is_shared, other.chunking.is_shared) == (True, False)


@pytest.mark.parametrize("kind", ["seal.v1", "", "x" * 1000])
def test_decode_message__unknown_kind__is_unknown_version(kind: str) -> None:
    with pytest.raises(UnknownVersion):
        decode_message(encode(value_of("seal.v3") | {"kind": kind}))


def test_decode_message__amount_above_the_64_bits_of_msgpack__comes_back() -> None:
    seal = examples()["seal.v3"].model_copy(update={"earned": 2**90})

    assert decode_message(seal.encoded()) == seal


def test_digest__of_a_wallet_message__is_the_struct_hash_and_covers_every_field() -> None:
    spec, seal = examples()["job_spec.v10"], examples()["seal.v3"]

    for message in examples().values():
        if isinstance(message, WalletMessage):
            assert message.digest() == message.typed.hash(message.typed_values())
    assert spec.model_copy(update={"name": "other"}).digest() != spec.digest()
    for changed in ({"step": 9}, {"pay_root": make_digest("x")}, {"earned": 7}, {"last": True}):
        assert seal.model_copy(update=changed).digest() != seal.digest()


def test_stated_name__what_it_is_made_of__follows_protocol_section_1() -> None:
    notice = examples()["notice.v1"]
    assert isinstance(notice, Notice)
    other = notice.model_copy(update={"number": notice.number + 1})
    same = notice.model_copy(update={"evidence": make_digest("x")})

    assert other.stated_name() != notice.stated_name()
    assert same.stated_name() == notice.stated_name()
    assert examples()["job_spec.v10"].stated_name() is None


def test_model_copy__of_a_message_that_was_digested__has_a_digest_of_its_own() -> None:
    notice = examples()["notice.v1"]
    before = notice.digest()

    changed = notice.model_copy(update={"number": 77})

    assert changed.digest() != before
    assert notice.digest() == before
    assert notice == type(notice).from_value(notice.value())


@pytest.mark.parametrize("stages", [1, 3])
def test_batch_spec__not_one_layer_end_a_stage__is_malformed(stages: int) -> None:
    batch = make_spec(stages=2).batch

    with pytest.raises(Malformed, match=f"layer_ends has 2 ends, stages is {stages}"):
        BatchSpec.from_value(batch.value() | {"stages": stages})


def test_batch_spec__publications__are_multiples_before_the_end_and_few() -> None:
    batch = make_spec(steps=101, checkpoint_every=5, publish_every=10).batch
    every, rarely = batch.value() | {"publish_every": 5}, batch.value() | {"publish_every": 0}

    assert [step for step in range(200) if batch.publishes(step)] == [*range(10, 101, 10)]
    assert batch.num_publications == 10
    assert not any(BatchSpec.from_value(rarely).publishes(step) for step in range(200))
    assert BatchSpec.from_value(every).num_publications == 20
    with pytest.raises(Malformed, match="no multiple of checkpoint_every"):
        BatchSpec.from_value(batch.value() | {"publish_every": 7})
    with pytest.raises(Malformed, match="published 33 times before the end, at most 32"):
        BatchSpec.from_value(every | {"steps": 166})
