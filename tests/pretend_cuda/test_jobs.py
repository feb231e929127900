"""Two ranks on two pretend GPUs: where they compute, what they send, how often they wait."""

from __future__ import annotations

import pytest

from tests.hosts import require_clean

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


def test_hdf5(job, config_file):
    config = config_file("diffusion_policy_crops", {"train": {"cuda": True}})
    result, processes = job(
        "robomimic.scripts.train", "--config", config, added={"CUDA_VISIBLE_DEVICES": "1,0"}
    )
    print(result, processes)
    require_clean(result)
    assert [one.gpus for one in processes] == [[1], [0]]
