"""The configs of docs/examples.md train on two ranks with the data that its commands write."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from robomimic_ddp.config.host import host_config
from tests.e2e.docs.pages import DOCS, commands
from tests.hosts import FINISHED, ROOT, Host, Result, require_clean, run, torchrun

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
NAMES = ["example_hdf5", "example_rlds"]


def of_the_page(name: str) -> tuple[list[str], list[str]]:
    """The words of the page's two commands: the one that writes data, and the training after it."""
    lines = [line for line in commands(DOCS / "examples.md") if "-m" in line.split()]
    (place,) = [number for number, line in enumerate(lines) if f"configs/{name}.json" in line]
    return shlex.split(lines[place - 1]), shlex.split(lines[place])


@pytest.mark.parametrize("name", NAMES)
def test_the_host_takes_its_config(name: str) -> None:
    """The quick part of the next test, which is slow."""
    config = host_config.build_config([f"load_from={ROOT}/configs/{name}.json"])
    assert config.algo_name == "diffusion_policy" and config.experiment.epoch_every_n_steps == 10


def write_and_train(name: str, home: Path, host: Host) -> Result:
    """Runs both commands with `home` as the user's."""
    write, train = of_the_page(name)
    words = [word.replace("~", str(home)) for word in write[1:]]
    assert write[0] == "python" and train[:3] == ["torchrun", "--nproc_per_node=2", "-m"]
    require_clean(run(None, sys.executable, *words))
    train = [word.replace("configs/", f"{ROOT}/configs/") for word in train[3:]]
    module, *arguments = train
    variables = {"HOME": str(home)}
    return torchrun(host, module, *arguments, added=variables, cold=True, timeout=300.0)


def require_trained(name: str, home: Path, result: Result) -> None:
    require_clean(result)
    assert result.stdout.count(FINISHED) == 1
    (history,) = (home / "robomimic-ddp-examples" / "runs" / name).glob("*/history.jsonl")
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    trained = [line for line in lines if line["phase"] == "train"]
    assert [line["samples"] for line in trained] == [320, 320]  # 10 steps of 16 on each rank
    assert trained[1]["log"]["Loss"] < trained[0]["log"]["Loss"]


ACT = """
import sys
import numpy as np
from robomimic.utils import file_utils
policy, content = file_utils.policy_from_checkpoint(ckpt_path=sys.argv[1], device="cpu")
shapes = content["shape_metadata"]["all_shapes"]
raw = {key: shape if len(shape) < 3 else [*shape[1:], shape[0]] for key, shape in shapes.items()}
policy.start_episode()
action = policy({key: np.zeros((2, *shape), "float32") for key, shape in raw.items()})
assert "robomimic_ddp" not in sys.modules and np.isfinite(action).all()
print("action of", len(action))
"""


def act_with_the_checkpoint_of(name: str, home: Path, host: Host) -> None:
    (checkpoint,) = (home / "robomimic-ddp-examples" / "runs" / name).glob("*/last.pth")
    acted = run(host, sys.executable, "-c", ACT, checkpoint)
    require_clean(acted)
    assert "action of" in acted.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_commands_run_and_the_unedited_host_acts(name: str, tmp_path: Path) -> None:
    result = write_and_train(name, tmp_path, Host(tmp_path))
    require_trained(name, tmp_path, result)
    act_with_the_checkpoint_of(name, tmp_path, Host(tmp_path))
