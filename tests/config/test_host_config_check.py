"""What is refused in a config is what the host refuses too; what trains there passes."""

from __future__ import annotations

import json
from contextlib import nullcontext
from functools import reduce
from pathlib import Path

import pytest

from robomimic_ddp.config.host import host_config, host_config_check
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
    host_config_check.require_possible(config)


@pytest.mark.parametrize(
    "key, ends",
    [
        ("batch_sise", "The closest valid key is train.batch_size. robomimic.config declares all "),
        ("qqqqqqqqqqqq", "Valid in train: action_config, action_keys, batch_size, "),
    ],
)
def test_an_unknown_key_names_the_closest_one_or_all(key, ends):
    with pytest.raises(ConfigError) as refused:
        host_config_check.require_known(config_with({}, "bc"), {"train": {key: 1}})
    text = str(refused.value)
    assert f"no effect. {ends}" in text and ("hdf5_cache_mode" in text) is ends.startswith("Valid")


def test_where_the_host_allows_new_keys_a_mistyped_one_is_refused_and_a_new_one_is_not():
    """A sweep over `learning_rate.inital` would train the default rate in every trial."""
    rates = "algo.optim_params.policy.learning_rate."
    for key in ("inital", "Initial", "decay_facotr", "epoch_shedule"):
        with pytest.raises(ConfigError, match=f"unknown key {rates}{key}: .* is {rates}"):
            host_config_check.require_known(config_with({}, "bc"), nested(rates + key, 1e-4))
    modalities = "observation.modalities.obs."
    for key in (rates + "num_cycles", rates + "initial_lr", modalities + "rgb2"):
        host_config_check.require_known(config_with({}, "bc"), nested(key, 1))
    both = nested(rates[:-1], {"initial": 0.1, "initials": 0.2})
    host_config_check.require_known(config_with({}, "bc"), both)
    of_file = nested(rates[:-1], {"initial": 0.1})
    with pytest.raises(ConfigError, match=f"unknown key {rates}initials"):
        host_config_check.require_known(config_with({}, "bc"), both, of_file=of_file)


@pytest.mark.parametrize("has_both", [True, False])
def test_a_mistyped_word_is_refused_although_the_file_sets_the_right_key(has_both, tmp_path):
    rates = "algo.optim_params.policy.learning_rate."
    content = nested(rates[:-1], {"initial": 0.1, **({"inital": 0.2} if has_both else {})})
    file = tmp_path / "cfg.json"
    file.write_text(json.dumps({"algo_name": "bc", **content}))
    with nullcontext() if has_both else pytest.raises(ConfigError, match="closest valid key is"):
        config = host_config.build_config([f"load_from={file}", f"{rates}inital=0.3"])
        assert config.algo.optim_params.policy.learning_rate.inital == 0.3


def nested(dotted, value):
    return reduce(lambda inner, name: {name: inner}, reversed(dotted.split(".")), value)


def test_keys_that_the_script_of_a_host_adds_are_named_not_refused(capsys):
    """Forks read `env.use_waypoints` with `config.unlocked()`: robomimic declares no such key."""
    settings = {"env": {"use_waypoints": False}, "train": {"goals": 3, "seed": 2}}
    config = host_config.prepare_config(config_with({}, "bc"), settings, new_keys=True)
    with config.unlocked():
        config.update(settings)
    assert (config.env.use_waypoints, config.train.goals) == (False, 3)
    assert "note: the config file adds env, train.goals, which this host" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="expected text"):
        host_config.prepare_config(config, {"experiment": {"name": 3}}, new_keys=True)


def config_with(changes, algorithm="diffusion_policy"):
    """The host's default config with {dotted key: value} over it."""
    from robomimic.config import config_factory

    config = config_factory(algorithm)
    with config.values_unlocked():
        for dotted, value in changes.items():
            *sections, key = dotted.split(".")
            reduce(getattr, sections, config)[key] = value
    return config


OBS = "observation.modalities.obs."


@pytest.mark.parametrize("frames, steps, fits", [(2, 15, True), (2, 14, False), (1, 16, True)])
def test_a_window_is_as_long_as_hosts_make_it(frames, steps, fits):
    """frame_stack - 1 + seq_length steps: DROID's default is 15 for a horizon of 16."""
    config = config_with(
        {
            "train.frame_stack": frames,
            "train.seq_length": steps,
            "algo.horizon.observation_horizon": 1,
            f"{OBS}low_dim": ["position"],
        }
    )
    with nullcontext() if fits else pytest.raises(ConfigError, match="=14 .* 15 or more"):
        host_config_check.require_possible(config)


RGB = "observation.encoder.rgb."
SAVE, NAME_TWICE = "experiment.save.", {"train.action_keys": ["actions", "actions"]}


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"experiment.name": None}, "experiment.name=None: expected the name of a folder"),
        ({"train.output_dir": None}, "train.output_dir=None: expected a folder"),
        ({f"{SAVE}every_n_epochs": 0}, "every_n_epochs=0: expected .* or null for no save"),
        ({"experiment.rollout.rate": 0}, "rollout.rate=0: expected a whole number of at least 1"),
        ({"experiment.rollout.rate": 0.5}, "rollout.rate=0.5: expected a whole number"),
        ({f"{RGB}core_kwargs.pool_class": "print(1)"}, "pool_class='print.1.': expected the name"),
        ({f"{RGB}obs_randomizer_class": ["a", "a.b"]}, "_class='a.b': expected the name"),
        (NAME_TWICE, "train.action_keys names 'actions' twice"),
        ({f"{OBS}low_dim": ["eef", None]}, "observation.modalities.obs has None: expected names"),
        ({f"{OBS}low_dim": ["eef", "eef"]}, "observation.modalities.obs names 'eef' twice"),
        ({f"{OBS}low_dim": ["eef"], f"{OBS}rgb": ["eef"]}, "modalities.obs names 'eef' twice"),
    ],
)
def test_what_would_end_a_run_late_is_refused_at_once(changes, words):
    """Hosts take each epoch's number modulo the intervals, after the epoch."""
    with pytest.raises(ConfigError, match=words):
        host_config_check.require_possible(config_with(changes))
    if all(key.startswith(SAVE) for key in changes):  # without saves they are never read
        host_config_check.require_possible(config_with({**changes, f"{SAVE}enabled": False}))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"experiment.rollout.rate": 50.0},  # hosts take a float without a fraction
        {f"{OBS}low_dim": ["eef"], "observation.modalities.goal.low_dim": ["eef"]},
    ],
)
def test_what_hosts_take(changes):
    host_config_check.require_possible(config_with(changes))
