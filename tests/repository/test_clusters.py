"""The files for clusters: fields that a job needs to stop, save and resume, and commands that the
launcher understands.
"""

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
STOPPED = [75, 143]
"""Exit codes of `launch` after a stop, see docs/checkpoints.md."""
SET = "spec/template/spec/"
RANKS = SET + "replicatedJobs/node/template/"
RUNTIME = {
    SET + "failurePolicy/rules/stopped/action": "RestartJobSetAndIgnoreMaxRestarts",
    SET + "failurePolicy/rules/stopped/onJobFailureReasons": ["PodFailurePolicy"],
    RANKS + "spec/podFailurePolicy/rules/0/action": "FailJob",
    RANKS + "spec/podFailurePolicy/rules/0/onExitCodes/operator": "In",
    RANKS + "spec/podFailurePolicy/rules/0/onExitCodes/values": STOPPED,
    RANKS + "spec/template/spec/restartPolicy": "Never",
    RANKS + "spec/template/spec/terminationGracePeriodSeconds": 60,
}
JOB = {"spec/trainer/numNodes": NODES}
TASK = {
    "num_nodes": NODES,
    "resources/job_recovery/recover_on_exit_codes": STOPPED,
    "file_mounts/|data/mode": "MOUNT_CACHED",
    "config/kubernetes/pod_config/spec/terminationGracePeriodSeconds": 60,
}
"""Fields without which a job that is stopped does not save and start again."""


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((CLUSTERS / name).read_text(encoding="utf-8")))


def at(document: Any, path: str) -> Any:
    """The value at "a/b"; of a list the item with that name or number. "|" is a slash in a key."""
    for part in path.split("/"):
        if isinstance(document, list):
            named = {item.get("name", str(number)): item for number, item in enumerate(document)}
            document = named[part]
        else:
            document = document[part.replace("|", "/")]
    return document


@pytest.mark.parametrize(
    "file, expected", [("kubeflow.yaml", [RUNTIME, JOB]), ("skypilot.yaml", [TASK])]
)
def test_a_job_saves_and_starts_again(file: str, expected: list[dict[str, Any]]) -> None:
    for document, fields in zip(documents(file), expected, strict=True):
        assert {path: at(document, path) for path in fields} == fields


def test_a_training_job_names_its_runtime() -> None:
    runtime, job = documents("kubeflow.yaml")
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]


def kubernetes_command() -> str:
    """As Kubernetes starts it: it puts in what Trainer sets, and knows no shell."""
    variables = {"PET_NNODES": str(NODES), "PET_MASTER_ADDR": "node-0", "PET_MASTER_PORT": "29400"}
    words = at(documents("kubeflow.yaml")[1], "spec/trainer/command")
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
    assert f" train.output_dir={tmp_path}/runs" in done.stdout
    assert f"on each of {NODES} nodes" in done.stdout
