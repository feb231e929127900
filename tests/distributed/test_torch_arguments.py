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


SET_BY_THE_RUN = {
    "kwargs": "module device_ids output_device dim process_group device_mesh init_sync "
    "mixed_precision delay_all_reduce_named_params param_to_hook_all_reduce",
    "loader": "dataset collate_fn sampler batch_sampler shuffle batch_size drop_last num_workers "
    "worker_init_fn generator in_order",
}


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "option, name",
    [(option, name) for option, text in SET_BY_THE_RUN.items() for name in text.split()],
)
def test_what_the_run_sets_is_not_the_users_to_set(option, name):
    with pytest.raises(OptionError, match=f"ddp.{option}.{name} cannot be set: the run sets it"):
        require_accepted(Options(**{option: {name: 1}}))


def test_names_that_users_look_for_are_torchs():
    newest = {"forward_sync_buffers", "broadcast_buffers"}
    for option, names in PASSED_ON.items():
        assert {*names} - newest <= {*inspect.signature(TAKERS[option]).parameters}
