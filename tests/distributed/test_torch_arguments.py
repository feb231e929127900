"""What users may hand to DistributedDataParallel and DataLoader, by the classes of this torch."""

from __future__ import annotations

import inspect

import pytest
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from robomimic_ddp.config.options import PASSED_ON, Options
from robomimic_ddp.distributed.gradients.torch_arguments import require_accepted
from robomimic_ddp.errors import OptionError

TAKERS = {"kwargs": DistributedDataParallel, "loader": DataLoader}


def test_what_torch_takes():
    kwargs = {"bucket_cap_mb": 0.5, "static_graph": True}
    require_accepted(Options(kwargs=kwargs, loader={"prefetch_factor": 3, "pin_memory": True}))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "option, arguments, words",
    [
        (
            "kwargs",
            {"bucket_cap": 5},
            ["kwargs.bucket_cap:", "Did you mean ddp.kwargs.bucket_cap_"],
        ),
        ("kwargs", {"zzz": 5}, ["DistributedDataParallel of this torch has no", "static_graph"]),
        ("kwargs", {"device_ids": [0]}, ["ddp.kwargs.device_ids cannot be set", "device"]),
        ("kwargs", {"static_graph": "flase"}, ["static_graph='flase': ", "expects true | false"]),
        ("kwargs", {"bucket_cap_mb": "50MB"}, ["bucket_cap_mb='50MB': ", "expects a number"]),
        ("loader", {"num_workers": 2}, ["ddp.loader.num_workers cannot be set: the run sets it"]),
    ],
)
def test_what_it_does_not_take_is_one_clear_error(option, arguments, words):
    with pytest.raises(OptionError) as caught:
        require_accepted(Options(**{option: arguments}))
    for word in words:
        assert word in str(caught.value)


def test_names_that_users_look_for_are_torchs():
    newest = {"forward_sync_buffers", "broadcast_buffers", "in_order"}
    for option, names in PASSED_ON.items():
        assert {*names} - newest <= {*inspect.signature(TAKERS[option]).parameters}
