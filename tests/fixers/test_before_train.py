"""What a script does before train(): the run begins, files are written once, a simulator starts."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches.outcomes import Unrecognised
from tests.fixers.support import check_marked, check_untouched

LAUNCHER = "from isaaclab.app import AppLauncher\n"
UTILS = "import robomimic.utils.train_utils as TrainUtils\n"
MAIN = "def main(args):\n"
DIRECTORY = "    log_dir, *_ = TrainUtils.get_exp_dir(config)\n"


@pytest.mark.parametrize(
    "text",
    [
        f"{UTILS}@@\n\n{MAIN}    log_dir, *_ = <<TrainUtils.get_exp_dir|"
        "DDPUtils.begin_run(TrainUtils.get_exp_dir)>>(config, auto_remove_exp_dir=True)\n",
        "from robomimic.utils.train_utils import get_exp_dir\n@@\n\n"
        f"{MAIN}    paths = <<get_exp_dir|DDPUtils.begin_run(get_exp_dir)>>(config)\n",
    ],
)
def test_the_run_begins_where_main_makes_its_directory(text):
    check_marked("begin_run", text)


def test_a_directory_that_train_makes_is_left():
    text = f"{UTILS}def train(config, device):\n{DIRECTORY}{MAIN}    train(config, device)\n"
    assert "main() makes no run directory" in check_untouched("begin_run", text).reason


WRITER = "def scale(config, log_dir):\n    {}\n\n\n"


@pytest.mark.parametrize(
    "line",
    [
        "shutil.copyfile(config.train.data, scaled)",
        'h5py.File(scaled, "r+")',
        'h5py.File(scaled, mode="w")',
        'open(scaled, "a")',
    ],
)
def test_a_function_that_writes_files_is_called_once(line):
    text = f"import h5py\nimport shutil\n{UTILS}@@\n\n<<|@DDPUtils.once\n>>"
    call = "    config.train.data = scale(config, log_dir)\n"
    check_marked("once", f"{text}{WRITER.format(line)}{MAIN}{DIRECTORY}{call}")


@pytest.mark.parametrize(
    "text",
    [
        WRITER.format('h5py.File(scaled, "r")') + MAIN + DIRECTORY + "    scale(config, log_dir)\n",
        WRITER.format('open(scaled, "w")') + MAIN + DIRECTORY,
        WRITER.format('open(scaled, "w")') + MAIN + "    scale(config, log_dir)  # get_exp_dir\n",
        "def train(config, device):\n    open(path, 'w')\n    for epoch in range(2):\n"
        f"        run_epoch(model, epoch)\n\n\n{MAIN}{DIRECTORY}    train(config, device)\n",
    ],
    ids=["reads", "is not called", "in another place", "trains"],
)
def test_other_functions_are_left(text):
    check_untouched("once", f"import h5py\n{UTILS}{text}")


def test_files_that_are_written_before_the_ranks_have_met_are_named():
    text = WRITER.format('open(scaled, "w")') + MAIN + "    scale(config, 1)\n" + DIRECTORY
    outcome = check_untouched("once", text, Unrecognised)
    assert outcome.where == 6 and outcome.blocks


@pytest.mark.parametrize(
    "text",
    [
        f"{LAUNCHER}@@\nlauncher = AppLauncher(headless=True<<|, distributed=True>>)\n",
        f"{LAUNCHER}@@\nAppLauncher(<<|distributed=True>>)\n",
        "from omni.isaac.lab.app import AppLauncher as Start\n@@\n"
        "# AppLauncher(\nStart(headless=True<<|, distributed=True>>).app\n",
    ],
)
def test_each_ranks_simulator_gets_that_ranks_gpu(text):
    check_marked("simulator", text)


@pytest.mark.parametrize(
    "text",
    [
        f"{LAUNCHER}AppLauncher(headless=True, distributed=True)\n",
        "from mine import AppLauncher\nAppLauncher(headless=True)\n",
        f"{LAUNCHER}AppLauncher.add_app_launcher_args(parser)  # AppLauncher(\n",
    ],
    ids=["by itself", "another", "only its arguments"],
)
def test_other_launchers_are_left(text):
    check_untouched("simulator", text)


def test_a_simulator_with_parsed_arguments_is_named_and_left():
    outcome = check_untouched("simulator", f"{LAUNCHER}AppLauncher(arguments)\n", Unrecognised)
    assert "--distributed" in outcome.why and not outcome.blocks
