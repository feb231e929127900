"""The proof of one training run: when what is compared."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from robomimic_ddp.distributed import fsdp, host_algo, optimizer_ddp, parallel
from robomimic_ddp.monitoring import step_hooks
from robomimic_ddp.verify import data_fingerprint, structure
from robomimic_ddp.verify.comparison import Evidence
from robomimic_ddp.verify.rng_state import Streams
from robomimic_ddp.verify.tensor_checksums import checksums

NOT_PROVEN = {"gradients_equal": None, "noise_differs": None}
HINTS = {
    "": "Common causes: a net trained past its parallel forward, a rank that skipped a step or "
    "loaded another checkpoint.",
    "torch.": "Set it alike on every rank: the arithmetic depends on it.",
    "mode of": "A net in eval() is not synchronised; call model.set_train() on every rank.",
    "buffer": "It was written on some ranks only, and DDP did not copy the main rank's over.",
    **structure.HINTS,
    **data_fingerprint.HINTS,
}
SETTINGS = ("get_default_dtype", "get_float32_matmul_precision")
"""Getters of torch's settings that change the arithmetic of a whole process."""


class Verifier(step_hooks.StepHook):
    """Checks one training run: `start` before the first step; then `epoch_begin` and `epoch_end`
    around each epoch; `stop` at last. In between it looks by itself: before an epoch's first
    training forward, and at the first step of each optimizer.
    """

    place = "verify"

    def __init__(self, algo: Any, train_loader: Any = None) -> None:
        self.algo = algo
        self.train_loader = train_loader
        self.proven: dict[str, bool | None] = dict(NOT_PROVEN)
        """What the first step has shown: reduced gradients of equal bits on all ranks, and random
        streams (of noise and timesteps) that differ. None: not come to it.
        """
        named = [*host_algo.named_parameters(algo), *host_algo.outside_nets(algo)]
        self._names = {id(parameter): name for name, parameter in named}
        self._undo = ExitStack()
        self.trained = data_fingerprint.TrainedBatches()
        self._forwards: dict[str, int] = {}
        self._before_batch: Callable[[], None] | None = None
        """Called before the epoch's first training batch, where optimizers average gradients."""
        self._means: fsdp.GradientMeans | None = None
        """With FSDP, until the first step."""
        self._buffers: dict[str, Hashable] = {}
        self._streams: list[Streams] = []
        """At the beginning and at the last step of the present epoch."""

    def start(self, sums: Mapping[str, tuple[int, int]] | None = None) -> None:
        """Collective: equal data, weights, optimizers and counters, different random streams.
        `sums`: of `state_sums`, if the model is unchanged since.
        """
        evidence = Evidence("before the first step", hints=HINTS)
        evidence.equal.update(data_fingerprint.loader_items(self.train_loader))
        for name in SETTINGS:
            evidence.equal[f"torch.{name}()"] = str(getattr(torch, name)())
        self._add_structure(evidence)
        self._add_state(evidence, sums)
        named = list(host_algo.named_optimizer_state(self.algo))
        evidence.equal.update(zip((name for name, _ in named), checksums(one for _, one in named)))
        self._streams = [Streams.now()]
        evidence.different = self._streams[0].different()
        evidence.require()
        self._buffers = self._buffer_sums()
        if any(fsdp.is_sharded(net) for _, net in structure.parallel_nets(self.algo)):
            self._means = fsdp.GradientMeans(self.algo)
        for name, optimizer in host_algo.named_optimizers(self.algo):
            self._watch_steps(name, optimizer)
        self._undo.enter_context(step_hooks.installed(self.algo, [self]))

    def stop(self) -> None:
        """Takes every watch away again."""
        self._disarm()
        self._undo.close()

    def epoch_begin(self, epoch: Any) -> None:
        """Not collective: makes the epoch's first training forward compare what is trained."""
        self.trained.begin()
        self._streams = [Streams.now()]
        self._forwards = self._passes()
        for _, net in structure.parallel_nets(self.algo):
            parallel.state_of(net).before_training_forward = lambda: self._before_forward(epoch)
        if optimizer_ddp.among(self.algo):
            self._before_batch = lambda: self._before_forward(epoch)

    def before_buffers_are_made_equal(self, epoch: Any) -> None:
        """Collective: a buffer that training leaves alone on one rank changed on none.

        Running means differ between ranks by design, and so they change on all; those of layers
        that normalise with the samples of all ranks are equal.
        """
        found, shared = self._buffer_sums(), self._shared_buffers()
        items: dict[str, Hashable] = {}
        for name, value in found.items():
            change = "unchanged" if value == self._buffers.get(name) else "changed"
            items[f"buffer {name}"] = value if name in shared else change
        Evidence(f"end of epoch {epoch}", equal=items, hints=HINTS).require()

    def epoch_end(self, epoch: Any) -> None:
        """Collective: equal steps, weights, averages, buffers; different streams and shares."""
        self._disarm()
        evidence = Evidence(f"end of epoch {epoch}", hints=HINTS)
        evidence.complaints = self.trained.complaints(self.train_loader)
        evidence.equal.update(self.trained.items())
        for name, count in self._passes().items():
            evidence.equal[f"{name} in the epoch"] = count - self._forwards.get(name, 0)
        evidence.equal.update(data_fingerprint.order_items(self.train_loader))
        self._add_structure(evidence)
        self._add_state(evidence)
        evidence.different = data_fingerprint.share(self.train_loader)
        if len(self._streams) == 2:
            begin, last = self._streams
            evidence.different += last.different(since=begin)
        evidence.require()
        self._buffers = self._buffer_sums()

    def _add_structure(self, evidence: Evidence) -> None:
        evidence.complaints += structure.nested(self.algo)
        evidence.complaints += structure.uncovered(self.algo)
        evidence.complaints += structure.foreign(self.algo)
        evidence.complaints += structure.unreduced(self.algo)
        evidence.equal.update(structure.structure_items(self.algo))

    def _add_state(self, evidence: Evidence, sums: Mapping | None = None) -> None:
        counters = host_algo.counters(self.algo)
        evidence.equal.update((name, repr(value)) for name, value in counters.items())
        evidence.equal.update(structure.state_sums(self.algo) if sums is None else sums)

    def _buffer_sums(self) -> dict[str, Hashable]:
        named = [
            (f"{prefix}.{name}", buffer)
            for prefix, nets in host_algo.named_roots(self.algo)
            for name, buffer in nets.named_buffers()
        ]
        return dict(zip((name for name, _ in named), checksums(one for _, one in named)))

    def _passes(self) -> dict[str, int]:
        """How often the ranks have met so far: in a net's forward, in an optimizer's backward."""
        nets = structure.parallel_nets(self.algo)
        counts = {
            f"training forwards of {name}": parallel.state_of(net).training_forwards
            for name, net in nets
        }
        counts.update(
            (f"backward passes for optimizer {one.name}", one.training_forwards)
            for one in optimizer_ddp.among(self.algo)
        )
        return counts

    def _shared_buffers(self) -> set[str]:
        """Names of the buffers of layers such as torch's SyncBatchNorm, which know a group."""
        return {
            f"{prefix}.{name}.{buffer}"
            for prefix, nets in host_algo.named_roots(self.algo)
            for name, module in nets.named_modules()
            if isinstance(module, _BatchNorm) and hasattr(module, "process_group")
            for buffer in module._buffers
        }

    def batch(self, batch: Any) -> None:
        """Collective before an epoch's first training batch, where optimizers average gradients."""
        if host_algo.is_training(self.algo):
            if self._before_batch is not None:
                self._before_batch()
            self.trained.see(batch)

    def _disarm(self) -> None:
        self._before_batch = None
        for _, module in host_algo.named_modules(self.algo):
            if parallel.is_parallel(module):
                parallel.state_of(module).before_training_forward = None

    def _before_forward(self, epoch: Any) -> None:
        """Collective, within the first training forward of the epoch on every rank."""
        self._disarm()
        evidence = Evidence(f"before the first training forward of epoch {epoch}", hints=HINTS)
        self._add_structure(evidence)
        for name, net in structure.parallel_nets(self.algo):
            evidence.equal[f"mode of {name}"] = "train" if net.training else "eval"
        evidence.equal.update((f"{k}", repr(v)) for k, v in host_algo.counters(self.algo).items())
        evidence.require()

    def _watch_steps(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        checked: list[bool] = []

        def before_step(stepped: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            if not checked:
                checked.append(True)
                self._first_step(name, stepped)
            self._streams[1:] = [Streams.now()]

        self._undo.callback(optimizer.register_step_pre_hook(before_step).remove)

    def _first_step(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        """Collective: reduced gradients of equal bits, and under FSDP the mean of the ranks' own;
        streams and shares of the data that differ; one order of the data.
        """
        held = [one for entry in optimizer.param_groups for one in entry["params"]]
        reduced = [one for one in held if one.grad is not None]
        sums = dict(zip(map(id, reduced), checksums(one.grad for one in reduced)))
        hints = {**HINTS, "gradient of": structure.gradient_hint(self.algo)}
        evidence = Evidence(f"first step of optimizer {name}", hints=hints)
        evidence.complaints += structure.unreduced(self.algo)
        evidence.complaints += structure.uncovered(self.algo)
        if self._means is not None:
            evidence.complaints += self._means.complaints()
            self._means = None
        for parameter in held:
            of = self._names.get(id(parameter), "a parameter outside nets")
            evidence.equal[f"gradient of {of}"] = sums.get(id(parameter), "none")
        evidence.equal.update(data_fingerprint.order_items(self.train_loader))
        evidence.different = [
            *Streams.now().different(since=self._streams[0]),
            *data_fingerprint.share(self.train_loader),
        ]
        evidence.require()
        self.proven.update(gradients_equal=True, noise_differs=True)
