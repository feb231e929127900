"""The whole Lift demo: `python -m robomimic_ddp.demo.lift --root runs/demo_robosuite`.

Writes scripted demonstrations, patches a copy of the installed host, lets an untrained policy act,
trains a diffusion policy and lets it act: both by the host's own loop, on one rank per visible GPU
or on two CPU ranks. What is done already, from the same code and settings, is not done again.
"""

from __future__ import annotations

import argparse
import copy
import importlib.metadata
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from robomimic_ddp.demo.job import CPU_RANKS, Job, exit_code_of, runtime_version, visible_gpus
from robomimic_ddp.demo.lift.summary import summarise
from robomimic_ddp.demo.stamps import CHECKOUT, code_version, fresh_folder

ATTEMPTS, SEED = 100, 0
SIMULATOR = ("robosuite", "mujoco", "numpy")


class LiftDemo(Job):
    """The steps, each under `root`; `seed` replaces the config's, for another training."""

    def __init__(self, root: Path, config: Path, options: argparse.Namespace):
        super().__init__(root)
        self.config = json.loads(config.read_text())
        if options.seed is not None:
            self.config["train"]["seed"] = options.seed
        self.attempts = options.attempts
        self.ranks = options.ranks or visible_gpus() or CPU_RANKS
        self.seconds: dict[str, float] = {}

    def run(self) -> dict[str, Any]:
        """Does what is left to do; returns the summary, which is also in `root/summary.json`."""
        host = self._timed_step("host", self.host_inputs(), self.patch_host)
        data_inputs = self._data_inputs()
        data = self._timed_step("data", data_inputs, lambda: self._write_data(host))
        trained = {
            "data": data_inputs,
            "host": self.host_inputs(),
            "config": self.config,
            "ranks": self.ranks,
            "runtime": runtime_version(["sampling", "main_rank"]),
        }
        before = self._timed_step("untrained", trained, lambda: self._untrained(data, host))
        after = self._timed_step("training", trained, lambda: self._train(data, host))
        summary = summarise(Path(before), Path(after), self.seconds)
        (self.root / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        return summary

    def _timed_step(self, name: str, inputs: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        """`step`, and notes in `seconds` how long it took when it was done."""

        def timed() -> tuple[Any, float]:
            started = time.perf_counter()
            return make(), time.perf_counter() - started

        result, self.seconds[name] = self.step(name, inputs, timed)
        return result

    def _data_inputs(self) -> dict[str, Any]:
        names = ("expert", "write_dataset")
        code = code_version(*(f"robomimic_ddp/demo/lift/{name}.py" for name in names))
        versions = {name: importlib.metadata.version(name) for name in SIMULATOR}
        return {"attempts": self.attempts, "seed": SEED, "code": code, "versions": versions}

    def _write_data(self, host: str) -> str:
        file = fresh_folder(self.root / "data") / "lift.hdf5"
        arguments = ["--out", file, "--attempts", self.attempts, "--seed", SEED]
        self.python("robomimic_ddp.demo.lift.write_dataset", *arguments, host=host)
        return str(file)

    def _untrained(self, data: str, host: str) -> str:
        """Rollouts of the policy as it begins: one epoch of one step, with a learning rate of 0."""
        config = copy.deepcopy(self.config)
        config["experiment"]["epoch_every_n_steps"] = 1
        config["experiment"]["rollout"]["rate"] = config["train"]["num_epochs"] = 1
        config["algo"]["optim_params"]["policy"]["learning_rate"]["initial"] = 0.0
        return self._run_host("untrained", config, data, host)

    def _train(self, data: str, host: str) -> str:
        return self._run_host("trained", self.config, data, host)

    def _run_host(self, name: str, config: dict[str, Any], data: str, host: str) -> str:
        """The host's training with `config` on all ranks; returns the folder of its run."""
        config, (output, resumes) = copy.deepcopy(config), self.training_folder(name)
        config["train"]["data"][0]["path"] = data
        config["train"]["output_dir"] = str(output)
        file = self.root / f"{name}.json"
        file.write_text(json.dumps(config, indent=2) + "\n")
        arguments = ["--config", file, *["--resume"] * resumes]
        self.torchrun(self.ranks, "robomimic.scripts.train", *arguments, host=host)
        (record,) = output.glob("*/*/ddp.json")
        return str(record.parent)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line above; returns the exit code."""
    parser = argparse.ArgumentParser(prog="robomimic_ddp.demo.lift", description=__doc__)
    parser.add_argument("--root", type=Path, default=Path("runs/demo_robosuite"))
    config = CHECKOUT / "configs" / "demo_robosuite.json"
    parser.add_argument("--config", type=Path, default=config)
    parser.add_argument("--attempts", type=int, default=ATTEMPTS, help="scripted demonstrations")
    parser.add_argument("--ranks", type=int, help="default: the visible GPUs, or two CPU ranks")
    parser.add_argument("--seed", type=int, help="of the training; default: the config's")
    options = parser.parse_args(arguments)
    return exit_code_of(lambda: LiftDemo(options.root, options.config, options).run())


if __name__ == "__main__":
    sys.exit(main())
