"""Commands in an environment that does not have what hosts train with."""

from __future__ import annotations

import sys

import pytest

from tests.hosts import run

WITHOUT = """
import sys
sys.modules[sys.argv.pop(1)] = None  # as if it were not installed
from robomimic_ddp.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize("words", ["ckpt show", "inspect-data"])
def test_a_command_names_the_package_that_it_needs(words):
    package = "torch" if words.startswith("ckpt") else "numpy"
    done = run(None, sys.executable, "-c", WITHOUT, package, *words.split(), __file__)
    assert done.returncode == 1
    message = " ".join(done.stderr.split())
    assert message.startswith(f"robomimic-ddp: this command needs {package}, which "), message
    assert "Activate the environment in which the host trains" in message
