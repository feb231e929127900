"""Every algorithm of the host through its own entry on two ranks, and what a step sends."""

from __future__ import annotations

import json
import math
from typing import Any
from unittest import mock

import pytest
import torch

from tests.configs import VARIANTS, ConfigMaker
from tests.hosts import Host
from tests.parity import training
from tests.ranks.hosted import job, require_finished
from tests.ranks.pool import RankPool
from tests.runs import epoch_logs, run_directory
from tests.tiers import slow_but

pytestmark = pytest.mark.timeout(300)
OTHERS = [name for name, (algo, _) in VARIANTS.items() if algo != "diffusion_policy"]
"""All are in tests/parity/test_algorithms.py, and some in test_resumed_algorithms.py."""


@pytest.mark.parametrize("variant", slow_but({"bcq", "iris"}, OTHERS))
def test_two_ranks_prove_that_gradients_are_equal(
    variant: str, host_copy: Host, host_ranks: RankPool, config_file: ConfigMaker, tmp_path: Any
) -> None:
    """CQL steps its temperature after a plain backward(). All learning rates are scaled."""
    tuned = {"algo": {"critic": {"target_q_gap": 5.0}}} if variant == "cql" else {}
    added, config = {"ROBOMIMIC_DDP_LR_SCALING": "linear"}, config_file(variant, tuned)
    text = require_finished(job(host_ranks, host_copy, tmp_path, config, "none", added=added))
    assert "(x 2); ddp.lr_scaling=linear" in text and "does not reach" not in text
    assert "gradients: " in text and "find_unused_parameters" not in text
    directory = run_directory(tmp_path / "runs")
    outcome = json.loads((directory / "ddp.json").read_text())["outcome"]
    expected = {"steps": 6, "gradients_equal": True, "noise_differs": True}
    assert expected.items() <= outcome.items()
    assert {("Train", 2), ("Validation", 2)} <= set(epoch_logs(directory))


def test_a_hierarchical_algorithm_trains_where_data_parallel_would_be_chosen(
    host_copy: Host, host_ranks: RankPool, config_file: ConfigMaker, tmp_path: Any
) -> None:
    """On a workstation with two GPUs plain python selects DataParallel, for every algorithm."""
    options = {"ranks": 1, "launched": False, "added": {"ROBOMIMIC_DDP_MODE": "dp"}}
    done = job(host_ranks, host_copy, tmp_path, config_file("hbc"), "none", **options)
    assert "mode: one device" in require_finished(done)
    assert ("Train", 2) in epoch_logs(run_directory(tmp_path / "runs"))


def sent_in_each_step(job: training.Job) -> tuple[list[int], int, int]:
    """Collective: numbers given to gloo in each step's all-reduces, those that are trained, and
    the most flags beside them: one for each parameter, and two for an optimizer's unused number.
    """
    real, steps, models = training.one_step, [], []

    def one_step(model: Any, *call: Any) -> float | None:
        models.append(model)
        with torch.profiler.profile(record_shapes=True) as profile:
            loss = real(model, *call)
        made = [event for event in profile.events() if event.name == "gloo:all_reduce"]
        steps.append(sum(math.prod(shape) for event in made for shape in event.input_shapes))
        return loss

    with mock.patch.object(training, "one_step", one_step):
        training.train_on_rank(job)
    optimizers = [optimizer for _, optimizer in training.optimizers_of(models[0])]
    groups = [entry for optimizer in optimizers for entry in optimizer.param_groups]
    trained = [one.numel() for entry in groups for one in entry["params"]]
    return steps, sum(trained), len(trained) + 2 * len(optimizers)


@pytest.mark.parametrize("variant", ["cql", "td3_bc"])
def test_a_step_sends_what_is_trained_and_a_flag_for_each_parameter(
    variant: str, host_copy: Host, host_ranks: RankPool, config_file: ConfigMaker
) -> None:
    """CQL's two weights too. TD3-BC's actor is trained, and sent, at every second step, with the
    mean that weighs its loss.
    """
    settings = config_file(variant, {"ddp": {"verify": False}})
    job = training.Job(str(host_copy.folder), str(settings), 2)
    steps, trained, flags = host_ranks.run(sent_in_each_step, job, timeout=120)[0]
    means = variant == "td3_bc"
    assert trained <= max(steps) <= trained + flags + means
    assert steps[0] < steps[1] if means else steps[0] == steps[1]
