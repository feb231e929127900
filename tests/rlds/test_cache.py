"""ddp.cache: decoded frames on the node's disk, the same batches to the bit."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from robomimic_ddp.config.options import resolve
from robomimic_ddp.data import frame_cache
from robomimic_ddp.data.rlds import host_datasets
from robomimic_ddp.data.rlds.loaders import base, buffer_memory
from robomimic_ddp.data.rlds.loaders.cached_frames import add_cache
from robomimic_ddp.data.rlds.loaders.make import make_loader
from robomimic_ddp.distributed import group
from robomimic_ddp.errors import DataError
from robomimic_ddp.training import plan_summary
from tests.rlds.conftest import CAMERAS, STATES
from tests.rlds.damages import DAMAGES, rewrite
from tests.rlds.quick import quick_dataset
from tests.rlds.test_mixtures import WEIGHTS, small  # noqa: F401
from tests.tiers import slow_but

SMALLER = {"observation": {"image_dim": [12, 20]}, "frame_stack": 2, "seq_length": 4}


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "frames"


@pytest.fixture
def both(make_config, folder):
    """`both(**as make_config)`: (train, valid) without a cache, and with one."""

    def make(skip_corrupt=False, **changes):
        config = make_config(**{"shuffle_buffer_size": 20, **changes})
        made = host_datasets.datasets_from_config
        plain = made(config, config.all_obs_keys, skip_corrupt)
        return plain, made(config, config.all_obs_keys, skip_corrupt, cache=str(folder))

    return make


def take(loader, count):
    """The next `count` batches, over any number of passes."""
    found = []
    while len(found) < count:
        for batch in loader:
            found.append(batch)
            if len(found) == count:
                break
    return found


def require_equal(ones, others):
    assert len(ones) == len(others) > 0
    for one, other in zip(ones, others):
        assert one.keys() == other.keys() and one["language"] == other["language"]
        parts = ((one, other, ("actions", "pad_mask", "index")), (one["obs"], other["obs"], None))
        assert list(one["obs"]) == list(other["obs"])
        for first, second, keys in parts:
            for key in keys or first:
                assert first[key].dtype == second[key].dtype, key
                assert torch.equal(first[key], second[key]), key


@pytest.fixture
def no_pipeline(monkeypatch):
    """`no_pipeline()`: from now on no record is read."""

    def fail(*_):
        raise AssertionError("tf.data was used")

    return lambda: monkeypatch.setattr(base, "build", fail)


@pytest.mark.parametrize("changes", [SMALLER, {"cameras": (), "states": STATES}], ids=["", "none"])
def test_batches_are_the_same_on_one_rank_and_on_two(both, no_pipeline, changes):
    (plain, _), (cached, _) = both(**changes)
    places = [(0, 1), (0, 2), (1, 2)]
    wanted = [make_loader(plain, 3, *place, 7) for place in places]
    wanted = [(loader, take(loader, 40)) for loader in wanted]
    no_pipeline()
    for place, (one, batches) in zip(places, wanted):
        other = make_loader(cached, 3, *place, 7)
        require_equal(batches, take(other, 40))
        assert one.order_digest() == other.order_digest() and one.position() == other.position()
        counts = other.settled_frames()
        assert counts["frames_decoded"] == counts["frames_delivered"] == one.frames_delivered
        one.close(), other.close()


def test_validation_is_the_same(both):
    experiment = {"validate": True}
    plain, cached = both(experiment=experiment, validation_fraction=0.3, batch_size=3, **SMALLER)
    for rank in range(2):
        one, other = (make_loader(pair[1], 4, rank, 2, 0) for pair in (plain, cached))
        require_equal(list(one), list(other)), require_equal(list(one), list(other))
        require_equal(list(one.limited(3)), list(other.limited(3)))
    require_equal(*(take(make_loader(pair[0], 4, 0, 1, 0), 20) for pair in (plain, cached)))


def test_mixtures_are_the_same(both, small):  # noqa: F811
    names = {"dataset_names": ["made_up", "small"], "sample_weights": WEIGHTS}
    one_camera = {"cameras": CAMERAS[:1], "states": STATES[:1]}
    validated = {"experiment": {"validate": True}, "validation_fraction": 0.3}
    plain, cached = both(**names, **one_camera, **validated, **SMALLER)
    one, other = (make_loader(pair[0], 5, 1, 2, 3) for pair in (plain, cached))
    require_equal(take(one, 30), take(other, 30))
    position = one.position()
    assert position == other.position()
    resumed = make_loader(cached[0], 5, 1, 2, 3)
    resumed.go_to(position, 2, 1)
    require_equal(take(one, 20), take(resumed, 20))
    one, other = (make_loader(pair[1], 5, 0, 2, 3) for pair in (plain, cached))
    require_equal(list(one), list(other))


@pytest.mark.parametrize("batches, world", [(40, 2), (9, 3)])
def test_a_position_of_either_resumes_with_the_other(both, batches, world):
    """Also on another number of ranks, where the rest of the pass is cut again."""
    (plain, _), (cached, _) = both(**SMALLER)
    for first, second in ((plain, cached), (cached, plain)):
        stopped = make_loader(first, 3, 0, 2, 7)
        take(stopped, batches)
        ways = [make_loader(dataset, 3, 0, world, 7) for dataset in (first, second)]
        for loader in ways:
            loader.go_to(stopped.position(), world, 1)
        require_equal(take(ways[0], 25), take(ways[1], 25))


REPLACED = [one for one in DAMAGES if one.replaced]
FAST = {"half a picture", "a record that is damaged later"}


@pytest.mark.parametrize(
    "damage", slow_but(FAST, REPLACED, name_of=attrgetter("name")), ids=attrgetter("name")
)
def test_damaged_windows_are_replaced_by_the_same(copy, make_config, tmp_path, folder, damage):
    where = {"data_path": str(copy.parent.parent), "data_cache_dir": str(tmp_path / "cache")}
    one_camera = {"cameras": CAMERAS[:1], "states": STATES[:1]}
    config = make_config(**where, **one_camera, frame_stack=2, success_only=False)
    if not damage.late:
        damage.make(copy)
    train, _ = host_datasets.datasets_from_config(config, config.all_obs_keys, True)
    if damage.late:
        damage.make(copy)
    else:
        with pytest.raises(DataError) as caught:
            host_datasets.datasets_from_config(config, config.all_obs_keys, cache=str(folder))
        assert not [word for word in damage.words if word not in str(caught.value)], caught.value
    batch = 1 if damage.name == "half a picture" else 4
    one = make_loader(train, batch, 0, 1, 5)
    wanted = take(one, len(one))
    add_cache([train], str(folder), 0)
    other = make_loader(train, batch, 0, 1, 5)
    require_equal(wanted, take(other, len(other)))
    assert other.settled_frames()["windows_replaced"] == other.windows_replaced > 0


def filled_on_rank(data, index, folder, most_gib):
    """On a rank: its batches, and the files of the cache."""
    try:
        train = quick_dataset(Path(data), index, cache=folder, cache_gb=most_gib)
    except DataError as error:
        return str(error)
    loader = make_loader(train, 3, group.rank(), group.world_size(), 7)
    return [batch["obs"][CAMERAS[0]] for batch in take(loader, 5)]


def test_two_ranks_fill_it_together_and_are_refused_together(ranks, stored, folder):
    place = (str(stored.folder), str(stored.cache), str(folder))
    for text in ranks.run(filled_on_rank, *place, 1e-9):
        assert "more than ddp.cache_gb=1e-09. Raise ddp.cache_gb" in text and "GiB" in text
    found = ranks.run(filled_on_rank, *place, 1.0)
    plain = quick_dataset(stored.folder, str(stored.cache))
    for rank, frames in enumerate(found):
        wanted = take(make_loader(plain, 3, rank, 2, 7), 5)
        assert all(torch.equal(a["obs"][CAMERAS[0]], b) for a, b in zip(wanted, frames))
    cached = quick_dataset(stored.folder, str(stored.cache), cache=str(folder))
    loader = make_loader(cached, 3, 0, 1, 7)
    assert not list(buffer_memory.lines(loader, 1, 1))
    run = SimpleNamespace(loaders={"train": loader}, options=resolve({"cache": str(folder)}))
    (line,) = plan_summary._frame_cache(run)
    assert line.startswith("frame cache: ") and f"in {folder}, for all ranks" in line


def test_columns_are_shared_and_other_settings_have_others(both, folder, monkeypatch):
    """Another camera adds one file; filters of episodes fill the same files."""
    made, real = [], frame_cache.Column.write
    write = lambda self, row, *more: made.append((self.path, row)) or real(self, row, *more)  # noqa: E731
    monkeypatch.setattr(frame_cache.Column, "write", write)
    both(cameras=CAMERAS[:1])
    first = {path for path, _ in made}
    assert len(first) == 2 and {path.parent for path in first} == {folder}
    for changes, files, rows in (
        ({"cameras": CAMERAS[:2]}, 1, None),
        ({"cameras": CAMERAS[:2], "success_only": False}, 0, 2),
        ({"cameras": CAMERAS[:1], "observation": {"image_dim": [12, 20]}}, 1, None),
        ({"cameras": CAMERAS[:1], "states": STATES[:1]}, 1, None),
        ({"cameras": CAMERAS[:1]}, 0, 0),
    ):
        before = set(folder.iterdir())
        made.clear()
        both(**changes)
        assert len(set(folder.iterdir()) - before) == files, changes
        assert rows is None or len({row for _, row in made}) == rows


def test_a_dataset_that_is_prepared_again_is_not_served_from_the_old(
    copy, make_config, tmp_path, folder
):
    """Frames of the last episode in another order: files, records and offsets are as long."""
    where = {"data_path": str(copy.parent.parent), "data_cache_dir": str(tmp_path / "cache")}
    config = make_config(cameras=CAMERAS[:1], **where)

    def batches(**more):
        train, _ = host_datasets.datasets_from_config(config, config.all_obs_keys, **more)
        return take(make_loader(train, 4, 0, 1, 7), len(train) // 4)

    def reverse(features):
        frames = features["steps/observation/exterior_image_1_left"].bytes_list
        frames.value[:] = list(frames.value)[::-1]

    old, files = batches(cache=str(folder)), len(list(folder.iterdir()))
    rewrite(6, 1, reverse)(copy)
    new = batches(cache=str(folder))
    require_equal(batches(), new)
    pairs = [(one["obs"][CAMERAS[0]], two["obs"][CAMERAS[0]]) for one, two in zip(old, new)]
    assert not all(torch.equal(*pair) for pair in pairs)
    assert len(list(folder.iterdir())) == 2 * files


def test_a_flipped_byte_is_decoded_again(both, folder, capsys):
    (plain, _), _ = both(cameras=CAMERAS[:1])
    wanted = take(make_loader(plain, 4, 0, 1, 7), 30)
    for path in folder.iterdir():
        data = bytearray(path.read_bytes())
        data[100] ^= 4
        path.write_bytes(data)
    (_, _), (cached, _) = both(cameras=CAMERAS[:1])
    assert capsys.readouterr().err.count("1 episode(s) of the frame cache") == 2
    require_equal(wanted, take(make_loader(cached, 4, 0, 1, 7), 30))
