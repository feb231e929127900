"""What entries of hosts' own import from Hydra to compose a YAML (YufengJin's fork at dc1ca00)."""

from __future__ import annotations

import pytest

from robomimic_ddp import composing
from robomimic_ddp.patches.fixers import hydra_compose
from tests.fixers.support import check_edit, check_untouched


@pytest.mark.parametrize(
    "text",
    [
        "from mine import compose  # hydra\n",
        "import hydra\n@hydra.main(config_path='compose')\ndef main(cfg):\n    pass\n",
        "from hydra import compose\nfrom hydra.utils import instantiate\n",
        "from .hydra import compose\n",
        "from hydra import *  # compose\n",
    ],
    ids=["other library", "hydra.main", "more of Hydra", "the host's own", "all names"],
)
def test_leaves_others(text):
    check_untouched("hydra_compose", text)


@pytest.mark.parametrize(
    "names", ["compose, initialize_config_dir", "compose as c, initialize", "(\n    compose,\n)"]
)
def test_compose(names):
    text = """import sys
{ours}def main():
    from {hydra} import {names}
    from {core} import GlobalHydra
    GlobalHydra.instance().clear()
"""
    api = "robomimic_ddp.api"
    check_edit(
        "hydra_compose",
        text.format(ours="", hydra="hydra", core="hydra.core.global_hydra", names=names),
        text.format(
            ours="import robomimic_ddp.api as DDPUtils\n", hydra=api, core=api, names=names
        ),
    )


def test_the_names_are_those_that_the_runtime_has():
    assert set(composing.OFFERED) == hydra_compose.OFFERED
