"""The configs of docs/examples.md train on two ranks with the data that its commands write."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.e2e.pages import DOCS, commands
from tests.hosts import FINISHED, ROOT, Host, Result, require_clean, run, torchrun

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
HDF5 = "example_hdf5"


def of_the_page(name: str) -> tuple[list[str], list[str]]:
    """The words of the page's two commands: the one that writes data, and the training after it."""
    lines = [line for line in commands(DOCS / "examples.md") if "-m" in line.split()]
    (place,) = [number for number, line in enumerate(lines) if f"configs/{name}.json" in line]
    return shlex.split(lines[place - 1]), shlex.split(lines[place])


def write_and_train(name: str, home: Path, host: Host, *before: str, cold: bool) -> Result:
    """Runs both commands with `home` as the user's; `before`: words that are left out."""
    write, train = of_the_page(name)
    words = [word.replace("~", str(home)) for word in write[1:]]
    assert write[0] == "python" and train[:3] == ["torchrun", "--nproc_per_node=2", "-m"]
    require_clean(run(None, sys.executable, *words))
    train = [word.replace("configs/", f"{ROOT}/configs/") for word in train[3:]]
    module, *arguments = [word for word in train if word not in before]
    variables = {"HOME": str(home)}
    options = {"cold": cold, "rlds": name != HDF5, "timeout": 300.0}
    return torchrun(host, module, *arguments, added=variables, **options)


def require_trained(name: str, home: Path, result: Result) -> None:
    require_clean(result)
    assert result.stdout.count(FINISHED) == 1
    (history,) = (home / "robomimic-ddp-examples" / "runs" / name).glob("*/history.jsonl")
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    trained = [line for line in lines if line["phase"] == "train"]
    assert [line["samples"] for line in trained] == [640, 640]  # 20 steps of 16 on each rank
    assert trained[1]["log"]["Loss"] < trained[0]["log"]["Loss"]


def test_an_edited_host_trains_with_it(host_copy: Host, tmp_path: Path) -> None:
    """The quick one of the two; the next test is slow."""
    in_memory = ("robomimic_ddp", "run", "--with", "unet_config")
    result = write_and_train(HDF5, tmp_path, host_copy, *in_memory, cold=False)
    require_trained(HDF5, tmp_path, result)


@pytest.mark.slow
@pytest.mark.parametrize("name", [HDF5, "example_rlds"])
def test_the_commands_run_as_they_are(name: str, tmp_path: Path) -> None:
    result = write_and_train(name, tmp_path, Host(tmp_path), cold=True)
    require_trained(name, tmp_path, result)
