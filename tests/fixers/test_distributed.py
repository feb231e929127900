"""The decorator on `train`."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches.outcomes import Unrecognised
from tests.fixers.support import check_edit, check_untouched


def test_leaves_a_file_without_it():
    check_untouched("distributed", "def other():\n    train = 1\n")


def test_leaves_one_that_is_not_at_top_level():
    check_untouched("distributed", "class Holder:\n    def train(config, device):\n        pass\n")


def test_decorates_and_keeps_what_is_around():
    check_edit(
        "distributed",
        '''
        """Docstring."""
        import os

        import robomimic.utils.tensor_utils as TensorUtils


        # a comment that belongs to it
        def train(config, device):
            pass  # body


        last = 1
        ''',
        '''
        """Docstring."""
        import os

        import robomimic.utils.tensor_utils as TensorUtils
        import robomimic_ddp.api as DDPUtils


        # a comment that belongs to it
        @DDPUtils.distributed
        def train(config, device):
            pass  # body


        last = 1
        ''',
    )


def test_becomes_the_outermost_of_several():
    check_edit(
        "distributed",
        """
        import tools

        @tools.first
        # between
        @tools.second()
        def train(config, device):
            pass
        """,
        """
        import tools
        import robomimic_ddp.api as DDPUtils

        @DDPUtils.distributed
        @tools.first
        # between
        @tools.second()
        def train(config, device):
            pass
        """,
    )


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
