"""The checks for one GPU, the strongest evidence first."""

from __future__ import annotations

import importlib.util
import sys

from scripts.gpu_check.checks import (
    NEAR,
    OTHER,
    ROUNDED,
    averages_apart,
    check,
    distance,
    each,
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

AVERAGED = 0.1
"""For `averages_apart`: Adam makes much of the last bits of small gradients."""
MOST_WAITS = 2
"""The loss and the gradients' norm."""
FAULT_SECONDS, MEMORY_SECONDS = 90.0, 60.0
OPTIONS = {
    "precision=bf16": ROUNDED,
    "precision=fp16": ROUNDED,
    "activation_checkpointing=true": NEAR,
}
COMPILED = {"preset=max": ROUNDED, "compile=true": NEAR, "compile=reduce-overhead": NEAR}
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
    apart, averages = near(host, fast), averages_apart(host.checkpoint, fast.checkpoint)
    if not averages <= AVERAGED:
        raise Failed(f"fast: averages differ by {averages:.2g}; expected at most {AVERAGED:g}")
    return f"safe: equal bits; fast within {apart:.2g}, its averages (EMA) within {averages:.2g}"


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
    cases: dict[str, tuple[tuple[str, ...], str]] = {
        "states": ((), "diffusion_policy"),
        "camera": ((), IMAGES),
        "crops": ((), CROPS),
        "fp16": (("precision=fp16",), CROPS),
    }
    if importlib.util.find_spec("tensorflow_datasets") is not None:
        cases["RLDS"] = (), RLDS

    def most(name: str) -> str:
        given, variant = cases[name]
        (report,) = machine.train(*given, variant=variant, fault="strict").reports
        if not (machine.cpu or 1 <= max(report["reads"]) <= MOST_WAITS):
            raise Failed(f"numbers read back in each step: {report['reads']}")
        return f"{max(report['reads'])}"

    return f"each for a number that is read, at most: {each(cases, most)}"


@check()
def one_rank_over_nccl(machine: Machine) -> str:
    ddp = machine.train("mode=ddp", ranks=1)
    return f"within {near(machine.base(), ddp):.2g} of a plain process"


@check()
def sharded_over_one_rank(machine: Machine) -> str:
    """FSDP2 in a group of one, which the package would refuse: its kernels and NCCL's."""
    trained = machine.train("mode=fsdp", ranks=1, fault="sharded")
    return f"within {near(machine.base(), trained):.2g} of a plain process"


@check()
def bench_step(machine: Machine) -> str:
    """On a GPU at the default size with two cameras, in fp32, over NCCL, in TF32 and bf16, then
    compiled, and with CUDA graphs: steps/s, memory, the GPU's busy time and graph breaks, and the
    ratios to the unedited host. What `preset=max` should choose is read from the last two.
    """
    words = ["--rounds", "3", "--batch", "64", "--cameras", "2", "--device", "cuda"]
    if machine.cpu:
        words = ["--rounds", "2", "--batch", "4", "--down-dims", "64,128", "--device", "cpu"]
    return benched(machine, "step", *words)


def comparable(option: str) -> str:
    """The policy with which `option` is compared: a compiled net draws its crops on the GPU, so
    with crops its noise and timesteps would be other ones, too.
    """
    return IMAGES if option.startswith(("compile", "preset=max")) else CROPS


@check()
def options(machine: Machine) -> str:
    found = compared(machine, OPTIONS)
    # Micro-batches draw other numbers; tests/parity shows that they are one batch's step.
    machine.train("accumulate=2", changes={"train": {"batch_size": BATCH // 2}})
    return f"{found}, accumulate=2 trained"


@check()
def compiled(machine: Machine) -> str:
    """Apart from `options`: compiling takes minutes."""
    # A CPU would take minutes for C++; tests/e2e/hosts/test_compiled.py has it.
    tried = {key: COMPILED[key] for key in COMPILED if not (machine.cpu and "compile" in key)}
    return compared(machine, tried)


def compared(machine: Machine, bounds: dict[str, float]) -> str:
    """What trains with each option against what trains without it."""

    def apart(option: str) -> str:
        base = machine.base(comparable(option))
        trained = machine.train(option, variant=comparable(option), timeout=400.0)
        return f"{near(base, trained, bounds[option]):.1g}"

    return each(bounds, apart)


@check()
def other_algorithms(machine: Machine) -> str:
    """The unedited host against `fast`."""

    def compared(variant: str) -> str:
        host = machine.train(host=machine.plain, variant=variant)
        return f"within {near(host, machine.train(variant=variant)):.2g}"

    return each(OTHERS, compared)


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
    device = [] if machine.cpu else ["--device", "cuda"]
    return benched(machine, "epoch_end", "--quick", *device)


def benched(machine: Machine, name: str, *words: str) -> str:
    """The tables that a benchmark prints. Raises Failed or OutOfTime with those that it has printed
    until then.
    """
    more = {"added": {**machine.seen(1), "PYTHONUNBUFFERED": "1"}}
    more["timeout"] = machine.time_left(400.0)
    result = python(None, f"scripts.bench.{name}", *words, **more)
    tables = "\n      ".join(["", *result.stdout.strip().splitlines()])
    if result.returncode:
        machine.time_left(1.0, tables)
        raise Failed(f"{end_of(result)}{tables}")
    return tables


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
