"""Does `JobEscrow` do on a real chain what its model does, call by call, to the second?

And do its events alone tell what it stores?
"""

from pathlib import Path
from random import Random

from tests.support.escrow_twin import play, twin_on_chain
from tests.support.examples import examples


async def test_escrow__random_histories__contract_model_and_events_agree(tmp_path: Path) -> None:
    for seed in range(examples(1)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        async with twin_on_chain(folder) as twin:
            await play(twin, Random(seed), 120)
