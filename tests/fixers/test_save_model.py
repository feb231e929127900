"""The decorator on `save_model`."""

from __future__ import annotations

from tests.fixers.support import check_edit, check_untouched


def test_leaves_a_file_without_it():
    check_untouched("save_model", "def other():\n    save_model = 1\n")


def test_leaves_one_that_is_not_at_top_level():
    check_untouched(
        "save_model",
        "class Holder:\n    def save_model(model, ckpt_path):\n        pass\n",
    )


def test_decorates_and_keeps_what_is_around():
    check_edit(
        "save_model",
        '''
        """Docstring."""
        import os

        import robomimic.utils.tensor_utils as TensorUtils


        # a comment that belongs to it
        def save_model(model, ckpt_path):
            pass  # body


        last = 1
        ''',
        '''
        """Docstring."""
        import os

        import robomimic.utils.tensor_utils as TensorUtils
        import robomimic_ddp.api as DDPUtils


        # a comment that belongs to it
        @DDPUtils.main_rank_only
        def save_model(model, ckpt_path):
            pass  # body


        last = 1
        ''',
    )


def test_becomes_the_outermost_of_several():
    check_edit(
        "save_model",
        """
        import tools

        @tools.first
        # between
        @tools.second()
        def save_model(model, ckpt_path):
            pass
        """,
        """
        import tools
        import robomimic_ddp.api as DDPUtils

        @DDPUtils.main_rank_only
        @tools.first
        # between
        @tools.second()
        def save_model(model, ckpt_path):
            pass
        """,
    )
