"""`ddp.compile` with torch's own compiler for the CPU, in one process that accumulates: a run that
was stopped ends as the uninterrupted one to the bit, trains as the run without a compiler, and
leaves files that need none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from robomimic_ddp.checkpoint import STATE
from robomimic_ddp.checkpoint.state_file import read_file
from robomimic_ddp.errors import EXIT_STOPPED
from robomimic_ddp.training.step import compile
from tests.configs import FROZEN, make_config, write_config
from tests.hosts import FINISHED, Host, python, require_clean
from tests.parity.comparison import moment_distance
from tests.runs import (
    epoch_logs,
    load,
    require_equal_weights,
    run_directory,
    state_differences,
)
from tests.versions import NEEDS_CALL_PLACE

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900), NEEDS_CALL_PLACE]
KILLED, TRAIN = "tests.e2e.killed_train", "robomimic.scripts.train"
COMPILED = {"compile": "true", "accumulate": 2}
RUNS = {
    "whole": ("none", COMPILED),
    "stopped": ("0@SIGUSR1:7", COMPILED),
    "eager": ("none", {"accumulate": 2}),
}


@pytest.fixture(scope="module")
def directories(
    tmp_path_factory: pytest.TempPathFactory, host_copy: Host, low_dim_dataset: Path
) -> dict[str, Path]:
    """Name -> directory of a finished run of two epochs; "stopped" resumed inside one."""
    missing = compile.why_not("cpu", None)
    if missing is not None:
        pytest.skip(missing)
    found = {}
    for name, (plan, options) in RUNS.items():
        folder = tmp_path_factory.mktemp(name)
        made = make_config("diffusion_policy", low_dim_dataset, folder / "runs", {"ddp": options})
        file = write_config(folder / "config.json", made)
        arguments = (KILLED, plan, folder / "happened", "--config", file)
        result = python(host_copy, *arguments, timeout=400)
        found[name] = run_directory(folder / "runs")
        if plan != "none":
            assert result.returncode == EXIT_STOPPED, result
            assert read_file(found[name] / STATE)["inside"] is not None
            result = python(host_copy, *arguments, "--resume", timeout=400)
        assert result.returncode == 0 and FINISHED in result.stdout, result
        said = "compiled (true): training forward of 1 net(s)" in result.stdout
        assert said == (name != "eager"), result
    return found


def final(directory: Path) -> dict[str, Any]:
    return load(directory / "last.pth")["model"]


def test_it_resumes_at_the_bit(directories: dict[str, Path]) -> None:
    states = [read_file(directories[name] / STATE) for name in ("stopped", "whole")]
    assert states[0]["steps"] == 6
    assert state_differences(*states) == []


def test_it_trains_as_without_a_compiler(directories: dict[str, Path]) -> None:
    """The tolerance of tests/parity/test_speed_options.py for a traced backward pass."""
    ours, theirs = (epoch_logs(directories[name]) for name in ("whole", "eager"))
    assert ours.keys() == theirs.keys()
    for key, log in theirs.items():
        assert ours[key]["Loss"] == pytest.approx(log["Loss"], rel=1e-4), key
    models = [final(directories[name]) for name in ("whole", "eager")]
    for moment in ("exp_avg", "exp_avg_sq"):
        states = [model["optimizers"]["policy"]["state"] for model in models]
        named = [{f"{key}.{moment}": one[moment] for key, one in state.items()} for state in states]
        assert moment_distance(*named, moment) < 1e-4
    differ = [
        name
        for name, one in models[0]["nets"].items()
        if not torch.equal(one, models[1]["nets"][name])
    ]
    assert differ, "nothing was compiled"


def test_its_files_need_no_compiler(
    directories: dict[str, Path], plain_host: Host, low_dim_dataset: Path, tmp_path: Path
) -> None:
    """Keys are the plain run's, and the host that was never edited trains on."""
    before, eager = final(directories["whole"]), final(directories["eager"])
    for part in ("nets", "ema"):
        assert list(before[part]) == list(eager[part])
    source = directories["whole"] / "last.pth"
    changes = {
        "algo": {"optim_params": {"policy": FROZEN}},
        "experiment": {"ckpt_path": str(source)},
        "train": {"num_epochs": 1},
    }
    made = make_config("diffusion_policy", low_dim_dataset, tmp_path / "runs", changes)
    result = python(plain_host, TRAIN, "--config", write_config(tmp_path / "c.json", made))
    require_clean(result)
    require_equal_weights(before["nets"], final(run_directory(tmp_path / "runs"))["nets"])
