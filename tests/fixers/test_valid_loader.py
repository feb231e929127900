"""The validation DataLoaders of train()."""

from __future__ import annotations

import pytest

from tests.fixers.support import check_edit, check_untouched

HEAD = "from torch.utils.data import DataLoader\n"
OURS = "import robomimic_ddp.api as DDPUtils\n"
TRAIN = "def train(config, device):\n"


@pytest.mark.parametrize(
    "body", ["train_loader = DataLoader(dataset=trainset)", "valid_loader = None"]
)
def test_leaves_a_train_without_validation(body):
    check_untouched("valid_loader", f"{HEAD}{TRAIN}    {body}\n")


@pytest.mark.parametrize(
    ("name", "dataset"),
    [
        ("valid_loader", "validset"),
        ("validation_loader", "d"),
        ("val_loader", "d"),
        ("loader", "validset"),
        ("test_loader", "d"),
    ],
)
def test_told_by_variable_or_dataset(name, dataset):
    line = "    {} = {}(dataset={}, drop_last=True)\n"
    check_edit(
        "valid_loader",
        HEAD + TRAIN + line.format(name, "DataLoader", dataset),
        HEAD + OURS + TRAIN + line.format(name, "DDPUtils.valid_loader", dataset),
    )


def test_leaves_training_loaders_beside_it():
    body = "    train_loader = DataLoader(trainset)\n    valid_loader = {}(validset)\n"
    check_edit(
        "valid_loader",
        HEAD + TRAIN + body.format("DataLoader"),
        HEAD + OURS + TRAIN + body.format("DDPUtils.valid_loader"),
    )
