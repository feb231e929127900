"""key=value words: which are ours, and which layer wins."""

from __future__ import annotations

import contextvars
import sys

import pytest
from omegaconf import OmegaConf

from robomimic_ddp.config.host import dotlist
from robomimic_ddp.errors import ConfigError

WORDS = ["train.batch_size=8", "ddp.lr_scaling=sqrt", "+train.extra=[1,2]", "load_from=x.json"]


@pytest.fixture
def argv(monkeypatch):
    return lambda *words: monkeypatch.setattr(sys, "argv", ["train_rlds.py", *words])


def test_our_options_are_kept_from_hydra(argv):
    argv(*WORDS, "~train.seed", "hydra.run.dir=x", "--config", "a=b.json")
    assert dotlist.overrides(sys.argv[1:]) == [word for word in sys.argv[1:] if "ddp." not in word]
    assert dotlist.options() == {"lr_scaling": "sqrt"}
    assert dotlist.keys() == ("train.batch_size", "train.extra", "a")


def test_our_options_are_taken_before_the_hosts_parser_sees_them(argv):
    def taken():
        dotlist.take_options()
        return sys.argv[1:], dotlist.options()

    argv("--config", "cfg.json", "ddp.lr_scaling=sqrt", "train.seed=2")
    left = ["--config", "cfg.json", "train.seed=2"]
    assert contextvars.copy_context().run(taken) == (left, {"lr_scaling": "sqrt"})
    assert dotlist.options() == {}


def test_what_goes_to_torch_is_a_mapping_by_name(argv):
    argv("ddp.kwargs.bucket_cap_mb=50", "ddp.kwargs.static_graph=true", "+ddp.loader.timeout=1.5")
    expected = {"bucket_cap_mb": 50, "static_graph": True}
    assert dotlist.options() == {"kwargs": expected, "loader": {"timeout": 1.5}}
    assert dotlist.overrides(sys.argv[1:]) == []
    argv("ddp.kwargs={bucket_cap_mb: 50, static_graph: true}")
    assert dotlist.options() == {"kwargs": expected}


FLAGS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--config", type=str)
parser.add_argument("--debug", action="store_true")
args = parser.parse_args()
"""
TAKERS = {
    "positional": FLAGS.replace('"--debug", action="store_true"', '"overrides", nargs="*"'),
    "remainder": FLAGS.replace('action="store_true"', "nargs=argparse.REMAINDER"),
    "known": FLAGS.replace("args = parser.parse_args()", "args, left = parser.parse_known_args()"),
    "argv": FLAGS.replace("parse_args()", "parse_args(sys.argv[1:3])"),
    "given": FLAGS.replace("parse_args()", "parse_args(words)"),
    "hydra": FLAGS + "import hydra\nhydra.main()\n",
    "parser elsewhere": "from lab import parser\nargs = parser.parse_args()\n",
    "no file": "",
}


@pytest.mark.bad_input
def test_a_hosts_key_beside_config_is_one_error(argv):
    argv("--config", "cfg.json", "train.num_epochs=5", "ddp.verify=true", "--name", "algo.x=1")
    words = dotlist.keys_beside_config()
    assert words == ["train.num_epochs=5"]
    with pytest.raises(ConfigError, match="found train.num_epochs=5, but .* load_from=CONFIG.json"):
        dotlist.require_accepted(words, FLAGS)


@pytest.mark.parametrize("source", TAKERS.values(), ids=TAKERS)
def test_a_script_that_may_take_keys_is_left_alone(source):
    dotlist.require_accepted(["train.num_epochs=5"], source)


def test_the_command_line_wins_over_the_file_over_the_defaults(argv):
    argv(*WORDS)
    composed = OmegaConf.create(
        {"algo_name": "bc", "debug": False, "train": {"seed": 1, "batch_size": 8}}
    )
    OmegaConf.set_struct(composed, True)
    loaded = OmegaConf.create(
        {"algo_name": "diffusion_policy", "train": {"batch_size": 16, "n": 2}}
    )
    assert OmegaConf.to_container(dotlist.load_from(composed, loaded)) == {
        "algo_name": "diffusion_policy",
        "debug": False,
        "train": {"seed": 1, "batch_size": 8, "n": 2, "extra": [1, 2]},
    }
    assert composed.train.batch_size == 8


def test_a_hydra_group_with_the_name_of_a_section_wins_over_the_file(argv):
    argv("train.seed=3", "train=big", "train/net=deep", "algo={n: 5}", "load_from=x.json")
    composed = OmegaConf.create({"train": {"seed": 3, "batch_size": 99}, "algo": {"n": 5, "m": 1}})
    loaded = OmegaConf.create({"train": {"seed": 1, "batch_size": 4, "n": 2}, "algo": {"n": 4}})
    assert OmegaConf.to_container(dotlist.load_from(composed, loaded)) == {
        "train": {"seed": 3, "batch_size": 99, "n": 2},
        "algo": {"n": 5, "m": 1},
    }


@pytest.mark.bad_input
def test_text_that_is_no_setting_is_one_error(argv):
    argv("ddp.lr_scaling=[sqrt")
    with pytest.raises(ConfigError, match="key=value"):
        dotlist.options()
