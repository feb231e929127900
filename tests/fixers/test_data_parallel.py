"""DataParallel calls of the DROID family, by the shapes that real forks have."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches.outcomes import Unrecognised
from tests.fixers.support import check_marked, check_untouched

CALL = "DataParallel(net, device_ids=list(range(0,torch.cuda.device_count())))"
NET = "DDPUtils.parallel(net, module_key=True)"


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nnet = torch.nn.Linear(1, 1)  # not in DataParallel\n",
        "# from torch.nn.parallel import DataParallel as DP\nnet = build()\n",
        "from torch.nn import DataParallel\n\nplain = isinstance(net, (list, DataParallel))\n",
        "from other.library import DataParallel\nnet = DataParallel(net)\n",
        "class DataParallel:\n    pass\n\nnet = DataParallel()\n",
    ],
    ids=[
        "mention",
        "commented import",
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
        ("from torch import nn\n", "nn.DataParallel"),
        ("from torch.nn.parallel import DataParallel as DP\n", "DP"),
        ("import torch.nn.parallel.data_parallel as P\n", "P.DataParallel"),
    ],
)
def test_any_alias(imports, name):
    call = f"{name}(net, device_ids=list(range(0,torch.cuda.device_count())))"
    check_marked("data_parallel", f"{imports}@@\nnet = <<{call}|{NET}>>\n")


@pytest.mark.parametrize(
    "text",
    [
        f"""import torch
import torch.nn as nn
@@

nets = nn.ModuleDict({{
    'policy': nn.ModuleDict({{
        'obs_encoder': <<torch.nn.parallel.{CALL}|{NET}>>,   # comment
        'noise_pred_net': <<torch.nn.parallel.{CALL}|{NET}>>
    }})
}})
nets = nets.float().to(device)
""",
        """import torch
@@

nets = {
    "obs_encoder": <<torch.nn.parallel.DataParallel|DDPUtils.parallel>>(
        obs_encoder,
        <<device_ids=list(range(0, torch.cuda.device_count()))|module_key=True>>,
    ),
}
""",
        """import torch
import robomimic_ddp.api as DDPUtils
a = DDPUtils.parallel(a, module_key=True)
b = <<torch.nn.DataParallel(b)|DDPUtils.parallel(b, module_key=True)>>
""",
    ],
    ids=["nested ModuleDicts", "broken over lines by a formatter", "half edited before"],
)
def test_values_of_dicts_and_half_edited_files(text):
    check_marked("data_parallel", text)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("torch.nn.DataParallel(device_ids=[0, 1], module=net)", NET),
        ("torch.nn.DataParallel(net, [0, 1])", NET),
        ("torch.nn.DataParallel(net).cuda()", f"{NET}.cuda()"),
        (
            "torch.nn.DataParallel(make(a, b), dim=0) if several else net",
            "DDPUtils.parallel(make(a, b), module_key=True) if several else net",
        ),
        (
            "torch.nn.DataParallel(torch.nn.DataParallel(net))",
            f"DDPUtils.parallel({NET}, module_key=True)",
        ),
    ],
)
def test_wherever_the_call_stands(call, expected):
    check_marked("data_parallel", f"import torch\n@@\nnet = <<{call}|{expected}>>\n")


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nclass Mine(torch.nn.DataParallel):\n    pass\n",
        "import torch\nnet = torch.nn.DataParallel(*arguments)\n",
        "from functools import partial\nimport torch\nwrap = partial(torch.nn.DataParallel)\n",
    ],
    ids=["subclass", "starred arguments", "partial"],
)
def test_says_so_where_it_is_not_a_plain_call(text):
    outcome = check_untouched("data_parallel", text, Unrecognised)
    assert outcome.where in (2, 3) and outcome.blocks
    assert "DDPUtils.parallel" in outcome.by_hand
