"""Faults of hosts' own, named and left alone; each beside the code that does not have it."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from robomimic_ddp.patches.host.hosts import find_host
from robomimic_ddp.patches.host.known_faults import find_known_faults
from tests.patches.support import append, snapshot

LOAD = """
def load(config):
    path = os.path.expanduser({path})
    return [item["path"] for item in config.train.data]
"""
EPOCH = """
def run_epoch(model, loader, num_steps=None):
    {first}
    for _ in range(num_steps):
        pass
    return {result}
"""
VALIDATE = "\nlog = TrainUtils.run_epoch(model, loader, validate=True)\n"
CONFIG = "self.algo.unet.down_dims = [256]\n"
VAE = "class VAE:\n    def sample_prior(self, {}, conditions=None, goals=None):\n        pass\n"
PLANNER = """
def subgoals(self, obs):
    if use_prior_correction:
        prior = self.nets["goal_network"].sample_prior({n}conditions=obs)
    if self.global_config.algo.latent_subgoal.enabled:
        return self.nets["goal_network"].sample_prior({n}conditions=obs, goals=None)
"""
RANDOM = """
def process_batch_for_training(self, batch):
    if self.algo_config.actor_use_random_subgoals:
        goal_obs = TensorUtils.gather_sequence(batch["next_obs"], indices)
        goal_obs = TensorUtils.to_float(goal_obs)
        goal = self.planner.get_actor_goal_for_training_from_processed_batch({})
"""


def faults(host) -> list[str]:
    return [str(fault) for fault in find_known_faults(find_host(str(host)))]


def test_a_host_without_them(host):
    assert faults(host) == []
    (host / "utils/train_utils.py").write_text("def broken(:\n")
    assert faults(host) == []


@pytest.mark.parametrize(
    ("path", "text", "other", "found"),
    [
        (
            "utils/train_utils.py",
            LOAD.format(path="config.train.data"),
            LOAD.format(path="config.train.data[0]"),
            "train_utils.py:17: experiment.validate=true fails here: train.data is a list",
        ),
        (
            "utils/train_utils.py",
            EPOCH.format(first="pass", result="{}"),
            EPOCH.format(first="num_steps = num_steps or len(loader)", result="{}"),
            "train_utils.py:18: epoch_every_n_steps=null",
        ),
        (
            "utils/rlds_utils.py",
            "class Set:\n    def __len__(self):\n        return np.sum(self.lengths)\n",
            "import numpy as np\ndef total(x):\n    return np.sum(x)\n",
            "utils/rlds_utils.py:3: __len__ uses np",
        ),
        (
            "algo/net.py",
            "net = ConditionalUnet1D(input_dim=3)\n",
            "net = ConditionalUnet1D(input_dim=3, down_dims=config.unet.down_dims)\n",
            "algo/net.py:1: algo.unet.down_dims",
        ),
        (
            "scripts/train_rlds.py",
            "cfg = OmegaConf.create(json.load(f))\n",
            "cfg = OmegaConf.merge(cfg, OmegaConf.create({}))\n",
            "scripts/train_rlds.py:1: load_from replaces",
        ),
        (
            "algo/bc.py",
            "def train_on_batch(self):\n    return self.nets['policy'].module.nets['obs'](x)\n",
            "def get_action(self):\n    return self.nets['policy'].module.nets['obs'](x)\n",
            "algo/bc.py:2: the training step reaches nets inside a wrapped net",
        ),
        (
            "scripts/train_second.py",
            "import torch\nimport tensorflow as tf\nimport robomimic\n",
            "import torch\nimport torchvision.ops\nfrom tensorflow import data\n",
            "scripts/train_second.py:2: tensorflow is imported before triton",
        ),
    ],
    ids=["validate", "num_steps", "numpy", "unet", "load_from", "past the wrapper", "triton"],
)
def test_each_is_named_with_its_line(host, path, text, other, found):
    append(host / "config/diffusion_policy_config.py", CONFIG)
    plain = (host / path).read_text() if (host / path).exists() else ""
    append(host / path, other)
    assert faults(host) == []
    (host / path).write_text(plain + text)
    (fault,) = faults(host)
    assert found in fault


def test_a_log_that_is_a_tuple(host):
    append(host / "scripts/train.py", VALIDATE)
    assert faults(host) == []
    append(
        host / "utils/train_utils.py",
        EPOCH.format(first="num_steps = num_steps or 1", result="{}, iterator"),
    )
    (fault,) = faults(host)
    assert fault.startswith("scripts/train.py:23: experiment.validate=true fails here: run_epoch")


def test_status_names_them_and_apply_leaves_them(host, command):
    append(host / "utils/train_utils.py", LOAD.format(path="config.train.data"))
    out = command("status", host)[1]
    assert "faults of the host's own, which robomimic-ddp leaves as they are:" in out
    assert "utils/train_utils.py:17: experiment.validate=true" in out
    assert command("apply", host)[0] == 0
    assert (
        "os.path.expanduser(config.train.data)"
        in snapshot(host)["utils/train_utils.py"][0].decode()
    )


@pytest.mark.parametrize(("given", "found"), [("False", True), ("args.resume", False)])
def test_a_flag_to_resume_that_has_no_effect(host, given, found):
    append(host / "scripts/train.py", f"    train(config, device=None, resume={given})\n")
    append(host / "scripts/train.py", "parser.add_argument('--resume', action='store_true')\n")
    reported = [fault for fault in faults(host) if "--resume has no effect" in fault]
    assert [fault.partition(": ")[0] for fault in reported] == ["scripts/train.py:22"] * found


def test_samples_of_a_prior_without_their_number(host):
    append(host / "models/vae_nets.py", VAE.format("n"))
    append(host / "algo/gl.py", PLANNER.format(n="n=2, "))
    assert faults(host) == []
    append(host / "algo/gl.py", PLANNER.format(n=""))
    acts, trains = sorted(faults(host), key=lambda fault: "prior_correction" in fault)
    assert trains.startswith("algo/gl.py:10: algo.latent_subgoal.prior_correction.enabled=true")
    assert acts.startswith("algo/gl.py:12: algo.latent_subgoal.enabled=true: HBC fails here when")
    (host / "models/vae_nets.py").write_text(VAE.format("n=None"))
    assert faults(host) == []


def test_random_subgoals_that_are_no_processed_batch(host):
    append(host / "algo/hbc.py", RANDOM.format("dict(target_subgoals=goal_obs)"))
    assert faults(host) == []
    append(host / "algo/hbc.py", RANDOM.format("goal_obs, use_latent_subgoals=False"))
    (fault,) = faults(host)
    assert fault.startswith("algo/hbc.py:12: algo.actor_use_random_subgoals=true fails here in HBC")


LATENT = {"latent_subgoal": {"enabled": True}}
CORRECTED = {"latent_subgoal": {"enabled": True, "prior_correction": {"enabled": True}}}


@pytest.mark.parametrize(
    ("settings", "fault", "error"),
    [
        ({"actor_use_random_subgoals": True}, "actor_use_random_subgoals", "target_subgoals"),
        (CORRECTED, "latent_subgoal.prior_correction", "'n'"),
        ({**LATENT, "mode": "cascade"}, "latent_subgoal.enabled", "'n'"),
    ],
)
def test_the_installed_hbc_fails_where_status_says(settings, fault, error, config_file):
    algo = pytest.importorskip("robomimic.algo", reason="praxis-robomimic is not installed")
    model, batch = _hbc(algo, config_file("hbc", {"algo": settings}))
    with pytest.raises((KeyError, TypeError), match=error) as caught:
        model.train_on_batch(model.process_batch_for_training(batch), epoch=1)
    named = find_known_faults(find_host(str(Path(algo.__file__).parents[1])))
    (line,) = (one.line for one in named if one.what.startswith(f"algo.{fault}"))
    assert line in [frame.lineno for frame in traceback.extract_tb(caught.tb)]


def test_the_installed_hbc_trains_without_them(config_file):
    algo = pytest.importorskip("robomimic.algo", reason="praxis-robomimic is not installed")
    model, batch = _hbc(algo, config_file("hbc"))
    model.train_on_batch(model.process_batch_for_training(batch), epoch=1)


def _hbc(algo, settings):
    """The host's HBC and a batch for it."""
    import robomimic.utils.obs_utils as ObsUtils
    import torch

    from robomimic_ddp import train_rlds
    from tests.datasets import ACTION_DIM, LOW_DIM

    config, _ = train_rlds.build_config([f"load_from={settings}"])
    ObsUtils.initialize_obs_utils_with_config(config)
    shapes = {name: [size] for name, size in LOW_DIM.items()}
    where = {"ac_dim": ACTION_DIM, "device": torch.device("cpu")}
    model = algo.algo_factory("hbc", config, obs_key_shapes=shapes, **where)
    model.set_train()
    batch = {"actions": torch.zeros(2, 5, ACTION_DIM)}
    for name in ("obs", "next_obs"):
        batch[name] = {key: torch.zeros(2, 5, size) for key, size in LOW_DIM.items()}
    return model, batch
