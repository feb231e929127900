"""The demo's dataset on disk: DROID's schema, enough files, the same bytes for the same seed."""

from __future__ import annotations

from scripts.demo.demonstrations import count_written, write_demo_dataset


def test_written_data_set_has_droids_schema_and_enough_files(tmp_path):
    import tensorflow_datasets as tfds

    folder = write_demo_dataset(tmp_path, 34, seed=1, height=18, width=32)
    assert count_written(tmp_path) == 34 and count_written(tmp_path / "none") == 0
    builder = tfds.builder_from_directory(str(folder))
    assert builder.info.splits["train"].num_examples == 34
    assert len(builder.info.splits["train"].filepaths) >= 16
    outcomes, wordless = set(), 0
    for episode in builder.as_dataset("train"):
        path = episode["episode_metadata"]["file_path"].numpy().decode()
        outcomes.update({"/success/", "/failure/"} & {f"/{part}/" for part in path.split("/")})
        steps = list(episode["steps"].as_numpy_iterator())
        wordless += steps[0]["language_instruction"] == b""
        assert steps[0]["is_first"] and not steps[0]["is_last"]
        assert steps[-1]["is_last"] and steps[-1]["is_terminal"]
        assert steps[-1]["reward"] == float("/success/" in path)
    assert outcomes == {"/success/", "/failure/"} and 0 < wordless < 34


def test_same_seed_same_bytes(tmp_path):
    one = write_demo_dataset(tmp_path / "a", 6, seed=2, files=3, height=18, width=32)
    two = write_demo_dataset(tmp_path / "b", 6, seed=2, files=3, height=18, width=32)
    other = write_demo_dataset(tmp_path / "c", 6, seed=3, files=3, height=18, width=32)
    names = sorted(path.name for path in one.iterdir())
    assert names == sorted(path.name for path in two.iterdir())
    records = [name for name in names if "tfrecord" in name]
    assert len(records) == 3
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in records)
    assert any((one / name).read_bytes() != (other / name).read_bytes() for name in records)
    assert not list(one.parent.glob("*incomplete*"))
    one.rename(one.with_name("1.1.0.incomplete1"))  # as a killed writer leaves it
    assert count_written(tmp_path / "a") == 0 and count_written(tmp_path / "b") == 6
