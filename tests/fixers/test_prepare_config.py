"""The config made from the user's file."""

from __future__ import annotations

import pytest

from tests.fixers.support import check_edit, check_untouched


@pytest.mark.parametrize(
    "line",
    [
        "config = config_factory(args.algo)",
        "config = config_factory('bc')",
        "config = config_factory(ext_cfg['algo'])",
        "config = other_factory(ext_cfg['algo_name'])",
    ],
)
def test_leaves_configs_made_without_the_file(line):
    check_untouched("prepare_config", f"from robomimic.config import config_factory\n{line}\n")


@pytest.mark.parametrize(
    ("imports", "call", "external"),
    [
        (
            "from robomimic.config import config_factory",
            'config_factory(ext_cfg["algo_name"])',
            "ext_cfg",
        ),
        ("import robomimic.config as C", "C.config_factory(cfg['algo_name'], dic=None)", "cfg"),
        ("from robomimic.config import config_factory as make", 'make(j["algo_name"])', "j"),
    ],
)
def test_passes_both_through(imports, call, external):
    check_edit(
        "prepare_config",
        f"{imports}\n\ndef main(args):\n    config = {call}  # locked\n",
        f"{imports}\nimport robomimic_ddp.api as DDPUtils\n\ndef main(args):\n"
        f"    config = DDPUtils.prepare_config({call}, {external})  # locked\n",
    )
