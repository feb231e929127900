"""A run of the toy model on a rank of the pool, as `api.distributed` and a host make it."""

from __future__ import annotations

import contextlib

import torch

from robomimic_ddp.checkpoint import Writer, state_file
from robomimic_ddp.distributed import group, rng
from robomimic_ddp.training import run as _run
from robomimic_ddp.training.state import resume, state_saver
from tests.plans import planned_run
from tests.ranks.toy import make_algo, step


class WritesAtOnce(Writer):
    """In the calling thread: what was saved can be read at once, faults of this thread count."""

    def put(self, name, write, failed, snapshot=None, first=False):
        try:
            write()
        except Exception as error:
            failed(error)


@contextlib.contextmanager
def running(directory, found=None, writer=WritesAtOnce, **asked):
    """A run of this rank, as `api.distributed` starts it; only the main rank knows the folder. It
    saves at every epoch's end, at once.
    """
    run = planned_run(ranks=group.world_size(), rank=group.rank(), **{"save_seconds": 0, **asked})
    run.resume.source, run.output.writer = found, writer()
    run.built.learning_rates = [(0.1, 0.1)]
    if group.is_main():
        run.begin_record(directory)
    with _run.made_current(run):
        yield run


def train(directory, losses, found=None):
    """The host's train(): one step an epoch, and the best of the given losses."""
    with running(directory, found) as run:
        algo = make_algo()
        saver = state_saver.StateSaver(run, algo)
        best_valid_loss = resume.restored("best_valid_loss", None)
        first = best_valid_loss
        rng.seed_streams(7, group.rank())
        finished = saver.restore() or 0
        for epoch, loss in enumerate(losses, start=1):
            if epoch <= finished:
                continue
            step(algo, torch.randn(4, 4))
            if best_valid_loss is None or loss < best_valid_loss:
                best_valid_loss = loss
            saver.epoch_end(epoch)
        return (
            first,
            finished,
            torch.randn(1).item(),
            state_file.digest(dict(algo.nets.state_dict())),
        )
