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


@pytest.mark.parametrize(
    "values",
    [
        {"kwargs": {"bucket_cap_mb": 0.5, "static_graph": True}},
        {"loader": {"pin_memory": True, "prefetch_factor": 1000}, "kwargs": {"bucket_cap_mb": 1e6}},
        {"loader": {"timeout": 0.5, "multiprocessing_context": "spawn", "pin_memory_device": ""}},
    ],
)
def test_what_torch_takes(values):
    require_accepted(Options(**values))


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
        ("kwargs", {"bucket_cap_mb": "big"}, ["bucket_cap_mb='big'", "number from 0.1 to 1e+06"]),
        ("kwargs", {"bucket_cap_mb": 0}, ["bucket_cap_mb=0", "from 0.1"]),
        ("kwargs", {"static_graph": 1}, ["static_graph=1", "true | false"]),
        ("loader", {"prefetch_factor": 99999999999}, ["a whole number from 1 to 1000"]),
        ("loader", {"prefetch_factor": 2.5}, ["prefetch_factor=2.5"]),
        ("loader", {"multiprocessing_context": "thread"}, ["fork | spawn | forkserver"]),
        ("loader", {"pin_memory_device": 3}, ["DataLoader expects text"]),
        ("loader", {"num_workers": 2}, ["num_workers cannot be set: ddp.workers sets"]),
        ("loader", {"shuffle": True}, ["the order of a pass is the host's"]),
    ],
)
def test_what_it_does_not_take_is_one_clear_error(option, arguments, words):
    with pytest.raises(OptionError) as caught:
        require_accepted(Options(**{option: arguments}))
    for word in words:
        assert word in str(caught.value)


def test_every_parameter_of_torch_is_the_users_or_refused_with_a_reason():
    """A parameter that a new torch adds is the user's; those that take objects are refused."""
    for option, taker in TAKERS.items():
        for name, parameter in inspect.signature(taker).parameters.items():
            try:
                require_accepted(Options(**{option: {name: parameter.default}}))
            except OptionError as error:
                assert "cannot be set: " in str(error) or parameter.default is None, name


def test_names_that_users_look_for_are_torchs():
    newest = {"forward_sync_buffers", "broadcast_buffers", "in_order"}
    for option, names in PASSED_ON.items():
        assert {*names} - newest <= {*inspect.signature(TAKERS[option]).parameters}
