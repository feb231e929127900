"""The configs of docs/examples.md train on two ranks with the data that its commands write."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.e2e.pages import DOCS, commands
from tests.hosts import FINISHED, ROOT, Host, Result, python, require_clean, torchrun

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
HDF5 = "example_hdf5"


def of_the_page(name: str) -> tuple[list[str], list[str]]:
    """The words of the page's two commands: the one that writes data, and the training after it."""
    lines = [line for line in commands(DOCS / "examples.md") if "-m" in line.split()]
    (place,) = [number for number, line in enumerate(lines) if f"configs/{name}.json" in line]
    return shlex.split(lines[place - 1]), shlex.split(lines[place])


def write_and_train(name: str, home: Path, host: Host, *, cold: bool) -> Result:
    """Runs both commands with `home` as the user's."""
    write, train = of_the_page(name)
    words = [word.replace("~", str(home)) for word in write[1:]]
    assert write[0] == "python" and train[:3] == ["torchrun", "--nproc_per_node=2", "-m"]
    assert words[0] == "-m"
    require_clean(python(None, *words[1:], cold=cold))
    train = [word.replace("configs/", f"{ROOT}/configs/") for word in train[3:]]
    module, *arguments = train
    variables = {"HOME": str(home)}
    options = {"cold": cold, "rlds": name != HDF5, "timeout": 300.0}
    return torchrun(host, module, *arguments, added=variables, **options)


def require_trained(name: str, home: Path, result: Result) -> None:
    require_clean(result)
    assert result.stdout.count(FINISHED) == 1
    (history,) = (home / "robomimic-ddp-examples" / "runs" / name).glob("*/history.jsonl")
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    trained = [line for line in lines if line["phase"] == "train"]
    assert [line["samples"] for line in trained] == [320, 320]  # 10 steps of 16 on each rank
    assert trained[1]["log"]["Loss"] < trained[0]["log"]["Loss"]


def test_its_checkpoint_acts_in_the_unedited_host(plain_host: Host, tmp_path: Path) -> None:
    """The quick one of the two: a host with a small net. The next test is slow."""
    result = write_and_train(HDF5, tmp_path, plain_host, cold=False)
    require_trained(HDF5, tmp_path, result)
    act_with_the_checkpoint_of(HDF5, tmp_path, plain_host)


def act_with_the_checkpoint_of(name: str, home: Path, host: Host) -> None:
    (checkpoint,) = (home / "robomimic-ddp-examples" / "runs" / name).glob("*/last.pth")
    acted = python(host, "tests.e2e.acting", checkpoint)
    require_clean(acted)
    assert "action of" in acted.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", [HDF5, "example_rlds"])
def test_the_commands_run_as_they_are(name: str, tmp_path: Path) -> None:
    result = write_and_train(name, tmp_path, Host(tmp_path), cold=True)
    require_trained(name, tmp_path, result)
    act_with_the_checkpoint_of(name, tmp_path, Host(tmp_path))
