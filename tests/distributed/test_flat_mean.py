"""One message averages an optimizer's gradients without reading from the device."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from robomimic_ddp.distributed import group
from robomimic_ddp.distributed.gradients import flat_mean
from robomimic_ddp.distributed.gradients.flat_mean import FlatMean


def test_only_an_absent_gradient_is_looked_for_on_other_ranks():
    """Tensors of the meta device have no numbers: reading one is an error."""
    net = nn.Linear(2, 3, device="meta")
    net(torch.empty(4, 2, device="meta")).sum().backward()
    mean = FlatMean([*net.parameters()])
    mean.average()
    assert net.weight.grad.shape == (3, 2) and net.weight.grad.device.type == "meta"
    net.bias.grad = None
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        mean.average()


def test_gradients_have_the_order_in_memory_of_their_parameters():
    """torch's fused optimizers go through memory, and do not look at strides."""
    net = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    net(torch.randn(4, 3, 8, 8)).square().sum().backward()
    before = net.weight.grad.clone()
    FlatMean([*net.parameters()]).average()
    assert net.weight.grad.stride() == net.weight.stride() != nn.Conv2d(3, 8, 3).weight.stride()
    torch.testing.assert_close(net.weight.grad, before)


CLOCK = SimpleNamespace(seconds=0.0)
CLOCK.perf_counter = lambda: CLOCK.seconds


class OnGPU(torch.Tensor):
    """On a CPU in truth."""

    device = torch.device("cuda")


class Event:
    """As `torch.cuda.Event`."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.is_timed, self.is_awaited, self.seconds = enable_timing, False, None

    def record(self) -> None:
        self.seconds = CLOCK.seconds

    def synchronize(self) -> None:
        self.is_awaited = True

    def elapsed_time(self, end: Event) -> float:
        assert self.is_timed and end.is_timed and end.is_awaited
        return (end.seconds - self.seconds) * 1000


def seconds_of_messages(kind: type) -> list[float]:
    """Collective: the latest measurement after each message; message n takes n seconds of CLOCK."""
    add, seconds = group.add_over_ranks, []

    def add_over_ranks(message: torch.Tensor) -> None:
        add(message)
        CLOCK.seconds += len(seconds) + 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group, "add_over_ranks", add_over_ranks)
        patch.setattr(flat_mean, "time", None if kind is OnGPU else CLOCK)
        patch.setattr(torch.cuda, "Event", Event)
        parameter = torch.zeros(3).as_subclass(kind)
        parameter.grad = torch.full((3,), 1.0 + group.rank()).as_subclass(kind)
        mean = FlatMean([parameter])
        assert mean.seconds is None
        for _ in range(102):
            mean.average()
            seconds.append(mean.seconds)
            assert parameter.grad.tolist() == [1.5, 1.5, 1.5]
    return seconds


@pytest.mark.parametrize("kind", [torch.Tensor, OnGPU])
def test_the_first_ten_messages_and_each_hundredth_are_timed(kind, ranks):
    expected = pytest.approx([*range(1, 11), *[10] * 90, 101, 101], rel=1e-6)
    assert ranks.run(seconds_of_messages, kind) == [expected] * 2
