"""The decorator on `PrintLogger`."""

from __future__ import annotations

from tests.fixers.support import check_edit, check_untouched


def test_leaves_a_file_without_it():
    check_untouched("print_logger", "def other():\n    PrintLogger = 1\n")


def test_leaves_one_that_is_not_at_top_level():
    check_untouched("print_logger", "class Holder:\n    class PrintLogger(object):\n        pass\n")


def test_decorates_and_keeps_what_is_around():
    check_edit(
        "print_logger",
        '''
        """Docstring."""
        import os

        import robomimic.utils.tensor_utils as TensorUtils


        # a comment that belongs to it
        class PrintLogger(object):
            pass  # body


        last = 1
        ''',
        '''
        """Docstring."""
        import os

        import robomimic.utils.tensor_utils as TensorUtils
        import robomimic_ddp.api as DDPUtils


        # a comment that belongs to it
        @DDPUtils.print_logger
        class PrintLogger(object):
            pass  # body


        last = 1
        ''',
    )


def test_becomes_the_outermost_of_several():
    check_edit(
        "print_logger",
        """
        import tools

        @tools.first
        # between
        @tools.second()
        class PrintLogger(object):
            pass
        """,
        """
        import tools
        import robomimic_ddp.api as DDPUtils

        @DDPUtils.print_logger
        @tools.first
        # between
        @tools.second()
        class PrintLogger(object):
            pass
        """,
    )
