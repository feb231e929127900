"""The decorator on `train`: its parameters (the shapes: test_decorators.py)."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches.outcomes import Unrecognised
from tests.fixers.support import check_edit, check_untouched


@pytest.mark.parametrize(
    "signature",
    ["config, device, resume=False", "config, device, *, auto=True", "config, device, args"],
)
def test_further_parameters(signature):
    check_edit(
        "distributed",
        f"import os\n\ndef train({signature}):\n    pass\n",
        "import os\nimport robomimic_ddp.api as DDPUtils\n\n@DDPUtils.distributed\n"
        f"def train({signature}):\n    pass\n",
    )


@pytest.mark.parametrize("signature", ["config", "args", "device, config", "model, loader"])
def test_says_so_where_train_is_called_otherwise(signature):
    text = f"import os\n\ndef train({signature}):\n    pass\n"
    outcome = check_untouched("distributed", text, Unrecognised)
    assert (outcome.where, signature in outcome.why) == (3, True)
