"""Steps of the host's policy on a CUDA device give the GPU work and never wait for it."""

from __future__ import annotations

import math
from contextlib import ExitStack

import pytest
import torch

from robomimic_ddp import observing, step
from robomimic_ddp.bench import loading, loops, policy
from robomimic_ddp.options import Options
from robomimic_ddp.step import crossing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device"),
]
WARM_UP, STEPS = 4, 5


def losses_of_steps(reads_late: bool) -> list[float]:
    """Steps of a small policy; those after the first few may not synchronise when read late."""
    job = {"batch": 8, "down_dims": [32, 64], "cameras": 1, "pixels": 84}
    torch.manual_seed(1)
    config = policy.make_config(job)
    model = policy.make_model(config, job, "cuda")
    loop = loops.HostLoop(model, loading.pinned(policy.make_batch(config, job)))
    model.set_train()
    with ExitStack() as undo:
        options = Options(preset="fast" if reads_late else "safe")
        prepared = step.prepare(model, options, list(model.nets["policy"].values()), undo)
        assert prepared.reads_late is reads_late
        with observing.watching(model, [], reads_late):
            logs = [loop.step() for _ in range(WARM_UP)]
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error" if reads_late else "default")
            try:
                logs += [loop.step() for _ in range(STEPS)]
            finally:
                torch.cuda.set_sync_debug_mode("default")
    return [log["Loss"] for log in logs]


def test_batches_that_cross_beside_a_step_arrive_whole():
    """Each is used while the next ones are on their way; memory of those before is used anew."""
    from robomimic.utils import tensor_utils

    device = torch.device("cuda")
    busy = torch.randn(2048, 2048, device=device)
    with ExitStack() as undo:
        model = type("Model", (), {"__module__": "robomimic.algo.mine"})()
        assert crossing.install(model, undo)
        ends = []
        for number in range(50):
            busy = (busy @ busy).tanh()
            batch = {"obs": [torch.full((64, 3, 84, 84), float(number))]}
            (picture,) = tensor_utils.to_device(batch, device)["obs"]
            ends.append(torch.stack(picture.aminmax()))
    assert torch.stack(ends).tolist() == [[float(number)] * 2 for number in range(50)]


def test_no_step_waits_and_each_has_its_own_loss():
    late, at_once = losses_of_steps(True), losses_of_steps(False)
    assert all(type(loss) is float and math.isfinite(loss) for loss in late)
    assert late == pytest.approx(at_once, rel=1e-2), "fp32, kernels of another order"
    assert len(set(late)) == WARM_UP + STEPS
