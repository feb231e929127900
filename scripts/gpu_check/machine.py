"""Trains small policies with the real host, on the GPUs here or on the CPU."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.configs import make_config, make_rlds_config, merged, write_config
from tests.datasets import make_hdf5
from tests.hosts import Host, Result, apply, copy_host, python, torchrun
from tests.runs import run_directory

STEPS, BATCH = 6, 8
IMAGES, CROPS, RLDS = "diffusion_policy_images", "diffusion_policy_crops", "rlds"


class Failed(Exception):
    """A check's finding is not what it should be."""


class OutOfTime(Exception):
    """The budget is spent; the text: what was found until then."""


class Trained:
    """A finished job: its run directory, and each rank's report (tests/gpu/job.py, and
    tests/e2e/entries/walk_env.py).
    """

    def __init__(self, result: Result, output: Path, folder: Path) -> None:
        self.result, self.output = result, output
        self.reports, self.rollouts = (
            [json.loads(path.read_text()) for path in sorted((folder / name).glob("*.json"))]
            for name in ("reports", "rollouts")
        )

    @cached_property
    def directory(self) -> Path:
        return run_directory(self.output)

    @property
    def checkpoint(self) -> Path:
        return self.directory / "last.pth"

    def epochs(self) -> list[dict[str, Any]]:
        """The train log of each epoch, timings included."""
        text = (self.directory / "history.jsonl").read_text()
        records = map(json.loads, text.splitlines())
        return [one["log"] | one for one in records if one.get("phase") == "train"]


class Machine:
    """Where jobs run: `gpus` visible ones by name, or on the CPU as if there were as many."""

    def __init__(
        self, folder: Path, gpus: list[str], cpu: bool, seconds: float = float("inf")
    ) -> None:
        self.folder, self.gpus, self.cpu, self._jobs = folder, gpus, cpu, 0
        self.deadline = time.monotonic() + seconds
        self._bases: dict[tuple[str, int], Trained] = {}

    def time_left(self, wanted: float, found: str = "") -> float:
        """Seconds that a job may take: `wanted`, or what is left. Raises OutOfTime(found) if it is
        0.
        """
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise OutOfTime(found)
        return min(wanted, left)

    @cached_property
    def plain(self) -> Host:
        return copy_host(self.folder / "plain")

    @cached_property
    def edited(self) -> Host:
        folder = Path(tempfile.mkdtemp(prefix="edited_", dir=self.folder))
        return apply(copy_host(folder / "host"))

    @cached_property
    def pictures(self) -> Path:
        made = self.folder / "pictures.hdf5"
        make_hdf5(made, image_size=32)
        return made

    @cached_property
    def rlds(self) -> Path:
        made = self.folder / "rlds"
        from scripts.demo.demonstrations import write_demo_dataset

        write_demo_dataset(made, 20, seed=0, files=6, height=36, width=64)
        return made

    def base(self, variant: str = CROPS, ranks: int = 0) -> Trained:
        """What others are compared with: trained once, with `fast`; a plain process or `ranks`."""
        if (variant, ranks) not in self._bases:
            self._bases[variant, ranks] = self.train(variant=variant, ranks=ranks)
        return self._bases[variant, ranks]

    def seen(self, count: int) -> dict[str, str]:
        """Variables under which a program sees the first `count` GPUs."""
        return {} if self.cpu else {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus[:count])}

    def train(
        self,
        *options: str,
        ranks: int = 0,
        host: Host | None = None,
        variant: str = CROPS,
        rollouts: bool = False,
        fault: str = "none",
        visible: int | None = None,
        changes: dict | None = None,
        output: Path | None = None,
        words: tuple = (),
        timeout: float = 240.0,
        may_fail: bool = False,
    ) -> Trained:
        """Trains on `ranks` ranks, 0 for a plain process; `options` such as "precision=bf16".
        `variant`: of tests/configs.py, or "rlds". `rollouts`: in tests/e2e/entries/walk_env.py,
        which reports to the job's folder "rollouts".
        """
        self._jobs += 1
        folder = self.folder / f"job{self._jobs}"
        reports = folder / "reports"
        reports.mkdir(parents=True)
        output = output or folder / "runs"
        base = {
            "train": {"cuda": not self.cpu, "batch_size": BATCH, "num_epochs": 1},
            "experiment": {"epoch_every_n_steps": STEPS},
        }
        changes, rlds = merged(base, changes or {}), variant == RLDS
        if rlds:
            config = make_rlds_config(self.rlds, output, changes)
        else:
            config = make_config(variant, self.pictures, output, changes)
        path = write_config(folder / "config.json", config)
        module = "robomimic.scripts.train"
        given: tuple = ("--config", path)
        if rlds:
            module, given = "robomimic.scripts.train_rlds", (f"load_from={path}",)
        elif rollouts:
            module, given = "tests.e2e.entries.walk_env", (folder / "rollouts", *given)
        names = {f"ROBOMIMIC_DDP_{name.upper()}": text for name, text in _pairs(options)}
        added = {**self.seen(visible or max(ranks, 1)), **names}
        added["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # read when CUDA is first used
        job = ("tests.gpu.job", reports, fault, module, *given, *words)
        more: dict[str, Any] = {"added": added, "timeout": self.time_left(timeout), "rlds": rlds}
        host = host or self.edited
        if ranks:
            result = torchrun(host, *job, ranks=ranks, **more)
        else:
            result = python(host, *job, **more)
        self.time_left(timeout)  # a job that was cut off says nothing
        if not may_fail and (result.returncode or result.leftovers):
            raise Failed(f"{options or 'the job'}: {end_of(result)}")
        return Trained(result, output, folder)


def _pairs(options: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for option in options:
        name, _, text = option.partition("=")
        yield name, text


def end_of(result: Result) -> str:
    """Its last error and where that was raised; one process's traceback is on standard output."""
    if result.timed_out:
        return "not finished in its time"
    found = ""
    for text in (result.stdout, result.stderr):
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [n for n, line in enumerate(lines) if re.search(r"[Ee]rror\b", line)]
        errors = [n for n in errors if "ChildFailedError" not in lines[n]]
        if errors:
            places = [line for line in lines[: errors[-1]] if line.startswith("File ")]
            found = f"{lines[errors[-1]][:300]} {places[-1] if places else ''}"
    return f"ended with {result.returncode}: {found or 'without an error in its output'}"
