"""Which functions play: what a host calls `rollout_with_stats`, and what its training calls."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches.outcomes import Applied, NotPresent
from tests.fixers.support import check_marked
from tests.patches.support import SMALL_HOST, append, examine, write_host

UTILS = "utils/train_utils.py"
PARALLEL = "\n\ndef rollout_parallel(policy, envs, horizon):\n    pass\n"


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


@pytest.mark.parametrize("file", [UTILS, "utils/rollout_utils.py", "scripts/train.py"])
def test_what_the_training_function_calls_to_act_is_decorated_where_it_is_defined(host, file):
    module = file.removesuffix(".py").replace("/", ".")
    script = SMALL_HOST["scripts/train.py"].replace(
        "loader=train_loader)\n", "loader=train_loader)\n        play(model, {}, 9)\n"
    )
    name = "rollout_parallel" if file == "scripts/train.py" else "Of.rollout_parallel"
    imported = "" if file == "scripts/train.py" else f"import robomimic.{module} as Of\n"
    (host / "scripts/train.py").write_text(imported + script.replace("play(", f"{name}("))
    append(host / file, PARALLEL)
    examination = examine(host)
    assert not examination.blocked, examination.problems
    found = [one for one in examination.findings if one.fixer.name == "rollouts"]
    assert [(one.path, type(one.outcome)) for one in found if one.path == file] == [(file, Applied)]


def test_what_only_helpers_call_is_left(host):
    append(host / UTILS, PARALLEL)
    outcomes = [one.outcome for one in examine(host).findings if one.fixer.name == "rollouts"]
    assert [type(outcome) for outcome in outcomes] == [NotPresent]
