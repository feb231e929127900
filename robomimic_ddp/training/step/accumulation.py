"""Accumulation: one iteration of the host's loop is one optimizer step over several micro-batches.

The train loader hands out the batch of a whole step, so that passes, positions, sample counts and
step counts are those of the large batch. It is cut where the host processes it,
and the host's own `train_on_batch` runs on each part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import chain
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.distributed import host_algo
from robomimic_ddp.distributed.gradients import fsdp, parallel
from robomimic_ddp.errors import DataError, PlanError
from robomimic_ddp.monitoring import step_hooks
from robomimic_ddp.monitoring.step_logs import samples_in
from robomimic_ddp.training.step.backprop import NAME, WHOLE, Backward, Part, Pending
from robomimic_ddp.verify.tensor_checksums import checksums

_CHECKED_STEPS = 3
"""A target begins as a copy of its net, and the first rate of a warm-up is zero: in the third step
they differ.
"""


class Accumulation:
    """Runs `model` on `micro_batches` parts of each training batch, and updates it once.

    Under DDP forward and backward of all parts but the last are in `no_sync`, so that gradients
    are reduced once; the averaged copy is stepped once. `backward` stands in for the host's
    `backprop_for_loss`.
    """

    def __init__(self, model: Any, micro_batches: int, backward: Backward) -> None:
        self.model, self.micro_batches, self.backward = model, micro_batches, backward
        self._nets = [
            parallel.state_of(module)
            for _, module in host_algo.named_modules(model)
            if parallel.is_parallel(module)
        ]
        self._optimizers = [optimizer for _, optimizer in host_algo.named_optimizers(model)]
        self._steps = 0

    def install(self, undo: ExitStack) -> None:
        """Replaces the model's methods until `undo` is closed; each is given the host's."""
        methods = {
            "process_batch_for_training": self.process,
            "postprocess_batch_for_training": self.postprocess,
            "train_on_batch": self.train,
            "log_info": self.log,
        }
        present = {name: method for name, method in methods.items() if hasattr(self.model, name)}
        undo.enter_context(step_hooks.installed(self.model, methods=present))
        # Not in each step: Python would drop what it has cached of every module's methods.
        undo.enter_context(swapped(nn.Module, "zero_grad", self._zero_module(nn.Module.zero_grad)))
        for optimizer in self._optimizers:
            zero_grad = partial(self._zero_optimizer, optimizer.zero_grad)
            undo.enter_context(swapped(optimizer, "zero_grad", zero_grad))

    def process(self, host: Callable, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the micro-batches, in training; the host's of the whole batch in validation."""
        if not host_algo.is_training(self.model):
            return host(batch, *args, **kwargs)
        return self.postprocess(host, split(batch, self.micro_batches), *args, **kwargs)

    def postprocess(self, host: Callable, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the micro-batches, each of which the host's method gets when it is trained: only
        one has floats.
        """
        if not isinstance(batch, MicroBatches):
            return host(batch, *args, **kwargs)
        batch.preparations.append(lambda part: host(part, *args, **kwargs))
        return batch

    def train(self, host: Callable, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Collective under DDP: one optimizer step; the host's info of each micro-batch."""
        if not isinstance(batch, MicroBatches):
            return host(batch, *args, **kwargs)
        infos, last = MicroBatches([], batch.weights), len(batch) - 1
        weights = self._weights()
        try:
            for index, weight in enumerate(batch.weights):
                if index == last:
                    _require_equal(self.model, weights, self._weights())
                self.backward.part = Part(weight, index == last)
                before = self.backward.calls
                with nullcontext() if index == last else self._waiting():
                    infos.append(host(batch.take(), *args, **kwargs))
                _require_one_call(self.model, self.backward.calls - before)
        finally:
            self.backward.part, self.backward.has_gradients = WHOLE, False
        self._steps += 1
        for info in infos[:-1]:
            for key in [key for key, value in info.items() if isinstance(value, Pending)]:
                info[key] = infos[-1][key]
        return infos

    def _weights(self) -> dict[str, tuple[int, int]]:
        """Return checksums of weights, targets and averages, which only a step may change; not of
        buffers, which forwards change. Empty in the first step, where a net may set weights in its
        first forward, and after the first steps: a GPU waits for each read.
        """
        if not 1 <= self._steps < _CHECKED_STEPS:
            return {}
        state = host_algo.named_state(self.model)
        named = {
            name: fsdp.local(tensor) for name, tensor in state if isinstance(tensor, nn.Parameter)
        }
        return dict(zip(named, checksums(named.values())))

    def log(self, host: Callable, info: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the mean of the micro-batches' logs, by samples; of other values, the last."""
        if not isinstance(info, MicroBatches):
            return host(info, *args, **kwargs)
        logs = [host(part_info, *args, **kwargs) for part_info in info]
        return {
            key: _mean([log.get(key, value) for log in logs], info.weights)
            for key, value in logs[-1].items()
        }

    def _zero_module(self, host: Callable) -> Callable:
        """Return torch's `Module.zero_grad`, `host`, which does nothing for a module that an
        optimizer trains once a part of the step has left its gradients.
        """

        def zero_grad(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            if self.backward.has_gradients:
                trained = chain.from_iterable(map(host_algo.held_by, self._optimizers))
                if not {*map(id, trained)}.isdisjoint(map(id, module.parameters())):
                    return
            host(module, *args, **kwargs)

        return zero_grad

    def _zero_optimizer(self, host: Callable, *args: Any, **kwargs: Any) -> None:
        """Call an optimizer's `zero_grad`, `host`, unless a part of the step has left gradients."""
        if not self.backward.has_gradients:
            host(*args, **kwargs)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """For a part that is not the last: gradients stay on the rank, averages where they are."""
        with ExitStack() as stack:
            for state in self._nets:
                if isinstance(state.parallel, DistributedDataParallel):
                    # A static graph is recorded with reductions, at its first backward. Reducing
                    # what was reduced and a rank's own sum gives the same mean.
                    if self._steps or not state.parallel.static_graph:
                        stack.enter_context(state.parallel.no_sync())
                        stack.enter_context(swapped(state, "accumulating", True))
            ema = getattr(self.model, "ema", None)
            for name in ("step", "copy_to"):
                if callable(getattr(ema, name, None)):
                    stack.enter_context(swapped(ema, name, lambda *_, **__: None))
            yield


def _require_one_call(model: Any, calls: int) -> None:
    """Raise PlanError where a micro-batch did not call `NAME` once: sums over micro-batches are of
    one loss.
    """
    if calls == 1:
        return
    does, why = f"does not call {NAME}", "its micro-batches would each be a separate step"
    if calls:
        does = f"calls {NAME} {calls} times"
        why = "a loss would drop, or be stepped with, what the micro-batches before left of another"
    raise PlanError(
        f"{type(model).__name__}.train_on_batch {does} of the host's torch_utils, so {why}. "
        "Train with ddp.accumulate=1, or let it step its optimizer through that function, once."
    )


def _require_equal(model: Any, begun: dict[str, Any], weights: dict[str, Any]) -> None:
    """Raise PlanError where a part before the last has changed weights."""
    changed = [name for name, sums in weights.items() if sums != begun.get(name)]
    if changed:
        raise PlanError(
            f"{type(model).__name__}.train_on_batch changes {changed[0]} (and {len(changed) - 1} "
            "other tensors) before a step's last micro-batch: a target or an average would move "
            "several times in a step. Expected it to move once. Move it in on_gradient_step, while "
            "the nets are in training mode, or train with ddp.accumulate=1."
        )


def _mean(values: list, weights: list[float]) -> Any:
    """Return the mean of numbers; the last of other values."""
    last = values[-1]
    if isinstance(last, (int, float)) and any(value != last for value in values):
        return sum(value * weight for value, weight in zip(values, weights))
    return last


class MicroBatches(list):
    """The micro-batches of one step, or what `train_on_batch` returned for each. `weights`: the
    share of the step's samples that each has. `preparations`: what each goes through before it is
    trained.
    """

    def __init__(self, parts: list, weights: list[float]) -> None:
        super().__init__(parts)
        self.weights = weights
        self.preparations: list[Callable[[Any], Any]] = []

    def take(self) -> Any:
        """Remove and return the first part, prepared: only the caller has its memory."""
        part = self.pop(0)
        for prepare in self.preparations:
            part = prepare(part)
        return part


def split(batch: Any, count: int) -> MicroBatches:
    """`batch` in `count` consecutive parts, sizes differing by one at most; fewer where it has
    fewer samples.

    A batch is a nest of dicts, lists and tuples over arrays or tensors [B, ...] and lists of B
    texts; what has no batch dimension (None, numbers) is in every part. Raises DataError for an
    array of another length.
    """
    samples = samples_in(batch)
    count = max(1, min(count, samples))
    edges = [samples * index // count for index in range(count + 1)]
    ranges = list(zip(edges, edges[1:]))
    parts = [_cut(batch, samples, slice(*edge), "batch") for edge in ranges]
    return MicroBatches(parts, [(end - begin) / max(samples, 1) for begin, end in ranges])


def _cut(value: Any, samples: int, part: slice, path: str) -> Any:
    if isinstance(value, dict):
        cut = {key: _cut(item, samples, part, f"{path}/{key}") for key, item in value.items()}
        return type(value)(cut)
    if isinstance(value, (list, tuple)):
        if len(value) == samples and all(isinstance(item, (str, bytes)) for item in value):
            return value[part]
        return type(value)(_cut(item, samples, part, path) for item in value)
    if not getattr(value, "shape", None):
        return value
    if len(value) != samples:
        raise DataError(
            f"{path} has {len(value)} entries in a batch of {samples} samples, so it cannot be "
            "cut into micro-batches. Return arrays of shape [B, ...] from the dataset, or train "
            "with ddp.accumulate=1."
        )
    return value[part]
