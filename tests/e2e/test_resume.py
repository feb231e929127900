"""A run that was killed or stopped ends as the uninterrupted one: bits, not losses, are compared.

Low-dim diffusion policy with EMA, validation and a schedule, four epochs of three steps.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from robomimic_ddp.errors import EXIT_STOPPED
from robomimic_ddp.state import PREVIOUS, STATE
from robomimic_ddp.state.files import read_file
from tests.configs import make_config, write_config
from tests.droid_host import droid_shaped
from tests.hosts import FINISHED, Host, Result, apply, python, require_clean, torchrun
from tests.runs import run_directory, state_differences

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
KILLED = "tests.e2e.killed_train"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, low_dim_dataset: Path) -> Any:
    """`config(folder)`: the config file of a run below `folder`."""

    def make(folder: Path, **changes: Any) -> Path:
        folder.mkdir(exist_ok=True)
        changes = {"train": {"num_epochs": 4}, **changes}
        made = make_config("diffusion_policy", low_dim_dataset, folder / "runs", changes)
        return write_config(folder / "config.json", made)

    return make


def killed(host: Host, folder: Path, config: Path, plan: str, *more: str, **options: Any) -> Result:
    """One job with planned kills; what has happened already is remembered in the folder."""
    arguments = (plan, folder / "happened", "--config", config, *more)
    return torchrun(host, KILLED, *arguments, **options)


def require_finished(result: Result) -> None:
    assert result.returncode == 0, result
    assert not result.leftovers and FINISHED in result.stdout, result


def newest(folder: Path) -> dict[str, Any]:
    return read_file(run_directory(folder / "runs") / STATE)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, host_copy: Host, config: Any) -> dict[str, Any]:
    """The last state of the run on two ranks that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    require_clean(killed(host_copy, folder, config(folder), "none"))
    state = newest(folder)
    assert state["epoch"] == 4 and state["steps"] == 12 and state["world_size"] == 2
    assert state["best"]["best_valid_loss"] is not None
    return state


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory, host_copy: Host, config: Any) -> Path:
    """The folder of a run whose ranks were all killed in the first step of its fourth epoch."""
    folder = tmp_path_factory.mktemp("broken")
    result = killed(host_copy, folder, config(folder), "all@10")
    assert result.returncode != 0 and FINISHED not in result.stdout
    assert newest(folder)["epoch"] == 3
    return folder


def copied(broken: Path, tmp_path: Path, config: Any) -> Path:
    """A run may move: its paths are kept relative to its directory."""
    shutil.copytree(broken / "runs", tmp_path / "runs")
    return config(tmp_path)


def test_kills_at_any_place_and_torchrun_goes_on_by_itself(
    host_copy: Host, config: Any, whole: dict[str, Any], tmp_path: Path
) -> None:
    """Before the first epoch's end (a new beginning), in a later epoch, in the middle of a save."""
    plan = "0@2+1@5+0@save:2"
    result = killed(host_copy, tmp_path, config(tmp_path), plan, restarts=3)
    require_finished(result)
    assert len(list((tmp_path / "happened").iterdir())) == 3
    assert "no epoch was finished: training begins anew" in result.stdout
    assert result.stdout.count("resuming training from epoch") == 2
    assert "no terminal" not in result.stdout, "a restart must not ask about its own directory"
    assert (
        state_differences(newest(tmp_path), whole) == []
    )  # newest() asserts that there is one folder


def test_by_hand_with_the_newest_file_damaged(
    broken: Path, host_copy: Host, config: Any, whole: dict[str, Any], tmp_path: Path
) -> None:
    file = copied(broken, tmp_path, config)
    directory = run_directory(tmp_path / "runs")
    assert read_file(directory / PREVIOUS)["epoch"] == 2
    data = (directory / STATE).read_bytes()
    (directory / STATE).write_bytes(data[: len(data) // 2])
    result = killed(host_copy, tmp_path, file, "none", "--resume")
    require_finished(result)
    assert f"{directory / STATE} is damaged" in result.stdout + result.stderr
    assert "resuming training from epoch 3" in result.stdout
    assert state_differences(newest(tmp_path), whole) == []
    history = (directory / "history.jsonl").read_text().splitlines()
    trained = [json.loads(line) for line in history if '"train"' in line]
    assert [line["epoch"] for line in trained] == [1, 2, 3, 4]


def test_a_stop_signal_to_torchrun_and_the_entry_with_a_dot_list(
    host_copy: Host, config: Any, whole: dict[str, Any], tmp_path: Path
) -> None:
    """Inside the second epoch; the state holds the place in it and the sums of its log."""
    file = config(tmp_path)
    result = killed(host_copy, tmp_path, file, "0@SIGTERM:4", restarts=1, cold=True)
    assert result.returncode == 1 and not result.timed_out and not result.leftovers, result
    directory = run_directory(tmp_path / "runs")
    marker = json.loads((directory / "requeue").read_text())
    assert marker["signal"] == "SIGTERM" and "in epoch 2 after" in marker["stopped"]
    state = newest(tmp_path)
    assert state["epoch"] == 1 and state["inside"]["epoch"] == 2
    assert state["ranks"][0]["totals"]["Loss"][1] == 4 * state["inside"]["steps"]
    entry = ("robomimic.scripts.train_rlds", f"load_from={file}", "resume=true")
    require_finished(torchrun(host_copy, *entry))
    assert not (directory / "requeue").exists()
    assert state_differences(newest(tmp_path), whole) == []


@pytest.mark.parametrize("ranks", [1, 3])
def test_other_numbers_of_ranks(
    ranks: int, broken: Path, host_copy: Host, config: Any, tmp_path: Path
) -> None:
    file = copied(broken, tmp_path, config)
    before = newest(tmp_path)
    result = killed(host_copy, tmp_path, file, "none", "--resume", ranks=ranks)
    require_finished(result)
    assert f"world size: 2 -> {ranks}" in result.stdout
    assert f"samples per step: 8 -> {4 * ranks}" in result.stdout
    if ranks == 3:
        assert "ranks 2 to 2 begin random streams of their own" in result.stdout
        assert "data: pass 3 goes on" in result.stdout
    state = newest(tmp_path)
    assert state["epoch"] == 4 and state["steps"] == before["steps"] + 3
    assert state["world_size"] == ranks and len(state["ranks"]) == ranks
    rate = before["model"][""]["optimizers"]["policy"]["param_groups"][0]["lr"]
    assert f"learning rate: {rate:g}, as saved" in result.stdout


def test_three_ranks_to_the_bit(host_copy: Host, config: Any, tmp_path: Path) -> None:
    """On three the order of a sum shows: it depends on where DDP puts its buckets."""
    folders = [tmp_path / name for name in ("whole", "killed")]
    for folder, plan in zip(folders, ("none", "2@8")):
        file = config(folder)
        require_finished(killed(host_copy, folder, file, plan, ranks=3, restarts=1))
    assert list((folders[1] / "happened").iterdir())
    assert state_differences(*map(newest, folders)) == []


def test_one_process_goes_on_inside_an_epoch_to_the_bit(
    host_copy: Host, config: Any, tmp_path: Path
) -> None:
    """The host's own sampler and arithmetic, plain python, another process each time."""
    states = {}
    for name, plan in (("whole", "none"), ("stopped", "0@SIGUSR1:5")):
        folder = tmp_path / name
        file = config(folder)
        arguments = (plan, folder / "happened", "--config", file)
        result = python(host_copy, KILLED, *arguments)
        if plan != "none":
            assert result.returncode == EXIT_STOPPED, result
            assert newest(folder)["inside"] == {"epoch": 2, "steps": 2, "total": None}
            result = python(host_copy, KILLED, *arguments, "--resume")
        require_finished(result)
        states[name] = newest(folder)
    assert state_differences(states["stopped"], states["whole"]) == []


def test_micro_batches_go_on_inside_an_epoch_to_the_bit(
    host_copy: Host, config: Any, tmp_path: Path
) -> None:
    """Two ranks, two micro-batches; a pass of 43 windows has two steps of 16 samples."""
    states = {}
    for name, plan in (("whole", "none"), ("stopped", "0@SIGUSR1:7")):
        folder = tmp_path / name
        file = config(folder, ddp={"accumulate": 2})
        result = killed(host_copy, folder, file, plan)
        if plan != "none":
            assert newest(folder)["inside"] == {"epoch": 2, "steps": 2, "total": None}, result
            result = killed(host_copy, folder, file, "none", "--resume")
        require_finished(result)
        assert "batch: 4 per rank x 2 x 2 micro-batches = 16 samples per step" in result.stdout
        states[name] = newest(folder)
    assert states["whole"]["steps"] == 12 and states["whole"]["samples_per_step"] == 16
    counters = states["whole"]["model"][""]["ema"]["numbers"]
    assert counters["optimization_step"] == 12
    assert state_differences(states["stopped"], states["whole"]) == []
    lines = (run_directory(folder / "runs") / "history.jsonl").read_text().splitlines()
    trained = [json.loads(line) for line in lines if '"train"' in line]
    assert [line["epoch"] for line in trained] == [1, 2, 3, 4]
    for line in trained:
        before = 2 if line["epoch"] == 2 else 0  # steps of the job that was stopped
        rate = line["samples_per_second"] * line["seconds"]
        assert rate == pytest.approx((line["steps"] - before) * 16)
        assert line["log"]["Policy_Grad_Norms"] > 0


def test_a_host_without_resume_gets_it(config: Any, tmp_path: Path) -> None:
    """DROID's shape: no flag, a data iterator that outlives epochs, other paths of a run."""
    host = droid_shaped(tmp_path / "host")
    script = host.package / "scripts" / "train.py"
    text = script.read_text()
    for old, new in (
        ("def train(config, device, resume=False):", "def train(config, device):"),
        ("device=device, resume=args.resume)", "device=device)"),
        ("    # first set seeds\n", "    resume = False\n    # first set seeds\n"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    script.write_text(text)
    apply(host)
    states = {}
    for name, plan in (("whole", "none"), ("broken", "1@8")):
        folder = tmp_path / name
        file = config(folder)
        result = killed(host, folder, file, plan)
        if plan != "none":
            assert result.returncode != 0
            asked = {"ROBOMIMIC_DDP_RESUME": "true"}
            result = killed(host, folder, file, "none", added=asked)
            assert "resuming training from epoch 3" in result.stdout, result
            assert "data: pass 1 goes on after" in result.stdout, result
        require_finished(result)
        states[name] = newest(folder)
    assert state_differences(states["broken"], states["whole"]) == []


def test_nothing_to_resume_is_one_clear_error(host_copy: Host, config: Any, tmp_path: Path) -> None:
    result = killed(host_copy, tmp_path, config(tmp_path), "none", "--resume")
    assert result.returncode != 0 and not result.leftovers
    assert result.stderr.count("error: nothing to resume: no folder in") == 1, result
    assert not (tmp_path / "runs").exists()
