"""Two ranks on two pretend GPUs: where they compute, what they send, how often they wait."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from robomimic_ddp.config.options import Options
from robomimic_ddp.distributed.gradients import parallel
from robomimic_ddp.monitoring.records import history
from tests.configs import make_rlds_config, merged, write_config
from tests.hosts import FINISHED, python, require_clean, torchrun
from tests.pretend_cuda import ledger
from tests.pretend_cuda.job import ONE_GPU, THEN
from tests.pretend_cuda.log import read
from tests.runs import checkpoints, run_directory

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SAMPLED = 10
"""DDP measures its first steps with events that it waits for, and then every hundredth."""
STEPS = SAMPLED + 3
READS = 2
"""Numbers that a step reads from the GPU, each a wait: the loss and the gradients' norm."""
CHANGES = {"train": {"cuda": True, "num_epochs": 1}, "experiment": {"epoch_every_n_steps": STEPS}}

COMPILED = {"compile": "true"}
IN_TURN: list[dict[str, Any]] = [
    {},
    {"preset": "safe", "verify": False, "workers": "1"},
    COMPILED,
    {
        **{"precision": "bf16", "activation_checkpointing": True, "comm": "bf16"},
        "kwargs": {"static_graph": True, "gradient_as_bucket_view": False, "bucket_cap_mb": 0.1},
    },
    {"precision": "fp16", "accumulate": 2, "comm": "fp16", "lr_scaling": "linear"},
    {
        **{"preset": "max", "compile": "false", "batch": "global", "schedule": "samples"},
        **{"timeout": 60, "backend": "nccl", "sync_batchnorm": "true"},
        "kwargs": {"find_unused_parameters": True, parallel.BUFFERS[0]: True},
    },
    {
        **{"comm": "powersgd:1", "deterministic": True, "workers": "1", "debug": True},
        **{"loader": {"prefetch_factor": 3, "pin_memory": True}},
    },
]
"""Compiled without Inductor, which test_compiled.py has: dynamo's and autograd's graphs."""
RLDS = {
    **{"precision": "bf16", "comm": "powersgd:2", "skip_corrupt": "true"},
    "kwargs": {"bucket_cap_mb": 1},
}
SHARDED: list[dict[str, Any]] = [
    {"mode": "fsdp", "verify": False, "precision": "bf16"},
    {"mode": "fsdp", "verify": False, "fsdp_offload": True},
]
"""Without the proof: pretend GPUs compute nothing, and the start-up probe looks at numbers."""
DEAR = [COMPILED, *SHARDED]
"""These train without pictures."""
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
    run = {name for options in [*IN_TURN, RLDS, *SHARDED, TUNED] for name in options}
    assert run | set(ELSEWHERE) == set(Options.__dataclass_fields__)


def require_well(result, processes, gpus, options: list[Mapping[str, Any]]):
    """The job ended well; rank r touched gpus[r] alone; both sent the same; steps hardly waited; no
    draw was another rank's.
    """
    require_clean(result)
    assert result.stdout.count(FINISHED) == len(options), result
    assert [one.gpus for one in processes] == [[gpu] for gpu in gpus], "agents touch none"
    assert [len(one.trainings) for one in processes] == [len(options)] * 2
    for given, zero, one in zip(options, *(process.trainings for process in processes)):
        assert zero.nccl == one.nccl, given
        # The communicator and its first number come before anything that training sends.
        assert zero.nccl[:2] == ["form 2 ranks", "all_reduce 1 float32"], given
        assert len(zero.nccl) > 2 + STEPS, given
        assert len(zero.draws) >= 2 * STEPS and ledger.alike(zero.draws, one.draws) == [], given
        measured = given.get("accumulate", 1) * (SAMPLED + 1)
        waits = {*zero.waits[measured:], *one.waits[measured:]}
        if given.get("preset") == "safe" or "fsdp_offload" in given:
            continue  # the host's own waits, and the CPU's step
        # PowerSGD's hook of torch's waits for each bucket, of which each net has one.
        expected = {READS + 2 * str(given.get("comm")).startswith("powersgd")}
        if "accumulate" in given:  # of all micro-batches, when the last one is done
            expected = {0, READS * given["accumulate"]}
        assert waits == expected, (given, waits)


def test_options_in_turn_rlds_resuming_and_fine_tuning(job, config_file, demo_dataset, tmp_path):
    """Ranks see the GPUs in another order; then each its own alone. Checkpoints are of rank 0's.
    The last job is one of scripts/gpu_check.sh: all waits but for numbers that are read are errors.
    """
    host, of_rlds = "robomimic.scripts.train", "robomimic.scripts.train_rlds"
    config, without_pictures = (
        json.loads(config_file(variant, CHANGES).read_text())
        for variant in ("diffusion_policy_crops", "diffusion_policy")
    )
    configs = [
        merged(without_pictures if given in DEAR else config, {"ddp": given})
        for given in [*IN_TURN, *SHARDED]
    ]
    words: list[str] = []
    for number, made in enumerate(configs):
        own = {"train": {"output_dir": str(tmp_path / f"runs{number}")}}
        path = write_config(tmp_path / f"config{number}.json", merged(made, own))
        words += [host, "--config", str(path), THEN]
    rlds = make_rlds_config(demo_dataset, tmp_path / "rlds", CHANGES)
    words += [of_rlds, f"load_from={write_config(tmp_path / 'rlds.json', rlds)}"]
    words += [f"ddp.{name}={text}" for name, text in RLDS.items() if name != "kwargs"]
    words += [f"ddp.kwargs.{name}={value}" for name, value in RLDS["kwargs"].items()]
    own = {"train": {"output_dir": str(tmp_path / "runs0"), "num_epochs": 2}}
    resumed = write_config(tmp_path / "resumed.json", merged(config, own))
    words += [THEN, host, "--config", str(resumed), "--resume"]
    reordered = {"CUDA_VISIBLE_DEVICES": "1,0"}
    result, processes = job(*words, added=reordered)
    require_well(result, processes, [1, 0], [*IN_TURN, *SHARDED, RLDS, {}])
    for training in processes[0].trainings[len(IN_TURN) :][: len(SHARDED)]:
        sent = {call.split()[0] for call in training.nccl}
        assert {"all_gather", "reduce_scatter"} <= sent
    trained = run_directory(tmp_path / "runs0")
    plan = json.loads((trained / "ddp.json").read_text())["plan"]
    assert (plan["device"], plan["backend"]) == ("cuda:0", "cpu:gloo,cuda:nccl")
    steps = [line["epoch"] for line in history.read(trained) if line["phase"] == "train"]
    assert steps == [1, 2]

    tuned = {
        "train": {"output_dir": str(tmp_path / "tuned")},
        "experiment": {"ckpt_path": str(checkpoints(trained)["last.pth"])},
        "ddp": TUNED,
    }
    tune = write_config(tmp_path / "tune.json", merged(config, tuned))
    reports = tmp_path / "reports"
    reports.mkdir()
    words = reports, "strict", host, "--config", tune
    result, processes = job("tests.gpu.job", *words, added={ONE_GPU: "1"})
    require_well(result, processes, [0, 1], [TUNED])
    for path in reports.iterdir():
        reads = json.loads(path.read_text())["reads"]
        assert len(reads) > SAMPLED and {*reads} <= {1, 2}, "the loss and the gradients' norm"


def test_what_ddp_adds_to_a_step(job, config_file, tmp_path):
    """No wait: CQL reads many numbers back in each step, as many with two ranks as alone, and fewer
    by ours. One launch a parameter, into DDP's buckets, and no other. All after the first step, in
    which gradients are compared.
    """

    def words(algorithm: str, **options: str) -> list[Any]:
        folder = tmp_path / algorithm / "-".join(options.values())
        changes = {"train": {"output_dir": str(folder)}, "ddp": options}
        folder.mkdir(parents=True)
        made = json.loads(config_file(algorithm, CHANGES).read_text())
        config = write_config(folder / "config.json", merged(made, changes))
        return ["robomimic.scripts.train", "--config", config]

    diffusion = {mode: words("diffusion_policy", mode=mode) for mode in ("single", "ddp")}
    cql_alone = words("cql", preset="safe", mode="single")
    result, (process,) = job(*cql_alone, THEN, *diffusion["single"], start=python)
    require_clean(result)
    cql = words("cql", preset="safe"), words("cql", preset="fast")
    result, processes = job(*cql[0], THEN, *cql[1], THEN, *diffusion["ddp"])
    require_clean(result)
    zero, one = (process.trainings for process in processes)
    assert [training.nccl for training in zero] == [training.nccl for training in one]
    alone, safe, fast = (
        {number for training in trainings for number in training.waits[1:]}
        for trainings in (process.trainings[:1], *zip(zero[:2], one[:2]))
    )
    assert safe == alone and max(fast) < min(safe), (alone, safe, fast)

    checkpoint = checkpoints(run_directory(tmp_path / "diffusion_policy" / "ddp"))["last.pth"]
    parameters = torch.load(checkpoint, weights_only=True)["model"]["nets"]
    pairs = zip(process.trainings[-1].launches[1:], zero[-1].launches[1:])
    assert {two_ranks - single for single, two_ranks in pairs} == {len(parameters)}


def test_data_parallel_in_a_plain_process(job, config_file):
    """One process on both GPUs, in 16 bits."""
    changes = {"train": {"cuda": True, "num_epochs": 1}, "ddp": {"precision": "bf16"}}
    config = config_file("diffusion_policy_images", changes)
    words = "robomimic.scripts.train", "--config", config
    result, (process,) = job(*words, start=python)
    require_clean(result)
    (training,) = process.trainings
    assert process.gpus == [0, 1] and training.nccl[2].startswith("broadcast")


@pytest.mark.planted_fault
def test_each_generator_is_compared_by_itself(gpus, tmp_path):
    """One that is seeded alike on both ranks is named, whatever the others do."""
    added = {**gpus, "CUDA_VISIBLE_DEVICES": "0,1", "PRETEND_CUDA_LOG": str(tmp_path / "log")}
    result = torchrun(None, "tests.pretend_cuda.equal_streams", added=added)
    require_clean(result)
    named = {
        "the CPU": "torch's random state (CPU): ranks [0, 1] have the same",
        "the GPU": "torch's random state (GPU): ranks [0, 1] have the same",
        "numpy": "numpy's random state: ranks [0, 1] have the same",
        "Python": "Python's random state: ranks [0, 1] have the same",
        "none": "nothing",
    }
    for what, words in named.items():
        line = next(one for one in result.stdout.splitlines() if f"seeded {what}: " in one)
        assert words in line
    zero, one = (process.trainings for process in read(tmp_path))
    drawn = {
        what: {draw.split()[0] for draw in ledger.alike(first.draws, second.draws)}
        for what, first, second in zip(named, zero, one)
    }
    expected = {"the CPU": {"cpu"}, "the GPU": {"cuda"}}
    assert drawn == {what: expected.get(what, set()) for what in named}
