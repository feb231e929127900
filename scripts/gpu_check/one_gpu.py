"""The checks for one GPU, the strongest evidence first."""

from __future__ import annotations

import importlib.util
import sys

from scripts.gpu_check.checks import (
    NEAR,
    OTHER,
    ROUNDED,
    check,
    distance,
    near,
)
from scripts.gpu_check.machine import (
    BATCH,
    CROPS,
    IMAGES,
    RLDS,
    STEPS,
    Failed,
    Machine,
    Trained,
    end_of,
)
from tests.hosts import ROOT, python, run
from tests.runs import checkpoint_differences

MOST_WAITS = 2
"""The loss and the gradients' norm."""
FAULT_SECONDS, MEMORY_SECONDS = 90.0, 60.0
OPTIONS = {
    **{"precision=bf16": ROUNDED, "precision=fp16": ROUNDED, "activation_checkpointing=true": NEAR},
    **{"preset=max": ROUNDED, "compile=true": NEAR, "compile=reduce-overhead": NEAR},
}
"""Each with the bound of its distance to fp32."""
OTHERS = ("bc_rnn_gmm", "cql", "td3_bc")


@check()
def host_against_ours(machine: Machine) -> str:
    """With deterministic kernels and without TF32: the unedited host twice, which shows that it
    repeats its bits, then `safe`, to the bit, and `fast`.
    """
    host, again = (machine.train(host=machine.plain, fault="exact") for _ in range(2))
    differs = checkpoint_differences(host.checkpoint, again.checkpoint)
    if differs:
        raise Failed(f"the host does not repeat its bits: {differs[0]}")
    safe, fast = (machine.train(f"preset={name}", fault="exact") for name in ("safe", "fast"))
    differs = checkpoint_differences(host.checkpoint, safe.checkpoint)
    if differs:
        raise Failed(f"safe differs from the host: {differs[0]}")
    return f"safe: equal bits; fast within {near(host, fast):.2g}"


@check()
def controls(machine: Machine) -> str:
    """What comparisons here tell apart: noise as of another order of sums, as of 16 bits, and
    gradients that were replaced by others of their size.
    """
    base, lines = machine.train(fault="exact"), []
    for fault, least, most in (("noise=1e-6", 0, NEAR), ("noise=1e-3", 0, ROUNDED)):
        found = distance(base.checkpoint, machine.train(fault=fault).checkpoint)
        if not least < found <= most:
            raise Failed(f"{fault}: {found:.2g}, expected more than {least} and at most {most}")
        lines.append(f"{fault} {found:.2g}")
    found = distance(base.checkpoint, machine.train(fault="replaced").checkpoint)
    if not found >= OTHER:
        raise Failed(f"replaced gradients: {found:.2g}, expected at least {OTHER}")
    return f"{', '.join(lines)}, replaced gradients {found:.2g}"


@check()
def waits_of_a_step(machine: Machine) -> str:
    """Each wait within the host's own `run_epoch` is an error; numbers read back are counted."""
    lines = []
    cases: dict[str, tuple[tuple[str, ...], str]] = {
        "states": ((), "diffusion_policy"),
        "camera": ((), IMAGES),
        "crops": ((), CROPS),
        "fp16": (("precision=fp16",), CROPS),
    }
    if importlib.util.find_spec("tensorflow_datasets") is not None:
        cases["RLDS"] = (), RLDS
    for name, (given, variant) in cases.items():
        (report,) = machine.train(*given, variant=variant, fault="strict").reports
        most = max(report["reads"])
        if not (machine.cpu or 1 <= most <= MOST_WAITS):
            raise Failed(f"{name}: numbers read back in each step: {report['reads']}")
        lines.append(f"{name} {most}")
    return f"each for a number that is read, at most: {', '.join(lines)}"


@check()
def one_rank_over_nccl(machine: Machine) -> str:
    ddp = machine.train("mode=ddp", ranks=1)
    return f"within {near(machine.train(), ddp):.2g} of a plain process"


@check()
def bench_step(machine: Machine) -> str:
    """The ratio to the unedited host: on a GPU at the default size, in fp32, over NCCL, in TF32,
    bf16, compiled, and with CUDA graphs; what `preset=max` should choose is read from the last two.
    """
    words = ["--rounds", "3", "--batch", "64", "--device", "cuda"]
    if machine.cpu:
        words = ["--rounds", "2", "--batch", "4", "--down-dims", "64,128", "--device", "cpu"]
    return benched(machine, "step", *words, shown=" times the samples/s of ")


def comparable(option: str) -> str:
    """The policy with which `option` is compared: a compiled net draws its crops on the GPU, so
    with crops its noise and timesteps would be other ones, too.
    """
    return IMAGES if option.startswith(("compile", "preset=max")) else CROPS


@check()
def options(machine: Machine) -> str:
    bases: dict[str, Trained] = {}
    lines = []
    for option, bound in OPTIONS.items():
        if machine.cpu and "compile" in option:
            continue  # minutes of C++ on a CPU; tests/e2e/hosts/test_compiled.py has it
        variant = comparable(option)
        if variant not in bases:
            bases[variant] = machine.train(variant=variant)
        trained = machine.train(option, variant=variant, timeout=400.0)
        lines.append(f"{option} {near(bases[variant], trained, bound, option):.1g}")
    # Micro-batches draw other numbers; tests/parity shows that they are one batch's step.
    machine.train("accumulate=2", changes={"train": {"batch_size": BATCH // 2}})
    return f"{', '.join(lines)}, accumulate=2 trained"


@check()
def other_algorithms(machine: Machine) -> str:
    """The unedited host against `fast`."""
    lines = []
    for variant in OTHERS:
        host = machine.train(host=machine.plain, variant=variant)
        lines.append(f"{variant} within {near(host, machine.train(variant=variant)):.2g}")
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
    return ended(trained, MEMORY_SECONDS, "out of memory", "what to do:")


def ended(trained: Trained, limit: float, *words: str) -> str:
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
def epoch_end(machine: Machine) -> str:
    """The pause between epochs, against the unedited host's."""
    return benched(machine, "epoch_end", "--quick", last=4)


def benched(machine: Machine, name: str, *words: str, shown: str = "", last: int = 0) -> str:
    """The lines with `shown` that a benchmark prints, all or the `last` ones."""
    seconds = machine.time_left(400.0)
    result = python(None, f"scripts.bench.{name}", *words, added=machine.seen(1), timeout=seconds)
    machine.time_left(seconds)
    if result.returncode:
        raise Failed(end_of(result))
    lines = [line for line in result.stdout.strip().splitlines() if shown in line]
    return " / ".join(lines[-last:])


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


@check(needs=("robomimic", "pytest", "pytest_timeout", "hypothesis"))
def tests_gpu(machine: Machine) -> str:
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOT / "tests" / "gpu")]
    more = {"added": machine.seen(1), "timeout": machine.time_left(400.0)}
    result = run(None, sys.executable, *words, **more)
    machine.time_left(1.0)
    if result.returncode:
        raise Failed(result.stdout.strip().splitlines()[-1])
    return result.stdout.strip().splitlines()[-1]
