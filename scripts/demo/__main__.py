"""The whole demo: `python -m scripts.demo --root runs/demo [key=value ...]`.

Writes the demonstrations, patches a copy of the installed host, trains its diffusion policy on one
rank per visible GPU or on two CPU ranks, lets the policy act before and after, and draws both (a
GIF) and the curves. Data, a training and an evaluation that are complete are kept, a training that
was cut short is resumed. Further key=value settings go to the training's dot-list.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from robomimic_ddp.config import paths
from robomimic_ddp.terminal import say
from scripts.arguments import WRONG, parse
from scripts.demo.demonstrations import count_written
from scripts.demo.job import Job, exit_code_of
from scripts.demo.summary import summarise

STEPS = {
    "host": "edits a copy of robomimic for several ranks",
    "data": "writes demonstrations of a robot that reaches for a block, as RLDS",
    "training": "trains a diffusion policy",
    "evaluation": "lets the policy act, untrained and trained",
    "curves": "draws loss, learning rate and speed",
}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Does what is left to do; returns the summary."""
    job = Job(options.root, options.ranks, STEPS)

    def make_host() -> None:
        job.patch_host()
        job.add_simulator()

    names = ("data", "evaluation.json", "policy.gif", "curves.png")
    data, evaluation, animation, curves = map(job.root.joinpath, names)
    say(
        "the demo takes about six to ten minutes on two cores; what each step prints is in "
        f"{job.root / 'logs'}; a summary follows"
    )
    job.step("host", make_host)

    def write() -> None:
        for folder in (data, job.root / "training"):  # a training belongs to its data
            shutil.rmtree(folder, ignore_errors=True)
        job.python("scripts.demo.demonstrations", data, options.demonstrations, 0)

    job.step("data", write, count_written(data) == options.demonstrations)
    settings = [f"load_from={options.config.absolute()}", "train.batch_size=16"]
    settings += [f"train.data_path={data}", f"train.output_dir={job.root / 'training'}"]
    settings += [f"train.data_cache_dir={job.root / 'cache'}", *options.settings]
    train = ("robomimic.scripts.train_rlds", options.config, settings, "resume=true")
    trained = job.train("training", *train)
    wanted = {"checkpoint": str(trained / "last.pth"), "episodes": options.evaluations}
    done = evaluation.exists() and animation.exists()
    found = json.loads(evaluation.read_text()) if done else {}
    evaluate = ("scripts.demo.evaluate", *wanted.values(), evaluation, animation)
    job.step("evaluation", lambda: job.python(*evaluate), wanted.items() <= found.items())
    job.step("curves", lambda: job.python("robomimic_ddp", "plot", trained, "-o", curves))
    return summarise(trained, json.loads(evaluation.read_text()), curves)


def _refuse(text: str) -> NoReturn:
    print(f"scripts/demo.sh: error: {text}", file=sys.stderr)
    sys.exit(WRONG)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line above; returns the exit code."""
    options = parse("demo", arguments)
    reason = paths.why_not_writable(options.root)
    if reason is not None:
        _refuse(f"--root {options.root}: {reason}. Name a folder; it is made if need be.")
    if not options.config.is_file():
        _refuse(f"--config {options.config}: there is no such file.")
    for name, least in (("ranks", 1), ("demonstrations", 2), ("evaluations", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            _refuse(f"--{name} {value}: expected a whole number of at least {least}.")
    return exit_code_of(options.root, lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
