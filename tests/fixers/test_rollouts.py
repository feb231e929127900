"""Which functions play: what a host calls `rollout_with_stats`, and what its training calls."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches.outcomes import Applied, NotPresent
from tests.fixers.support import check_marked
from tests.patches.support import SMALL_HOST, append, examine, write_host

UTILS = "utils/train_utils.py"
PARALLEL = "\n\ndef rollout_parallel(policy, envs, horizon):\n    pass\n"
CALL = "loader=train_loader)\n"


@pytest.fixture
def host(tmp_path):
    return write_host(tmp_path)


def test_every_kind_of_rollouts_with_statistics_is_decorated():
    check_marked(
        "rollouts",
        """import os
@@


<<|@DDPUtils.rollouts
>>def rollout_with_stats(policy, envs):
    pass


<<|@DDPUtils.rollouts
>>def icl_rollout_with_stats(policy, envs, context_batch):
    pass


def run_rollout(policy, env):
    pass
""",
    )


def add_helper(host, file: str, function: str) -> None:
    """Define `function` in `file`; the training function calls it."""
    name, is_own = function.split("(")[0], file == "scripts/train.py"
    call = f"{'' if is_own else 'Of.'}{name}(model, {{}}, 9)\n"
    script = SMALL_HOST["scripts/train.py"].replace(CALL, f"{CALL}        {call}")
    module = file.removesuffix(".py").replace("/", ".")
    imported = "" if is_own else f"import robomimic.{module} as Of\n"
    (host / "scripts/train.py").write_text(imported + script)
    append(host / file, f"\n\ndef {function}:\n    pass\n")


@pytest.mark.parametrize("file", [UTILS, "utils/rollout_utils.py", "scripts/train.py"])
def test_what_the_training_function_calls_to_act_is_decorated_where_it_is_defined(host, file):
    add_helper(host, file, "rollout_parallel(policy, envs, horizon)")
    examination = examine(host)
    assert not examination.blocked, examination.problems
    found = [one for one in examination.findings if one.fixer.name == "rollouts"]
    assert [(one.path, type(one.outcome)) for one in found if one.path == file] == [(file, Applied)]


def test_what_only_helpers_call_is_left(host):
    append(host / UTILS, PARALLEL)
    outcomes = [one.outcome for one in examine(host).findings if one.fixer.name == "rollouts"]
    assert [type(outcome) for outcome in outcomes] == [NotPresent]


@pytest.mark.parametrize("file", ["utils/env_utils.py", "scripts/train.py"])
def test_a_helper_without_a_policy_runs_no_rollouts(host, file):
    add_helper(host, file, "make_rollout_envs(config, names, count)")
    examination = examine(host)
    assert not examination.blocked, examination.problems
    assert b"DDPUtils.rollouts" not in b"".join(patch.after for patch in examination.patches)


def test_a_helper_that_acts_under_another_name_is_an_error(host):
    script = SMALL_HOST["scripts/train.py"].replace(CALL, f"{CALL}        rollout_all(model)\n")
    (host / "scripts/train.py").write_text(f"from robomimic.utils import rollout_all\n{script}")
    (host / "utils/__init__.py").write_text("from .play import play as rollout_all\n")
    append(host / "utils/play.py", PARALLEL.replace("rollout_parallel", "play"))
    assert examine(host).blocked


def test_other_helpers_with_a_policy_run_no_rollouts(host):
    utils = host / UTILS
    utils.write_text(utils.read_text().replace("run_epoch(model, ", "run_epoch(policy, "))
    append(utils, PARALLEL)
    (patch,) = (patch for patch in examine(host).patches if patch.path == UTILS)
    assert b"DDPUtils.rollouts" not in patch.after
