"""Makes one net of `algo.nets` parallel without changing what it is.

The net stays in the host's `ModuleDict`; only its class is exchanged for a subclass that overrides
`__call__` (as torch's `fully_shard` does). Parameter names, `state_dict()` keys, attributes and
methods are therefore the host's own, and the optimizer sees the original Parameters. The parallel
object (DistributedDataParallel or DataParallel) is built around the net at the first training
forward at the latest, when the parameters have reached their final device; hosts wrap nets before
`.to(device)`.

In `eval()` or under `no_grad` the plain net runs, so a rank may run alone: a forward through DDP
broadcasts buffers, and a rank that did it alone would wait for the others.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from robomimic_ddp.config import tree
from robomimic_ddp.distributed import group, watchdog
from robomimic_ddp.distributed.gradients import ddp_buckets
from robomimic_ddp.distributed.gradients.module_key import ModuleKey
from robomimic_ddp.errors import WrapError

_STATE = "_robomimic_ddp_state"
_DDP_PARAMETERS = inspect.signature(DistributedDataParallel.__init__).parameters
BUFFERS = [
    name for name in ("forward_sync_buffers", "broadcast_buffers") if name in _DDP_PARAMETERS
]
"""Whether DDP copies buffers to all ranks before a training forward; renamed in torch 2.13."""
EQUAL_WEIGHTS = {"init_sync": False} if "init_sync" in _DDP_PARAMETERS else {}
"""For DDP on weights that are equal on all ranks; torch 2.0's always sends the first rank's."""
_SAME_MEMORY = r"(?s)Grad strides do not match.*grad\.sizes\(\) = \[\d+, (1(, \d+)+|\d+(, 1)+)\]"
"""Torch's warning of a convolution's weights with one input channel or one pixel, whose gradients
oneDNN and cuDNN make as channels last. Only strides of dimensions of size 1 differ, so the memory
is the same, and so is the cost of the copy into DDP's bucket, which every gradient has.
"""


class _State:
    """What a parallel net remembers. No nn.Module, so that it enters no names or state dicts."""

    def __init__(self, mode: str, ddp_options: dict, name: str) -> None:
        self.mode = mode
        self.ddp_options = ddp_options
        self.name = name
        self.parallel: nn.Module | None = None
        self.inside = False
        self.training_forwards = 0
        self.accumulating = False
        """Whether the net is in `no_sync` on purpose: a micro-batch that is not a step's last."""
        self.reduced: list = []
        """The parameters that wanted a gradient when the parallel object was built."""
        self.before_training_forward: Callable[[], None] | None = None
        """Called once, before the next training forward of the net."""
        self.whole = False
        """With FSDP: whether the weights are whole outside training (`fsdp.whole`)."""
        self.arrival: ddp_buckets.ArrivalOrder | None = None
        self.gradient_order: list[int] = []
        """Indices into `reduced`, in order of arrival; empty where buckets do not follow it."""

    def build(self, net: nn.Module, is_equal: bool = False) -> None:
        """Collective under DDP: builds the parallel object on the parameters' present device.

        `is_equal`: all ranks have the same weights and buffers, so DDP need not send them.
        """
        if self.parallel is not None or not has_trainable_parameters(net):
            return
        if self.mode == "fsdp":
            raise WrapError(
                f"net {self.name} is trained before it was sharded. Expected the epoch loop to be "
                "DDPUtils.epochs(...), which shards all nets at once, with optimizers and averages."
            )
        self.reduced = [parameter for parameter in net.parameters() if parameter.requires_grad]
        device = next(net.parameters()).device
        if self.mode == "ddp":
            self.parallel = DistributedDataParallel(
                net,
                device_ids=[device.index] if device.type == "cuda" else None,
                **self.ddp_options,
                **(EQUAL_WEIGHTS if is_equal else {}),
            )
            if ddp_buckets.can_be_laid_out(self.parallel):
                self.arrival = ddp_buckets.ArrivalOrder(self.reduced)
        else:  # DataParallel wants a net on the CPU to be on a GPU that it finds there
            self.parallel = ModuleKey(net) if device.type == "cpu" else DataParallel(net)

    def note_order(self) -> None:
        """Keeps the order of arrival once it is known. Not to be called within a backward pass."""
        if self.arrival is not None and self.arrival.complete:
            self.gradient_order = self.arrival.seen
            self.arrival.release()
            self.arrival = None

    def repeat_layout(self, order: list[int]) -> None:
        """Collective, between `build` and the first training forward: lays the buckets out as in
        the process that saw gradients arrive in `order`. One of another net is passed over.
        """
        if self.arrival is None or sorted(order) != list(range(len(self.reduced))):
            return
        self.arrival.release()
        self.arrival, self.gradient_order = None, order
        self.inside = True
        try:
            ddp_buckets.lay_out(self.parallel, self.reduced, order)
        finally:
            self.inside = False

    def forward(self, net: nn.Module, args: tuple, kwargs: dict) -> Any:
        self.build(net)
        self.note_order()
        if self.before_training_forward is not None:
            call, self.before_training_forward = self.before_training_forward, None
            call()
        watchdog.began()
        self.training_forwards += 1
        self.inside = True
        try:
            return self.parallel(*args, **kwargs)
        except RuntimeError as error:
            if self.mode == "fsdp" and "torch.Tensor and DTensor" in str(error):
                raise _not_gathered(self.name) from error
            raise
        finally:
            self.inside = False


class _ParallelMixin:
    """Overrides `__call__`; everything else is the net's own class."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        state: _State | None = self.__dict__.get(_STATE)
        # DataParallel's replicas share this class; they and the forward that DDP itself makes are
        # plain.
        if state is None or state.inside or getattr(self, "_is_replica", False):
            return super().__call__(*args, **kwargs)
        if not has_trainable_parameters(self):
            return super().__call__(*args, **kwargs)
        if self.training and torch.is_grad_enabled():
            return state.forward(self, args, kwargs)
        if state.mode == "fsdp" and state.parallel is not None and not state.whole:
            raise _not_whole(state.name)
        output = super().__call__(*args, **kwargs)
        if torch.is_grad_enabled() and state.mode == "ddp" and group.world_size() > 1:
            _forbid_gradient(output, state.name)
        return output

    def __reduce_ex__(self, protocol: int) -> Any:
        # Copies and pickles are plain local nets: an averaged copy must not carry a second DDP.
        with _plain_class(self):
            factory, arguments, *rest = self.__reduce_ex__(protocol)
        if rest and isinstance(rest[0], dict):
            rest[0] = {key: value for key, value in rest[0].items() if key != _STATE}
        # pickle insists that copyreg's factory names the object's present class; ours stands in
        # between.
        return (_rebuild, (factory, arguments), *rest)


def _rebuild(factory: Callable, arguments: tuple) -> Any:
    return factory(*arguments)


@contextmanager
def _plain_class(net: nn.Module) -> Iterator[None]:
    parallel_class = type(net)
    net.__class__ = parallel_class.__mro__[2]
    try:
        yield
    finally:
        net.__class__ = parallel_class


def parallelise(
    net: nn.Module, mode: str, ddp_options: dict | None = None, name: str | None = None
) -> nn.Module:
    """Returns `net` itself, made parallel in place by `mode`: ddp, dp or fsdp.

    `ddp_options` go to DistributedDataParallel. `name` appears in messages. Raises WrapError when
    the net already contains or is a parallel object: gradients would be reduced twice or never.
    """
    for module_name, module in net.named_modules():
        if isinstance(module, (nn.DataParallel, DistributedDataParallel)) or is_parallel(module):
            raise WrapError(
                f"net {name or type(net).__name__}: {module_name or 'it'} is already a parallel "
                f"{type(module).__name__}. Expected a plain net: one inside another would reduce "
                "gradients twice or never. Remove the inner wrapping."
            )
    plain = type(net)
    # Name and module stay, so that print(model) shows what it always showed.
    net.__class__ = type(plain.__name__, (_ParallelMixin, plain), {"__module__": plain.__module__})
    net.__dict__[_STATE] = _State(mode, dict(ddp_options or {}), name or plain.__name__)
    return net


@contextmanager
def without_false_alarms() -> Iterator[None]:
    """For the block: no warning of gradients that have the memory layout of DDP's buckets, or of a
    pass that uses every parameter where later ones may not.
    """
    with warnings.catch_warnings():
        for message in (_SAME_MEMORY, "find_unused_parameters=True was specified"):
            warnings.filterwarnings("ignore", message, UserWarning)
        yield


def is_parallel(module: nn.Module) -> bool:
    """Return whether `module` was made parallel by `parallelise`."""
    return _STATE in module.__dict__


def parallel_among(named: Iterable[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """Return those of the named modules that were made parallel."""
    return [(name, module) for name, module in named if is_parallel(module)]


def state_of(net: nn.Module) -> _State:
    """Return the parallel state of a net for which `is_parallel` is true."""
    return net.__dict__[_STATE]


def has_trainable_parameters(module: nn.Module) -> bool:
    """Return whether any parameter wants a gradient; DDP refuses nets without one."""
    return any(parameter.requires_grad for parameter in module.parameters())


def ddp_options(values: Any, net: nn.Module) -> dict:
    """Return DistributedDataParallel's keyword arguments for `net`: our defaults, and the user's
    `ddp.kwargs`.
    """
    defaults: dict[str, Any] = {"gradient_as_bucket_view": True}
    if not any(name in values.kwargs for name in BUFFERS):
        defaults[BUFFERS[0]] = buffers_may_change(net)
    return {**defaults, **values.kwargs}


def _not_gathered(name: str) -> WrapError:
    return WrapError(
        f"the forward of net {name} computes with a sharded weight that no unit of FSDP gathered: "
        "it uses the parameters of a part past that part's call (part.weight, part.forward(x), "
        "another method). The traceback above shows the place. Call the part itself there, or "
        "train with ddp.mode=ddp."
    )


def _not_whole(name: str) -> WrapError:
    return WrapError(
        f"net {name} was called in eval() or under no_grad() on rank {group.rank()}, outside "
        "validation and rollouts: its weights are sharded (ddp.mode=fsdp), so each call needs all "
        "ranks, and this rank may be alone. Expected calls inside the host's run_epoch or "
        "rollout_with_stats, where every rank has whole weights; or train with ddp.mode=ddp."
    )


def _forbid_gradient(output: Any, name: str) -> None:
    """Makes a backward pass that reaches `output` an error that names the net."""

    def refuse(gradient: torch.Tensor) -> None:
        raise WrapError(
            f"net {name} received a gradient on rank {group.rank()} through a forward made in "
            "eval(): gradients of such a forward are not synchronised, and each rank would train a "
            f"separate model. Call model.set_train() (or {name}.train()) before the training "
            "forward; to use it as a frozen net, set requires_grad=False."
        )

    for value in tree.leaves(output):
        if isinstance(value, torch.Tensor) and value.requires_grad:
            value.register_hook(refuse)


_CONSTANT = {
    ("models.base_nets", "SpatialSoftmax"): {"temperature", "pos_x", "pos_y"},
    ("models.transformers", "CausalSelfAttention"): {"mask"},
}
"""End of a module's name and class of robomimic -> buffers that its forward only reads."""


def buffers_may_change(net: nn.Module) -> bool:
    """Return whether a training forward of `net` may write to one of its buffers, as BatchNorm's
    does.

    What is not known to leave its buffers alone may write to them; the same on all ranks.
    """
    return any(
        buffer is not None and name not in _constant(part)
        for part in net.modules()
        for name, buffer in part.named_buffers(recurse=False)
    )


def _constant(part: nn.Module) -> set[str]:
    for (module, name), buffers in _CONSTANT.items():
        if type(part).__name__ == name and type(part).__module__.endswith(module):
            return buffers
    return set()
