"""Overrides that an entry hands to Hydra."""

from __future__ import annotations

import pytest

from tests.fixers.support import check_edit, check_untouched

OURS = "import robomimic_ddp.api as DDPUtils\n"


@pytest.mark.parametrize(
    "text",
    [
        "from hydra import compose\ncfg = compose(config_name='train')\n",
        "from mine import compose  # hydra\ncfg = compose('train', overrides=words)\n",
        "import hydra\n@hydra.main(config_path='compose')\ndef main(cfg):\n    pass\n",
    ],
    ids=["no overrides", "other library", "hydra.main"],
)
def test_leaves_others(text):
    check_untouched("overrides", text)


@pytest.mark.parametrize("name", ["compose", "hydra.compose"])
@pytest.mark.parametrize("words", ["overrides", "list(sys.argv[1:])"])
def test_compose(name, words):
    text = """import hydra
from hydra import compose
{}def main():
    with initialize_config_dir(config_dir=folder):
        cfg = {}(config_name="train_rlds", overrides={})
"""
    check_edit(
        "overrides",
        text.format("", name, words),
        text.format(OURS, name, f"DDPUtils.overrides({words})"),
    )


def test_after_the_imports_are_ours():
    text = """from robomimic_ddp.api import compose
import robomimic_ddp.api as DDPUtils
cfg = compose(config_name="train", overrides={})
"""
    check_edit("overrides", text.format("words"), text.format("DDPUtils.overrides(words)"))
