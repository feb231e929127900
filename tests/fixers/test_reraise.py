"""The handler in main() that prints every error and exits 0."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches.outcomes import Unrecognised
from tests.fixers.support import check_edit, check_untouched

HOST = """
import traceback
{extra_import}

{decorator}def main(args):
    message = "finished run successfully!"
    try:
        train(config, device=device)
    except {kind}:
        message = "run failed with error:\\n{{}}".format(traceback.format_exc())  # shown below
{last}    print(message)
"""
OURS = "import robomimic_ddp.api as DDPUtils"


def host(kind: str = "Exception as e", last: str = "", ours: bool = False) -> str:
    decorator = "@DDPUtils.entry_point(api_version=1)\n" if ours else ""
    return HOST.format(
        kind=kind, last=last, decorator=decorator, extra_import=OURS if ours else "import os"
    )


@pytest.mark.parametrize("kind", ["ValueError as e", "(OSError, ValueError)"])
def test_leaves_handlers_of_particular_errors(kind):
    check_untouched("reraise", host(kind))


@pytest.mark.parametrize("last", ["        raise\n", "        raise RuntimeError(message)\n"])
def test_leaves_a_host_that_raises_by_itself(last):
    assert "by itself" in check_untouched("reraise", host(last=last)).reason


def test_leaves_a_handler_that_exits():
    check_untouched("reraise", "import sys\n" + host(last="        sys.exit(1)\n"))


def test_a_variable_with_the_name_of_a_library_may_train():
    text = """{}
@DDPUtils.entry_point(api_version=1)
def main(args):
    profile = common.profiler(args)
    try:
        profile.run(args)
    except Exception:
        print(1)
{}"""
    check_edit("reraise", text.format(OURS, ""), text.format(OURS, "        raise\n"))


def test_leaves_handlers_outside_main():
    check_untouched(
        "reraise", "def train(config):\n    try:\n        f()\n    except Exception:\n        g()\n"
    )


@pytest.mark.parametrize("kind", ["Exception as e", "BaseException as e", "(KeyError, Exception)"])
def test_raise_becomes_the_last_line(kind):
    check_edit("reraise", host(kind, ours=True), host(kind, last="        raise\n", ours=True))


def test_bare_except_and_tabs():
    check_edit(
        "reraise",
        f"{OURS}\n@DDPUtils.entry_point(api_version=1)\ndef main(args):\n"
        "\ttry:\n\t\ttrain()\n\texcept:\n\t\tprint(1)\n",
        f"{OURS}\n@DDPUtils.entry_point(api_version=1)\ndef main(args):\n"
        "\ttry:\n\t\ttrain()\n\texcept:\n\t\tprint(1)\n\t\traise\n",
    )


@pytest.mark.parametrize(
    "handler", ["    except Exception:\n        return 0\n", "    except Exception: print(1)\n"]
)
def test_says_so_where_no_line_can_be_added(handler):
    text = f"def main(args):\n    try:\n        train()\n{handler}"
    assert check_untouched("reraise", text, Unrecognised).where == 4


def test_leaves_a_way_around_what_is_not_the_training():
    around = """    try:
        commit = subprocess.check_output(["git", "rev-parse", "HEAD"]).decode()
        import wandb
    except Exception:
        commit = wandb = None
    message ="""
    before, after = (
        host(last=last, ours=True)
        .replace("    message =", around, 1)
        .replace("traceback", "subprocess", 1)
        for last in ("", "        raise\n")
    )
    check_edit("reraise", before, after)


AROUND = """    try:
        commit = {}
    except Exception:
        commit = None
"""
SCRIPT = """import git
import setproctitle
import robomimic.utils.train_utils as TrainUtils
from robomimic.scripts.train import train as fit
import robomimic_ddp.api as DDPUtils


def setup_logging():
    return git.Git()


def train_by_hand(config):
    TrainUtils.run_epoch(config)


def run(config):
    fit(config)


@DDPUtils.entry_point(api_version=1)
def main(args):
{around}    try:
        {call}
    except Exception:
        print(1)
{last}"""


@pytest.mark.parametrize("call", ["fit(1)", "train_by_hand(1)", "run(1)", "trainer.fit()"])
def test_only_handlers_around_the_training_raise(call):
    around = "".join(
        AROUND.format(value)
        for value in (
            'git.Repo(".").head.commit.hexsha',
            'setproctitle.setproctitle("robomimic")',
            "setup_logging()",
            "TrainUtils.get_exp_dir(args)",
        )
    )
    before, after = (
        SCRIPT.format(around=around, call=call, last=last) for last in ("", "        raise\n")
    )
    check_edit("reraise", before, after)


def test_a_way_around_may_leave_the_function_where_the_training_is_in_no_handler():
    text = "import git\n\n\ndef main(args):\n{}    train(args)\n"
    way = AROUND.format("git.Repo()") + "        return\n"
    check_untouched("reraise", text.format(way))
