"""Two ranks on two pretend GPUs: where they compute, what they send, how often they wait."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from robomimic_ddp.config.options import Options
from robomimic_ddp.distributed.gradients import parallel
from robomimic_ddp.monitoring.records import history
from tests.configs import make_config, make_rlds_config, merged, write_config
from tests.hosts import FINISHED, python, require_clean
from tests.pretend_cuda import ledger
from tests.pretend_cuda.job import ONE_GPU, THEN
from tests.pretend_cuda.log import Process
from tests.runs import checkpoints, run_directory

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

HOST = "robomimic.scripts.train"
SAMPLED = 10
"""DDP measures its first steps with events that it waits for, and then every hundredth."""
STEPS = SAMPLED + 3
READS = 2
"""Numbers that a step reads from the GPU, each a wait: the loss and the gradients' norm."""
ON_GPU = {"train": {"cuda": True, "num_epochs": 1}, "experiment": {"epoch_every_n_steps": STEPS}}
SHORT = {"epoch_every_n_steps": 4}
IN_TURN: list[dict[str, Any]] = [
    {},
    {"precision": "fp16", "accumulate": 2, "comm": "fp16", "lr_scaling": "linear"},
    {
        **{"preset": "max", "compile": "false", "batch": "global", "schedule": "samples"},
        **{"timeout": 60, "backend": "nccl", "sync_batchnorm": "true"},
        "kwargs": {"find_unused_parameters": True, parallel.BUFFERS[0]: True},
    },
    {"mode": "fsdp", "verify": False, "precision": "bf16"},
]
"""FSDP without the proof: pretend GPUs compute nothing, and its probe looks at numbers."""
SELDOM: list[dict[str, Any]] = [
    {"preset": "safe", "verify": False, "workers": "1"},
    {
        **{"precision": "bf16", "activation_checkpointing": True, "comm": "bf16"},
        "kwargs": {"static_graph": True, "gradient_as_bucket_view": False, "bucket_cap_mb": 0.1},
    },
    {
        **{"comm": "powersgd:1", "deterministic": True, "workers": "1", "debug": True},
        **{"loader": {"prefetch_factor": 3, "pin_memory": True}},
    },
    {"compile": "true"},
    {"mode": "fsdp", "verify": False, "fsdp_offload": True},
]
"""Compiled without Inductor, which test_compiled.py has: dynamo's and autograd's graphs."""
RLDS = {
    **{"precision": "bf16", "comm": "powersgd:2", "skip_corrupt": "true"},
    "kwargs": {"bucket_cap_mb": 1},
}
TUNED = {
    **{"precision": "fp16", "comm": "bf16", "workers": "1"},
    "loader": {"persistent_workers": True},
}
ELSEWHERE = {
    "fsdp_replicas": "needs four ranks",
    "mode": "DDP here, DataParallel below",
    "resume": "by the host's flag, below",
    "trust_checkpoint": "looks at a file before anything is on a GPU",
    "save_seconds": "a time on the main rank's clock",
    "profile": "reads a GPU's clocks, which a pretended one does not have",
    "rollouts": "leaves out what runs between epochs",
    "language_model": "embeds instructions before training, on the CPU",
}


def test_each_option_is_here():
    run = {name for options in [*IN_TURN, *SELDOM, RLDS, TUNED] for name in options}
    assert run | set(ELSEWHERE) == set(Options.__dataclass_fields__)


class Ran(NamedTuple):
    """A job that ended well, in `folder`: what it printed, and what each process did."""

    folder: Path
    stdout: str
    processes: list[Process]


def words_of(config: Path, variant: str, dataset: Path, **changes: Any) -> list[Any]:
    """A training into the folder named as its `config`, and what separates it from the next."""
    content = make_config(variant, dataset, config.with_suffix(""), merged(ON_GPU, changes))
    return [HOST, "--config", write_config(config, content), THEN]


@pytest.fixture(scope="module")
def two_ranks(job, low_dim_dataset, tmp_path_factory) -> Ran:
    """`IN_TURN`, the first of them resumed, CQL's `SHORT` trainings, and tests.pretend_cuda.
    equal_streams. Ranks see the GPUs in another order.
    """
    folder = tmp_path_factory.mktemp("two-ranks")
    first = {"output_dir": str(folder / "runs0"), "num_epochs": 2}
    trainings = [
        *((f"runs{number}", "diffusion_policy", {"ddp": it}) for number, it in enumerate(IN_TURN)),
        ("resumed", "diffusion_policy", {"train": first}),
        ("safe", "cql", {"ddp": {"preset": "safe"}, "experiment": SHORT}),
        ("fast", "cql", {"ddp": {"preset": "fast"}, "experiment": SHORT}),
    ]
    words: list[Any] = []
    for name, variant, changes in trainings:
        words += words_of(folder / f"{name}.json", variant, low_dim_dataset, **changes)
        if name == "resumed":
            words.insert(-1, "--resume")
    words += ["tests.pretend_cuda.equal_streams"]
    result, processes = job(*words, added={"CUDA_VISIBLE_DEVICES": "1,0"})
    require_clean(result)
    assert result.stdout.count(FINISHED) == len(trainings), result
    return Ran(folder, result.stdout, processes)


@pytest.fixture(scope="module")
def one_process(job, low_dim_dataset, tmp_path_factory) -> Process:
    """Without torchrun: CQL and a diffusion policy on one GPU, then the latter on both."""
    folder, words = tmp_path_factory.mktemp("one-process"), []
    for variant, options in (
        ("cql", {"mode": "single", "preset": "safe"}),
        ("diffusion_policy", {"mode": "single"}),
        ("diffusion_policy", {"precision": "bf16"}),
    ):
        config, changes = folder / f"runs{len(words)}.json", {"ddp": options, "experiment": SHORT}
        words += words_of(config, variant, low_dim_dataset, **changes)
    result, (process,) = job(*words[:-1], start=python)
    require_clean(result)
    return process


def require_well(processes: list[Process], gpus: list[int], options: list[Mapping[str, Any]]):
    """In these trainings, a process's first, rank r touched gpus[r] alone; both sent the same;
    steps hardly waited; no draw was another rank's.
    """
    trainings = [process.trainings[: len(options)] for process in processes]
    touched = [
        [*process.gpus, *(gpu for training in own for gpu in training.gpus)]
        for process, own in zip(processes, trainings)
    ]
    assert touched == [[gpu] for gpu in gpus], "agents touch none"
    for given, zero, one in zip(options, *trainings):
        assert zero.nccl == one.nccl, given
        # The communicator and its first number come before anything that training sends.
        assert zero.nccl[:2] == ["form 2 ranks", "all_reduce 1 float32"], given
        assert len(zero.nccl) > 2 + STEPS, given
        assert len(zero.draws) >= 2 * STEPS and ledger.alike(zero.draws, one.draws) == [], given
        if given.get("mode") == "fsdp":
            assert {"all_gather", "reduce_scatter"} <= {call.split()[0] for call in zero.nccl}
        measured = given.get("accumulate", 1) * (SAMPLED + 1)
        waits = {*zero.waits[measured:], *one.waits[measured:]}
        if given.get("preset") == "safe" or "fsdp_offload" in given:
            continue  # the host's own waits, and the CPU's step
        # PowerSGD's hook of torch's waits for each bucket, of which each net has one.
        expected = {READS + 2 * str(given.get("comm")).startswith("powersgd")}
        if "accumulate" in given:  # of all micro-batches, when the last one is done
            expected = {0, READS * given["accumulate"]}
        assert waits == expected, (given, waits)


def test_options_in_turn_and_resuming(two_ranks):
    require_well(two_ranks.processes, [1, 0], [*IN_TURN, {}])
    trained = run_directory(two_ranks.folder / "runs0")
    plan = json.loads((trained / "ddp.json").read_text())["plan"]
    assert (plan["device"], plan["backend"]) == ("cuda:0", "cpu:gloo,cuda:nccl")
    steps = [line["epoch"] for line in history.read(trained) if line["phase"] == "train"]
    assert steps == [1, 2]


@pytest.mark.slow
def test_other_options_rlds_and_fine_tuning(job, image_dataset, demo_dataset, tmp_path):
    """With pictures. Then each rank sees its own GPU alone; the checkpoint is rank 0's. This job is
    one of scripts/gpu_check.sh: all waits but for numbers that are read are errors.
    """
    words = []
    for number, options in enumerate(SELDOM):
        config = tmp_path / f"runs{number}.json"
        words += words_of(config, "diffusion_policy_crops", image_dataset, ddp=options)
    rlds = make_rlds_config(demo_dataset, tmp_path / "rlds", ON_GPU)
    words += ["robomimic.scripts.train_rlds"]
    words += [f"load_from={write_config(tmp_path / 'rlds.json', rlds)}"]
    words += [f"ddp.{name}={text}" for name, text in RLDS.items() if name != "kwargs"]
    words += [f"ddp.kwargs.{name}={value}" for name, value in RLDS["kwargs"].items()]
    result, processes = job(*words)
    require_clean(result)
    require_well(processes, [0, 1], [*SELDOM, RLDS])

    trained = checkpoints(run_directory(tmp_path / "runs0"))["last.pth"]
    tuned = {"experiment": {"ckpt_path": str(trained)}, "ddp": TUNED}
    config = tmp_path / "tuned.json"
    words = words_of(config, "diffusion_policy_crops", image_dataset, **tuned)[:-1]
    reports = tmp_path / "reports"
    reports.mkdir()
    result, processes = job("tests.gpu.job", reports, "strict", *words, added={ONE_GPU: "1"})
    require_clean(result)
    require_well(processes, [0, 1], [TUNED])
    for path in reports.iterdir():
        reads = json.loads(path.read_text())["reads"]
        assert len(reads) > SAMPLED and {*reads} <= {1, 2}, "the loss and the gradients' norm"


def test_what_ddp_adds_to_a_step(one_process, two_ranks):
    """No wait: CQL reads many numbers back in each step, as many with two ranks as alone, and fewer
    by ours. One launch a parameter, into DDP's buckets, and no other. All after the first step, in
    which gradients are compared.
    """
    main, other = (process.trainings for process in two_ranks.processes)
    cql = slice(len(IN_TURN) + 1, len(IN_TURN) + 3)
    assert [training.nccl for training in main[cql]] == [training.nccl for training in other[cql]]
    alone, safe, fast = (
        {number for training in trainings for number in training.waits[1:]}
        for trainings in (one_process.trainings[:1], *zip(main[cql], other[cql]))
    )
    assert safe == alone and max(fast) < min(safe), (alone, safe, fast)

    checkpoint = checkpoints(run_directory(two_ranks.folder / "runs0"))["last.pth"]
    parameters = torch.load(checkpoint, weights_only=True)["model"]["nets"]
    pairs = zip(one_process.trainings[1].launches[1:], main[0].launches[1:])
    assert {two_ranks - single for single, two_ranks in pairs} == {len(parameters)}


def test_data_parallel_in_a_plain_process(one_process):
    """One process on both GPUs, in 16 bits."""
    *alone, parallel = one_process.trainings
    assert [training.gpus for training in alone] == [[0], []] and parallel.gpus == [1]
    assert parallel.nccl[2].startswith("broadcast")


@pytest.mark.planted_fault
def test_each_generator_is_compared_by_itself(two_ranks):
    """One that is seeded alike on both ranks is named, whatever the others do."""
    named = {
        "the CPU": "torch's random state (CPU): ranks [0, 1] have the same",
        "the GPU": "torch's random state (GPU): ranks [0, 1] have the same",
        "numpy": "numpy's random state: ranks [0, 1] have the same",
        "Python": "Python's random state: ranks [0, 1] have the same",
        "none": "nothing",
    }
    for what, words in named.items():
        line = next(one for one in two_ranks.stdout.splitlines() if f"seeded {what}: " in one)
        assert words in line
    main, other = (process.trainings[-len(named) :] for process in two_ranks.processes)
    drawn = {
        what: {draw.split()[0] for draw in ledger.alike(first.draws, second.draws)}
        for what, first, second in zip(named, main, other)
    }
    expected = {"the CPU": {"cpu"}, "the GPU": {"cuda"}}
    assert drawn == {what: expected.get(what, set()) for what in named}
