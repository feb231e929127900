"""What `ddp.compile` makes of the diffusion policy's two nets on a GPU, as far as a machine without
one can tell: Inductor's code for an sm_90, and how a compiled step waits. A job that compiles
without Inductor, not slow: test_jobs.py.
"""

from __future__ import annotations

import pytest

from tests.pretend_cuda.whole_graphs import require_whole_graphs

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

CASES = [
    ("reduce-overhead", "diffusion_policy_crops", "none"),
    ("true", "diffusion_policy_images", "none"),
    ("true", "diffusion_policy_crops", "triton"),
]


@pytest.mark.parametrize("kind, variant, triton", CASES)
def test_two_nets_are_whole_graphs_on_the_gpu(
    gpus, host_copy, config_file, tmp_path, kind, variant, triton
):
    config = config_file(variant, {"train": {"cuda": True}})
    require_whole_graphs(gpus, host_copy, config, tmp_path, kind, triton)
