"""Faults of hosts' own, named and left alone; each beside the code that does not have it."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches.hosts import find_host
from robomimic_ddp.patches.known_faults import find_known_faults
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
    told = [fault for fault in faults(host) if "--resume has no effect" in fault]
    assert [fault.partition(": ")[0] for fault in told] == ["scripts/train.py:22"] * found
