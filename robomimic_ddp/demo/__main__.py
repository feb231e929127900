"""The whole demo: `python -m robomimic_ddp.demo --root runs/demo [key=value ...]`.

Writes the demonstrations, patches a copy of the installed host, trains its diffusion policy on one
rank per visible GPU or on two CPU ranks, lets the policy act before and after, and draws the
curves. What is done already, from the same code and settings, is not done again. Further key=value
settings go to the training's dot-list.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robomimic_ddp import paths
from robomimic_ddp.demo.evaluate import EPISODES
from robomimic_ddp.demo.job import CPU_RANKS, Job, exit_code_of, runtime_version, visible_gpus
from robomimic_ddp.demo.stamps import CHECKOUT, code_version, fresh_folder
from robomimic_ddp.demo.summary import summarise
from robomimic_ddp.errors import UsageError

DEMONSTRATIONS, SEED = 300, 0


class Demo(Job):
    """The steps, each under `root`; `settings` are added to the training's dot-list."""

    def __init__(self, root: Path, config: Path, settings: Sequence[str], options: Any):
        super().__init__(root)
        self.config, self.settings, self.options = config.absolute(), list(settings), options
        self.ranks = options.ranks or visible_gpus() or CPU_RANKS

    def run(self) -> dict[str, Any]:
        """Does what is left to do; returns the summary, which is also in `root/summary.json`."""
        data = self.step("data", self._data_inputs(), self._write_data)
        host = self.step("host", self.host_inputs(), self.patch_host)
        training = {"data": self._data_inputs(), **self.host_inputs(), **self._training_inputs()}
        directory = Path(self.step("training", training, lambda: self._train(data, host)))
        checkpoint = directory / "last.pth"
        judged = {"training": training, "code": code_version("robomimic_ddp/demo")}
        judged["episodes"] = self.options.evaluations
        evaluation = self.step("evaluation", judged, lambda: self._evaluate(host, checkpoint))
        curves = self.step("curves", training, lambda: self._draw(directory))
        summary = summarise(directory, evaluation, checkpoint, Path(curves))
        (self.root / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        return summary

    def _data_inputs(self) -> dict[str, Any]:
        writers = ("simulator", "drawing", "expert", "write_dataset")
        files = [f"robomimic_ddp/demo/{name}.py" for name in writers]
        code = code_version("robomimic_ddp/rlds/write.py", *files)
        return {"episodes": self.options.demonstrations, "seed": SEED, "code": code}

    def _write_data(self) -> str:
        folder = fresh_folder(self.root / "data")
        count = self.options.demonstrations
        arguments = ["--out", folder, "--episodes", count, "--seed", SEED]
        self.python("robomimic_ddp.demo.write_dataset", *arguments)
        return str(folder)

    def _training_inputs(self) -> dict[str, Any]:
        return {
            "config": self.config.read_text(),
            "settings": self.settings,
            "ranks": self.ranks,
            "runtime": runtime_version(["rlds", "sampling", "main_rank"]),
        }

    def _train(self, data: str, host: str) -> str:
        output, resumes = self.training_folder("output")
        places = [f"train.data_path={data}", f"train.output_dir={output}"]
        places.append(f"train.data_cache_dir={self.root / 'cache'}")
        settings = [f"load_from={self.config}", "train.batch_size=16", *places, *self.settings]
        settings += ["resume=true"] * resumes
        self.torchrun(self.ranks, "robomimic.scripts.train_rlds", *settings, host=host)
        (record,) = output.glob("*/*/ddp.json")
        return str(record.parent)

    def _evaluate(self, host: str, checkpoint: Path) -> dict[str, Any]:
        out = self.root / "evaluation.json"
        arguments = [checkpoint, "--episodes", self.options.evaluations, "--out", out]
        self.python("robomimic_ddp.demo.evaluate", *arguments, host=host)
        return json.loads(out.read_text())

    def _draw(self, directory: Path) -> str:
        curves = self.root / "curves.png"
        self.python("robomimic_ddp", "plot", directory, "-o", curves)
        return str(curves)


def _check(options: argparse.Namespace) -> None:
    """Raises UsageError for arguments that the demo could only fail with later."""
    reason = paths.why_not_writable(options.root)
    if reason is not None:
        raise UsageError(f"--root {options.root}: {reason}. Name a folder; it is made if need be.")
    if not options.config.is_file():
        raise UsageError(f"--config {options.config}: there is no such file.")
    for name, least in (("ranks", 1), ("demonstrations", 2), ("evaluations", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise UsageError(f"--{name} {value}: expected a whole number of at least {least}.")
    for setting in options.settings:
        if "=" not in setting:
            raise UsageError(f"{setting!r} is no setting: expected key=value.")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line above; returns the exit code."""
    parser = argparse.ArgumentParser(prog="robomimic_ddp.demo", description=__doc__)
    parser.add_argument("--root", type=Path, default=Path("runs/demo"), help="where all of it goes")
    parser.add_argument("--config", type=Path, default=CHECKOUT / "configs" / "demo.json")
    parser.add_argument("--demonstrations", type=int, default=DEMONSTRATIONS)
    parser.add_argument("--evaluations", type=int, default=EPISODES, help="episodes, each time")
    parser.add_argument("--ranks", type=int, help="default: the visible GPUs, or two CPU ranks")
    parser.add_argument("settings", nargs="*", metavar="key=value")
    options = parser.parse_args(arguments)

    def run() -> dict[str, Any]:
        _check(options)
        return Demo(options.root, options.config, options.settings, options).run()

    return exit_code_of(run)


if __name__ == "__main__":
    sys.exit(main())
