"""The decorator on `rollout_with_stats`."""

from __future__ import annotations

from tests.fixers.support import check_edit, check_untouched


def test_leaves_a_file_without_it():
    check_untouched("rollouts", "def other():\n    rollout_with_stats = 1\n")


def test_leaves_one_that_is_not_at_top_level():
    check_untouched(
        "rollouts",
        "class Holder:\n    def rollout_with_stats(policy, envs, horizon):\n        pass\n",
    )


def test_decorates_and_keeps_what_is_around():
    check_edit(
        "rollouts",
        '''
        """Docstring."""
        import os

        import robomimic.utils.tensor_utils as TensorUtils


        # a comment that belongs to it
        def rollout_with_stats(policy, envs, horizon):
            pass  # body


        last = 1
        ''',
        '''
        """Docstring."""
        import os

        import robomimic.utils.tensor_utils as TensorUtils
        import robomimic_ddp.api as DDPUtils


        # a comment that belongs to it
        @DDPUtils.rollouts
        def rollout_with_stats(policy, envs, horizon):
            pass  # body


        last = 1
        ''',
    )


def test_becomes_the_outermost_of_several():
    check_edit(
        "rollouts",
        """
        import tools

        @tools.first
        # between
        @tools.second()
        def rollout_with_stats(policy, envs, horizon):
            pass
        """,
        """
        import tools
        import robomimic_ddp.api as DDPUtils

        @DDPUtils.rollouts
        @tools.first
        # between
        @tools.second()
        def rollout_with_stats(policy, envs, horizon):
            pass
        """,
    )
