"""Mistakes on the command line of a training are shown before torch or TensorFlow is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from robomimic_ddp.cli import COMMANDS
from tests.hosts import ROOT, environment
from tests.processes import rank_variables

SLOW = ("torch", "tensorflow")
TRAIN, TRAIN_RLDS = "robomimic.scripts.train", "robomimic.scripts.train_rlds"
IMPORTED = "was imported"


@pytest.fixture
def start(tmp_path):
    """`start(host, *words of Python)`: a process in which the import of a slow package ends it."""
    for name in SLOW:
        (tmp_path / "slow" / name).mkdir(parents=True)
        text = f"import os\nos.write(2, b'{name} {IMPORTED}\\n')\nos._exit(3)\n"
        (tmp_path / "slow" / name / "__init__.py").write_text(text)

    def run(host, *words, **added):
        folders = [tmp_path / "slow", *([host.folder] if host else []), ROOT]
        path = os.pathsep.join(map(str, folders))
        return subprocess.run(
            [sys.executable, *map(str, words)],
            env=environment(None, {"PYTHONPATH": path, **added}),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


@pytest.fixture
def started(start, host_copy, config_file):
    """`started(module, *words, changes=...)`: a training with its config."""

    def run(module, *words, changes=None, program=(), **added):
        config = config_file("diffusion_policy", changes)
        first = [f"load_from={config}"] if module != TRAIN else ["--config", config]
        return start(host_copy, "-m", *program, module, *first, *words, **added)

    return run


MISTAKES = {
    "option": (["ddp.lr_scalling=sqrt"], {}, "ddp.lr_scalling is not an option. Did you mean"),
    "value": (["ddp.batch=globl"], {}, "ddp.batch='globl': expected per_rank | global"),
    "key in the file": ([], {"train": {"nm_epochs": 1}}, "closest valid key is train.num_epochs"),
    "batch": (["ddp.batch=global", "ddp.accumulate=3"], {}, "=global does not split over 1 ranks"),
    "value in the file": ([], {"train": {"seed": -4}}, "train.seed=-4: expected a whole number"),
}


ENTRIES = (TRAIN,), (TRAIN_RLDS,), ("robomimic_ddp.train_rlds",), (TRAIN, "robomimic_ddp", "run")
"""A module, and what the host is edited in memory by."""


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("entry", "mistake"),
    [
        *((ENTRIES[0], mistake) for mistake in MISTAKES if mistake != "value"),
        (ENTRIES[1], "value"),
        (ENTRIES[2], "option"),
        (ENTRIES[3], "key in the file"),
    ],
)
def test_a_mistake_is_shown_before_torch(entry, mistake, started):
    words, changes, said = MISTAKES[mistake]
    done = started(entry[0], *words, changes=changes, program=entry[1:])
    assert done.returncode == 1 and said in done.stderr, done
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") < 3, done


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--config=cfg.json"], "Write load_from=cfg.json."),
        (["load_from=no.json"], "load_from=no.json: no such file"),
    ],
)
def test_the_dot_list_is_read_before_torch(words, said, started):
    done = started(TRAIN_RLDS, *words)
    assert done.returncode == 1 and said in done.stderr and IMPORTED not in done.stderr, done


@pytest.mark.bad_input
def test_the_flags_of_the_hosts_script_are_read_before_torch(started, start, host_copy):
    done = start(host_copy, "-m", TRAIN, "--config", "no.json")
    assert done.returncode == 1 and "--config no.json: no such file" in done.stderr, done
    done = start(host_copy, "-m", TRAIN, "--config", "no.yaml")
    assert done.returncode == 1 and "--config no.yaml: no such file" in done.stderr, done
    done = started(TRAIN, "train.num_epochs=5")
    assert done.returncode == 1 and "reads the host's keys only from --config" in done.stderr


@pytest.mark.bad_input
def test_a_wrong_variable_is_shown_before_torch(started):
    for module in (TRAIN, TRAIN_RLDS):
        done = started(module, ROBOMIMIC_DDP_COM="fp16")
        assert "ROBOMIMIC_DDP_COM is not an option" in done.stderr, done
        assert IMPORTED not in done.stderr


@pytest.mark.parametrize("module", [TRAIN, TRAIN_RLDS])
def test_without_a_mistake_the_training_begins(module, started):
    done = started(module, "ddp.lr_scaling=sqrt")
    assert (done.returncode, done.stderr) == (3, f"torch {IMPORTED}\n")


def test_a_config_in_yaml_is_left_to_a_host_that_reads_it(start, host_copy, tmp_path):
    (tmp_path / "cfg.yaml").write_text("algo_name: bc\n")
    done = start(host_copy, "-m", TRAIN, "--config", "cfg.yaml")
    assert (done.returncode, done.stderr) == (3, f"torch {IMPORTED}\n")


def test_help_is_the_scripts_own(started):
    assert IMPORTED in started(TRAIN, "--help", "--nonsense").stderr
    assert "usage: " in started(TRAIN_RLDS, "--help").stdout


@pytest.mark.bad_input
def test_one_rank_shows_it_and_torchrun_gets_it(started, tmp_path):
    shown = []
    for rank in (0, 1):
        file = tmp_path / f"error{rank}.json"
        ranks = rank_variables(rank, 2, TORCHELASTIC_ERROR_FILE=str(file))
        done = started(TRAIN, "ddp.batch=globl", **ranks)
        assert done.returncode == 1, done
        shown.append(done.stderr)
        assert "ddp.batch='globl'" in json.loads(file.read_text())["message"]["message"]
    assert shown[0].startswith("error: ddp.batch='globl'") and shown[1] == ""


NONSENSE = """
import sys
from robomimic_ddp import cli
for command in sys.argv[1:]:
    try:
        cli.main([command, "--nonsense"])
    except SystemExit as ended:
        assert ended.code == 2, command
"""


@pytest.mark.bad_input
def test_a_commands_flags_are_read_before_torch(start):
    done = start(None, "-c", NONSENSE, *COMMANDS)
    assert done.returncode == 0 and IMPORTED not in done.stderr, done
    assert done.stderr.count("error: ") == len(COMMANDS)
