"""Checks the names in `ddp.kwargs` and `ddp.loader` against what this torch's classes take."""

from __future__ import annotations

import inspect

from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from robomimic_ddp.config import tree
from robomimic_ddp.config.options import Options
from robomimic_ddp.errors import OptionError, did_you_mean

_TAKERS = {"kwargs": DistributedDataParallel, "loader": DataLoader}
_SET_BY_THE_RUN = {
    "kwargs": (
        *("module", "device_ids", "output_device", "dim", "process_group", "device_mesh"),
        *("init_sync", "mixed_precision"),
        *("delay_all_reduce_named_params", "param_to_hook_all_reduce"),
    ),
    "loader": (
        *("dataset", "collate_fn", "sampler", "batch_sampler", "shuffle", "batch_size"),
        *("drop_last", "num_workers", "worker_init_fn", "generator", "in_order"),
    ),
}


def require_accepted(values: Options) -> None:
    """Raise OptionError for a name that this torch does not take or that is not the user's to set,
    and for a value that would be taken for another: any word is true. Others are torch's to check.
    """
    for option, taker in _TAKERS.items():
        reserved = _SET_BY_THE_RUN[option]
        parameters = inspect.signature(taker).parameters
        names = [name for name in parameters if name not in reserved]
        for name, value in getattr(values, option).items():
            spelled = f"ddp.{option}.{name}"
            if name in reserved:
                raise OptionError(f"{spelled} cannot be set: the run sets it. Leave it out.")
            if name not in names:
                hint = did_you_mean(name, names, f"ddp.{option}.")
                raise OptionError(
                    f"{spelled}: {taker.__name__} of this torch has no such parameter.{hint} It "
                    f"takes {', '.join(names)}."
                )
            expected = None
            if isinstance(parameters[name].default, bool) and not isinstance(value, bool):
                expected = "true | false"
            elif name == "bucket_cap_mb" and not tree.is_number(value):  # `compile` compares it
                expected = "a number"
            if expected is not None:
                raise OptionError(f"{spelled}={value!r}: {taker.__name__} expects {expected}.")
