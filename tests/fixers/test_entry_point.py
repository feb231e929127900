"""The decorator on `main`."""

from __future__ import annotations

from tests.fixers.support import check_edit, check_untouched


def test_leaves_a_file_without_it():
    check_untouched("entry_point", "def other():\n    main = 1\n")


def test_leaves_one_that_is_not_at_top_level():
    check_untouched("entry_point", "class Holder:\n    def main(args):\n        pass\n")


def test_decorates_and_keeps_what_is_around():
    check_edit(
        "entry_point",
        '''
        """Docstring."""
        import os

        import robomimic.utils.tensor_utils as TensorUtils


        # a comment that belongs to it
        def main(args):
            pass  # body


        last = 1
        ''',
        '''
        """Docstring."""
        import os

        import robomimic.utils.tensor_utils as TensorUtils
        import robomimic_ddp.api as DDPUtils


        # a comment that belongs to it
        @DDPUtils.entry_point(api_version=1)
        def main(args):
            pass  # body


        last = 1
        ''',
    )


def test_becomes_the_outermost_of_several():
    check_edit(
        "entry_point",
        """
        import tools

        @tools.first
        # between
        @tools.second()
        def main(args):
            pass
        """,
        """
        import tools
        import robomimic_ddp.api as DDPUtils

        @DDPUtils.entry_point(api_version=1)
        @tools.first
        # between
        @tools.second()
        def main(args):
            pass
        """,
    )


def test_a_main_without_arguments():
    check_edit(
        "entry_point",
        "import os\n\ndef main() -> None:\n    pass\n",
        "import os\nimport robomimic_ddp.api as DDPUtils\n\n@DDPUtils.entry_point(api_version=1)\n"
        "def main() -> None:\n    pass\n",
    )
