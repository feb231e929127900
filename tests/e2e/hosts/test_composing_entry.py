"""A host whose entry, EMA and keys differ: `train_rlds.py` composes a YAML with Hydra,
`EMAModel(model=nets)` is written for another diffusers than the installed one, and `train.data` is
empty where another key names the data.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from robomimic_ddp.checkpoint import state_file
from tests.configs import make_config, merged, write_config
from tests.hosts import Host, apply, copy_host, python, require_clean, torchrun
from tests.runs import load, run_directory

pytest.importorskip("hydra", reason="the oldest OmegaConf that we test with is older than Hydra's")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

ENTRY = '''"""Train from train_configs/train_rlds.yaml."""
import json
import os
import sys
import traceback

from omegaconf import OmegaConf


def run(cfg):
    import robomimic.utils.torch_utils as TorchUtils
    from robomimic.config import config_factory
    from robomimic.scripts.train import train

    load_from = OmegaConf.select(cfg, "load_from")
    if load_from:
        with open(load_from, "r") as f:
            cfg = OmegaConf.create(json.load(f))
    settings = OmegaConf.to_container(cfg, resolve=True)
    settings.pop("load_from", None)
    config = config_factory(settings["algo_name"])
    with config.values_unlocked():
        config.update(settings)
    config.lock()
    train(config, device=TorchUtils.get_torch_device(try_to_use_cuda=config.train.cuda))


def main():
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "train_configs")
    GlobalHydra.instance().clear()
    with initialize_config_dir(config_dir=folder, version_base="1.1"):
        cfg = compose(config_name="train_rlds", overrides=list(sys.argv[1:]))
    res_str = "finished run successfully!"
    try:
        run(cfg)
    except Exception as e:
        res_str = "run failed with error:\\n{}\\n\\n{}".format(e, traceback.format_exc())
    print(res_str)


if __name__ == "__main__":
    main()
'''
AVERAGE = (
    (
        "ema, ema_nets = _create_ema(nets, power=self.algo_config.ema.power)",
        "ema = EMAModel(model=nets, power=self.algo_config.ema.power)",
    ),
    ("import _create_ema, _restore_ema, _step_ema\n", "import EMAModel\n"),
    ("_step_ema(self.ema, self.ema_nets, self.nets)", "self.ema.step(self.nets)"),
    ("nets = self.ema_nets", "nets = self.ema.averaged_model"),
    ("self.ema_nets.state_dict()", "self.ema.averaged_model.state_dict()"),
    (
        '_restore_ema(self.ema, self.ema_nets, model_dict["ema"])',
        'self.ema.averaged_model.load_state_dict(model_dict["ema"])',
    ),
    ("from robomimic.utils.diffusion_utils import", "from diffusers.training_utils import"),
)
DATA = (
    (
        "config/base_config.py",
        "        self.train.data = ",
        "        self.train.data_prior = None\n",
    ),
    (
        "scripts/train.py",
        "    # first set seeds\n",
        """    with config.values_unlocked():
        config.train.data = [{"path": config.train.data_prior}]
""",
    ),
)
"""File, a line of it, and what is inserted in front of that."""
SMALL = {
    "experiment": {"validate": False, "epoch_every_n_steps": 2},
    "train": {"num_epochs": 1, "hdf5_validation_filter_key": None, "data": None},
}


def replace(path: Path, old: str, new: str) -> None:
    """Replaces the only `old` of a file."""
    text = path.read_text()
    assert text.count(old) == 1, f"{path} has changed: {old!r} was expected once"
    path.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, low_dim_dataset: Path) -> Host:
    """Edited."""
    made = copy_host(tmp_path_factory.mktemp("composing"))
    for old, new in AVERAGE:
        replace(made.package / "algo" / "diffusion_policy.py", old, new)
    for name, before, text in DATA:
        replace(made.package / name, before, text + before)
    (made.package / "scripts" / "train_rlds.py").write_text(ENTRY)
    config = make_config("diffusion_policy", low_dim_dataset, Path("unset"), SMALL)
    config["train"]["data_prior"] = str(low_dim_dataset)
    configs = made.package / "scripts" / "train_configs"
    configs.mkdir()
    (configs / "base.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
    (configs / "train_rlds.yaml").write_text(
        "defaults:\n  - base\n\nload_from: null\ntrain:\n  batch_size: 3\n  seed: 11\n"
    )
    return apply(made)


def config_of(output: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    directory = run_directory(output)
    config = json.loads((directory / "config.json").read_text())
    return config, json.loads((directory / "ddp.json").read_text())


def test_two_ranks_train_from_the_yaml(host: Host, tmp_path: Path) -> None:
    words = [f"train.output_dir={tmp_path}", "train.batch_size=2", "ddp.lr_scaling=sqrt"]
    result = torchrun(host, "robomimic.scripts.train_rlds", *words)
    require_clean(result)
    config, record = config_of(tmp_path)
    assert (config["train"]["batch_size"], config["train"]["seed"]) == (2, 11)
    assert "ddp" not in config and "load_from" not in config
    assert record["options"]["lr_scaling"] == "sqrt" and record["plan"]["samples_per_step"] == 4
    state = state_file.read_file(run_directory(tmp_path) / "ddp_state.pth")["model"][""]
    assert state["ema"]["numbers"]["optimization_step"] == 2
    exported = load(run_directory(tmp_path) / "last.pth")["model"]["ema"]
    averaged = state["ema"]["averaged_model"]
    assert exported.keys() == averaged.keys()
    assert all((exported[name] == averaged[name]).all() for name in exported)


def test_one_process_and_a_file_over_the_yaml(
    host: Host, low_dim_dataset: Path, tmp_path: Path
) -> None:
    """load_from over the YAML, the command line over both."""
    changes = merged(SMALL, {"train": {"batch_size": 5, "seed": 12}})
    changes["train"]["data_prior"] = str(low_dim_dataset)
    config = make_config("diffusion_policy", low_dim_dataset, tmp_path / "runs", changes)
    file = write_config(tmp_path / "config.json", config)
    words = [f"load_from={file}", "train.batch_size=2"]
    require_clean(python(host, "robomimic.scripts.train_rlds", *words))
    found, _ = config_of(tmp_path / "runs")
    assert (found["train"]["batch_size"], found["train"]["seed"]) == (2, 12)


@pytest.mark.bad_input
def test_a_mistyped_key_is_hydras_error(host: Host, tmp_path: Path) -> None:
    words = [f"train.output_dir={tmp_path}", "train.batchsize=2"]
    result = python(host, "robomimic.scripts.train_rlds", *words)
    assert result.returncode == 1, result
    assert "Could not override 'train.batchsize'" in result.stderr
