"""The dot-list entry: layers, unknown keys, options beside a config whose keys the host locks."""

from __future__ import annotations

import contextvars
import copy
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from robomimic_ddp import train_rlds
from robomimic_ddp.config.host import dotlist, host_config
from robomimic_ddp.config.host.host_config import notes_of
from robomimic_ddp.errors import ConfigError


@pytest.fixture
def cfg(tmp_path):
    """Writes a config file and returns its load_from argument."""

    def write(**more):
        settings = {
            "algo_name": "diffusion_policy",
            "train": {"batch_size": 8, "num_epochs": 3},
            **more,
        }
        path = tmp_path / "cfg.json"
        path.write_text(json.dumps(settings))
        return f"load_from={path}"

    return write


def build(*arguments):
    return host_config.build_config(list(arguments))


def test_command_line_wins_over_load_from(cfg):
    config = build(
        cfg(), "train.batch_size=128", "experiment.save.epochs=[1,2]", "experiment.name=a b"
    )
    assert config.train.batch_size == 128 and config.train.num_epochs == 3
    assert config.experiment.save.epochs == [1, 2] and config.experiment.name == "a b"


@pytest.mark.parametrize("name", ["run #2", "[a: 'b", "123", " a\nb ", "${train.seed}"])
def test_load_from_is_a_path_and_no_yaml(name, cfg, tmp_path, monkeypatch):
    written = Path(cfg().partition("=")[2])
    file = written.rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    for path in (str(file), name):
        config = build(f"load_from={path}", "train.batch_size=3")
        assert (config.train.batch_size, config.train.num_epochs) == (3, 3)


@pytest.mark.parametrize("name", ["20240101", "20240101_12", "0712", "1e3", "12:30", "on"])
def test_a_text_that_looks_like_a_number_is_kept_as_typed(name, cfg):
    folder = "train.output_dir=/runs/${experiment.name}"
    config = build(cfg(ddp={"lr_scaling": "sqrt"}), f"experiment.name={name}", folder)
    assert (config.experiment.name, config.train.output_dir) == (name, f"/runs/{name}")
    assert notes_of(config).file_options == {"lr_scaling": "sqrt"}
    assert build(cfg(), f'experiment.name="{name}"').experiment.name == name


def test_null_and_words_for_what_is_no_text_are_read_as_before(cfg):
    key = "train.hdf5_filter_key"  # the host's default is null
    assert build(cfg(), "experiment.name=null").experiment.name is None
    assert build(cfg(), f"{key}=20").train.hdf5_filter_key == 20
    of_file = cfg(train={"hdf5_filter_key": "train"})
    for word, value in (("020", "020"), ("null", None), ("false", False)):
        assert build(of_file, f"{key}={word}").train.hdf5_filter_key == value
    config = build(cfg(), "experiment.name=1", "experiment.name=e", "train.seed=012")
    assert (config.experiment.name, config.train.seed) == ("e", 10)


def test_a_word_inside_a_list_of_the_file_names_the_list(cfg):
    with pytest.raises(ConfigError) as refused:
        build(cfg(train={"data": [{"path": "a"}]}), "train.data.0.path=b")
    text = str(refused.value)
    assert text.startswith("found train.data.0.path, but train.data is a list in the config file")
    assert "'train.data=[...]'" in text and "dollar" not in text
    with pytest.raises(ConfigError, match=r"found train=\[1\], but train is a section in the con"):
        build(cfg(), "train=[1]")


def test_no_file_may_be_said():
    assert dotlist.parse_dotlist(["load_from=null"]) == {"load_from": None}
    assert dotlist.parse_dotlist(["load_from="]) == {"load_from": None}
    assert dotlist.parse_dotlist(["load_from=a", "load_from=b"]) == {"load_from": "b"}


def test_the_config_is_locked_and_holds_no_ddp_section(cfg):
    config = build(cfg(ddp={"lr_scaling": "sqrt"}), "ddp.verify=false", "ddp.lr_scaling=linear")
    assert config.is_locked and "ddp" not in config and '"ddp"' not in config.dump()
    notes = notes_of(config)
    assert notes.file_options == {"lr_scaling": "sqrt"}
    assert notes.command_line_options == {"verify": False, "lr_scaling": "linear"}


@pytest.mark.parametrize("kind", ["deepcopy", "Config"])
def test_a_copy_of_a_hosts_config_has_the_options_of_its_file(kind, cfg):
    """Such as those of forks that change a few values in a copy for each of several runs."""
    robomimic_config = pytest.importorskip("robomimic.config")
    copied = {"deepcopy": copy.deepcopy, "Config": robomimic_config.config.Config}[kind]

    def prepared(section):
        settings = {"algo_name": "bc", **section}
        return host_config.prepare_config(robomimic_config.config_factory("bc"), settings)

    def scaling(config):
        return host_config.options_of(config, {}).values.lr_scaling

    def read_both():
        first = prepared({"ddp": {"lr_scaling": "sqrt"}})
        copies = scaling(copied(first)), scaling(copied(copied(first)))
        second, third = prepared({}), build(cfg(ddp={"lr_scaling": "auto"}))
        read = scaling(first), scaling(second), scaling(copied(third))
        prepared({})
        return *copies, *read, scaling(third), scaling(copied(second))

    expected = ("sqrt", "sqrt", "sqrt", "none", "auto", "auto", "none")
    assert contextvars.copy_context().run(read_both) == expected


def test_the_command_lines_learning_rate_is_known(cfg):
    key = "algo.optim_params.policy.learning_rate.initial"
    assert notes_of(build(cfg(), f"{key}=0.5")).command_line_keys == (key,)


def test_the_flag_resume_is_the_options_value(cfg):
    for word, value in (("true", "true"), ("auto", "auto")):
        config = build(cfg(), f"resume={word}")
        assert host_config.options_of(config, {}).values.resume == value


def test_debug_shortens_the_run(cfg):
    config = build(cfg(), "debug=true")
    assert config.experiment.epoch_every_n_steps == 3 and config.train.num_epochs == 2


def test_misplaced_optim_params_are_accepted_with_a_warning(cfg, capsys):
    config = build(cfg(), "train.optim_params.policy.learning_rate.initial=0.25")
    assert config.algo.optim_params.policy.learning_rate.initial == 0.25
    assert "read as algo.optim_params" in capsys.readouterr().err
    moved = {"batch_size": 8, "optim_params": {"policy": {"learning_rate": {"initial": 0.125}}}}
    assert build(cfg(train=moved)).algo.optim_params.policy.learning_rate.initial == 0.125


def test_rlds_keys_are_declared_only_for_rlds(cfg):
    assert "data_format" not in build(cfg()).train
    config = build(cfg(train={"data_format": "droid_rlds", "data_path": "/data", "batch_size": 4}))
    assert host_config.uses_rlds(config) and config.train.data_path == "/data"
    assert config.train.shuffle_buffer_size > 0 and "image_dim" in config.observation


def test_sections_that_the_host_leaves_open_take_new_keys(cfg):
    config = build(
        cfg(),
        "algo.optim_params.policy.learning_rate.mine=3",
        "train.action_config.x.normalization=min_max",
    )
    assert config.algo.optim_params.policy.learning_rate.mine == 3
    assert config.train.action_config["x"]["normalization"] == "min_max"


def test_triton_comes_before_the_hosts_train_script(cfg, monkeypatch):
    """That script imports TensorFlow first in DROID's hosts, which triton does not survive."""
    order = []
    script = ModuleType("robomimic.scripts.train")
    script.__getattr__ = lambda name: order.append(name) or build
    monkeypatch.setitem(sys.modules, script.__name__, script)
    monkeypatch.setattr(train_rlds, "keep_triton_first", lambda: order.append("triton"))
    with pytest.raises(ConfigError, match="is not patched"):
        train_rlds.train(build(cfg()))
    assert order.index("triton") < order.index("train")
