""".to('cuda') in an algorithm's file."""

from __future__ import annotations

import pytest

from tests.fixers.support import check_edit, check_untouched


@pytest.mark.parametrize(
    "line",
    ["x.to('cpu')", "x.to(device)", "x.cuda()", "x.put('cuda')", "to('cuda')", "x.to('cuda:1')"],
)
def test_leaves_other_moves(line):
    check_untouched("to_cuda", f"import torch\n{line}\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("model.to('cuda')", "model.to(DDPUtils.cuda_device())"),
        ('x = f(a).to("cuda:0", b)', "x = f(a).to(DDPUtils.cuda_device(), b)"),
        ("x.to(device='cuda')", "x.to(device=DDPUtils.cuda_device())"),
    ],
)
def test_goes_to_the_device_of_this_rank(before, after):
    check_edit(
        "to_cuda",
        f"import torch\n{before}\n",
        f"import torch\nimport robomimic_ddp.api as DDPUtils\n{after}\n",
    )
