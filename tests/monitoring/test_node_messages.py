"""Each node of several says that it has joined and how it has ended; one alone says nothing."""

from __future__ import annotations

import sys

import pytest

from robomimic_ddp.config import env, launch_env, options
from robomimic_ddp.config.planning import plan
from robomimic_ddp.errors import Stopped
from robomimic_ddp.monitoring import node_messages

VARIABLES = {"MASTER_ADDR": "n", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "job"}


def lines_of(capsys, monkeypatch, error=None, gpus=0, restart=0, **variables):
    monkeypatch.setattr(sys, "__stderr__", sys.stderr)
    monkeypatch.setattr(env, "host_name", lambda: "gpu07")
    launch = launch_env.read_launch_env({**VARIABLES, **{k: str(v) for k, v in variables.items()}})
    made = plan.make_plan(
        launch, options.resolve(), visible_gpus=gpus, use_cuda=gpus > 0, batch_size=4
    )
    node = node_messages.NodeMessages(made, launch.node, launch.nodes)
    node.joined(restart)
    node.ended(error)
    node.ended(error)
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("error", "how"),
    [
        (Stopped(), "stopped on request"),
        (KeyboardInterrupt(), "stopped on request"),
        (ValueError("planted"), "failed"),
    ],
)
def test_the_first_rank_of_each_node_speaks_at_both_ends(error, how, capsys, monkeypatch):
    second = {"RANK": 4, "WORLD_SIZE": 8, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 4}
    said = lines_of(capsys, monkeypatch, error, 4, GROUP_RANK=1, GROUP_WORLD_SIZE=2, **second)
    assert said == [
        "robomimic-ddp: node 2 of 2 (gpu07) joined: ranks 4 to 7, 4 visible GPU(s)",
        f"robomimic-ddp: node 2 of 2 (gpu07) {how} after 0:00:00; the run's output is "
        "that of rank 0",
    ]


def test_the_launcher_need_not_number_nodes(capsys, monkeypatch):
    """srun exports no GROUP_RANK."""
    only = {"RANK": 2, "WORLD_SIZE": 3, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    first, _ = lines_of(capsys, monkeypatch, restart=1, **only)
    assert first == "robomimic-ddp: node 3 of 3 (gpu07) joined: rank 2, on the CPU, restart 1"


def test_the_first_node_has_the_output_itself(capsys, monkeypatch):
    first = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": 0}
    _, last = lines_of(capsys, monkeypatch, GROUP_WORLD_SIZE=2, **first)
    assert last == "robomimic-ddp: node 1 of 2 (gpu07) finished after 0:00:00"


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0},
        {"RANK": 5, "WORLD_SIZE": 8, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 4, "GROUP_RANK": 1},
    ],
)
def test_one_node_and_other_ranks_say_nothing(variables, capsys, monkeypatch):
    assert lines_of(capsys, monkeypatch, **variables) == []
