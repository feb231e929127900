"""Two ranks on two pretend GPUs: where they compute, what they send, how often they wait."""

from __future__ import annotations

import json

import pytest

from tests.configs import make_rlds_config, merged, write_config
from tests.hosts import FINISHED, python, require_clean
from tests.pretend_cuda.job import ONE_GPU
from tests.runs import checkpoints, run_directory

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

SAMPLED = 10
"""DDP measures its first steps with events that it waits for, and then every hundredth."""
STEPS = SAMPLED + 5
MOST_WAITS = 4
EPOCH = {"epoch_every_n_steps": STEPS}


def require_well(result, processes, gpus, micro_batches=1):
    """The job ended well; rank r touched gpus[r] alone; both sent the same; steps hardly waited."""
    require_clean(result)
    assert result.stdout.count(FINISHED) == 1, result
    assert [one.gpus for one in processes] == [[gpu] for gpu in gpus], "agents touch none"
    zero, one = processes
    assert zero.nccl == one.nccl
    # The communicator and its first number come before anything that training sends.
    assert zero.nccl[:2] == ["form 2 ranks", "all_reduce 1 float32"]
    assert len(zero.nccl) > 2 + STEPS
    measured = micro_batches * (SAMPLED + 1)
    assert max(zero.waits[measured:] + one.waits[measured:]) <= MOST_WAITS, processes


def test_hdf5_with_crops_fine_tuning_and_resuming(job, config_file, tmp_path):
    """GPUs in another order; then each rank sees its own alone. Checkpoints are of rank 0's GPU."""
    changes = {"train": {"cuda": True, "num_epochs": 1}, "experiment": EPOCH}
    config = config_file("diffusion_policy_crops", changes)
    reordered = {"CUDA_VISIBLE_DEVICES": "1,0"}
    train = "robomimic.scripts.train", "--config", config
    require_well(*job(*train, added=reordered), gpus=[1, 0])
    trained = run_directory(tmp_path / "runs")
    plan = json.loads((trained / "ddp.json").read_text())["plan"]
    assert (plan["device"], plan["backend"]) == ("cuda:0", "cpu:gloo,cuda:nccl")

    text = json.loads(config.read_text())
    options = {"precision": "fp16", "accumulate": 2, "comm": "bf16", "channels_last": True}
    tuned = {
        "train": {"output_dir": str(tmp_path / "tuned")},
        "experiment": {"ckpt_path": str(checkpoints(trained)["last.pth"])},
        "ddp": options,
    }
    tune = write_config(tmp_path / "tune.json", merged(text, tuned))
    own = {ONE_GPU: "1"}
    result, processes = job("robomimic.scripts.train", "--config", tune, added=own)
    require_well(result, processes, gpus=[0, 1], micro_batches=2)

    config = write_config(config, merged(text, {"train": {"num_epochs": 2}}))
    result, processes = job(*train, "--resume", added=reordered)
    require_well(result, processes, gpus=[1, 0])


def test_rlds(job, demo_dataset, tmp_path):
    changes = {"train": {"cuda": True, "num_epochs": 1}, "experiment": EPOCH}
    config = make_rlds_config(demo_dataset, tmp_path / "runs", changes)
    config = write_config(tmp_path / "config.json", config)
    words = f"load_from={config}", "ddp.precision=bf16", "ddp.comm=powersgd", "ddp.powersgd_start=3"
    require_well(*job("robomimic.scripts.train_rlds", *words), gpus=[0, 1])


def test_data_parallel_in_a_plain_process(job, config_file):
    """One process on both GPUs, in 16 bits."""
    changes = {"train": {"cuda": True, "num_epochs": 1}, "ddp": {"precision": "bf16"}}
    config = config_file("diffusion_policy_images", changes)
    words = "robomimic.scripts.train", "--config", config
    result, (process,) = job(*words, start=python)
    require_clean(result)
    assert process.gpus == [0, 1] and process.nccl[2].startswith("broadcast")
