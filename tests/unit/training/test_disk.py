"""How much disk does a peer's lease take, and what decides it?"""

from typing import Any

from contracts.terms.messages import JobSpec
from tests.support.dockets import audit_spec
from tests.support.history import make_spec
from tests.support.local_jobs import of_local_steps
from training.disk import MOST_STEPS, SMALL, kept_disk, lease_disk
from training.memory import FP32
from training.stages.torch_free import chunk_elements


def job(**changed: Any) -> JobSpec:
    return make_spec(**changed)


def test_kept_disk__nobody_is_drawn__nothing_of_a_sealed_step_stays() -> None:
    assert kept_disk(job()) == 0
    assert kept_disk(job(audit=audit_spec())) > 0


def test_lease_disk__longer_job__grows_until_steps_and_checkpoints_give_way() -> None:
    sizes = [
        lease_disk(job(audit=audit_spec(), steps=steps)) for steps in (3, 12, MOST_STEPS, 10**6)
    ]

    assert SMALL < sizes[0] < sizes[1] < sizes[2] == sizes[3]


def test_lease_disk__rarer_checkpoints__more_averaged_chunks_wait_for_one() -> None:
    often, rarely = (lease_disk(job(steps=100, checkpoint_every=every)) for every in (5, 50))

    assert often < rarely


def test_lease_disk__weights_are_published__one_checkpoint_more_stays() -> None:
    assert lease_disk(job()) < lease_disk(job(publish_every=5))


def test_lease_disk__local_steps__a_checkpoint_has_two_vectors_and_the_round_in_work_six() -> None:
    def checkpoint(**changed: Any) -> int:
        return lease_disk(job(**changed, publish_every=5)) - lease_disk(job(**changed))

    local = of_local_steps()

    assert 3 * checkpoint(**local) == 2 * checkpoint()
    four_less, in_work = 4 * (checkpoint() - checkpoint(**local)), 3 * checkpoint(**local)
    assert lease_disk(job(**local)) == lease_disk(job()) - four_less + in_work


def test_lease_disk__sealed_moments__are_in_checkpoints_and_travel_each_round() -> None:
    restart, mean = of_local_steps(), of_local_steps(moments="mean")
    vector = FP32 * sum(chunk_elements(job(**restart)).values())

    def more(**changed: Any) -> int:
        return lease_disk(job(**mean, **changed)) - lease_disk(job(**restart, **changed))

    assert more(publish_every=5) - more() == 2 * vector
    often, rarely = (more(steps=100, checkpoint_every=each) for each in (5, 6))
    assert rarely - often == 2 * 2 * vector


def test_kept_disk__sealed_moments__are_in_each_base_and_in_all_shards() -> None:
    restart, mean = of_local_steps(), of_local_steps(moments="mean")
    vector = FP32 * sum(chunk_elements(job(**restart)).values())
    audit = audit_spec(device_class="cpu")

    more = kept_disk(job(**mean, audit=audit)) - kept_disk(job(**restart, audit=audit))

    assert more >= (MOST_STEPS + 2) * (3 + 2 * 2) * vector
