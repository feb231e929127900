"""load_from= in entries of hosts' own (YufengJin's fork at dc1ca00)."""

from __future__ import annotations

import pytest

from tests.fixers.support import check_edit, check_untouched

HEAD = "import json\nfrom omegaconf import OmegaConf\n"
OURS = "import robomimic_ddp.api as DDPUtils\n"


@pytest.mark.parametrize(
    "text",
    [
        "def run(cfg):\n    base = OmegaConf.create(json.load(f))\n",
        "def run(cfg):\n    cfg = OmegaConf.create({'a': 1})  # load_from\n",
        "def run(cfg):\n    cfg = OmegaConf.merge(cfg, OmegaConf.create(json.load(f)))\n",
        "load_from = cfg = OmegaConf.create(json.load(f))\n",
    ],
    ids=["another variable", "no file", "merged by the host", "no function"],
)
def test_leaves_what_replaces_nothing(text):
    check_untouched("load_from", HEAD + text)


def test_the_file_that_replaces_all():
    text = """{}def run(cfg: "OmegaConf") -> str:
    load_from = OmegaConf.select(cfg, "load_from")
    if load_from:
        with open(load_from, "r") as f:
            cfg = {}
"""
    check_edit(
        "load_from",
        HEAD + text.format("", "OmegaConf.create(json.load(f))"),
        HEAD + text.format(OURS, "DDPUtils.load_from(cfg, OmegaConf.create(json.load(f)))"),
    )
