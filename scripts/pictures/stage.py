"""A folder with generated data, hosts and runs, for the pictures."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from robomimic_ddp.commands import watch
from robomimic_ddp.config import env
from robomimic_ddp.monitoring.records import heartbeat, run_summary
from scripts.demo.demonstrations import write_demo_dataset
from scripts.demo.job import CHECKOUT
from scripts.notebooks import STAMP

EPISODES, EPOCHS, STEPS = 60, 6, 20
RATE, RATES = "algo.optim_params.policy.learning_rate.initial", ("0.0025", "0.00025")


class Stage:
    """A folder with generated data, hosts, and runs made as they are needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = env.child_environment([str(folder / "host"), str(CHECKOUT)])
        self.screens: list[watch.Screen] = []

    def ours(self, *words: str, **settings: Any) -> str:
        """What `robomimic-ddp` prints in the folder, with the folder's path taken out."""
        return self._shown([sys.executable, "-m", "robomimic_ddp", *words], **settings)

    def _shown(self, command: list[str], **settings: Any) -> str:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            **settings,
        )
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
        return self.relative(done.stdout)

    def relative(self, text: str) -> str:
        """Without the folder's path and the present time in run folders."""
        return re.sub(r"\b20\d{12}\b", STAMP, text.replace(f"{self.folder}/", ""))

    @cached_property
    def plain(self) -> str:
        """The folder of a host that is not edited."""
        package = metadata.distribution("praxis-robomimic").locate_file("robomimic")
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(str(package), self.folder / "my_robomimic", ignore=ignored)
        return "my_robomimic"

    @cached_property
    def config(self) -> str:
        """A short training on generated data, with an edited host on the path."""
        shutil.copytree(self.folder / self.plain, self.folder / "host" / "robomimic")
        self.ours("apply", "--with", "unet_config", "host/robomimic")
        write_demo_dataset(self.folder / "data", EPISODES, 0, 4, 90, 160)
        made = json.loads((CHECKOUT / "configs" / "demo.json").read_text())
        made["train"] |= {"data_path": str(self.folder / "data"), "num_epochs": EPOCHS}
        made["train"] |= {"output_dir": str(self.folder / "runs"), "batch_size": 16}
        made["train"]["data_cache_dir"] = str(self.folder / "cache")
        made["experiment"]["epoch_every_n_steps"] = STEPS
        (self.folder / "cfg.json").write_text(json.dumps(made))
        return "cfg.json"

    @cached_property
    def two_ranks(self) -> str:
        """What a training on two ranks printed; fills `screens` of `watch` on the way."""
        launcher = ["torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m"]
        words = ["robomimic.scripts.train_rlds", f"load_from={self.config}"]
        command = [sys.executable, "-m", *launcher, *words, "experiment.name=two_ranks"]
        log = self.folder / "two_ranks.txt"
        with open(log, "w") as file:
            settings = {"cwd": self.folder, "env": self.environment, "stdout": file, "stderr": file}
            process = subprocess.Popen(command, **settings)
        try:
            while not (found := [*self.folder.glob("runs/two_ranks/*/history.jsonl")]):
                if process.poll() is not None:
                    break
                time.sleep(0.5)
            else:
                self._watch(found[0].parent)
            if process.wait() != 0:
                raise SystemExit(f"the training failed:\n{log.read_text()[-3000:]}")
        finally:
            process.kill()
        return log.read_text()

    def _watch(self, run: Path) -> None:
        """One screen while both ranks train, one after a rank was suspended."""
        self.screens.append(self._screen(run))
        suspended = self.screens[0].beats[1]["pid"]
        os.kill(suspended, signal.SIGSTOP)
        try:
            time.sleep(watch.STUCK_SECONDS + 10)
            self.screens.append(self._screen(run))
        finally:
            os.kill(suspended, signal.SIGCONT)

    def _screen(self, run: Path) -> watch.Screen:
        """What `watch` shows now; `seen` of a rank is how long ago that was."""
        beats, _ = heartbeat.look(run)
        now = time.time()
        summary = [self.relative(line) for line in run_summary.lines(run, beats, now)]
        beats = [{**one, "host": "node0", "seen": now - one["time"]} for one in beats]
        return watch.Screen(beats, summary=summary)

    @cached_property
    def sweep(self) -> str:
        """A finished sweep over two learning rates and two seeds."""
        words = ["--config", self.config, "train.seed=1,2", f"{RATE}={','.join(RATES)}"]
        self.ours("sweep", "new", "lr", *words)
        self.ours("sweep", "run", "lr")
        return "lr"
