"""An epoch that is a pass of its data, stopped inside and continued on other ranks or batches:
every sample comes once, but for what fills no batch.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from robomimic_ddp.checkpoint import FoundRun
from robomimic_ddp.data.sampling import ReplayedLoader, train_loader
from robomimic_ddp.distributed import group, rng
from robomimic_ddp.errors import Stopped
from robomimic_ddp.training import epoch as seam
from robomimic_ddp.training.state import state_saver
from tests.ranks.hosts import Algo
from tests.ranks.running import running
from tests.ranks.toy import make_algo
from tests.rlds.conftest import stored  # noqa: F401
from tests.tiers import slow_but

SIZE = 97


def make_loader(kind, folder, cache, batch):
    place = (batch, group.rank(), group.world_size(), 7)
    if kind == "rlds":
        from robomimic_ddp.data.rlds.loaders import make
        from tests.rlds.quick import quick_dataset

        return make.make_loader(quick_dataset(Path(folder), cache), *place)
    kwargs = {"dataset": range(SIZE), "batch_size": batch, "shuffle": True, "drop_last": True}
    where = {"rank": group.rank(), "world_size": group.world_size()}
    loader = train_loader(DataLoader, kwargs, **where, seed=3, batch_size_per_rank=batch)
    return loader if hasattr(loader, "seek") else ReplayedLoader(loader)


def run_epoch(model, data_loader, epoch, validate=False, num_steps=None):
    """A host's, whose epoch is a pass where no number is given."""
    iterator = iter(data_loader)
    for _ in range(len(data_loader) if num_steps is None else num_steps):
        try:
            batch = next(iterator)
        except StopIteration:
            iterator = iter(data_loader)
            batch = next(iterator)
        indices = batch["index"] if isinstance(batch, dict) else batch
        model.seen += indices.tolist()
        model.process_batch_for_training({"actions": indices.reshape(-1, 1).float()})
        model.log_info({"losses": indices.float().mean(), "large": False})
    return {"Loss": 0.0}


def epoch(directory, kind, folder, cache, batch, stop_after, resume_run):
    """The samples of this rank up to the stop, or to the end of the epoch; those of the next."""
    with running(directory, FoundRun(directory, "state") if resume_run else None) as run:
        with rng.kept():
            run.built.loaders["train"] = make_loader(kind, folder, cache, batch)
        saver, algo = state_saver.StateSaver(run, make_algo()), Algo()
        saver.restore()
        logged = seam.epoch_log(run_epoch)

        def agreed():
            return stop_after is not None and run.progress.part.steps >= stop_after

        run.stopper.agreed = run.stopper.agreed_at_last = agreed
        run.progress.part.epoch = 1
        try:
            logged(algo, run.built.loaders["train"], 1)
        except Stopped:
            pass
        return algo.seen, len(run.built.loaders["train"].dataset)


def joined(found):
    """Of what `epoch` gives: the samples of all ranks, and how many there are."""
    return [index for seen, _ in found for index in seen], found[0][1]


PLACES = [((2, 4), (3, 4)), ((3, 2), (2, 2)), ((2, 4), (2, 3)), ((2, 4), (2, 4))]
STOPS = [(PLACES[0], 1), *((place, 5) for place in PLACES), (PLACES[1], "all")]
CASES = [(kind, *stop) for kind in ("hdf5", "rlds") for stop in STOPS]
"""Those of RLDS are slow: tests/rlds/order/test_positions.py has the places in a pass, in one
process.
"""
FAST = CASES[: len(CASES) // 2]


@pytest.mark.parametrize(("kind", "places", "stop_after"), slow_but(map(str, FAST), CASES))
def test_every_sample_once(kind, places, stop_after, ranks, tmp_path, request):
    folder = str(request.getfixturevalue("stored").folder) if kind == "rlds" else ""
    cache = str(tmp_path / "cache")

    def run(world, batch, stop, resume_run):
        call = (tmp_path, kind, folder, cache, batch, stop, resume_run)
        return joined(ranks.run(epoch, *call, world_size=world, timeout=115.0))

    (world, batch), (world_after, batch_after) = places
    if stop_after == "all":
        stop_after = len(run(world, batch, None, False)[0]) // (world * batch)
        left_over = True
    else:
        left_over = False
    taken, size = run(world, batch, stop_after, False)
    assert len(taken) == stop_after * world * batch
    rest, _ = run(world_after, batch_after, None, True)
    seen = taken + rest
    assert len(seen) == len(set(seen)), "a sample came twice in one epoch"
    if left_over and kind == "rlds":
        assert not rest, "the stream stands at the beginning of the next pass"
    else:
        assert size - len(seen) < 2 * world_after * batch_after, "samples were left out"
