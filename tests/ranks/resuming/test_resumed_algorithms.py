"""Algorithms with several optimizers, counters or parts, stopped inside an epoch and
continued: they end as the run that nothing interrupted, to the bit. See test_resumed_host.py.
"""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from robomimic_ddp.errors import EXIT_STOPPED
from tests.configs import make_config, merged, write_config
from tests.hosts import Host
from tests.ranks.hosted import job, require_finished
from tests.ranks.pool import RankPool
from tests.runs import newest, run_directory, state_differences
from tests.tiers import slow_but

pytestmark = pytest.mark.timeout(600)
OPTIMIZERS = {
    "bc_rnn_gmm": ("policy",),
    "bcq": ("action_sampler", "critic", "actor"),
    "cql": ("critic", "actor"),
    "iql": ("critic", "vf", "actor"),
    "td3_bc": ("critic", "actor"),
    "hbc": ("planner.goal_network", "actor.policy"),
}
"""Variant -> what has settings of an optimizer in `algo`."""
FAST = {"cql", "td3_bc", "hbc"}
HOLDS = ("/nets/", "/exp_avg", "/random/torch", "/lr_schedulers/", "/numbers/")


def with_schedules(variant: str) -> dict[str, Any]:
    """Every learning rate is halved after the first epoch; CQL steps its temperature, too."""
    rate = {"learning_rate": {"decay_factor": 0.5, "epoch_schedule": [1]}}
    changes: dict[str, Any] = {"critic": {"target_q_gap": 5.0}} if variant == "cql" else {}
    for name in OPTIMIZERS[variant]:
        *part, net = name.split(".")
        inner = {"optim_params": {net: rate}}
        changes = merged(changes, reduce(lambda value, key: {key: value}, part, inner))
    return {"algo": changes}


def settings(variant: str, dataset: Path, folder: Path) -> Path:
    folder.mkdir()
    config = make_config(variant, dataset, folder / "runs", with_schedules(variant))
    return write_config(folder / "config.json", config)


@pytest.mark.parametrize("variant", slow_but(FAST, OPTIMIZERS))
def test_stopped_inside_an_epoch_to_the_bit(
    variant: str, host_copy: Host, host_ranks: RankPool, low_dim_dataset: Path, tmp_path: Path
) -> None:
    """Ranks agree on the stop one step after the signal. TD3-BC trains its actor at every second
    step, counted over epochs: it is due at the next one.
    """
    states = []
    for name, plan in (("whole", "none"), ("stopped", "0@SIGUSR1:4")):
        folder = tmp_path / name
        call = (host_ranks, host_copy, folder, settings(variant, low_dim_dataset, folder), plan)
        if plan != "none":
            code, text = job(*call)
            assert code == EXIT_STOPPED, text
            assert newest(folder)["inside"]["steps"] == 2
            call = (*call, "--resume")
        require_finished(job(*call))
        outcome = json.loads((run_directory(folder / "runs") / "ddp.json").read_text())["outcome"]
        assert outcome["gradients_equal"] and outcome["noise_differs"]
        states.append(newest(folder))
    assert state_differences(*states, HOLDS) == []
    assert states[0]["steps"] == 6
