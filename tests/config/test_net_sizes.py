"""Which diffusion policies an unedited robomimic would not build."""

from __future__ import annotations

import pytest

from robomimic_ddp.config.host import net_sizes

OWN = [256, 512, 1024]


def shapes(sizes, prefix="policy.noise_pred_net."):
    last = ".0.blocks.0.block.0.weight"
    levels = [(f"{prefix}down_modules.{n}{last}", (size, 8, 5)) for n, size in enumerate(sizes)]
    return [("policy.obs_encoder.weight", (3, 4)), *reversed(levels)]


@pytest.mark.parametrize("prefix", ["", "policy.noise_pred_net.", "policy.noise_pred_net.module."])
def test_a_net_of_the_configs_sizes_is_named(prefix):
    note = net_sizes.note(shapes([128, 64], prefix), {"algo": {"unet": {"down_dims": [128, 64]}}})
    assert "down_dims [128, 64]" in note and "only in hosts with the edit unet_config" in note


def test_sizes_that_the_host_does_not_read_are_named():
    note = net_sizes.note(shapes(OWN), {"algo": {"unet": {"down_dims": [128, 64]}}})
    assert "own sizes (down_dims [256, 512, 1024])" in note and "down_dims [128, 64]" in note
    assert "--with unet_config" in note


@pytest.mark.bad_input
def test_names_and_sizes_of_strangers():
    deep = [("down_modules.%s.0.blocks.0.block.0.weight" % ("9" * 5000), (8,))]
    flat = [("down_modules.0.0.blocks.0.block.0.weight", ())]
    for found in (deep, flat, shapes([128])):
        assert net_sizes.note(found, {"algo": {"unet": {"down_dims": 7}}}) is None


@pytest.mark.parametrize(
    ("sizes", "config"),
    [
        (OWN, {"algo": {"unet": {"down_dims": OWN}}}),
        (OWN, {"algo": {"unet": {"down_dims": []}}}),
        ([16, 32], {"algo": {"unet": {"down_dims": OWN}}}),
        ([], {"algo": {"unet": {"down_dims": []}}}),
        ([128], "no config"),
    ],
)
def test_what_the_host_builds_by_itself_is_not(sizes, config):
    assert net_sizes.note(shapes(sizes), config) is None
