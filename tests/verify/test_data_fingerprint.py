"""What `verify` reads of data and code, in one process."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from robomimic_ddp.verify import data_fingerprint, digest
from robomimic_ddp.verify.code_versions import software, source_digest


def hdf5(path):
    return SimpleNamespace(hdf5_path=str(path))


def test_the_fingerprint_sees_size_and_bytes_and_not_the_path(tmp_path):
    contents = {"a": bytes(100_000), "copy": bytes(100_000), "longer": bytes(100_001)}
    contents["other"] = bytes(99_999) + b"x"
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    found = {name: data_fingerprint.fingerprint(hdf5(tmp_path / name)) for name in contents}
    assert found["a"] == found["copy"]
    assert len(set(found.values())) == 3
    assert data_fingerprint.fingerprint(hdf5(tmp_path / "absent")) not in found.values()
    mixture = SimpleNamespace(datasets=[hdf5(tmp_path / "a"), hdf5(tmp_path / "other")])
    swapped = SimpleNamespace(datasets=mixture.datasets[::-1])
    assert data_fingerprint.fingerprint(mixture) != data_fingerprint.fingerprint(swapped)
    assert data_fingerprint.fingerprint(object()) is None


@pytest.mark.parametrize("count", [1, 64, 200])
def test_the_fingerprint_of_many_small_files(tmp_path, count):
    files = [tmp_path / str(number) for number in range(count)]
    for number, file in enumerate(files):
        file.write_bytes(b"x" * number)
    before = data_fingerprint.fingerprint(SimpleNamespace(source=SimpleNamespace(files=files)))
    files[-1].write_bytes(b"y" * count)
    assert (
        data_fingerprint.fingerprint(SimpleNamespace(source=SimpleNamespace(files=files))) != before
    )


def test_the_fingerprint_stays_the_one_in_saved_states(tmp_path):
    """Otherwise a resumed run would warn that the bytes of its data have changed."""
    files = [tmp_path / str(number) for number in range(100)]
    for number, file in enumerate(files[:-1]):  # the last one is absent
        file.write_bytes(bytes(position % 251 for position in range(199 * number)))
    source = SimpleNamespace(files=files)
    assert data_fingerprint.fingerprint(SimpleNamespace(source=source)) == "f8e2ba46d5b4d43d"


class Dataset(list):
    """RLDS data, whose index computes statistics; or those of a host, which are ready or None."""

    action_normalization_stats, obs_normalization_stats = None, {"mean": [0.5]}

    def get_action_normalization_stats(self):
        return {"scale": [2.0]}


class RldsDataset(Dataset):
    is_rlds = True
    obs_normalization_stats = None


def test_what_is_read_of_a_loader_and_its_dataset(tmp_path):
    dataset = Dataset(range(10))
    dataset.hdf5_path = str(tmp_path / "absent")
    items = data_fingerprint.loader_items(torch.utils.data.DataLoader(dataset, batch_size=4))
    assert items == {
        "train dataset: number of samples": 10,
        "train dataset: action_normalization_stats": None,
        "train dataset: obs_normalization_stats": digest({"mean": [0.5]}),
        "train dataset: bytes of its files": data_fingerprint.fingerprint(dataset),
        "train loader": "DataLoader",
        "train loader: batch size": 4,
        "train loader: number of batches": 3,
    }
    assert all(name.startswith(tuple(data_fingerprint.HINTS)) for name in items)
    unknown = {"train loader": "object"}
    assert data_fingerprint.loader_items(object()) == {**dict.fromkeys(items), **unknown}
    assert data_fingerprint.loader_items(None) == {}


def test_statistics_of_rlds_data_are_computed():
    names = "action_normalization_stats", "obs_normalization_stats"
    computed = data_fingerprint.statistics(RldsDataset())
    assert computed == dict(zip(names, ({"scale": [2.0]}, None)))


def test_the_order_is_compared_and_the_share_must_differ():
    loader = SimpleNamespace(order_digest=lambda: "a", telling_digest=lambda: "b")
    assert list(data_fingerprint.order_items(loader).values()) == ["a"]
    assert data_fingerprint.order_items(object()) == {}
    (share,) = data_fingerprint.share(loader)
    cause = "Ranks would train on the same samples."
    assert share == ("the share of the data", "b", cause)
    assert data_fingerprint.share(object()) == [share._replace(value=None)]


def test_digests_of_statistics():
    stats = {"actions": {"scale": np.ones((1, 3), np.float32), "offset": [0.0, None]}}
    same = {"actions": {"scale": np.ones((1, 3), np.float32), "offset": [0.0, None]}}
    assert digest(stats) == digest(same)
    same["actions"]["scale"][0, 1] = np.nextafter(np.float32(1), np.float32(2))
    assert digest(stats) != digest(same)


class Loader(list):
    each_sample_once = True


def trained(*batches):
    seen = data_fingerprint.TrainedBatches()
    for index in batches:
        seen.see({"index": torch.tensor(index), "actions": torch.zeros(len(index), 2)})
    return seen


def test_one_batch_over_and_over_is_noticed():
    loader, batch = Loader([0, 1]), [3, 5, 7, 9]
    assert "same samples" in trained(*[batch] * 4).complaints(loader)[0]
    assert trained(*[batch] * 3).complaints(loader) == []  # eight repeated samples may be chance
    assert trained(*[batch] * 4, [3, 5, 7, 8]).complaints(loader) == []
    assert trained(*[batch] * 4).complaints(Loader([0])) == []  # the pass is one batch
    assert trained(*[batch] * 4).complaints([0, 1]) == []  # a weighted draw may repeat
    assert list(trained(*[batch] * 3, [1]).items().values()) == [4, 13, 0]
    assert list(trained(*[[*batch, 1]] * 3).items().values()) == [3, 15, 10]
    assert len(trained(*[[*batch, 1]] * 3).complaints(loader)) == 1


def test_batches_without_an_index_are_counted_only():
    seen = trained(*[[3, 5, 7, 9]] * 4)
    seen.see({"actions": torch.zeros(4, 2)})
    seen.see([1, 2])
    assert seen.batches == 6 and seen.samples == 20
    assert seen.complaints(Loader([0, 1])) == []


def test_the_codes_digest_sees_edits_and_not_a_machines_own_macros(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    before = source_digest(tmp_path)
    (tmp_path / "macros_private.py").write_text("KEY = 3\n")
    (tmp_path / "notes.txt").write_text("not code")
    assert source_digest(tmp_path) == before
    (tmp_path / "a.py").write_text("x = 2\n")
    assert source_digest(tmp_path) != before


def test_software_names_the_hosts_package():
    assert "the host's code (tests)" in software("tests")
    assert software("tests")["robomimic_ddp's code"] == software(None)["robomimic_ddp's code"]
    assert not any("host" in name for name in software("no_such_package"))
