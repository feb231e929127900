"""The epoch loop of train()."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches.outcomes import Unrecognised
from tests.fixers.support import check_edit, check_untouched

HEAD = "import robomimic.utils.train_utils as TrainUtils\n"
OURS = "import robomimic_ddp.api as DDPUtils\n"


def test_leaves_a_file_without_train():
    check_untouched("epochs", HEAD + "for epoch in range(3):\n    TrainUtils.run_epoch(model=m)\n")


@pytest.mark.parametrize(
    ("iterable", "call", "model"),
    [
        (
            "range(1, config.train.num_epochs + 1)",
            "TrainUtils.run_epoch(model=model, x=1)",
            "model",
        ),
        ("range(start, n)", "run_epoch(policy, loader, epoch)", "policy"),
        ("tqdm(range(n))", "TrainUtils.run_epoch(model=algo.model)", "algo.model"),
        ("epochs", "TrainUtils.run_epoch(model=model)", "model"),
        ("range(n)", "TrainUtils.run_epoch_mt(model=model, data_loaders=several)", "model"),
    ],
)
def test_wraps_what_the_loop_runs_over(iterable, call, model):
    text = """def train(config, device):
    for k in keys:
        print(k)
    for epoch in {}:  # from 1
        step_log, data_iterator = {}
        for k in step_log:
            log(k)
        TrainUtils.run_epoch(model={}, validate=True)
"""
    check_edit(
        "epochs",
        HEAD + text.format(iterable, call, model),
        HEAD + OURS + text.format(f"DDPUtils.epochs({iterable}, {model})", call, model),
    )


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("while True:\n        run_epoch(model=model)", 4),
        ("pass", 2),
        ("for epoch in 1, 2:\n        run_epoch(model=model)", 3),
        ("for epoch in range(2):\n        run_epoch(model=make())", 3),
        ("for epoch in range(2):\n        run_epoch(model=a)\n        run_epoch(model=b)", 3),
    ],
    ids=["while", "no loop", "tuple", "model not named", "two models"],
)
def test_says_so_for_other_loops(body, line):
    text = f"import os\ndef train(config, device):\n    {body}\n"
    assert check_untouched("epochs", text, Unrecognised).where == line
