"""The initial learning rate in optimizer_from_optim_params."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches.outcomes import Unrecognised
from tests.fixers.support import check_edit, check_untouched

HEAD = "import torch.optim as optim\n"
OURS = "import robomimic_ddp.api as DDPUtils\n"
FUNCTION = "def optimizer_from_optim_params(net_optim_params, net):\n"


def test_leaves_other_functions():
    text = 'def scheduler(p):\n    return p["learning_rate"]["initial"]\n'
    check_untouched("scale_lr", HEAD + text)


def test_leaves_what_is_no_initial_rate():
    text = f'{HEAD}{FUNCTION}    return p["learning_rate"]["decay"], p["initial"]\n'
    check_untouched("scale_lr", text, Unrecognised)


@pytest.mark.parametrize(
    "rate",
    [
        'net_optim_params["learning_rate"]["initial"]',
        "p['learning_rate']['initial']",
        "p.learning_rate.initial",
    ],
)
def test_each_reading_is_scaled(rate):
    text = FUNCTION + "    lr = {0}\n    return optim.Adam(net.parameters(), lr={0}, eps=1)\n"
    check_edit(
        "scale_lr",
        HEAD + text.format(rate),
        HEAD + OURS + text.format(f"DDPUtils.scale_lr({rate})"),
    )
