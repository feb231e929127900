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
    assert trained(*[batch] * 4).complaints(object()) == []  # a weighted draw may repeat
    assert trained(*[batch] * 4).items()["number of training samples in the epoch"] == 16


def test_batches_without_an_index_are_counted_only():
    seen = data_fingerprint.TrainedBatches()
    for _ in range(5):
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
