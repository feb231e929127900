"""The checks for two GPUs or more."""

from __future__ import annotations

import json

from scripts.gpu_check.checks import COMPRESSED, NEAR, ROUNDED, check, each, near
from scripts.gpu_check.machine import RLDS, Failed, Machine
from scripts.gpu_check.one_gpu import FAULT_SECONDS, OTHERS, comparable, ended
from tests.runs import epoch_logs, run_directory

COMM = (
    *("comm=fp16", "comm=bf16", "comm=powersgd:2", "kwargs={static_graph: true}"),
    *("kwargs={gradient_as_bucket_view: false, bucket_cap_mb: 1}", "compile=true"),
)


@check(gpus=2, needs=("robomimic", "tensorflow_datasets"))
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
    def compared(option: str) -> str:
        bound = ROUNDED if option.startswith("comm") else NEAR
        if "powersgd" in option:
            bound = COMPRESSED
        variant = comparable(option)
        trained = machine.train(option, ranks=2, variant=variant, timeout=400.0)
        return f"{near(machine.base(variant, ranks=2), trained, bound):.1g}"

    return each([option for option in COMM if not (machine.cpu and "compile" in option)], compared)


@check(gpus=2)
def faults_on_rank_1(machine: Machine) -> str:
    lines = []
    words = {"raise": "planted on purpose", "oom": "out of memory", "kill": "", "sleep": "rank 1"}
    for fault, word in words.items():
        options = ("timeout=30",) if fault == "sleep" else ()
        trained = machine.train(*options, ranks=2, fault=f"{fault}@1", may_fail=True)
        lines.append(f"{fault} {ended(trained, FAULT_SECONDS, word, 'rank')}")
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
