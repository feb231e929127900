"""Fixers that put one decorator on a function or class: a row each, every shape for every row."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches.fixers.decorators import FIXERS
from robomimic_ddp.patches.host.hosts import READS_RLDS
from tests.fixers.cases import DECORATED
from tests.fixers.support import IMPORT, check_edit, check_untouched

every_row = pytest.mark.parametrize(
    ("name", "line", "decorator"), [(name, *row) for name, row in DECORATED.items()], ids=DECORATED
)


def test_every_row_of_the_table_is_here():
    assert set(DECORATED) == set(FIXERS)


@every_row
def test_leaves_a_file_without_it(name, line, decorator):
    target = line.partition("(")[0].split()[1]
    check_untouched(name, f"def other():\n    {target} = 1\n")


@every_row
def test_leaves_one_that_is_not_at_top_level(name, line, decorator):
    check_untouched(name, f"class Holder:\n    {line}\n        pass\n")


@every_row
def test_decorates_and_keeps_what_is_around(name, line, decorator):
    head = '"""Docstring."""\nimport os\n\nimport robomimic.utils.tensor_utils as TensorUtils\n'
    comment = "\n\n# a comment that belongs to it\n"
    body = f"{line}\n    pass  # body\n\n\nlast = 1\n"
    check_edit(name, head + comment + body, f"{head}{IMPORT}{comment}@DDPUtils.{decorator}\n{body}")


@every_row
def test_becomes_the_outermost_of_several(name, line, decorator):
    body = f"@tools.first\n# between\n@tools.second()\n{line}\n    pass\n"
    check_edit(
        name, f"import tools\n\n{body}", f"import tools\n{IMPORT}\n@DDPUtils.{decorator}\n{body}"
    )


@pytest.mark.parametrize("name", [name for name in DECORATED if name.startswith("rlds_")])
def test_leaves_a_host_that_reads_rlds_itself(name):
    text = f"{DECORATED[name][0]}\n    pass\n"
    outcome = check_untouched(name, text, traits=frozenset({READS_RLDS}))
    assert "itself" in outcome.reason


def test_a_main_without_arguments():
    body = "def main() -> None:\n    pass\n"
    check_edit(
        "entry_point",
        f"import os\n\n{body}",
        f"import os\n{IMPORT}\n@DDPUtils.entry_point(api_version=1)\n{body}",
    )


def test_further_kinds_of_epoch_are_decorated_too():
    """A host's train_mt.py trains with run_epoch_mt, and validates with run_epoch."""
    lines = [
        f"def {name}(model, data, epoch):\n    pass\n" for name in ("run_epoch", "run_epoch_mt")
    ]
    after = "".join(f"@DDPUtils.epoch_log\n{line}" for line in lines)
    check_edit("epoch_log", "".join(lines), IMPORT + after)
