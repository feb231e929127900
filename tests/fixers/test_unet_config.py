"""The sizes of the U-Net from the config, off unless asked for."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches.outcomes import AlreadyApplied, Unrecognised
from robomimic_ddp.patches.registry import all_fixers, select
from tests.fixers.support import IMPORT, check_edit, check_untouched, run

HEAD = "import robomimic.models.diffusion_policy_nets as DPNets\n"
CLASS = "class Policy(PolicyAlgo):\n    def _create_networks(self):\n        self.algo_config\n"
NAMES = ("diffusion_step_embed_dim", "down_dims", "kernel_size", "n_groups")
OURS = [f"{name}=self.algo_config.unet.{name}" for name in NAMES]


def test_is_off_by_default_and_says_what_it_means_for_checkpoints():
    fixer = all_fixers()["unet_config"]
    assert fixer not in select()
    assert fixer in select(with_=["unet_config"])
    assert "checkpoints" in fixer.note and "hosts with this edit" in fixer.note


@pytest.mark.parametrize(
    "text",
    [
        CLASS + "        net = DPNets.Transformer(input_dim=10)\n",
        "def test(): return DPNets.ConditionalUnet1D(10, 64)\n" + CLASS,
        "class ConditionalUnet1D:\n    def clone(self):\n        return ConditionalUnet1D(1, 2)\n",
    ],
)
def test_leaves_other_nets_and_other_places(text):
    check_untouched("unet_config", HEAD + text)


def test_leaves_a_host_that_honours_its_config():
    call = f"        net = DPNets.ConditionalUnet1D(10, 64, {', '.join(OURS)})\n"
    outcome, _ = run("unet_config", HEAD + IMPORT + CLASS + call)
    assert isinstance(outcome, AlreadyApplied)


def test_unpacked_arguments_are_not_guessed():
    call = "        net = DPNets.ConditionalUnet1D(**self.net_kwargs())\n"
    check_untouched("unet_config", HEAD + CLASS + call, Unrecognised)


@pytest.mark.parametrize("end", ["", ","])
def test_one_argument_a_line(end):
    before = f"""        net = DPNets.ConditionalUnet1D(
            input_dim=self.ac_dim,
            global_cond_dim=obs_dim*self.algo_config.horizon.observation_horizon{end}
        )
"""
    lines = ",\n            ".join(["observation_horizon", *OURS])
    after = before.replace(f"observation_horizon{end}", lines + end)
    check_edit("unet_config", HEAD + CLASS + before, HEAD + IMPORT + CLASS + after)


def test_all_on_one_line_with_a_size_of_its_own():
    """A size that the host gives by position stays the host's."""
    before = "        net = DPNets.ConditionalUnet1D(10, 64, 128)\n"
    after = f"        net = DPNets.ConditionalUnet1D(10, 64, 128, {', '.join(OURS[1:])})\n"
    check_edit("unet_config", HEAD + CLASS + before, HEAD + IMPORT + CLASS + after)


def test_a_net_of_the_same_file():
    """DROID's codebase defines the net beside the policy."""
    before = "        net = ConditionalUnet1D(input_dim=10, global_cond_dim=64)\n"
    after = before.replace("=64)", f"=64, {', '.join(OURS)})")
    net = "class ConditionalUnet1D(nn.Module):\n    pass\n"
    head = "import torch.nn as nn\n"
    check_edit("unet_config", head + net + CLASS + before, head + IMPORT + net + CLASS + after)
