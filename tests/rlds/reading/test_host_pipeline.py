"""Pipelines of a host's own, cut by episodes: on real tfds data, in the shape of octo's calls."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from robomimic_ddp.data.rlds.octo_statistics import computed_once
from robomimic_ddp.data.rlds.tf_import import import_tensorflow
from robomimic_ddp.data.rlds.tfds_sharding import make_sharded, require_datasets
from robomimic_ddp.errors import DataError
from tests.rlds.conftest import LENGTHS


@pytest.fixture
def octo():
    """The stand-in, with nothing on its record."""
    from tests.rlds import octo_shaped

    octo_shaped.BUFFERS.clear()
    octo_shaped.COMPUTED.clear()
    return octo_shaped


@pytest.fixture(scope="module")
def sets(stored, tmp_path_factory):
    """octo's list of datasets: a copy of the made-up one, since statistics are kept beside it."""
    root = tmp_path_factory.mktemp("octo")
    shutil.copytree(stored.folder, root / "made_up" / stored.folder.name)
    return [{"name": "made_up", "data_dir": str(root)}]


@pytest.fixture(scope="module")
def whole(sets):
    """(episode, step) of each frame of a pass on one rank, with its multiplicity."""
    from tests.rlds import octo_shaped

    kwargs = {"train": True, "shuffle_buffer_size": 1, "repeat": False}
    return keys(octo_shaped.make_interleaved_dataset(sets, **kwargs))


def keys(dataset):
    """(episode, step) of each frame of a pass, with its multiplicity."""
    frames = dataset.map(lambda frame: (frame["file_path"], frame["step"]))
    return Counter((path.decode(), int(step)) for path, step in frames.as_numpy_iterator())


def share(octo, sets, rank, world, **more):
    """The frames of one rank."""
    kwargs = {"train": True, "shuffle_buffer_size": 40, "repeat": False, **more}
    make = octo.make_interleaved_dataset
    return make_sharded(make, (sets,), kwargs, rank=rank, world_size=world)


def test_ranks_read_as_many_episodes_disjoint_and_together_all(octo, sets, whole):
    """Whatever the files: 7 here, of which three ranks would get 3, 2 and 2, and which the host
    shuffles. Another pass, and a dataset that is made again, give a rank the same episodes.
    """
    made = [share(octo, sets, rank, 3) for rank in range(3)]
    parts = [keys(frames) for frames in made]
    counts = [len({episode for episode, _ in part}) for part in parts]
    assert sum(counts) == 13 and max(counts) - min(counts) <= 1
    assert sum(parts, Counter()) == whole
    assert set(whole.values()) == {1}
    assert keys(made[1]) == parts[1] == keys(share(octo, sets, 1, 3))


def test_the_buffer_is_divided_and_statistics_cover_all_files(octo, sets, whole):
    stats = octo.make_dataset_from_rlds(**sets[0], train=True)[1]
    assert stats["num_transitions"] == sum(LENGTHS) > sum(whole.values())
    for buffer, expected in ((41, 13), (2, 1)):
        kwargs = {"train": True, "shuffle_buffer_size": buffer}
        make = octo.make_interleaved_dataset
        made = make_sharded(make, (sets,), kwargs, rank=0, world_size=3)
        assert octo.BUFFERS.pop() == expected and made.dataset_statistics == [stats]
        assert kwargs["shuffle_buffer_size"] == buffer, "the host's own dict was changed"


def test_everything_is_restored_also_after_an_error(octo, sets):
    import tensorflow as tf
    import tensorflow_datasets as tfds

    def stored():
        of_data = [tf.data.Dataset.__dict__[name] for name in ("__iter__", "reduce")]
        return [tfds.core.DatasetBuilder.__dict__["as_dataset"], *of_data]

    def fail(**_):
        raise ValueError("the host's own")

    before = stored()
    share(octo, sets, 0, 2)
    assert stored() == before
    with pytest.raises(ValueError, match="the host's own"):
        make_sharded(fail, (), {}, rank=0, world_size=2)
    assert stored() == before


def test_the_hosts_read_config_keeps_its_other_fields_and_is_not_changed(sets):
    import tensorflow_datasets as tfds

    config = tfds.ReadConfig(add_tfds_id=True)

    def make():
        builder = tfds.builder(**sets[0])
        return builder.as_dataset(split="train", read_config=config)

    parts = [make_sharded(make, (), {}, rank=rank, world_size=2) for rank in range(2)]
    found = [{one["tfds_id"].numpy() for one in part} for part in parts]
    assert [len(one) for one in found] == [7, 7] and not found[0] & found[1]
    assert config.input_context is None


def test_nested_splits_and_all_of_them_are_shared(sets):
    import tensorflow_datasets as tfds

    for split in (None, {"train": "train"}, {"train": tfds.core.ReadInstruction("train", to=6)}):

        def make(split=split):
            return tfds.builder(**sets[0]).as_dataset(split=split)

        made = [make_sharded(make, (), {}, rank=rank, world_size=2) for rank in range(2)]
        counts = [sum(1 for _ in one["train"]) for one in made]
        assert counts == ([3, 3] if split and split["train"] != "train" else [7, 7])


def test_fewer_episodes_than_ranks(octo, sets):
    message = r"has 13 episode\(s\) in split 'train\[:95%\]', fewer than the 14 ranks"
    with pytest.raises(DataError, match=message):
        share(octo, sets, 0, 14)


def test_statistics_of_one_ranks_share_are_refused(octo, sets):
    with pytest.raises(DataError, match="Compute them from all episodes"):
        share(octo, sets, 0, 2, statistics_split="train")
    octo.make_dataset_from_rlds(**sets[0], train=True, statistics_split="train")
    share(octo, sets, 0, 2, statistics_split="train")  # they are on disk now


def test_training_on_the_whole_split_is_refused(octo, sets):
    import tensorflow_datasets as tfds

    def make():
        episodes = octo.Trajectories.from_rlds(tfds.builder(**sets[0]), "all", True, 2)
        return episodes.repeat().shuffle(4)

    with pytest.raises(DataError, match="reads the whole of split 'all'"):
        make_sharded(make, (), {}, rank=0, world_size=2)


def test_a_pipeline_without_tfds_is_refused():
    import tensorflow as tf

    with pytest.raises(DataError, match="reads no tfds dataset"):
        make_sharded(tf.data.Dataset.range, (4,), {}, rank=0, world_size=2)


def test_a_host_that_chooses_files_itself_is_refused(sets):
    import tensorflow as tf
    import tensorflow_datasets as tfds

    def make():
        own = tfds.ReadConfig(input_context=tf.distribute.InputContext(2, 0))
        return tfds.builder(**sets[0]).as_dataset(split="train", read_config=own)

    with pytest.raises(DataError, match="ReadConfig.input_context"):
        make_sharded(make, (), {}, rank=0, world_size=2)


def test_a_missing_folder_is_named(stored, tmp_path):
    root, name = stored.folder.parent.parent, stored.folder.parent.name
    require_datasets(str(root), [name, f"{name}:1.0.0"])
    require_datasets("gs://bucket/data", ["droid"])
    with pytest.raises(DataError, match="train.data_path='/path/to/rlds' is not a folder"):
        require_datasets("/path/to/rlds", ["droid"])
    with pytest.raises(DataError, match=f"no dataset 'droid' .* found {name}"):
        require_datasets(str(root), ["droid"])


def statistics_on_rank(data_dir):
    """On a rank: what it gets as statistics, and how often it has computed them itself."""
    import_tensorflow()  # before octo does
    from tests.rlds import octo_shaped

    octo_shaped.COMPUTED.clear()
    before = octo_shaped.get_dataset_statistics
    with computed_once():
        found = [
            octo_shaped.make_dataset_from_rlds("made_up", data_dir, train=True)[1] for _ in range(2)
        ]
    assert octo_shaped.get_dataset_statistics is before
    assert found[0] == found[1]
    return found[0], len(octo_shaped.COMPUTED)


def test_one_rank_computes_the_statistics_while_the_others_wait(ranks, stored, tmp_path):
    folder = tmp_path / "made_up" / stored.folder.name
    shutil.copytree(stored.folder, folder)
    (one, computed), (two, none) = ranks.run(statistics_on_rank, str(tmp_path), timeout=200)
    assert one == two and one["num_transitions"] == sum(LENGTHS)
    assert (computed, none) == (1, 0)
    assert len(list(folder.glob("dataset_statistics_*.json"))) == 1


def failure_on_rank(data_dir):
    """On a rank: the type and text of the error."""
    import_tensorflow()  # before octo does
    from tests.rlds import octo_shaped

    with computed_once(), pytest.raises(Exception) as caught:
        octo_shaped.make_dataset_from_rlds("made_up", data_dir, train=True)
    return type(caught.value).__name__, str(caught.value)


def test_statistics_that_fail_on_the_main_rank_fail_on_all(ranks, stored, tmp_path):
    folder = tmp_path / "made_up" / stored.folder.name
    shutil.copytree(stored.folder, folder)
    file = sorted(Path(folder).glob("*tfrecord*"))[0]
    file.write_bytes(file.read_bytes()[:-50])
    one, two = ranks.run(failure_on_rank, str(tmp_path), timeout=200)
    assert one == two and one[0] == "DataLossError"
