"""The Lift demo: `python -m scripts.demo.lift --root runs/demo_robosuite`. Needs robosuite;
scripts/demo_robosuite.sh makes an environment that has it.

Writes scripted demonstrations, patches a copy of the installed host, lets an untrained policy act,
trains a diffusion policy (or, with `--algo bc`, BC-RNN-GMM) and lets it act: both by the host's own
loop, on one rank per visible GPU or on two CPU ranks. What is complete is kept, a training that was
cut short is resumed.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.arguments import CONFIGS, parse
from scripts.demo.job import Job, exit_code_of
from scripts.demo.summary import summarise_lift

STEPS = {
    "host": "edits a copy of robomimic for several ranks",
    "data": "writes demonstrations of robosuite's task Lift",
}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Does what is left to do; returns the summary."""
    job = Job(options.root, options.ranks, STEPS)
    data = job.root / "data" / f"lift_{options.attempts}.hdf5"
    job.step("host", job.patch_host)
    write = ("scripts.demo.lift_data", data, options.attempts, 0)
    job.step("data", lambda: job.python(*write), data.exists())
    config = json.loads((options.config or CONFIGS[options.algo]).read_text())
    algo = config["algo_name"]
    config["train"]["data"][0]["path"] = str(data)
    if options.seed is not None:
        config["train"]["seed"] = options.seed
    # Rollouts of the policy as it begins: one epoch of one step, with a learning rate of 0.
    first = copy.deepcopy(config)
    first["experiment"]["epoch_every_n_steps"] = 1
    first["experiment"]["rollout"]["rate"] = first["train"]["num_epochs"] = 1
    first["algo"]["optim_params"]["policy"]["learning_rate"]["initial"] = 0.0
    before = _train(job, f"untrained_{algo}", first)
    return summarise_lift(before, _train(job, f"training_{algo}", config), job.seconds)


def _train(job: Job, name: str, config: dict[str, Any]) -> Path:
    """The host's training with `config`; returns the folder of its run."""
    config["train"]["output_dir"] = str(job.root / name)
    file = job.root / f"{name}.json"
    file.write_text(json.dumps(config, indent=2) + "\n")
    return job.train(name, "robomimic.scripts.train", file, ["--config", str(file)], "--resume")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line above; returns the exit code."""
    options = parse("demo_robosuite", arguments)
    return exit_code_of(options.root, lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
