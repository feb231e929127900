"""Configurations that ship with the project, against the keys that hosts declare."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from robomimic_ddp.config.options import resolve
from tests.droid_host import droid_shaped
from tests.hosts import python

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.fixture(scope="module")
def droid() -> dict:
    return json.loads((CONFIGS / "droid_rlds.json").read_text())


def test_its_options_are_ours(droid):
    assert resolve({}, {}, droid["ddp"]).sources["lr_scaling"] == "file"


def test_it_is_consistent(droid):
    train = droid["train"]
    assert len(train["action_keys"]) == len(train["action_shapes"])
    assert set(train["action_keys"]) == set(train["action_config"])
    assert len(train["dataset_names"]) == len(train["sample_weights"])
    assert len(droid["observation"]["modalities"]["obs"]["rgb"]) == 2, "DROID's code takes two"
    crop = droid["observation"]["encoder"]["rgb"]["obs_randomizer_kwargs"][1]
    height, width = droid["observation"]["image_dim"]
    assert crop["crop_height"] < height and crop["crop_width"] < width


def test_a_host_of_droids_shape_takes_it(droid, tmp_path):
    """Locked keys and all, as its main() does after the edit; and it gets no keys of ours."""
    host = droid_shaped(tmp_path)
    (tmp_path / "prepares.py").write_text(
        "import json, sys\n"
        "from robomimic.config import config_factory\n"
        "import robomimic_ddp.api as DDPUtils\n"
        "given = json.load(open(sys.argv[1]))\n"
        "config = DDPUtils.prepare_config(config_factory(given['algo_name']), given)\n"
        "with config.values_unlocked():\n"
        "    config.update(given)\n"
        "print('KEPT', json.dumps(config))\n"
    )
    result = python(host, "prepares", CONFIGS / "droid_rlds.json")
    assert result.returncode == 0, result
    kept = json.loads(result.stdout.partition("KEPT ")[2])
    assert "data_cache_dir" not in kept["train"] and "ddp" not in kept
    given = {key: value for key, value in droid.items() if key != "ddp"}
    assert _holds(kept, given) == []


def _holds(kept: Mapping, given: Mapping, prefix: str = "") -> list[str]:
    """Paths of values of `given` that are not in `kept`."""
    faults = []
    for key, value in given.items():
        if isinstance(value, Mapping):
            faults += _holds(kept[key], value, f"{prefix}{key}.")
        elif kept[key] != value:
            faults.append(f"{prefix}{key}")
    return faults
