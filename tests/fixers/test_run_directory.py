"""The decorator on `get_exp_dir`."""

from __future__ import annotations

from tests.fixers.support import check_edit, check_untouched


def test_leaves_a_file_without_it():
    check_untouched("run_directory", "def other():\n    get_exp_dir = 1\n")


def test_leaves_one_that_is_not_at_top_level():
    check_untouched(
        "run_directory",
        "class Holder:\n    def get_exp_dir(config, auto_remove_exp_dir=False):\n        pass\n",
    )


def test_decorates_and_keeps_what_is_around():
    check_edit(
        "run_directory",
        '''
        """Docstring."""
        import os

        import robomimic.utils.tensor_utils as TensorUtils


        # a comment that belongs to it
        def get_exp_dir(config, auto_remove_exp_dir=False):
            pass  # body


        last = 1
        ''',
        '''
        """Docstring."""
        import os

        import robomimic.utils.tensor_utils as TensorUtils
        import robomimic_ddp.api as DDPUtils


        # a comment that belongs to it
        @DDPUtils.run_directory
        def get_exp_dir(config, auto_remove_exp_dir=False):
            pass  # body


        last = 1
        ''',
    )


def test_becomes_the_outermost_of_several():
    check_edit(
        "run_directory",
        """
        import tools

        @tools.first
        # between
        @tools.second()
        def get_exp_dir(config, auto_remove_exp_dir=False):
            pass
        """,
        """
        import tools
        import robomimic_ddp.api as DDPUtils

        @DDPUtils.run_directory
        @tools.first
        # between
        @tools.second()
        def get_exp_dir(config, auto_remove_exp_dir=False):
            pass
        """,
    )
