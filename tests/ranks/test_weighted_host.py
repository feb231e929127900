"""The host's own weighted mixture of datasets on two ranks: shares kept, one shared draw."""

from __future__ import annotations

import shutil

import numpy as np
import torch

from robomimic_ddp.data import sampling
from robomimic_ddp.distributed import group

WEIGHTS = (3.0, 1.0)


def drawn(paths, weights, normalize, passes):
    """Per pass, the dataset index (0 or 1) of every sample that this rank's loader delivers."""
    import robomimic.utils.obs_utils as ObsUtils
    from robomimic.utils.dataset import MetaDataset, SequenceDataset

    ObsUtils.initialize_obs_utils_with_obs_specs({"obs": {"low_dim": ["position", "gripper"]}})
    datasets = [
        SequenceDataset(
            hdf5_path=path,
            obs_keys=["position"],
            action_keys=["actions"],
            dataset_keys=["actions"],
            action_config={"actions": {"normalization": None}},
            load_next_obs=False,
            demo_limit=limit,
        )
        for path, limit in zip(paths, (None, 2))
    ]
    mixture = MetaDataset(datasets, list(weights), normalize_weights_by_ds_size=normalize)
    loader = sampling.train_loader(
        torch.utils.data.DataLoader,
        {
            "dataset": mixture,
            "sampler": mixture.get_dataset_sampler(),
            "batch_size": 4,
            "shuffle": False,
        },
        rank=group.rank(),
        world_size=group.world_size(),
        seed=3,
        batch_size_per_rank=4,
    )
    sizes = [len(dataset) for dataset in datasets]
    found = [
        np.concatenate([(batch["index"] >= sizes[0]).numpy() for batch in loader])
        for _ in range(passes)
    ]
    return sizes, found


def test_shares_follow_the_weights_over_both_ranks(ranks, low_dim_dataset, tmp_path):
    second = shutil.copy(low_dim_dataset, tmp_path / "second.hdf5")
    paths = [str(low_dim_dataset), str(second)]
    for normalize in (True, False):
        (sizes, first), (_, other) = ranks.run(drawn, paths, WEIGHTS, normalize, 40)
        assert sizes[0] > 2 * sizes[1]  # equal shares per sample would not be 3 : 1
        mass = np.array(WEIGHTS) if normalize else np.array(WEIGHTS) * sizes
        expected = mass[1] / mass.sum()
        for found in (np.concatenate(first), np.concatenate(other)):
            # Five standard deviations of a share estimated from this many draws.
            tolerance = 5 * np.sqrt(expected * (1 - expected) / len(found))
            assert abs(found.mean() - expected) < tolerance
        assert any(not np.array_equal(a, b) for a, b in zip(first, other))
