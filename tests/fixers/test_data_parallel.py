"""DataParallel calls of the DROID family, by the shapes that real forks have."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches.outcomes import Unrecognised
from tests.fixers.support import check_edit, check_untouched

CALL = "DataParallel(net, device_ids=list(range(0,torch.cuda.device_count())))"


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nnet = torch.nn.Linear(1, 1)  # not in DataParallel\n",
        "# from torch.nn.parallel import DataParallel as DP\nnet = build()\n",
        "from torch.nn.parallel import DataParallel\n\nplain = isinstance(net, DataParallel)\n",
        "from torch.nn import DataParallel\n\nplain = isinstance(net, (list, DataParallel))\n",
        "from other.library import DataParallel\nnet = DataParallel(net)\n",
        "class DataParallel:\n    pass\n\nnet = DataParallel()\n",
    ],
    ids=[
        "mention",
        "commented import",
        "isinstance",
        "isinstance tuple",
        "other library",
        "own class",
    ],
)
def test_leaves_what_is_not_torchs_data_parallel(text):
    check_untouched("data_parallel", text)


@pytest.mark.parametrize(
    ("imports", "name"),
    [
        ("import torch\n", "torch.nn.parallel.DataParallel"),
        ("import torch\n", "torch.nn.DataParallel"),
        ("import torch.nn as nn\n", "nn.DataParallel"),
        ("from torch import nn\n", "nn.DataParallel"),
        ("from torch.nn.parallel import DataParallel\n", "DataParallel"),
        ("from torch.nn import DataParallel as DP\n", "DP"),
        ("import torch.nn.parallel as P\n", "P.DataParallel"),
    ],
)
def test_any_alias(imports, name):
    before = f"{imports}net = {name}(net, device_ids=list(range(0,torch.cuda.device_count())))\n"
    after = (
        f"{imports}import robomimic_ddp.api as DDPUtils\n"
        "net = DDPUtils.parallel(net, module_key=True)\n"
    )
    check_edit("data_parallel", before, after)


def test_dict_values_in_nested_module_dicts():
    check_edit(
        "data_parallel",
        f"""
        import torch
        import torch.nn as nn

        nets = nn.ModuleDict({{
            'policy': nn.ModuleDict({{
                'obs_encoder': torch.nn.parallel.{CALL},   # comment
                'noise_pred_net': torch.nn.parallel.{CALL}
            }})
        }})
        nets = nets.float().to(device)
        """,
        """
        import torch
        import torch.nn as nn
        import robomimic_ddp.api as DDPUtils

        nets = nn.ModuleDict({
            'policy': nn.ModuleDict({
                'obs_encoder': DDPUtils.parallel(net, module_key=True),   # comment
                'noise_pred_net': DDPUtils.parallel(net, module_key=True)
            })
        })
        nets = nets.float().to(device)
        """,
    )


def test_broken_over_lines_by_a_formatter():
    check_edit(
        "data_parallel",
        """
        import torch

        nets = {
            "obs_encoder": torch.nn.parallel.DataParallel(
                obs_encoder,
                device_ids=list(range(0, torch.cuda.device_count())),
            ),
        }
        """,
        """
        import torch
        import robomimic_ddp.api as DDPUtils

        nets = {
            "obs_encoder": DDPUtils.parallel(
                obs_encoder,
                module_key=True,
            ),
        }
        """,
    )


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("torch.nn.DataParallel(net)", "DDPUtils.parallel(net, module_key=True)"),
        ("torch.nn.DataParallel(module=net)", "DDPUtils.parallel(net, module_key=True)"),
        (
            "torch.nn.DataParallel(device_ids=[0, 1], module=net)",
            "DDPUtils.parallel(net, module_key=True)",
        ),
        ("torch.nn.DataParallel(net, [0, 1])", "DDPUtils.parallel(net, module_key=True)"),
        ("torch.nn.DataParallel(net).cuda()", "DDPUtils.parallel(net, module_key=True).cuda()"),
        (
            "torch.nn.DataParallel(make(a, b), dim=0) if several else net",
            "DDPUtils.parallel(make(a, b), module_key=True) if several else net",
        ),
        (
            "torch.nn.DataParallel(torch.nn.DataParallel(net))",
            "DDPUtils.parallel(DDPUtils.parallel(net, module_key=True), module_key=True)",
        ),
    ],
)
def test_wherever_the_call_stands(call, expected):
    check_edit(
        "data_parallel",
        f"import torch\nnet = {call}\n",
        f"import torch\nimport robomimic_ddp.api as DDPUtils\nnet = {expected}\n",
    )


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nclass Mine(torch.nn.DataParallel):\n    pass\n",
        "import torch\nwrapper = torch.nn.DataParallel\nnet = wrapper(net)\n",
        "import torch\nnet = torch.nn.DataParallel(*arguments)\n",
        "from functools import partial\nimport torch\nwrap = partial(torch.nn.DataParallel)\n",
    ],
    ids=["subclass", "stored", "starred arguments", "partial"],
)
def test_says_so_where_it_is_not_a_plain_call(text):
    outcome = check_untouched("data_parallel", text, Unrecognised)
    assert outcome.where in (2, 3)
    assert "DDPUtils.parallel" in outcome.by_hand


def test_a_half_edited_file_is_completed():
    check_edit(
        "data_parallel",
        """
        import torch
        import robomimic_ddp.api as DDPUtils
        a = DDPUtils.parallel(a, module_key=True)
        b = torch.nn.DataParallel(b)
        """,
        """
        import torch
        import robomimic_ddp.api as DDPUtils
        a = DDPUtils.parallel(a, module_key=True)
        b = DDPUtils.parallel(b, module_key=True)
        """,
    )
