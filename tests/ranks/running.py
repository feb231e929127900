"""A run of the toy model on a rank of the pool, as `api.distributed` and a host make it."""

from __future__ import annotations

import contextlib

import torch

from robomimic_ddp.checkpoint import Writer, state_file
from robomimic_ddp.config import options
from robomimic_ddp.config.launch_env import LaunchEnv
from robomimic_ddp.config.planning import plan
from robomimic_ddp.config.planning.settings import Settings
from robomimic_ddp.distributed import group, rng
from robomimic_ddp.training import run as _run
from robomimic_ddp.training.run_parts import Output, Resume
from robomimic_ddp.training.state import resume, state_saver
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
    rank, world = group.rank(), group.world_size()
    launch = LaunchEnv(True, rank, world, rank, world)
    resolved = options.resolve({"save_seconds": 0, **asked})
    made = plan.make_plan(launch, resolved, visible_gpus=0, use_cuda=False, batch_size=4)
    run = _run.Run(
        Settings.of(resolved, made, 7), resume=Resume(found), output=Output(writer=writer())
    )
    run.built.learning_rates = [(0.1, 0.1)]
    if group.is_main():
        run.begin_record(directory)
    token = _run._current.set(run)
    try:
        yield run
    finally:
        _run._current.reset(token)


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
