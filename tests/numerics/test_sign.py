"""Does a second strategy train, on the same port, pipeline and swarm?"""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.terms.messages import NORM_SQUARED_SCALE
from tests.numerics.loop import synthetic_corpus
from tests.numerics.pipeline import ITEMS, Line, spec_of
from tests.support.stage_swarm import stage_papers, stage_swarm
from tests.support.strategies.sign import Sign
from training.averaging.sums import vector_of
from training.recipes import micro
from training.strategies import registry


@pytest.fixture(autouse=True)
def jobs_by_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a JobSpec calls `every_step` is the other strategy."""
    monkeypatch.setitem(registry.ARITHMETIC, "every_step", (Sign.__module__, Sign.__name__))


def test_sign__several_peers_of_two_stages__loss_falls_and_states_are_equal() -> None:
    spec = spec_of(1, 3, steps=5)
    line = Line(spec, 2)

    losses = line.train(range(1, 6))

    assert losses[-1] < losses[0] - 0.1
    for peers in line.peers:
        assert len({peer.state.roots() for peer in peers}) == 1


def test_commit__of_sign__every_element_is_a_sign_and_as_long_as_it_says() -> None:
    line = Line(spec_of(3))
    line.losses(ITEMS)

    for output, data in line.firsts[0].shards(ITEMS):
        signs = vector_of(data)
        assert set(signs.unique().tolist()) <= {-1.0, 0.0, 1.0}
        assert output.norm_squared == int(signs.abs().sum()) * NORM_SQUARED_SCALE


def test_sign__a_swarm_of_two_stages__trains_to_the_last_seal(tmp_path: Path) -> None:
    config, corpus = micro(num_steps=3), synthetic_corpus()
    config = replace(config, data=replace(config.data, units_per_step=4))
    papers = stage_papers(config, corpus.manifest.digest(), "ann", "bob", "cem", "dan", stages=2)
    swarm = stage_swarm(tmp_path, papers, corpus)

    asyncio.run(swarm.run())

    assert [seal.last for seal in swarm.seals()] == [False, False, True]
    assert [len(roots) for roots in swarm.state_roots()] == [1, 1]
    assert swarm.losses()[3] < swarm.losses()[1]
