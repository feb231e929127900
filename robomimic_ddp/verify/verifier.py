"""The proof of one training run: when what is compared."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import ExitStack
from functools import cached_property, partial
from typing import Any

import torch

from robomimic_ddp.config.options import Options
from robomimic_ddp.distributed import group, host_algo, host_objects
from robomimic_ddp.distributed.gradients import optimizer_ddp, parallel
from robomimic_ddp.monitoring import progress_bar, step_hooks
from robomimic_ddp.verify import data_fingerprint, gradient_means, structure
from robomimic_ddp.verify.comparison import Evidence
from robomimic_ddp.verify.drawn_numbers import DrawnNumbers
from robomimic_ddp.verify.plain_numbers import HINT, PlainNumbers
from robomimic_ddp.verify.rng_state import Streams
from robomimic_ddp.verify.tensor_checksums import checksums

NOT_PROVEN = {"gradients_equal": None, "gradients_are_mean": None, "noise_differs": None}
HINTS = {
    "": "Common causes: a net trained past its parallel forward, a rank that skipped a step or "
    "loaded another checkpoint.",
    "torch.": "Set it alike on every rank: the arithmetic depends on it.",
    "mode of": "A net in eval() is not synchronised; call model.set_train() on every rank.",
    "plain number": HINT,
    "settings of": "Build nets and noise schedulers alike on every rank.",
    "buffer": "It was written on some ranks only, and DDP did not copy the main rank's over.",
    **structure.HINTS,
    **data_fingerprint.HINTS,
}
SETTINGS = (
    "get_default_dtype",
    "get_float32_matmul_precision",
    "are_deterministic_algorithms_enabled",
    "is_autocast_enabled",
)
"""Getters of torch's settings that change the arithmetic of a whole process."""


class Verifier(step_hooks.StepHook):
    """Checks one training run: `start` before the first step; then `epoch_begin` and `epoch_end`
    around each epoch; `stop` at last. In between it looks by itself: before an epoch's first
    training batch and forward, after its last step, and at the first step of each optimizer. Prints
    what is proven.
    """

    place = "verify"

    def __init__(self, algo: Any, train_loader: Any = None, options: Any = None) -> None:
        self.algo = algo
        self.train_loader = train_loader
        self.options = options or Options()
        """Ours, as they are in force."""
        self.proven: dict[str, bool | None] = dict(NOT_PROVEN)
        """What the first steps have shown: averaged gradients of equal bits on all ranks, which
        are the mean of the ranks' own, and random streams (of noise and timesteps) that differ.
        None: not tested yet.
        """
        named = [*host_algo.named_parameters(algo), *host_algo.outside_nets(algo)]
        self._names = {id(parameter): name for name, parameter in named}
        self._undo = ExitStack()
        self.trained = data_fingerprint.TrainedBatches()
        self._forwards: dict[str, int] = {}
        self._epoch: Any = None
        """The present one's number."""
        self._before_batch: Callable[[], None] | None = None
        """Called before the epoch's first training batch, or forward."""
        self._means: dict[str, gradient_means.GradientMeans] = {}
        """Optimizer whose gradients are still to be compared -> their sums."""
        self._without_mean: list[str] = []
        """Why gradients of an optimizer were not compared with the mean."""
        self._drawn = DrawnNumbers()
        self._is_printed = False
        self._unstepped: set[str] = set()
        """Optimizers before their first step."""
        self._numbers = PlainNumbers(algo)
        self._buffers: dict[str, Hashable] = {}
        self._streams: list[Streams] = []
        """At the beginning and after the last step of the present epoch."""

    @host_objects.unchanged()
    def start(self, sums: Mapping[str, tuple[int, int]] | None = None) -> None:
        """Collective: equal data, weights, optimizers and counters, different random streams.
        `sums`: of `state_sums`, if the model is unchanged since.
        """
        evidence = Evidence("before the first step", hints=HINTS)
        evidence.equal.update(data_fingerprint.loader_items(self.train_loader))
        for name in SETTINGS:
            evidence.equal[f"torch.{name}()"] = str(getattr(torch, name)())
        evidence.equal.update(self._numbers.items())
        evidence.equal.update(structure.settings_items(self.algo))
        self._add_structure(evidence)
        self._add_state(evidence, sums)
        named = list(host_algo.named_optimizer_state(self.algo))
        evidence.equal.update(
            zip((name for name, _ in named), checksums(tensor for _, tensor in named))
        )
        self._streams = [Streams.now()]
        evidence.different = self._streams[0].different()
        evidence.require()
        self._buffers = structure.buffer_sums(self.algo)
        for name, optimizer in host_algo.named_optimizers(self.algo):
            self._means[name] = gradient_means.watch(self.algo, optimizer, self.options.comm)
            averaging = optimizer_ddp.of(optimizer)
            if averaging is not None:
                averaging.after_averaging = partial(self._means[name].read_again, averaging.reduced)
            self._watch_steps(name, optimizer)
        self._undo.enter_context(step_hooks.installed(self.algo, [self]))

    def stop(self) -> None:
        """Takes every watch away again."""
        self._disarm()
        self._drawn.end()
        for means in self._means.values():
            means.stop()
        self._undo.close()

    @host_objects.unchanged()
    def epoch_begin(self, epoch: Any) -> None:
        """Not collective: makes the epoch's first training batch compare what is trained, or its
        first forward where the host shows no batch.
        """
        self._epoch = epoch
        self.trained.begin()
        self._streams = [Streams.now()]
        self._forwards = self._passes()
        self._before_batch = self._before_training
        for _, net in structure.parallel_nets(self.algo):
            parallel.state_of(net).before_training_forward = self._before_forward

    def epoch_end(self, epoch: Any) -> None:
        """Collective: equal steps, weights, averages, buffers; different streams and shares."""
        self._disarm()
        evidence = Evidence(f"end of epoch {epoch}", hints=HINTS)
        evidence.complaints = self.trained.complaints(self.train_loader)
        evidence.equal.update(self.trained.items())
        evidence.equal.update(self._numbers.items())
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
        self._buffers = structure.buffer_sums(self.algo)
        self._print_first()
        average = "averages" if host_algo.averaged_modules(self.algo) else "buffers"
        samples = "samples, " if any(item.value for item in evidence.different[:1]) else ""
        self._print(
            f"verified, epoch {epoch}: weights, {average}, steps equal on {group.world_size()} "
            f"ranks; {samples}random states differ"
        )

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

    def _passes(self) -> dict[str, int]:
        """Return how often the ranks have met: in a net's forward, in an optimizer's backward."""
        nets = structure.parallel_nets(self.algo)
        counts = {
            f"training forwards of {name}": parallel.state_of(net).training_forwards
            for name, net in nets
        }
        counts.update(
            (f"backward passes for optimizer {averaging.name}", averaging.training_forwards)
            for averaging in optimizer_ddp.among(self.algo)
        )
        return counts

    @cached_property
    def _net(self) -> torch.nn.Module | None:
        """A net of the algorithm: all change their mode together, and looking for one is slow."""
        return next((module for _, module in host_algo.named_roots(self.algo)), None)

    def _is_training(self) -> bool:
        return self._net is not None and self._net.training

    def batch(self, batch: Any) -> None:
        """Collective before an epoch's first training batch."""
        if not self._is_training():
            return
        if self._before_batch is not None:
            self._before_batch()
        self.trained.see(batch)
        self._numbers.before_step()
        self._drawn.end()
        if not self._drawn.is_done:
            self._drawn.begin(self.algo, self.options.compile != "false")

    def after_step(self) -> None:
        """Not collective."""
        self._drawn.end()
        if self._is_training():
            self._numbers.after_step()
            if not self._unstepped:
                self._print_first()

    @host_objects.unchanged()
    def end(self) -> None:
        """Collective: a buffer that training leaves alone on one rank changed on none.

        Running means differ between ranks by design, and so they change on all; those of layers
        that normalise with the samples of all ranks are equal. Afterwards buffers are made equal.
        """
        self._streams[1:] = [Streams.now()]  # what follows may seed numpy and Python alike
        sums, shared = structure.buffer_sums(self.algo), structure.shared_buffers(self.algo)
        items: dict[str, Hashable] = {}
        for name, value in sums.items():
            change = "unchanged" if value == self._buffers.get(name) else "changed"
            items[f"buffer {name}"] = value if name in shared else change
        Evidence(f"end of epoch {self._epoch}", equal=items, hints=HINTS).require()

    def _disarm(self) -> None:
        self._before_batch = None
        for _, module in host_algo.named_modules(self.algo):
            if parallel.is_parallel(module):
                parallel.state_of(module).before_training_forward = None

    def _before_training(self) -> None:
        """Collective, before the first training batch of the epoch on every rank."""
        self._before_batch = None
        numbers = self._numbers.items()
        self._require_structure(f"before the first batch of epoch {self._epoch}", numbers)

    def _before_forward(self) -> None:
        """Collective, within the first training forward of the epoch on every rank."""
        self._disarm()
        self._require_structure(f"before the first training forward of epoch {self._epoch}", {})

    @host_objects.unchanged()
    def _require_structure(self, when: str, items: Mapping[str, Hashable]) -> None:
        evidence = Evidence(when, equal=dict(items), hints=HINTS)
        self._add_structure(evidence)
        for name, net in structure.parallel_nets(self.algo):
            evidence.equal[f"mode of {name}"] = "train" if net.training else "eval"
        evidence.equal.update((f"{k}", repr(v)) for k, v in host_algo.counters(self.algo).items())
        evidence.require()

    def _watch_steps(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        self._unstepped.add(name)

        def before_step(stepped: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            if name in self._means:
                self._first_step(name, stepped)

        self._undo.callback(optimizer.register_step_pre_hook(before_step).remove)

    @host_objects.unchanged()
    def _first_step(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        """Collective: averaged gradients of equal bits, the mean of the ranks' own; one order of
        the data; random streams, numbers that were drawn and shares of the data that differ.
        """
        parameters = host_algo.held_by(optimizer)
        reduced = [parameter for parameter in parameters if parameter.grad is not None]
        sums = dict(zip(map(id, reduced), checksums(parameter.grad for parameter in reduced)))
        hints = {**HINTS, "gradient of": structure.gradient_hint(self.algo)}
        evidence = Evidence(f"first step of optimizer {name}", hints=hints)
        evidence.complaints += structure.unreduced(self.algo)
        evidence.complaints += structure.uncovered(self.algo)
        if self.trained.first is not None:
            evidence.complaints += self.trained.first.complaints(self.train_loader)
            evidence.different += self.trained.first.different()
        for parameter in parameters:
            of = self._names.get(id(parameter), "a parameter outside nets")
            evidence.equal[f"gradient of {of}"] = sums.get(id(parameter), "none")
        evidence.equal.update(data_fingerprint.order_items(self.train_loader))
        evidence.different += [
            *Streams.now().different(since=self._streams[0]),
            *self._drawn.draws,
            *data_fingerprint.share(self.train_loader),
        ]
        evidence.require()
        means = self._means[name]
        why_not, complaints = means.compare()
        Evidence(evidence.when, complaints=complaints).require()
        if why_not != gradient_means.NOT_FINITE:  # fp16 may overflow; the next step is compared
            self._means.pop(name).stop()
            averaging = optimizer_ddp.of(optimizer)
            if averaging is not None:
                averaging.after_averaging = None
        if why_not is None:
            self.proven["gradients_are_mean"] = True
        else:
            self._without_mean.append(why_not)
        self._unstepped.discard(name)
        self.proven.update(gradients_equal=True, noise_differs=True)

    def _print_first(self) -> None:
        """Print once, on the main rank, what the first steps have proven."""
        if self._is_printed or not self.proven["gradients_equal"]:
            return
        self._is_printed = True
        gradients = f"gradients are the mean over {group.world_size()} ranks"
        if self._without_mean:
            gradients = f"gradients equal on {group.world_size()} ranks ({self._without_mean[0]})"
        different = ["noise" if self._drawn.draws else "random states"]
        if self.trained.first is not None and self.trained.first.different()[0].value:
            different.insert(0, "batches")
        verb = "differs" if different == ["noise"] else "differ"
        self._print(f"verified: {gradients}; {', '.join(different)} {verb}")

    def _print(self, line: str) -> None:
        if group.is_main():
            progress_bar.print_above_bars(line)
