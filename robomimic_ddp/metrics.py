"""Step logs averaged over ranks, weighted by samples."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

import numpy as np

from robomimic_ddp import group, places
from robomimic_ddp.errors import RobomimicDDPError

MISSING = object()


@contextmanager
def swapped(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Sets attribute `name` of `owner` to `value` for the block, and puts back what was there.

    An attribute that `owner` had from its class only is removed from `owner` again.
    """
    before = vars(owner).get(name, MISSING)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


class BatchLogs:
    """What one rank logs during one epoch: per key, the sum over samples and their number."""

    def __init__(self) -> None:
        self.samples = 0
        self.totals: dict[str, list[float]] = {}
        self._batch_samples: int | None = None

    def see_batch(self, batch: Any) -> None:
        """Notes the number of samples of the batch whose log comes next."""
        self._batch_samples = samples_in(batch)

    def see_log(self, step_log: dict[str, Any]) -> None:
        """Adds the log of the batch seen last; a value's mean is taken, as the host does."""
        if self._batch_samples is None:
            raise RobomimicDDPError(
                "run_epoch called model.log_info before model.process_batch_for_training, so the "
                "number of samples behind that log is unknown and it cannot be averaged over "
                "ranks. Call process_batch_for_training on each batch first, as robomimic does."
            )
        self.samples += self._batch_samples
        for key, value in step_log.items():
            total = self.totals.setdefault(key, [0.0, 0])
            total[0] += float(np.mean(value)) * self._batch_samples
            total[1] += self._batch_samples


class EpochPart:
    """The steps of one train epoch that are done, and what they have logged: enough to stop inside
    the epoch and to go on later.

    logs: the sums of several ranks' `BatchLogs`; step_logs: on one rank each step's log, since the
    host's own mean is kept to the bit. after_step: called after each step; may raise.
    """

    def __init__(self, after_step: Callable[[], None] = lambda: None) -> None:
        self.after_step = after_step
        self.begin()

    def begin(self) -> None:
        """No step is done."""
        self.epoch: int | None = None
        self.steps = 0
        self.logs = BatchLogs()
        self.step_logs: list[dict[str, float]] = []

    def step_done(self, step_log: dict[str, Any]) -> None:
        """Notes a step with its log, and tells `after_step`."""
        if group.world_size() == 1:
            self.step_logs.append({key: float(np.mean(value)) for key, value in step_log.items()})
        self.steps += 1
        self.after_step()


def samples_in(batch: Any) -> int:
    """Number of samples in a host's batch: the length of its actions, else of its first array.

    `batch` is a nest of dicts, lists and tuples over arrays or tensors of shape [B, ...].
    """
    if isinstance(batch, dict) and "actions" in batch:
        batch = batch["actions"]
    found = _first_length(batch)
    if found is None:
        raise RobomimicDDPError(
            f"a batch of type {type(batch).__name__} holds no array with a batch dimension, so its "
            "samples cannot be counted for the average over ranks. Return arrays of shape [B, ...] "
            "from the dataset."
        )
    return found


def _first_length(nest: Any) -> int | None:
    if getattr(nest, "shape", None):
        return int(nest.shape[0])
    if isinstance(nest, dict):
        nest = list(nest.values())
    if isinstance(nest, (list, tuple)):
        lengths = (_first_length(part) for part in nest)
        return next((length for length in lengths if length is not None), None)
    return None


def mean_over_ranks(
    host_log: dict[str, Any], logs: BatchLogs, continued: bool = False
) -> dict[str, Any]:
    """Collective: the log of the epoch over all ranks, with equal keys, order and values on each.

    Keys logged per batch: the mean over all samples of all ranks that logged the key. Time_* and
    other numbers of the host's log: the mean over the ranks that have them of the rank's own
    value (so Time_Epoch is the ranks' mean, in the host's minutes). Anything else: the lowest
    such rank's value. A rank without batches counts for its times only. `continued`: the host's
    log is of the rest of an epoch, which may be no step at all; `logs` is of all of it.
    """
    parts = group.gather_objects((host_log, logs.totals))
    totals: dict[str, list[float]] = {}
    for _, rank_totals in parts:
        for key, (value, samples) in rank_totals.items():
            total = totals.setdefault(key, [0.0, 0])
            total[0] += value
            total[1] += samples
    hosts = [rank_log for rank_log, _ in parts]
    # Per-batch keys first, as the host's log has them: the main rank may have had no batch.
    per_batch = [key for key in totals if continued or any(key in rank_log for rank_log in hosts)]
    rest = dict.fromkeys(key for rank_log in hosts for key in rank_log if key not in totals)
    merged: dict[str, Any] = {key: totals[key][0] / totals[key][1] for key in per_batch}
    for key in rest:
        merged[key] = _mean_or_first([rank_log[key] for rank_log in hosts if key in rank_log])
    return merged


def _mean_or_first(values: list[Any]) -> Any:
    try:
        return float(np.mean(np.asarray(values, dtype=np.float64)))
    except (TypeError, ValueError):
        return values[0]


def epoch_log(
    run_epoch: Callable[..., Any], part_of: Callable[[], EpochPart | None] = lambda: None
) -> Callable[..., Any]:
    """Decorates a host's `run_epoch(model, data_loader, epoch, validate, num_steps, ...)`.

    Collective: on several ranks the returned log (alone, or first in a tuple) is that of all
    ranks together, equal on each; see `mean_over_ranks`. When validating, the loader's exact
    share of the first `num_steps` batches takes the loader's place, so that each sample counts
    once over all ranks. On one rank the host's function is called as it is.

    `part_of` gives the part of the train epoch that is done already, or None: then the host runs
    the rest, and the log is of the whole epoch (Time_*: of the rest).
    """
    signature = inspect.signature(run_epoch)

    @functools.wraps(run_epoch)
    def run_epoch_on_all_ranks(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        if call.arguments.get("validate"):
            _take_own_share(call)
        part = None if call.arguments.get("validate") else part_of()
        if group.world_size() == 1 and (part is None or "model" not in call.arguments):
            return run_epoch(*call.args, **call.kwargs)
        part, model = part or EpochPart(), _argument(call, "model")
        continued = part.steps > 0
        if continued:
            _leave_out(call, part.steps)
        phase = "validation" if call.arguments.get("validate") else "train"
        place = f"epoch {call.arguments.get('epoch')} {phase}"
        places.reached(place)
        with _recording(model, part, phase), _schedules_stand_still(model, call):
            result = run_epoch(*call.args, **call.kwargs)
        places.reached(f"{place} log")
        log, *rest = result if isinstance(result, tuple) else (result,)
        if group.world_size() > 1:
            log = mean_over_ranks(log, part.logs, continued)
        elif continued:
            log = {**_means(part.step_logs), **{k: v for k, v in log.items() if k[:5] == "Time_"}}
        part.begin()
        return (log, *rest) if isinstance(result, tuple) else log

    return run_epoch_on_all_ranks


def _argument(call: inspect.BoundArguments, name: str) -> Any:
    if name not in call.arguments:
        raise RobomimicDDPError(
            f"run_epoch{call.signature} has no parameter {name!r}, so its log cannot be averaged "
            "over ranks. Name it as robomimic does: run_epoch(model, data_loader, epoch, "
            "validate=False, num_steps=None, ...)."
        )
    return call.arguments[name]


def _leave_out(call: inspect.BoundArguments, steps: int) -> None:
    """The host runs so many steps less. A number, not None: DROID's run_epoch has no reading of
    None.
    """
    total = _argument(call, "num_steps")
    if total is None:
        total = len(_argument(call, "data_loader"))
    call.arguments["num_steps"] = max(0, total - steps)


def _means(step_logs: list[dict[str, float]]) -> dict[str, float]:
    """The host's mean of each key over the steps that logged it."""
    keys = dict.fromkeys(key for log in step_logs for key in log)
    return {key: float(np.mean([log[key] for log in step_logs if key in log])) for key in keys}


def _take_own_share(call: inspect.BoundArguments) -> None:
    """Replaces the validation loader by this rank's exact share, `num_steps` by its length.

    The length is given as a number, not as None: DROID's run_epoch has no reading of None.
    """
    loader = _argument(call, "data_loader")
    if not hasattr(loader, "limited"):
        return  # the host's own DataLoader, on one rank or not made through the seam
    share = loader.limited(_argument(call, "num_steps"))
    call.arguments["data_loader"] = share
    call.arguments["num_steps"] = len(share)
    if call.arguments.get("data_loader_iter") is not None:
        call.arguments["data_loader_iter"] = iter(share)


@contextmanager
def _schedules_stand_still(model: Any, call: inspect.BoundArguments) -> Iterator[None]:
    """While validating, per-batch schedules wait: hosts call on_gradient_step there too.

    Ranks validate on unequal numbers of batches, so their learning rates would part.
    """
    if not call.arguments.get("validate"):
        yield
        return
    with swapped(model, "on_gradient_step", lambda: None):
        yield


@contextmanager
def _recording(model: Any, part: EpochPart, phase: str) -> Iterator[None]:
    """For the block, `part` hears of every batch and of every step log of `model`."""
    process_batch, log_info = model.process_batch_for_training, model.log_info
    several = group.world_size() > 1

    def process_batch_for_training(batch: Any, *args: Any, **kwargs: Any) -> Any:
        if several:
            part.logs.see_batch(batch)
        if phase == "train":  # ranks validate on unequal numbers of batches
            places.stepped()
        return process_batch(batch, *args, **kwargs)

    def logged(*args: Any, **kwargs: Any) -> Any:
        step_log = log_info(*args, **kwargs)
        if several:
            part.logs.see_log(step_log)
        part.step_done(step_log)
        return step_log

    with swapped(model, "process_batch_for_training", process_batch_for_training):
        with swapped(model, "log_info", logged):
            yield
