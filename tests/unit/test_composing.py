"""A YAML composed without Hydra: what Hydra 1.3 makes of the same files and words."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

import robomimic_ddp.api as DDPUtils
from robomimic_ddp import composing
from robomimic_ddp.errors import ConfigError

FILES = {
    "train.yaml": """
load_from: null
debug: false
algo_name: diffusion_policy
train:
  batch_size: 8
  data: [{path: /a}]
  names: [a, b]
  lr: 1e-4
  seed: ${train.batch_size}
hydra:
  run: {dir: out}
""",
    "child.yaml": "defaults:\n  - train\n\nalgo_name: drift\ntrain:\n  extra: 1\n",
    "first.yaml": "defaults:\n  - _self_\n  - train\nalgo_name: drift\n",
    "groups.yaml": """
defaults:
  - train
  - net: small
  - optional missing: none
  - net@other: large
  - opt: [adam, decay]
  - override hydra/job_logging: disabled
name: groups
""",
    "inner.yaml": "defaults:\n  - deep/part: one\n  - override /net: large\n  - net: small\n",
    "chosen.yaml": "defaults:\n  - groups\n  - override net: large\n",
    "net/small.yaml": "defaults:\n  - part: one\nlayers: 2\n",
    "net/large.yaml": "layers: 9\n",
    "net/part/one.yaml": "size: 1\n",
    "opt/adam.yaml": "# @package _global_\ntrain:\n  optimizer: adam\n",
    "opt/decay.yaml": "# @package train.decay\nrate: 0.5\n",
    "deep/part/one.yaml": "value: 3\n",
    "empty.yaml": "",
}
CASES = [
    ("train", []),
    ("train.yaml", ["train.batch_size=16", "load_from=/x/y.json", "debug=true"]),
    ("train", ["train.names=[c,d]", "+train.more={a:1,b:[2,3]}", "++train.lr=0.5", "~train.data"]),
    ("train", ["train.lr=1e-3", "algo_name='a, b'", "train.seed=null", "++new.key=x y"]),
    ("train", ["train.data=[{path:/b/c,n:2}]", "train.names=[]", "algo_name=yes", "+e="]),
    ("train", ["hydra.run.dir=x", "train.batch_size=${train.lr}", "~debug=false"]),
    ("train", ['algo_name="quoted"', "+a.b=1", "+a.c=2.0", "train.batch_size=-3"]),
    ("child", ["train.batch_size=2"]),
    ("first", []),
    ("groups", []),
    ("groups", ["net=large", "name=other", "net.layers=4"]),
    ("groups", ["~net", "net@other=small"]),
    ("groups", ["+deep/part=one", "opt=adam"]),
    ("chosen", []),
    ("chosen", ["net=small"]),
    ("empty", ["+a=1"]),
]
PROGRAM = """
import json, sys
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
found = []
for name, words in json.load(sys.stdin):
    with initialize_config_dir(config_dir=sys.argv[1], version_base="1.1"):
        config = compose(config_name=name, overrides=words)
    found.append([OmegaConf.to_container(config, resolve=True), OmegaConf.is_struct(config)])
print(json.dumps(found))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The files; Hydra cannot be imported."""
    for name, text in FILES.items():
        path = tmp_path / "configs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in ("hydra", "hydra.core", "hydra.core.global_hydra"):
        monkeypatch.setitem(sys.modules, name, None)
    yield tmp_path / "configs"
    composing.GlobalHydra.instance().clear()


def composed(folder, name, words=()):
    from robomimic_ddp.api import compose, initialize_config_dir

    with initialize_config_dir(config_dir=str(folder), version_base="1.1"):
        return compose(config_name=name, overrides=list(words))


@pytest.mark.parity
def test_what_hydra_makes_of_them(folder, tmp_path):
    """Hydra and the OmegaConf that it wants, installed beside the suite, in a process of theirs."""
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--target", str(site), "hydra-core==1.3.2"],
        check=True,
        capture_output=True,
        timeout=300,
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(folder)],
        input=json.dumps(CASES),
        env={**os.environ, "PYTHONPATH": str(site)},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    for (name, words), (expected, struct) in zip(CASES, json.loads(done.stdout)):
        config = composed(folder, name, words)
        assert OmegaConf.to_container(config, resolve=True) == expected, (name, words)
        assert OmegaConf.is_struct(config) == struct


def test_a_child_wins_over_what_it_names(folder):
    config = composed(folder, "child", ["train.batch_size=2"])
    assert (config.algo_name, config.train.extra, config.train.batch_size) == ("drift", 1, 2)
    assert config.train.seed == 2 and "hydra" not in config


def test_the_folder_can_be_set_once_and_forgotten(folder):
    hydra = DDPUtils.GlobalHydra.instance()
    DDPUtils.initialize_config_dir(str(folder))
    assert hydra.is_initialized() and DDPUtils.compose("empty") == {}
    hydra.clear()
    assert not hydra.is_initialized()
    with pytest.raises(ConfigError, match="initialize_config_dir"):
        DDPUtils.compose("empty")


def test_a_folder_beside_the_calling_file(folder):
    path = folder.parent / "entry.py"
    path.write_text(
        "from robomimic_ddp.api import compose, initialize\n"
        "with initialize('configs', version_base=None):\n    config = compose('child')\n"
    )
    names: dict = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    assert names["config"].train.extra == 1


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("trian", [], "chosen, empty"),
        ("train", ["train.batchsize=3"], "Did you mean train.batch_size"),
        ("train", ["train.batchsize=3"], "+train.batchsize"),
        ("train", ["+train.lr=3"], "is there"),
        ("train", ["train.lr"], "not key=value"),
        ("train", ["train.lr=1,2"], "only Hydra reads"),
        ("train", ["train.lr=choice(1,2)"], "pip install hydra-core"),
        ("train", ["~train.nothing"], "no key"),
        ("train", ["~debug=true"], "False"),
        ("train", ["train.names=[a"], "could not be composed"),
        ("train", ["net=large"], "[+]net"),
        ("bad", [], "bad.yaml"),
        ("list", [], "a list"),
        ("groups", ["net=huge"], "large, small"),
        ("interpolated", [], "pip install hydra-core"),
    ],
)
def test_mistakes_are_one_error(folder, name, words, message):
    (folder / "bad.yaml").write_text("a: [1\n")
    (folder / "list.yaml").write_text("- 1\n")
    (folder / "interpolated.yaml").write_text("a: small\ndefaults:\n  - net: ${a}\n")
    with pytest.raises(ConfigError, match=message.replace("+train", "[+]train")):
        composed(folder, name, words)


@pytest.mark.bad_input
def test_a_folder_that_is_not_there(folder):
    with pytest.raises(ConfigError, match="no folder"):
        DDPUtils.initialize_config_dir(str(folder / "other"))


def test_where_hydra_is_installed_its_own_names_are_given(tmp_path):
    core = tmp_path / "hydra" / "core"
    core.mkdir(parents=True)
    (core / "__init__.py").write_text("")
    (core / "global_hydra.py").write_text("class GlobalHydra: own = True\n")
    (core.parent / "__init__.py").write_text("def compose(): return 'its own'\n")
    program = (
        "from robomimic_ddp.api import compose, GlobalHydra; print(compose(), GlobalHydra.own)"
    )
    root = os.path.dirname(os.path.dirname(composing.__file__))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), root])},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.split() == ["its", "own", "True"]
