"""What is refused in a config is what the host refuses too; what trains there passes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from robomimic_ddp.config import host_config, host_keys
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
    host_keys.require_possible(config)


@pytest.mark.parametrize(
    "key, ends",
    [
        ("batch_sise", "The closest valid key is train.batch_size. robomimic.config declares all "),
        ("qqqqqqqqqqqq", "Valid in train: action_config, action_keys, batch_size, "),
    ],
)
def test_an_unknown_key_names_the_closest_one_or_all(key, ends):
    from robomimic.config import config_factory

    with pytest.raises(ConfigError) as refused:
        host_keys.require_known(config_factory("bc"), {"train": {key: 1}})
    text = str(refused.value)
    assert f"no effect. {ends}" in text and ("hdf5_cache_mode" in text) is ends.startswith("Valid")


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
        host_keys.require_possible(config)
        return
    with pytest.raises(ConfigError, match="15 or more"):
        host_keys.require_possible(config)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
        ("experiment", "name", None, "experiment.name=None: expected the name of a folder"),
        ("train", "output_dir", None, "train.output_dir=None: expected a folder"),
        ("save", "every_n_epochs", 0, "every_n_epochs=0: expected .* or null for no save"),
        ("save", "every_n_seconds", "3600", "every_n_seconds='3600': expected a number of seconds"),
        ("save", "epochs", None, r"save.epochs=None: expected .* or \[\] for none"),
        ("save", "epochs", ["5"], "save.epochs=.'5'.: expected"),
        ("rollout", "rate", 0, "rollout.rate=0: expected a whole number of at least 1"),
    ],
)
def test_what_would_end_a_run_late_is_refused_at_once(section, key, value, words):
    """Hosts take each epoch's number modulo the intervals, after the epoch."""
    from robomimic.config import config_factory

    config = config_factory("diffusion_policy")
    host_keys.require_possible(config)
    with config.values_unlocked():
        part = config.train if section == "train" else config.experiment
        (part if section in ("train", "experiment") else part[section])[key] = value
    with pytest.raises(ConfigError, match=words):
        host_keys.require_possible(config)
    with config.values_unlocked():  # without saves, their interval is never read
        config.experiment.save.enabled = False
    if section == "save":
        host_keys.require_possible(config)


def test_an_interval_may_be_a_float_without_a_fraction():
    """Hosts take it."""
    from robomimic.config import config_factory

    config = config_factory("diffusion_policy")
    with config.values_unlocked():
        config.experiment.rollout.rate = 50.0
    host_keys.require_possible(config)
    with config.values_unlocked():
        config.experiment.rollout.rate = 0.5
    with pytest.raises(ConfigError, match="rollout.rate=0.5: expected a whole number"):
        host_keys.require_possible(config)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "lists", [{"low_dim": ["eef", "eef"]}, {"low_dim": ["eef"], "rgb": ["eef"]}]
)
def test_a_name_that_stands_twice(lists):
    from robomimic.config import config_factory

    config = config_factory("diffusion_policy")
    with config.values_unlocked():
        config.train.action_keys = ["actions", "actions"]
    with pytest.raises(ConfigError, match="train.action_keys names 'actions' twice"):
        host_keys.require_possible(config)
    with config.values_unlocked():
        config.train.action_keys = ["actions"]
        config.observation.modalities.obs.update(lists)
        config.observation.modalities.goal.low_dim = ["eef"]
    with pytest.raises(ConfigError, match="observation.modalities.obs names 'eef' twice"):
        host_keys.require_possible(config)
    with config.values_unlocked():
        config.observation.modalities.obs.update({"low_dim": ["eef"], "rgb": []})
    host_keys.require_possible(config)
