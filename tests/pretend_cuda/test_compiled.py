from __future__ import annotations
import json, time
import pytest
from tests.configs import merged, write_config
from tests.hosts import python, require_clean
from tests.pretend_cuda.log import read
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

@pytest.mark.parametrize("kind", ["true"])
def test_compiled(gpus, host_copy, config_file, tmp_path, kind):
    configs = [config_file(v, {"train": {"cuda": True}}) for v in ("diffusion_policy_crops", "diffusion_policy_images")]
    import shutil
    t=time.time()
    added = {**gpus, "PRETEND_CUDA_LOG": str(tmp_path / "log"), "CUDA_VISIBLE_DEVICES": "0"}
    result = python(host_copy, "tests.pretend_cuda.compiled", tmp_path/"r.json", kind, "bf16", *configs, added=added, timeout=250.0)
    print(time.time()-t, result.stderr[-3000:], result.stdout[-300:])
    print((tmp_path/"r.json").read_text(), read(tmp_path))
    assert 0
