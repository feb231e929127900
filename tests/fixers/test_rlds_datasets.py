"""The decorator on `load_data_for_training`."""

from __future__ import annotations

from robomimic_ddp.patches.hosts import READS_RLDS
from tests.fixers.support import check_edit, check_untouched


def test_leaves_a_file_without_it():
    check_untouched("rlds_datasets", "def other():\n    load_data_for_training = 1\n")


def test_leaves_one_that_is_not_at_top_level():
    check_untouched(
        "rlds_datasets",
        "class Holder:\n    def load_data_for_training(config, obs_keys):\n        pass\n",
    )


def test_decorates_and_keeps_what_is_around():
    check_edit(
        "rlds_datasets",
        '''
        """Docstring."""
        import os

        import robomimic.utils.tensor_utils as TensorUtils


        # a comment that belongs to it
        def load_data_for_training(config, obs_keys):
            pass  # body


        last = 1
        ''',
        '''
        """Docstring."""
        import os

        import robomimic.utils.tensor_utils as TensorUtils
        import robomimic_ddp.api as DDPUtils


        # a comment that belongs to it
        @DDPUtils.rlds_datasets
        def load_data_for_training(config, obs_keys):
            pass  # body


        last = 1
        ''',
    )


def test_becomes_the_outermost_of_several():
    check_edit(
        "rlds_datasets",
        """
        import tools

        @tools.first
        # between
        @tools.second()
        def load_data_for_training(config, obs_keys):
            pass
        """,
        """
        import tools
        import robomimic_ddp.api as DDPUtils

        @DDPUtils.rlds_datasets
        @tools.first
        # between
        @tools.second()
        def load_data_for_training(config, obs_keys):
            pass
        """,
    )


def test_leaves_a_host_that_reads_rlds_itself():
    text = "def load_data_for_training(config):\n    pass\n"
    outcome = check_untouched("rlds_datasets", text, traits=frozenset({READS_RLDS}))
    assert "itself" in outcome.reason
