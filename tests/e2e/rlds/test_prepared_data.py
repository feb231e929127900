"""`inspect-data --config` and `prepare-data` on two ranks print one report, and one error, where
TensorFlow is not installed.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("tensorflow_datasets", reason="the extra [rlds] is not installed")

from tests.hosts import NO_TENSORFLOW, python, torchrun
from tests.rlds.conftest import ACTIONS, CAMERAS, STATES, write
from tests.rlds.damages import flip

pytestmark = pytest.mark.slow


def run(*words: Any, start: Any = torchrun, code: int = 0) -> str:
    options = {"cold": True, "added": NO_TENSORFLOW, "timeout": 300}
    result = start(None, "robomimic_ddp", *words, **options)
    assert bool(result.returncode) == bool(code) and not result.leftovers, result
    return result.stdout + result.stderr


def test_two_ranks_print_one_report_and_one_error(tmp_path):
    """That they share the files of a prepared set: tests/rlds/reading/test_prepare_data.py."""
    source = write(tmp_path / "data")
    modalities = {"obs": {"rgb": [CAMERAS[0]], "low_dim": [STATES[0]]}}
    config = {
        "train": {
            "data_format": "droid_rlds",
            "data_path": str(tmp_path / "data"),
            "dataset_names": ["made_up"],
            "action_keys": list(ACTIONS),
            "action_config": {key: {"normalization": "min_max"} for key in ACTIONS},
        },
        "observation": {"image_dim": [12, 20], "modalities": modalities},
        "experiment": {"validate": False},
        "algo_name": "bc",
    }

    def with_cache(name):
        config["train"]["data_cache_dir"] = str(tmp_path / name)
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(config))
        return path

    of_one_process = run("inspect-data", "--config", with_cache("one"), start=python)
    of_two_ranks = run("inspect-data", "--config", with_cache("two"))
    rows = [line for line in of_one_process.splitlines() if line.startswith(("abs_", "gripper"))]
    assert len(rows) == 10 and [of_two_ranks.count(line) for line in rows] == [1] * 10
    flip(6)(source)
    for words in (
        ["inspect-data", "--config", with_cache("three")],
        ["prepare-data", source, tmp_path / "out", "--size", "12x20", "--workers", "1"],
    ):
        said = run(*words, code=1)
        assert said.count("tfrecord-00006: the episode at byte 0 cannot be used") == 1, said
