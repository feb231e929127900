"""The host's `to_device` with pinned copies: the same nests, nothing copied twice."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import ExitStack

import pytest
import torch

from robomimic_ddp.training.step import pinned_batches

tensor_utils = pytest.importorskip("robomimic.utils.tensor_utils")


class Model:
    """Of the host, as far as `install` can see."""


Model.__module__ = "robomimic.algo.mine"


@pytest.fixture
def pinned(monkeypatch):
    """The tensors that went through pinned memory, on a machine that has none."""
    seen = []
    monkeypatch.setattr(pinned_batches, "_pinned", lambda tensor: seen.append(tensor) or tensor)
    return seen


def test_a_nest_arrives_as_the_host_would_bring_it(pinned):
    host, trained = tensor_utils.to_device, torch.ones(2, requires_grad=True)
    there = torch.ones(3, device="meta")
    obs = OrderedDict(b=torch.ones(4, 3)[:, :2], a=[torch.zeros(1), (trained, None)])
    batch = {"obs": obs, "goal_obs": None, "there": there}
    with ExitStack() as undo:
        assert pinned_batches.install(Model(), undo)
        made = tensor_utils.to_device(batch, torch.device("meta"))
        at_home = tensor_utils.to_device({"obs": obs}, "cpu")
    assert tensor_utils.to_device is host
    assert made["there"] is there and made["goal_obs"] is None
    assert type(made["obs"]) is OrderedDict and list(made["obs"]) == ["b", "a"]
    assert made["obs"]["b"].shape == (4, 2) and made["obs"]["b"].is_meta
    assert made["obs"]["a"][0].is_meta and made["obs"]["a"][1][1] is None
    assert [tensor.shape for tensor in pinned] == [(4, 2), (1,)], "a gradient's way is the host's"
    assert at_home["obs"]["b"] is obs["b"] and len(pinned) == 2
    assert batch["obs"] is obs and not obs["b"].is_meta, "the host's nest is left alone"


class Images(Model):
    """Sends half of its frames, as the host's diffusion policy does."""

    __module__ = Model.__module__
    device = torch.device("meta")

    def process_batch_for_training(self, batch):
        seen = {"obs": batch["obs"][:, :1], "goal_obs": None}
        return tensor_utils.to_device(tensor_utils.to_float(seen), self.device)

    def log_info(self, info):
        return info


def test_images_are_sent_as_bytes(pinned):
    host, model = tensor_utils.to_float, Images()
    with ExitStack() as undo:
        assert pinned_batches.install(model, undo)
        images = torch.zeros(2, 2, 3, dtype=torch.uint8)
        made = model.process_batch_for_training({"obs": images})
        assert tensor_utils.to_float is host, "elsewhere floats stay where they are"
    assert [(tensor.shape, tensor.dtype) for tensor in pinned] == [((2, 1, 3), torch.uint8)]
    assert made["obs"].is_meta and made["obs"].dtype == torch.float32
    assert made["goal_obs"] is None and "process_batch_for_training" not in vars(model)


def test_a_host_without_it_is_left_alone(pinned):
    with ExitStack() as undo:
        assert not pinned_batches.install(object(), undo)
