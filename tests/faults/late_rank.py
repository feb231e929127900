"""The toy run under torchrun, in which rank 1 takes a step more than the others."""

from __future__ import annotations

from robomimic_ddp.distributed import entry_point, group
from tests.faults.toy_run import STEPS, ToyJob, train

TIMEOUT_SECONDS = 10.0


def one_step_more(job):
    job.steps = STEPS + (group.rank() == 1)


@entry_point.entry_point
def main() -> None:
    job = ToyJob({"epoch begins": one_step_more})
    job.options = {"timeout": TIMEOUT_SECONDS}
    train(job)


if __name__ == "__main__":
    main()
