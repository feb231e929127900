"""octo's make_interleaved_dataset in train(), by the shapes of DROID's code and its forks."""

from __future__ import annotations

import pytest

from tests.fixers.support import check_edit, check_untouched

DROID = """import torch
import robomimic.utils.train_utils as TrainUtils
{extra}
from octo.data.dataset import make_dataset_from_rlds, make_interleaved_dataset


def train(config, device):
    if config.train.data_format == "droid_rlds":
        statistics = combine([make_dataset_from_rlds(**k, train=True)[1] for k in sets])
        dataset = {maker}(
            sets,
            config.train.sample_weights,
            train=True,
            shuffle_buffer_size=config.train.shuffle_buffer_size,  # frames
            dataset_statistics=statistics,
        )
"""


def test_droids_call_keeps_its_arguments_and_layout():
    check_edit(
        "sharded_pipeline",
        DROID.format(extra="import os", maker="make_interleaved_dataset").replace(
            "import os\n", ""
        ),
        DROID.format(
            extra="import robomimic_ddp.api as DDPUtils",
            maker="DDPUtils.sharded(make_interleaved_dataset)",
        ),
    )


@pytest.mark.parametrize(
    ("imports", "name"),
    [
        ("from octo.data.dataset import make_interleaved_dataset as interleave", "interleave"),
        ("import octo.data.dataset as data", "data.make_interleaved_dataset"),
        ("import octo.data.dataset", "octo.data.dataset.make_interleaved_dataset"),
        ("from mylab.octo.data.dataset import make_interleaved_dataset as make", "make"),
        ("from dlimp.dataset import make_interleaved_dataset", "make_interleaved_dataset"),
    ],
)
def test_any_alias(imports, name):
    text = "{imports}\n\n\ndef train(config, device):\n    dataset = {call}(sets, train=True)\n"
    check_edit(
        "sharded_pipeline",
        text.format(imports=imports, call=name),
        text.format(
            imports=f"{imports}\nimport robomimic_ddp.api as DDPUtils",
            call=f"DDPUtils.sharded({name})",
        ),
    )


def test_every_call_of_several_branches():
    text = """from octo.data.dataset import make_interleaved_dataset
{extra}
def train(config, device):
    if config.train.goal_mode is None:
        dataset = {maker}(sets, train=True)
    else:
        dataset = {maker}(goals, train=True)
"""
    check_edit(
        "sharded_pipeline",
        text.format(extra="import os", maker="make_interleaved_dataset"),
        text.format(
            extra="import os\nimport robomimic_ddp.api as DDPUtils",
            maker="DDPUtils.sharded(make_interleaved_dataset)",
        ),
    )


@pytest.mark.parametrize(
    "text",
    [
        "from mine import make_interleaved_dataset\ndef train(c, d):\n"
        "    make_interleaved_dataset(sets)\n",
        "def make_interleaved_dataset(sets):\n    pass\ndef train(c, d):\n"
        "    make_interleaved_dataset(sets)\n",
        "from octo.data.dataset import make_interleaved_dataset\n"
        "dataset = make_interleaved_dataset(sets)\ndef train(c, d):\n    pass\n",
        "from octo.data.dataset import make_interleaved_dataset\ndef train(c, d):\n    pass\n",
        "from octo.data.dataset import make_interleaved_dataset\ndef run(c, d):\n"
        "    make_interleaved_dataset(sets)\n",
    ],
)
def test_leaves_what_is_not_octos_or_not_in_train(text):
    check_untouched("sharded_pipeline", text)


def test_statistics_stay_as_they_are():
    """Each rank computes them, or reads octo's cache, over all files."""
    text = (
        "from octo.data.dataset import make_dataset_from_rlds, make_interleaved_dataset\n"
        "def train(c, d):\n    statistics = make_dataset_from_rlds(name='droid', train=True)[1]\n"
    )
    check_untouched("sharded_pipeline", text)
