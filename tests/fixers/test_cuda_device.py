"""get_torch_device."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches.outcomes import Unrecognised
from tests.fixers.support import check_edit, check_untouched

TEXT = """import torch
{}

def get_torch_device(try_to_use_cuda):
    if try_to_use_cuda and torch.cuda.is_available():
        device = {}
    else:
        device = torch.device("cpu")
    return device
"""


def test_leaves_a_device_of_the_cpu():
    check_untouched("cuda_device", TEXT.format("", 'torch.device("cpu")'))


def test_leaves_devices_outside_the_function():
    check_untouched("cuda_device", 'import torch\ndevice = torch.device("cuda:0")\n')


@pytest.mark.parametrize("name", ['"cuda:0"', "'cuda'", '"cuda:1"'])
def test_any_cuda_device_becomes_this_ranks(name):
    check_edit(
        "cuda_device",
        TEXT.format("", f"torch.device({name})"),
        TEXT.format("import robomimic_ddp.api as DDPUtils\n", "DDPUtils.cuda_device()"),
    )


@pytest.mark.parametrize("name", ['f"cuda:{index}"', '"cuda:{}".format(index)', "name"])
def test_says_so_where_the_name_is_computed(name):
    text = TEXT.format("", f"torch.device({name})")
    assert check_untouched("cuda_device", text, Unrecognised).where == 6
