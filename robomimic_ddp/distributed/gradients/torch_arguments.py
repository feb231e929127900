"""Checks `ddp.kwargs` and `ddp.loader` against what this torch's classes take."""

from __future__ import annotations

import inspect
import math
from typing import Any

from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from robomimic_ddp.config import tree
from robomimic_ddp.config.options import Options
from robomimic_ddp.errors import OptionError, did_you_mean

_TAKERS = {"kwargs": DistributedDataParallel, "loader": DataLoader}
_DEVICE = "DDP works on this rank's device"
_RANKS = "the launcher sets which ranks train together"
_ORDER = "the order of a pass is the host's, split over the ranks"
_NAMES = "it takes Python objects, which an option cannot name"
_SET_BY_US = {
    "kwargs": {
        "module": "DDP is built around the host's nets",
        **dict.fromkeys(("device_ids", "output_device", "dim"), _DEVICE),
        **dict.fromkeys(("process_group", "device_mesh"), _RANKS),
        "init_sync": "robomimic-ddp makes weights equal before training, and proves it",
        "mixed_precision": "ddp.precision sets it",
        **dict.fromkeys(("delay_all_reduce_named_params", "param_to_hook_all_reduce"), _NAMES),
    },
    "loader": {
        **dict.fromkeys(("dataset", "collate_fn", "worker_init_fn"), "the host sets it"),
        **dict.fromkeys(("sampler", "batch_sampler", "shuffle"), _ORDER),
        "batch_size": "train.batch_size sets it",
        "drop_last": "training drops what does not fill a step on every rank; validation nothing",
        "num_workers": "ddp.workers sets it",
        "generator": "workers are seeded from the run's seed, the rank and the pass",
    },
}
"""Option -> names that it refuses, and why."""
_NUMBERS = {"bucket_cap_mb": (0.1, 1e6), "prefetch_factor": (1, 1000), "timeout": (0, 2e6)}
"""Least and most: beyond them torch overflows, or hangs."""
_TEXTS = {"multiprocessing_context": ("fork", "spawn", "forkserver")}


def require_accepted(values: Options) -> None:
    """Raise OptionError for a name that this torch does not take or that is not the user's to set,
    and for a value of another type.
    """
    for option, taker in _TAKERS.items():
        parameters = inspect.signature(taker.__init__).parameters
        names = [name for name in parameters if name not in ("self", *_SET_BY_US[option])]
        for name, value in getattr(values, option).items():
            spelled = f"ddp.{option}.{name}"
            if name in _SET_BY_US[option]:
                raise OptionError(
                    f"{spelled} cannot be set: {_SET_BY_US[option][name]}. Leave it out."
                )
            if name not in names:
                hint = did_you_mean(name, names, f"ddp.{option}.")
                raise OptionError(
                    f"{spelled}: {taker.__name__} of this torch has no such parameter.{hint} It "
                    f"takes {', '.join(names)}."
                )
            expected = _expected(name, value, parameters[name].default)
            if expected is not None:
                raise OptionError(f"{spelled}={value!r}: {taker.__name__} expects {expected}.")


def _expected(name: str, value: Any, default: Any) -> str | None:
    """Return what torch expects in place of `value`; None where it is that."""
    is_number = tree.is_number(value)
    if name in _NUMBERS:
        least, most = _NUMBERS[name]
        whole = name == "prefetch_factor"
        fits = is_number and least <= value <= most and not (whole and value != int(value))
        kind = "a whole number" if whole else "a number"
        return None if fits else f"{kind} from {least:g} to {most:g}"
    if name in _TEXTS:
        return None if value in _TEXTS[name] else " | ".join(_TEXTS[name])
    if isinstance(default, bool):
        return None if isinstance(value, bool) else "true | false"
    if isinstance(default, str):
        return None if isinstance(value, str) else "text"
    parts = value if isinstance(value, (list, tuple)) else [value]
    is_plain = all(isinstance(part, (int, str, type(None))) or _is_finite(part) for part in parts)
    return None if is_plain else "a plain value"


def _is_finite(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value)
