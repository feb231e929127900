"""What the launcher refuses before torchrun starts, and what it leaves to the ranks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts import ROOT, environment

HOSTS_OWN = "robomimic.scripts.train"
LOW_DIM = "observation.modalities.obs.low_dim"
TWO_NODES = ["--nodes", "2", "--rdzv", "here:1"]
RLDS = ["train.data_format=droid_rlds", "train.dataset_names=[x]", "train.sample_weights=[1.0]"]


@pytest.fixture
def launch(config_file, tmp_path):
    """`launch(folder of the host, *flags, changes=.., words=..)`: the finished launcher."""

    def run(folder, *flags, changes=None, words=(), script=None, **variables):
        config = config_file("diffusion_policy", changes)
        start = [script] if script else ["-m", "robomimic_ddp", "launch"]
        given = ["--config", config, "--gpus", "2", *flags, *(["--", *words] if words else [])]
        added = {"PYTHONPATH": os.pathsep.join(map(str, [*folder, ROOT])), **variables}
        return subprocess.run(
            [sys.executable, *map(str, [*start, *given])],
            env=environment(None, added),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("flags", "changes", "words", "said"),
    [
        ([], {"train": {"nm_epochs": 1}}, [], "closest valid key is train.num_epochs"),
        ([], {}, ["train.nm_epochs=1"], "closest valid key is train.num_epochs"),
        (TWO_NODES, {}, ["train.nm_epochs=1"], "closest valid key is train.num_epochs"),
        ([], {}, ["algo_name=no_such"], "none of this host's algorithms"),
        ([], {}, ["train.seed=-4"], "train.seed=-4: expected a whole number"),
        ([], {"train": {"data": [{"path": "no.hdf5"}]}}, [], "there is no dataset no.hdf5"),
        ([], {}, [f"{LOW_DIM}=[speed]"], "does not contain 'obs/speed'"),
        ([], {}, [*RLDS, "train.data_path=here"], "train.data_path='here' is not a folder"),
        ([], {}, [*RLDS, "train.data_path=."], "there is no dataset 'x'"),
        (["--module", HOSTS_OWN], {"train": {"nm_epochs": 1}}, [], "train.num_epochs"),
        (["--module", HOSTS_OWN], {"train": {"data": "no.hdf5"}}, ["--debug"], "no dataset"),
    ],
)
def test_what_ranks_would_refuse(flags, changes, words, said, launch, host_copy):
    done = launch([host_copy.folder], *flags, changes=changes, words=words)
    assert done.returncode == 1 and said in done.stderr, done
    assert done.stderr.startswith("robomimic-ddp: ") and "Traceback" not in done.stderr
    assert "command: " not in done.stdout, "torchrun was started"


@pytest.mark.bad_input
def test_a_dry_run_notes_it(launch, host_copy):
    done = launch([host_copy.folder], "--dry-run", words=["train.nm_epochs=1"])
    assert done.returncode == 0 and "command: " in done.stdout
    assert "robomimic-ddp: note: unknown key train.nm_epochs" in done.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], []),
        ([], ["train.data=[{path: near.hdf5}]"]),
        ([], ["train.data=[{path: ~/near.hdf5}]"]),
        ([], ["train.optim_params.policy.learning_rate.initial=0.1", "debug=true"]),
        ([], ["--help", "train.nm_epochs=1"]),
        (TWO_NODES, ["train.data=[{path: elsewhere.hdf5}]"]),
        (["--module", HOSTS_OWN], ["ddp.verify=false", "--resume"]),
        (["--module", HOSTS_OWN], ["--dataset", "near.hdf5"]),
    ],
)
def test_what_ranks_would_take(flags, words, launch, host_copy, low_dim_dataset, tmp_path):
    (tmp_path / "near.hdf5").symlink_to(low_dim_dataset)
    changes = {"train": {"data": "no.hdf5"}} if "--dataset" in words else {}
    flags, home = ["--dry-run", *flags], {"HOME": str(tmp_path)}
    done = launch([host_copy.folder], *flags, words=words, changes=changes, **home)
    assert done.returncode == 0 and "command: " in done.stdout and not done.stderr, done


def test_rlds_data_by_its_name(launch, host_copy, demo_dataset):
    """With and without the dataset's folder in train.data_path."""
    (info,) = Path(demo_dataset).glob("*/*/dataset_info.json")
    name = info.parent.parent.name
    for path in (demo_dataset, info.parent.parent, info.parent):
        words = [*RLDS, f"train.dataset_names=[{name}]", f"train.data_path={path}"]
        done = launch([host_copy.folder], "--dry-run", words=words)
        assert done.returncode == 0 and not done.stderr, (path, done)


CONFIGS = {
    "needs torch": "import torch\nraise RuntimeError('not with torch')",
    "cannot be imported": "raise OSError('no licence')",
    "has no factory": "",
    "fails": "def config_factory(name): raise ImportError('torch')",
}
OUR_ENTRY = "from robomimic_ddp.train_rlds import main"


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_other_hosts_are_left_to_the_ranks(config, launch, tmp_path):
    _write_host(tmp_path / "host", config, OUR_ENTRY)
    done = launch([tmp_path / "host"], "--dry-run", words=["train.nm_epochs=1"])
    assert done.returncode == 0 and not done.stderr, done


def test_a_hosts_own_dot_list_entry_is_left_alone(launch, host_copy, tmp_path):
    """It may have layers below load_from."""
    _write_host(tmp_path / "host", "", "import robomimic_ddp.api as DDPUtils\ndef train(config): 0")
    shutil.rmtree(tmp_path / "host/robomimic/config")
    (tmp_path / "host/robomimic/config").symlink_to(host_copy.package / "config")
    words = ["+train.nm_epochs=1", "train.data=[{path: no.hdf5}]", "~train.seed"]
    done = launch([tmp_path / "host"], "--dry-run", words=words)
    assert done.returncode == 0 and not done.stderr, done


@pytest.mark.bad_input
def test_the_host_is_the_one_that_ranks_import(launch, host_copy, tmp_path):
    """`python -m` looks in the current folder first, and a console script does not."""
    _write_host(tmp_path, "", "def train(config): 0")
    script = tmp_path / "bin" / "robomimic-ddp"
    script.parent.mkdir()
    text = "import sys\nfrom robomimic_ddp import cli\nsys.argv.insert(1, 'launch')\n"
    script.write_text(f"{text}sys.exit(cli.main())\n")
    done = launch([host_copy.folder], script=script)
    assert done.returncode == 1 and "is not patched" in done.stderr, done


def _write_host(folder: Path, config: str, entry: str) -> None:
    for name, text in {
        "__init__.py": "",
        "config/__init__.py": config,
        "utils/train_utils.py": "",
        "scripts/train_rlds.py": entry,
    }.items():
        file = folder / "robomimic" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
