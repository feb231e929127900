"""What a run remembers in addition to the host's variables: one class for each, with `state_dict`
and `load_state_dict`, listed once, in `KINDS`.

A state file has the state of each under its name; of those that are `per_rank`, one for each rank.
To remember something more, add a class here, and its name to `KINDS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from robomimic_ddp import checkpoint
from robomimic_ddp.data import sampling
from robomimic_ddp.distributed import group, host_algo, rng
from robomimic_ddp.distributed.gradients import parallel


class Component(ABC):
    """A part of a run with a state of plain values and tensors.

    per_rank: each rank has a separate state; else the main rank's is saved, and all load it.
    """

    name: str
    per_rank = False

    def __init__(self, run: Any, model: Any) -> None:
        self.run, self.model = run, model

    @abstractmethod
    def state_dict(self) -> Any:
        """Return the state; collective where nets are sharded."""

    @abstractmethod
    def load_state_dict(self, state: Any, saved: Mapping[str, Any]) -> str | None:
        """Restore the state; return a line for the user, or None. Collective where nets are sharded
        or the state is lent.

        state: of a component that is `per_rank`, this rank's; None if the saved run had fewer
        ranks. saved: the whole file's, for what depends on the number of ranks.
        """


class Model(Component):
    """Nets, averages, optimizers, schedules, and the algorithm's counters."""

    name = "model"

    def state_dict(self) -> dict[str, Any]:
        return checkpoint.capture_model(self.model)

    def load_state_dict(self, state: Any, saved: Mapping[str, Any]) -> None:
        checkpoint.restore_model(self.model, state)


class GradientOrders(Component):
    """The order in which DDP's buckets were laid out, of each parallel net: it decides in which
    order values are added.
    """

    name = "gradient_orders"

    def state_dict(self) -> dict[str, list[int]]:
        orders = {}
        for name, net in self._nets():
            parallel.state_of(net).note_order()
            orders[name] = parallel.state_of(net).gradient_order
        return orders

    def load_state_dict(self, state: Mapping[str, list[int]], saved: Mapping[str, Any]) -> None:
        for name, net in self._nets():
            parallel.state_of(net).repeat_layout(state.get(name, []))

    def _nets(self) -> list[tuple[str, Any]]:
        return parallel.parallel_among(host_algo.named_modules(self.model))


class GradScaler(Component):
    """torch's scaler of the loss, with ddp.precision=fp16."""

    name = "grad_scaler"

    def state_dict(self) -> dict[str, Any] | None:
        scaler = self._scaler()
        return None if scaler is None else checkpoint.plain(scaler.state_dict())

    def load_state_dict(self, state: Any, saved: Mapping[str, Any]) -> None:
        scaler = self._scaler()
        if scaler is not None and state:
            scaler.load_state_dict(state)

    def _scaler(self) -> Any:
        return None if self.run.steps is None else self.run.steps.scaler


class RandomStreams(Component):
    """Generators of Python, numpy, torch and each GPU. A new rank begins new streams."""

    name, per_rank = "random", True

    def state_dict(self) -> dict[str, Any]:
        return rng.capture()

    def load_state_dict(self, state: Any, saved: Mapping[str, Any]) -> None:
        if state is None:
            rng.seed_streams(self.run.settings.seed, group.rank(), saved["epoch"])
        else:
            rng.restore(state)


class PlainTensors(Component):
    """Tensors and arrays that a host keeps outside modules, such as clusters that it has fitted.
    Those that are absent now, or have another shape, are left to the host.
    """

    name = "plain_tensors"

    def state_dict(self) -> dict[str, Any]:
        return {name: tensor.detach() for name, tensor in self._tensors().items()}

    def load_state_dict(self, state: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
        for name, tensor in self._tensors().items():
            if name in state and state[name].shape == tensor.shape:
                tensor.detach().copy_(state[name])

    def _tensors(self) -> dict[str, Any]:
        return host_algo.plain_tensors(self.model)


class DataPosition(Component):
    """The place in the data. It is of all ranks together, so a new rank takes the main rank's."""

    name, per_rank = "data", True

    def state_dict(self) -> dict[str, Any] | None:
        loader = self.run.built.loaders.get("train")
        return loader.position() if hasattr(loader, "position") else None

    def load_state_dict(self, state: Any, saved: Mapping[str, Any]) -> str:
        position = saved["ranks"][0][self.name] if state is None else state
        loader = self.run.built.loaders.get("train")
        return sampling.seek(loader, position, saved["world_size"], saved["epoch"])


class EpochSteps(Component):
    """The steps of an epoch that the run was stopped in; None at an epoch's end."""

    name = "inside"

    def state_dict(self) -> dict[str, Any] | None:
        progress = self.run.progress.part
        if progress.epoch is None:
            return None
        steps_before, samples_before = progress.before
        samples = (progress.steps - steps_before) * self.run.plan.samples_per_step
        counts = {"steps": progress.steps, "samples": samples_before + samples}
        return {"epoch": progress.epoch, **counts, "total": progress.total}

    def load_state_dict(self, state: Any, saved: Mapping[str, Any]) -> None:
        if state is not None:
            progress = self.run.progress.part
            progress.steps, progress.total = state["steps"], self._new_total(state, saved)
            progress.before = state["steps"], state["samples"]

    def _new_total(self, state: Mapping[str, Any], saved: Mapping[str, Any]) -> int:
        """Return the steps of an epoch that is a pass: those that are done, and as many as the
        loader has left of the pass, whose batches may have become larger or smaller.
        """
        done, total = state["steps"], state["total"]
        if total is not None and done >= total:
            return done  # a loader that stands at the end of a pass would count the next one's
        loader = self.run.built.loaders.get("train")
        if hasattr(loader, "batches_left"):
            return done + loader.batches_left()
        left = (len(loader) if total is None else total) - done
        return done + -(-left * saved["samples_per_step"] // self.run.plan.samples_per_step)


class StepLogs(Component):
    """The logs of those steps. On another number of ranks the main rank takes all, as sums."""

    name, per_rank = "logs", True

    def state_dict(self) -> dict[str, Any] | None:
        progress = self.run.progress.part
        if progress.epoch is None:
            return None
        sums = {"samples": progress.logs.samples, "totals": progress.logs.totals}
        return {**sums, "step_logs": progress.step_logs}

    def load_state_dict(self, state: Any, saved: Mapping[str, Any]) -> None:
        if saved["inside"] is None:
            return
        progress, states = self.run.progress.part, [rank[self.name] for rank in saved["ranks"]]
        if saved["world_size"] == self.run.plan.world_size:
            progress.logs.samples, progress.logs.totals = state["samples"], state["totals"]
            progress.step_logs = state["step_logs"]
        elif group.is_main():
            for of_rank in states:
                progress.logs.add(of_rank["samples"], of_rank["totals"])
            for log in states[0]["step_logs"]:  # of one rank
                progress.logs.add_step(saved["samples_per_step"], log)


class LoggedValues(Component):
    """Values of which the host's DataLogger logs mean, minimum and maximum over the run so far."""

    name = "logged_values"

    def state_dict(self) -> dict[str, list[float]]:
        numbers = {}
        for key, values in self._values().items():
            with suppress(TypeError, ValueError):  # what another host's logger has
                numbers[key] = [float(value) for value in values]
        return numbers

    def load_state_dict(self, state: Mapping[str, list[float]], saved: Mapping[str, Any]) -> None:
        self._values().update(state)

    def _values(self) -> dict[str, Any]:
        values = getattr(getattr(self.run.output.pictures, "logger", None), "_data", None)
        return values if isinstance(values, dict) else {}


KINDS: tuple[type[Component], ...] = (
    Model,
    GradientOrders,
    PlainTensors,
    DataPosition,
    GradScaler,
    EpochSteps,
    StepLogs,
    LoggedValues,
    RandomStreams,
)
"""In the order in which they are restored: random streams last, after what may draw from them."""
