"""The training DataLoaders of train(), by the shapes of real hosts."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches.outcomes import Unrecognised
from tests.fixers.support import check_edit, check_untouched


@pytest.mark.parametrize(
    "body",
    [
        "valid_loader = DataLoader(dataset=validset, batch_size=1)",
        "val_loader = DataLoader(valset)",
        "eval_loader = DataLoader(dataset=data)",
        "loader = make_loader(trainset)",
    ],
)
def test_leaves_other_loaders(body):
    text = f"from torch.utils.data import DataLoader\ndef train(config, device):\n    {body}\n"
    check_untouched("train_loader", text)


def test_leaves_loaders_outside_train():
    text = "from torch.utils.data import DataLoader\ntrain_loader = DataLoader(trainset)\n"
    check_untouched("train_loader", text + "def train(config, device):\n    pass\n")


def test_leaves_loaders_of_other_libraries():
    text = "from mine import DataLoader\ndef train(config, device):\n    a = DataLoader(1)\n"
    check_untouched("train_loader", text)


@pytest.mark.parametrize(
    ("imports", "name"),
    [
        ("from torch.utils.data import DataLoader", "DataLoader"),
        ("import torch", "torch.utils.data.DataLoader"),
        ("import torch.utils.data as data", "data.DataLoader"),
        ("from torch.utils.data import DataLoader as Loader", "Loader"),
    ],
)
def test_any_alias(imports, name):
    text = """{imports}

def train(config, device):
    train_loader = {name}(
        dataset=trainset,  # sequences
        sampler=train_sampler,
        shuffle=(train_sampler is None),
        drop_last=True
    )
"""
    check_edit(
        "train_loader",
        text.format(imports=imports, name=name),
        text.format(
            imports=f"{imports}\nimport robomimic_ddp.api as DDPUtils", name="DDPUtils.train_loader"
        ),
    )


def test_branches_two_loaders_a_comprehension_and_rlds():
    text = """from torch.utils.data import DataLoader
{extra}
def train(config, device):
    if rlds:
        train_loader = {loader}(pytorch_dataset, batch_size=8, num_workers=0)
    else:
        train_loader_1 = {loader}(dataset=first)
        train_loader_2 = {loader}(dataset=second)
    train_loaders = {{k: {loader}(dataset=d) for k, d in sets.items()}}
    loader = {loader}(dataset=trainset)
    validation_loader = DataLoader(dataset=validset)
"""
    before = text.format(extra="import os", loader="DataLoader")
    after = text.format(
        extra="import os\nimport robomimic_ddp.api as DDPUtils", loader="DDPUtils.train_loader"
    )
    check_edit("train_loader", before, after)


@pytest.mark.parametrize(
    "body", ["loader = DataLoader(data)", "run(DataLoader(dataset=trainset if t else validset))"]
)
def test_says_so_where_the_purpose_is_not_told(body):
    text = f"from torch.utils.data import DataLoader\ndef train(config, device):\n    {body}\n"
    assert check_untouched("train_loader", text, Unrecognised).where == 3
