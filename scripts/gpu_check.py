"""The checks of scripts/gpu_check.sh: trains small policies with the real host on the GPUs here."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.arguments import parse  # noqa: E402
from scripts.demo.demonstrations import write_demo_dataset  # noqa: E402
from tests.configs import make_config, make_rlds_config, merged, write_config  # noqa: E402
from tests.datasets import make_hdf5  # noqa: E402
from tests.hosts import Host, Result, apply, copy_host, python, run, torchrun  # noqa: E402
from tests.runs import checkpoint_differences, epoch_logs, flat, load, run_directory  # noqa: E402

STEPS, BATCH, MOST_WAITS = 6, 8, 4
NEAR, ROUNDED = 1e-4, 0.1
"""Relative to the largest weight: sums in another order; nets that compute in 16 bits."""
FAULT_SECONDS, MEMORY_SECONDS = 90.0, 60.0
IMAGES, CROPS, RLDS = "diffusion_policy_images", "diffusion_policy_crops", "rlds"
OPTIONS = (
    *("precision=bf16", "precision=fp16", "activation_checkpointing=true"),
    *("accumulate=2", "preset=max", "compile=true", "compile=reduce-overhead"),
)
OTHERS = ("bc_rnn_gmm", "cql", "td3_bc")
COMM = (
    *("comm=fp16", "comm=bf16", "comm=powersgd:2", "kwargs={static_graph: true}"),
    *("kwargs={gradient_as_bucket_view: false, bucket_cap_mb: 1}", "compile=true"),
)
CHECKS: list[tuple[int, str, Callable[[Machine], str]]] = []


class Failed(Exception):
    """A check's finding is not what it should be."""


def check(gpus: int = 1) -> Callable:
    """Registers a check for machines with `gpus` GPUs or more; it returns a finding, or raises."""

    def register(function: Callable[[Machine], str]) -> Callable:
        CHECKS.append((gpus, function.__name__, function))
        return function

    return register


class Trained:
    """A finished job: its run directory, and each rank's report (tests/gpu/job.py, and
    tests/e2e/walk_env.py).
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

    def __init__(self, folder: Path, gpus: list[str], cpu: bool) -> None:
        self.folder, self.gpus, self.cpu, self._jobs = folder, gpus, cpu, 0

    @cached_property
    def plain(self) -> Host:
        return copy_host(self.folder / "plain")

    @cached_property
    def edited(self) -> Host:
        return apply(copy_host(self.folder / "edited"))

    @cached_property
    def pictures(self) -> Path:
        made = self.folder / "pictures.hdf5"
        make_hdf5(made, image_size=32)
        return made

    @cached_property
    def rlds(self) -> Path:
        made = self.folder / "rlds"
        write_demo_dataset(made, 20, seed=0, files=6, height=36, width=64)
        return made

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
        `variant`: of tests/configs.py, or "rlds". `rollouts`: in tests/e2e/walk_env.py, which
        reports to the job's folder "rollouts".
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
            module, given = "tests.e2e.walk_env", (folder / "rollouts", *given)
        names = {f"ROBOMIMIC_DDP_{name.upper()}": text for name, text in _pairs(options)}
        added = {**self.seen(visible or max(ranks, 1)), **names}
        job = ("tests.gpu.job", reports, fault, module, *given, *words)
        more: dict[str, Any] = {"added": added, "timeout": timeout, "rlds": rlds}
        host = host or self.edited
        if ranks:
            result = torchrun(host, *job, ranks=ranks, **more)
        else:
            result = python(host, *job, **more)
        if not may_fail and (result.returncode or result.leftovers):
            raise Failed(f"{options or 'the job'}: {end_of(result)}")
        return Trained(result, output, folder)


def _pairs(options: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for option in options:
        name, _, text = option.partition("=")
        yield name, text


def end_of(result: Result) -> str:
    """Its last error and where that was raised; one process's traceback is on standard output."""
    found = ""
    for text in (result.stdout, result.stderr):
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [n for n, line in enumerate(lines) if re.search(r"[Ee]rror\b", line)]
        errors = [n for n in errors if "ChildFailedError" not in lines[n]]
        if errors:
            places = [line for line in lines[: errors[-1]] if line.startswith("File ")]
            found = f"{lines[errors[-1]][:300]} {places[-1] if places else ''}"
    return f"ended with {result.returncode}: {found or 'without an error in its output'}"


def distance(one: Path, two: Path) -> float:
    """The largest difference of two checkpoints' weights, relative to the largest weight."""
    first, second = (dict(flat(load(path)["model"]["nets"])) for path in (one, two))
    if set(first) != set(second):
        raise Failed("the checkpoints have other keys")
    largest = max(float(value.abs().max()) for value in first.values() if value.numel())
    most = max(float((first[k].double() - second[k].double()).abs().max()) for k in first)
    return most / largest


def near(one: Trained, two: Trained, bound: float = NEAR) -> float:
    found = distance(one.checkpoint, two.checkpoint)
    if not found <= bound:
        raise Failed(f"weights differ by {found:.2g} of the largest, expected at most {bound:g}")
    return found


@check()
def doctor(machine: Machine) -> str:
    words = ["-m", "robomimic_ddp", "doctor", "--ranks", str(min(2, len(machine.gpus)))]
    result = run(None, sys.executable, *words, added=machine.seen(len(machine.gpus)))
    lines = [
        line for line in result.stdout.splitlines() if line.startswith(("fail", "ok    ranks"))
    ]
    if result.returncode:
        raise Failed("; ".join(lines) or end_of(result))
    return lines[-1][6:] if lines else "ok"


@check()
def tests_gpu(machine: Machine) -> str:
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOT / "tests" / "gpu")]
    result = run(None, sys.executable, *words, added=machine.seen(1), timeout=400.0)
    if result.returncode:
        raise Failed(result.stdout.strip().splitlines()[-1])
    return result.stdout.strip().splitlines()[-1]


@check()
def host_against_ours(machine: Machine) -> str:
    """The unedited host twice, then `safe` (bits, where the host repeats its own) and `fast`."""
    host, again = (machine.train(host=machine.plain) for _ in range(2))
    safe, fast = machine.train("preset=safe"), machine.train("preset=fast")
    if checkpoint_differences(host.checkpoint, again.checkpoint):
        found = near(host, safe, 2 * distance(host.checkpoint, again.checkpoint) + 1e-7)
        bits = f"the host does not repeat its own bits; safe within {found:.2g}"
    else:
        differs = checkpoint_differences(host.checkpoint, safe.checkpoint)
        if differs:
            raise Failed(f"safe differs from the host: {differs[0]}")
        bits = "safe: equal bits"
    return f"{bits}; fast within {near(host, fast):.2g}"


@check()
def other_algorithms(machine: Machine) -> str:
    """The unedited host against `fast`."""
    lines = []
    for variant in OTHERS:
        host = machine.train(host=machine.plain, variant=variant)
        lines.append(f"{variant} within {near(host, machine.train(variant=variant)):.2g}")
    return ", ".join(lines)


@check()
def one_rank_over_nccl(machine: Machine) -> str:
    ddp = machine.train("mode=ddp", ranks=1)
    return f"within {near(machine.train(), ddp):.2g} of a plain process"


@check()
def waits_of_a_step(machine: Machine) -> str:
    """Each wait within the host's own `run_epoch` is an error; numbers read back are counted."""
    lines = []
    cases: dict[str, tuple[tuple[str, ...], str]] = {
        "states": ((), "diffusion_policy"),
        "camera": ((), IMAGES),
        "crops": ((), CROPS),
        "RLDS": ((), RLDS),
        "fp16": (("precision=fp16",), CROPS),
    }
    for name, (given, variant) in cases.items():
        (report,) = machine.train(*given, variant=variant, fault="strict").reports
        most = max(report["reads"])
        if not (machine.cpu or 1 <= most <= MOST_WAITS):
            raise Failed(f"{name}: numbers read back in each step: {report['reads']}")
        lines.append(f"{name} {most}")
    return f"each for a number that is read, at most: {', '.join(lines)}"


@check()
def options(machine: Machine) -> str:
    base, lines = machine.train(), []
    for option in OPTIONS:
        if machine.cpu and "compile" in option:
            continue  # minutes of C++ on a CPU; tests/e2e/test_compiled.py has it
        bound = NEAR if option.startswith(("channels", "activation", "compile")) else ROUNDED
        changes = {"train": {"batch_size": BATCH // 2}} if option == "accumulate=2" else None
        found = near(base, machine.train(option, changes=changes, timeout=400.0), bound)
        lines.append(f"{option} {found:.1g}")
    return ", ".join(lines)


@check()
def killed_and_resumed(machine: Machine) -> str:
    """SIGKILL in the second epoch; the finished run against one that was left alone."""
    changes = {"train": {"num_epochs": 2}, "experiment": {"epoch_every_n_steps": 2}}
    whole = machine.train(changes=changes)
    cut = machine.train(changes=changes, fault="kill", may_fail=True)
    if not cut.result.returncode:
        raise Failed("the job was not killed")
    done = machine.train("resume=true", changes=changes, output=cut.output)
    return f"within {near(whole, done):.2g} of an uninterrupted run"


@check()
def overflow(machine: Machine) -> str:
    """fp16: infinite gradients on one rank; all ranks leave the step out and halve the scale."""
    ranks = min(2, len(machine.gpus))
    options = ("precision=fp16", "mode=ddp" if ranks > 1 else "mode=single")
    trained = machine.train(*options, ranks=ranks, fault=f"overflow@{ranks - 1}")
    found = [(report["weights"], report["scales"]) for report in trained.reports]
    if len(found) != ranks or any(one != found[0] for one in found):
        raise Failed(f"ranks differ in weights or scales: {found}")
    weights, (_, before, *after) = found[0]
    left_out = [one == next_one for one, next_one in zip(weights[2:], weights[3:])]
    if left_out != [True] + [False] * (STEPS - 4) or set(after) != {before / 2}:
        raise Failed(f"left out from step 3 on: {left_out}; scale {before}, then {after}")
    return f"{ranks} rank(s) left the step out; scale {before:g}, then {after[0]:g}"


@check()
def out_of_memory(machine: Machine) -> str:
    trained = machine.train(fault="oom", may_fail=True, ranks=1)
    return _ended(trained, MEMORY_SECONDS, "out of memory", "what to do:")


def _ended(trained: Trained, limit: float, *words: str) -> str:
    result = trained.result
    began = float(result.stderr.partition(" at time ")[2].split()[0])
    seconds = result.ended - began
    if not result.returncode or result.leftovers or seconds > limit:
        raise Failed(f"{end_of(result)} after {seconds:.0f} s, left {result.leftovers}")
    missing = [word for word in words if word not in result.stderr]
    if missing:
        raise Failed(f"not said: {missing}; {end_of(result)}")
    return f"{seconds:.0f} s"


@check()
def bench_step(machine: Machine) -> str:
    words = ["--rounds", "2", "--batch", "4", "--down-dims", "64,128"]
    words += ["--device", "cpu" if machine.cpu else "cuda"]
    result = python(None, "scripts.bench.step", *words, added=machine.seen(1), timeout=400.0)
    if result.returncode:
        raise Failed(end_of(result))
    return " / ".join(result.stdout.strip().splitlines()[-6:])


@check(gpus=2)
def each_rank_on_one_gpu(machine: Machine) -> str:
    """HDF5, fine-tuning, RLDS, rollouts: by the contexts that each rank has, and by nvidia-smi,
    if it sees the processes. Simulators get the rank's GPU.
    """
    first = machine.train(ranks=2)
    tuned = {"experiment": {"ckpt_path": str(first.checkpoint)}}
    rolled = {"experiment": {"rollout": {"enabled": True, "n": 2, "horizon": 6, "rate": 1}}}
    jobs = {
        "HDF5": first,
        "fine-tuning": machine.train(ranks=2, changes=tuned),
        "RLDS": machine.train(ranks=2, variant=RLDS),
        "rollouts": machine.train(
            ranks=2, variant="diffusion_policy", rollouts=True, changes=rolled
        ),
    }
    expected = [[], []] if machine.cpu else [[0], [1]]
    by_smi = 0
    for name, trained in jobs.items():
        found = [report["gpus"] for report in trained.reports]
        if found != expected:
            raise Failed(f"{name}: ranks use GPUs {found}, expected {expected}")
        seen = [report["by_nvidia_smi"] for report in trained.reports]
        by_smi += any(own for own, *_ in seen)
        if any(own for own, *_ in seen) and not one_gpu_each(seen):
            raise Failed(f"{name}: nvidia-smi sees GPUs {seen} of each rank and what it started")
    renders_on = [one["renders_on"] for one in jobs["rollouts"].rollouts]
    numbered = not machine.cpu and all(gpu.isdecimal() for gpu in machine.gpus[:2])
    if renders_on != (machine.gpus[:2] if numbered else [None, None]):
        raise Failed(f"simulators get GPUs {renders_on}, of {machine.gpus[:2]}")
    seen_by = "contexts and nvidia-smi" if by_smi == len(jobs) else "contexts (not nvidia-smi)"
    return f"{', '.join(jobs)}: {expected} by {seen_by}; simulators on {renders_on}"


def one_gpu_each(seen: list[list[list[str]]]) -> bool:
    """Whether each rank uses one GPU, another one than the others, and what it started none."""
    gpus = [own[0] for own, *_ in seen if len(own) == 1]
    return len({*gpus}) == len(seen) and not any(used for _, *rest in seen for used in rest)


@check(gpus=2)
def two_halves_against_one(machine: Machine) -> str:
    """2 ranks with half of the batch: other random numbers, so only the losses are near."""
    one, two = machine.train("mode=ddp", ranks=1), machine.train("batch=global", ranks=2)
    losses = [trained.epochs()[-1]["Loss"] for trained in (one, two)]
    if abs(losses[0] - losses[1]) > 0.5 * max(losses):
        raise Failed(f"losses {losses}")
    return f"losses {losses[0]:.3f} and {losses[1]:.3f}"


@check(gpus=2)
def ddp_for_each_optimizer(machine: Machine) -> str:
    for variant in OTHERS:
        directory = machine.train(ranks=2, variant=variant).directory
        record = json.loads((directory / "ddp.json").read_text())
        if record["outcome"]["gradients_equal"] is not True:
            raise Failed(f"{variant}: {record['outcome']}")
    return f"{', '.join(OTHERS)}: gradients of equal bits"


@check(gpus=2)
def gradients_over_nccl(machine: Machine) -> str:
    base, lines = machine.train(ranks=2), []
    for option in COMM:
        if machine.cpu and "compile" in option:
            continue
        bound = ROUNDED if option.startswith("comm") else NEAR
        found = near(base, machine.train(option, ranks=2, timeout=400.0), bound)
        lines.append(f"{option} {found:.1g}")
    return ", ".join(lines)


@check(gpus=2)
def faults_on_rank_1(machine: Machine) -> str:
    lines = []
    words = {"raise": "planted on purpose", "oom": "out of memory", "kill": "", "sleep": "rank 1"}
    for fault, word in words.items():
        options = ("timeout=30",) if fault == "sleep" else ()
        trained = machine.train(*options, ranks=2, fault=f"{fault}@1", may_fail=True)
        lines.append(f"{fault} {_ended(trained, FAULT_SECONDS, word, 'rank')}")
    return ", ".join(lines)


@check(gpus=2)
def other_numbers_of_ranks(machine: Machine) -> str:
    output = machine.folder / "elastic"
    for number, ranks in enumerate((2, 1, 2), 1):
        changes = {"train": {"num_epochs": number}}
        more = ("resume=true",) if number > 1 else ()
        machine.train("mode=ddp", *more, ranks=ranks, changes=changes, output=output)
    epochs = {epoch for kind, epoch in epoch_logs(run_directory(output)) if kind == "Train"}
    if epochs != {1, 2, 3}:
        raise Failed(f"epochs {sorted(epochs)}")
    return "2 -> 1 -> 2 ranks, three epochs in one run"


@check(gpus=2)
def data_parallel_in_bf16(machine: Machine) -> str:
    full = machine.train("mode=dp", visible=2)
    half = machine.train("mode=dp", "precision=bf16", visible=2)
    found = near(full, half, ROUNDED)
    if found == 0:
        raise Failed("bf16 changes nothing: the replicas compute in fp32")
    return f"bf16 within {found:.2g} of fp32, and not equal"


@check(gpus=2)
def throughput(machine: Machine) -> str:
    lines, most = [], len(machine.gpus)
    for ranks in sorted({1, 2, most}):
        log = machine.train("mode=ddp", ranks=ranks, changes={"train": {"num_epochs": 2}}).epochs()
        share = log[-1].get("Time_Communication_Share", 0.0)
        lines.append(f"{ranks}: {log[-1]['samples_per_second']:.0f} samples/s, {share:.0%} sending")
    return "; ".join(lines)


def visible_gpus() -> list[str]:
    """The GPUs that this command may use, as CUDA_VISIBLE_DEVICES names them."""
    look = "import torch; print(torch.cuda.device_count())"
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    added = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    if chosen is None:
        look = f"import os; os.environ.pop('CUDA_VISIBLE_DEVICES', None); {look}"
    count = int(run(None, sys.executable, "-c", look, added=added).stdout.split()[-1])
    return [str(gpu) for gpu in range(count)] if chosen is None else chosen.split(",")[:count]


def main() -> int:
    given = parse("gpu_check")
    gpus = ["0", "1"] if given.cpu else visible_gpus()
    if not gpus:
        print("error: torch sees no GPU here (`robomimic-ddp doctor` says why); --cpu rehearses.")
        return 1
    failed = 0
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder, given.json.open("w") as file:
        machine = Machine(Path(folder), gpus, given.cpu)
        about = {"machine": platform.platform(), "gpus": len(gpus), "cpu": given.cpu}
        print(json.dumps(about), file=file, flush=True)
        for needed, name, function in CHECKS:
            if given.only not in name or needed > len(gpus):
                continue
            began, state = time.monotonic(), "ok"
            try:
                found = function(machine)
            except Exception as error:  # one check that breaks hides no other
                failed, state = failed + 1, "FAIL"
                found = str(error) if isinstance(error, Failed) else f"{error!r}"
            seconds = round(time.monotonic() - began, 1)
            print(f"{state:4}  {name}: {found}  ({seconds:.0f} s)", flush=True)
            row = {"check": name, "state": state, "found": found, "seconds": seconds}
            print(json.dumps(row), file=file, flush=True)
    print(f"{failed} failed; rows in {given.json}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
