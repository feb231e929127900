"""The best-so-far values of train()."""

from __future__ import annotations

import pytest

from tests.fixers.support import IMPORT, check_edit, check_untouched

LOOP = "    for epoch in range(2):\n        run_epoch(model, epoch)\n"


@pytest.mark.parametrize(
    "text",
    [
        "def main():\n    best_valid_loss = None\n",
        f"def train(config, device):\n    best = None\n{LOOP}",
        f"def train(config, device):\n{LOOP}        best_valid_loss = 1\n",
        f"def train(config, device):\n    if resume:\n        best_return = saved['x']\n{LOOP}",
    ],
    ids=["elsewhere", "another name", "inside the loop", "the host's own resume"],
)
def test_leaves_other_values(text):
    check_untouched("restored", text)


def test_the_three_first_values():
    text = """def train(config, device, resume=False):
    for data in config.data:
        print(data)
    best_valid_loss = {}None{}
    best_return = {}{{k: -np.inf for k in envs}} if enabled else None{}
    best_success_rate = {}{{k: -1. for k in envs}} if enabled else None{}  # for each env
    if resume:
        best_valid_loss = saved["best_valid_loss"]
"""
    ours = []
    for name in ("best_valid_loss", "best_return", "best_success_rate"):
        ours += [f'DDPUtils.restored("{name}", ', ")"]
    check_edit("restored", text.format(*[""] * 6) + LOOP, IMPORT + text.format(*ours) + LOOP)
