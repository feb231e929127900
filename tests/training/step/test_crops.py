"""Crops drawn without waiting for a GPU: the host's pixels, from the host's random numbers."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch

from robomimic_ddp.training.step import crops
from tests.versions import NEEDS_CALL_PLACE

obs_utils = pytest.importorskip("robomimic.utils.obs_utils")
obs_core = pytest.importorskip("robomimic.models.obs_core")


class Model:
    """Of the host, as far as `install` can see."""


Model.__module__ = "robomimic.algo.mine"


@pytest.mark.parametrize(
    "leading, count, pos_enc", [((4,), 1, False), ((2, 3), 3, True), ((), 3, False)]
)
def test_the_hosts_crops_to_the_bit(leading, count, pos_enc):
    host, images = obs_utils.sample_random_image_crops, torch.rand(*leading, 3, 17, 23)
    given = {"crop_height": 11, "crop_width": 7, "num_crops": count, "pos_enc": pos_enc}
    torch.manual_seed(3)
    expected, after = host(images, **given), torch.get_rng_state()
    torch.manual_seed(3)
    with ExitStack() as undo:
        assert crops.install(Model(), undo)
        ours = obs_utils.sample_random_image_crops(images, **given)
    assert obs_utils.sample_random_image_crops is host
    assert all(map(torch.equal, ours, expected)) and ours[0].shape == expected[0].shape
    assert torch.equal(after, torch.get_rng_state())


def test_gradients_go_through():
    images = torch.rand(2, 3, 8, 8, requires_grad=True)
    crops.sample(images, 4, 4, 2)[0].sum().backward()
    assert images.grad.sum() == 2 * 2 * 3 * 4 * 4


def test_only_the_corners_are_sent_and_nothing_is_read_back(monkeypatch):
    sent = []
    monkeypatch.setattr(
        crops.pinned_batches, "_pinned", lambda tensor: sent.append(tensor.shape) or tensor
    )
    for name in ("item", "cpu", "__bool__"):
        monkeypatch.setattr(torch.Tensor, name, lambda *_: pytest.fail("was read back"))
    images = torch.empty(4, 3, 17, 23, device="meta")
    assert crops.sample(images, 11, 7, 2, pos_enc=True)[0].shape == (4, 2, 5, 11, 7)
    assert sent == [(4, 2, 2)]


@NEEDS_CALL_PLACE
def test_a_compiled_net_draws_its_crops_on_the_device_in_one_graph(monkeypatch):
    """No copy from the CPU is traced, and no part of the net runs outside the graph."""
    randomizer = obs_core.CropRandomizer((3, 17, 23), 11, 7)
    devices = []

    def traced(graph, inputs):
        nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
        devices.extend(node.kwargs.get("device") for node in nodes if node.target is torch.rand)
        assert not any("pin_memory" in node.kwargs for node in nodes)
        return graph.forward

    with ExitStack() as undo:
        assert crops.install(Model(), undo)
        forward = torch.compile(randomizer.forward_in, backend=traced, fullgraph=True)
        images = torch.empty(4, 3, 17, 23, device="meta")
        assert forward(images).shape == (4, 3, 11, 7)
        assert [torch.device(device).type for device in devices] == ["meta", "meta"]
        images = torch.rand(4, 3, 17, 23)
        torch.manual_seed(3)
        expected = randomizer.forward_in(images)
        torch.manual_seed(3)
        assert torch.equal(forward(images), expected)


def test_a_host_that_crops_otherwise_keeps_its_own(monkeypatch):
    monkeypatch.setattr(obs_utils, "crop_image_from_indices", lambda images: images)
    with ExitStack() as undo:
        assert not crops.install(Model(), undo) and not crops.install(object(), undo)


@pytest.mark.parametrize("compiler", [None, SimpleNamespace()])
def test_older_versions_of_torch_cannot_say_whether_they_compile(compiler, monkeypatch):
    monkeypatch.delattr(torch, "compiler", raising=False)
    if compiler is not None:
        monkeypatch.setattr(torch, "compiler", compiler, raising=False)
    assert crops.sample(torch.rand(2, 3, 9, 9), 5, 5, 1)[0].shape == (2, 1, 3, 5, 5)
