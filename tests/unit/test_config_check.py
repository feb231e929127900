"""What is refused in a config is what the host refuses too; what trains there passes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from robomimic_ddp import config_check, host_config
from robomimic_ddp.errors import ConfigError

host_package = Path(pytest.importorskip("robomimic").__file__).parent
TEMPLATES = sorted((host_package / "exps" / "templates").glob("*.json"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_the_hosts_own_templates_are_judged_as_the_host_judges_them(path):
    from robomimic.config import config_factory

    settings = json.loads(path.read_text())
    config = config_factory(settings["algo_name"])
    try:
        with config.values_unlocked():
            config.update(settings)
    except RuntimeError:  # a template that has fallen behind its config
        with pytest.raises(ConfigError, match="unknown key"):
            host_config.prepare_config(config_factory(settings["algo_name"]), settings)
        return
    host_config.prepare_config(config_factory(settings["algo_name"]), settings)
    config_check.require_possible(config)


@pytest.mark.parametrize("frames, steps, fits", [(2, 15, True), (2, 14, False), (1, 16, True)])
def test_a_window_is_as_long_as_hosts_make_it(frames, steps, fits):
    """frame_stack - 1 + seq_length steps: DROID's default is 15 for a horizon of 16."""
    from robomimic.config import config_factory

    config = config_factory("diffusion_policy")
    with config.values_unlocked():
        config.train.frame_stack, config.train.seq_length = frames, steps
        config.algo.horizon.observation_horizon = 1
        config.observation.modalities.obs.low_dim = ["position"]
    if fits:
        config_check.require_possible(config)
        return
    with pytest.raises(ConfigError, match="15 or more"):
        config_check.require_possible(config)
