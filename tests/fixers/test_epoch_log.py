"""The decorator on `run_epoch`."""

from __future__ import annotations

from tests.fixers.support import check_edit, check_untouched


def test_leaves_a_file_without_it():
    check_untouched("epoch_log", "def other():\n    run_epoch = 1\n")


def test_leaves_one_that_is_not_at_top_level():
    check_untouched(
        "epoch_log",
        "class Holder:\n    def run_epoch(model, data_loader, epoch):\n        pass\n",
    )


def test_decorates_and_keeps_what_is_around():
    check_edit(
        "epoch_log",
        '''
        """Docstring."""
        import os

        import robomimic.utils.tensor_utils as TensorUtils


        # a comment that belongs to it
        def run_epoch(model, data_loader, epoch):
            pass  # body


        last = 1
        ''',
        '''
        """Docstring."""
        import os

        import robomimic.utils.tensor_utils as TensorUtils
        import robomimic_ddp.api as DDPUtils


        # a comment that belongs to it
        @DDPUtils.epoch_log
        def run_epoch(model, data_loader, epoch):
            pass  # body


        last = 1
        ''',
    )


def test_becomes_the_outermost_of_several():
    check_edit(
        "epoch_log",
        """
        import tools

        @tools.first
        # between
        @tools.second()
        def run_epoch(model, data_loader, epoch):
            pass
        """,
        """
        import tools
        import robomimic_ddp.api as DDPUtils

        @DDPUtils.epoch_log
        @tools.first
        # between
        @tools.second()
        def run_epoch(model, data_loader, epoch):
            pass
        """,
    )
