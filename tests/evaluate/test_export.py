"""`ckpt export`: the loader in its folder acts as the checkpoint, without this package."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from robomimic_ddp.commands.ckpt import contents
from robomimic_ddp.monitoring.records import evaluation
from tests.configs import make_config, write_config
from tests.hosts import Host, python, require_clean, torchrun
from tests.runs import load, run_directory

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
NORMALISED = {"train": {"action_config": {"actions": {"normalization": "min_max"}}}}
NORMALISED_BC = {"train": {**NORMALISED["train"], "hdf5_normalize_obs": True}}
ACTS = """
import sys

for name in ("robomimic_ddp", "tensorflow"):
    sys.modules[name] = None  # an import of it fails

import numpy
import robomimic.utils.file_utils as FileUtils
import torch
from load_policy import load_policy

read = [FileUtils.policy_from_checkpoint(ckpt_path=path)[0] for path in sys.argv[1:]]
policies = (load_policy(), *read)
config = policies[0].policy.global_config
draws = numpy.random.default_rng(0)
stacked = [config.train.frame_stack] if config.train.frame_stack > 1 else []
shapes = {"position": [3], "gripper": [1], "camera_image": [32, 32, 3]}
episode = [
    {name: 255 * draws.random(stacked + shape, "float32") for name, shape in shapes.items()}
    for step in range(12)
]
if config.algo_name != "diffusion_policy":
    for observations in episode:
        observations.pop("camera_image")
actions = []
for policy in policies:
    torch.manual_seed(0)
    policy.start_episode()
    actions.append(numpy.stack([policy(dict(observations)) for observations in episode]))
assert numpy.abs(actions[0]).max() > 1e-3 and numpy.ptp(actions[0], axis=0).max() > 1e-3
assert all(numpy.abs(actions[0] - others).max() <= 1e-6 for others in actions[1:])
print("alike")
"""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory, host_copy: Host, image_dataset: Path) -> dict[str, Path]:
    """Variant -> last.pth of a run: the first on one rank, the second on two."""
    written = {}
    for name, changes, start in (
        ("bc_rnn_gmm", NORMALISED_BC, python),
        ("diffusion_policy_images", NORMALISED, torchrun),
    ):
        folder = tmp_path_factory.mktemp(name)
        config = make_config(name, image_dataset, folder / "runs", changes)
        file = write_config(folder / "config.json", config)
        require_clean(start(host_copy, "robomimic.scripts.train", "--config", file))
        written[name] = run_directory(folder / "runs") / "last.pth"
    return written


@pytest.mark.parametrize(
    ("variant", "section"), [("bc_rnn_gmm", "nets"), ("diffusion_policy_images", "ema")]
)
def test_the_exported_loader_and_converted_averages_act_as_the_checkpoint(
    variant, section, checkpoints, plain_host, command, tmp_path
):
    from safetensors.torch import load_file, save_file

    source, folder = checkpoints[variant], tmp_path / "new/policy"
    code, out, err = command("ckpt", "export", source, folder)
    assert (code, err) == (0, "") and str(folder) in out
    weights, model = load_file(folder / "model.safetensors"), load(source)["model"]
    assert weights.keys() == model[section].keys()
    assert all(torch.equal(weights[key], model[section][key]) for key in weights)
    (tmp_path / "acts.py").write_text(ACTS)
    added = {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, folder, plain_host.folder)))}
    paths = [source]
    if section == "ema":
        paths.append(tmp_path / "averaged.pth")
        assert command("ckpt", "convert", source, "--ema", "-o", paths[1])[0] == 0
    done = python(None, "acts", *paths, added=added)
    assert done.stdout.endswith("alike\n"), done
    weights[f"{variant}.other"] = weights.popitem()[1]  # as of a net that this host does not build
    save_file(weights, folder / "model.safetensors")
    done = python(None, "acts", added=added)
    *_, line = done.stderr.splitlines()
    assert line.startswith("RuntimeError: ") and "put its folder first in PYTHONPATH" in line, done
    assert "Missing key" not in done.stderr


def test_the_model_card_says_what_the_run_knows(checkpoints, command, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(checkpoints["diffusion_policy_images"].parent, run)
    content = contents.read(run / "last.pth")
    result = {"kind": "result", "epoch": 2, "weights": contents.weights_digest(content, "last.pth")}
    result |= {"env": "walk", "episodes": 50, "checkpoint": "last.pth", "interval": [0.69, 0.9]}
    for weights, rate in ((result["weights"], 0.82), ("of others", 0.1)):
        log = {"Success_Rate": rate, "Return": 1.0, "Horizon": 5.0}
        evaluation.append(run, {**result, "weights": weights, "log": log})
    assert command("ckpt", "export", run / "last.pth", tmp_path / "policy")[0] == 0
    card = (tmp_path / "policy/README.md").read_text()
    for line in (
        "| algorithm | diffusion_policy |",
        "| data | data.hdf5 |",
        "| ranks | 2 (ddp, gloo) |",
        "| samples | 48, 8 in each step |",
        "| success in walk | 82.0% of 50 episodes (95 %: 69.0% to 90.0%) |",
    ):
        assert f"\n{line}\n" in card, card
    assert "10.0%" not in card and "after epoch 2" in card
    metadata = json.loads((tmp_path / "policy/metadata.json").read_text())
    assert metadata["weights"] == "ema" and metadata["shape_metadata"]["ac_dim"] == 4
