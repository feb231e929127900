"""The files for clusters have commands that the launcher understands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.hosts import ROOT

CLUSTERS = ROOT / "configs" / "clusters"
NODES = 2


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((CLUSTERS / name).read_text(encoding="utf-8")))


def kubernetes_command() -> str:
    """As Kubernetes starts it: it puts in what Trainer sets, and knows no shell."""
    variables = {"PET_NNODES": str(NODES), "PET_MASTER_ADDR": "node-0", "PET_MASTER_PORT": "29400"}
    words = documents("kubeflow.yaml")[1]["spec"]["trainer"]["command"]
    return " ".join(re.sub(r"\$\((\w+)\)", lambda name: variables[name[1]], w) for w in words)


def skypilot_command() -> str:
    return documents("skypilot.yaml")[0]["run"]


@pytest.mark.parametrize("command", [kubernetes_command, skypilot_command])
def test_the_launcher_understands_the_command(command: Callable[[], str], tmp_path: Path) -> None:
    """All nodes meet at the first one, and the run is resumed in the shared folder."""
    train = {"batch_size": 8, "output_dir": "elsewhere"}
    config = {"algo_name": "bc", "experiment": {"name": "job"}, "train": train}
    (tmp_path / "cfg.json").write_text(json.dumps(config))
    program = tmp_path / "robomimic-ddp"
    program.write_text(
        f'#!/bin/sh\nshift\nexec {sys.executable} -m robomimic_ddp launch --dry-run "$@"\n'
    )
    program.chmod(0o755)
    variables = {
        **os.environ,
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SKYPILOT_NUM_NODES": str(NODES),
        "SKYPILOT_NODE_IPS": "node-0\nnode-1",
    }
    text = command().replace("/data", str(tmp_path))
    done = subprocess.run(["bash", "-c", text], env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"--nnodes={NODES} --rdzv_backend=c10d --rdzv_endpoint=node-0:29400 " in done.stdout
    assert f" load_from={tmp_path}/cfg.json ddp.resume=auto " in done.stdout
    assert (
        f"runs: {tmp_path}/runs/job" in done.stdout and f"on each of {NODES} nodes" in done.stdout
    )
