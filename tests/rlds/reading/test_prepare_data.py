"""`prepare-data`: the same episodes with smaller images, and what may go wrong meanwhile."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import time
from operator import attrgetter
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import tensorflow_datasets as tfds

from robomimic_ddp import cli, files
from robomimic_ddp.commands.prepare_data import job as job_module
from robomimic_ddp.commands.prepare_data import writing
from robomimic_ddp.data.rlds import host_datasets
from robomimic_ddp.data.rlds.index import prepared
from robomimic_ddp.data.rlds.loaders.make import make_loader
from robomimic_ddp.data.rlds.pipeline.images import (
    decode,
    encode_jpeg,
    resize_frames,
)
from robomimic_ddp.data.rlds.schema import spec
from robomimic_ddp.data.rlds.schema.fields import find_fields
from robomimic_ddp.data.rlds.tf_import import import_tensorflow
from robomimic_ddp.errors import DataError, WriteError
from tests.processes import rank_variables
from tests.ranks import bad_disks
from tests.rlds import other_shapes
from tests.rlds.conftest import CAMERAS, HEIGHT, STATES, WIDTH
from tests.rlds.damages import DAMAGES, files_of, flip, no_picture, rewrite

SMALL = (12, 20)
WRIST = "observation/wrist_image_left"
KEPT = ("observation/exterior_image_1_left", "observation/exterior_image_2_left")
TASKS = {f"SLURM_ARRAY_TASK_{key}": "1" for key in ("MIN", "STEP")}


def prepare(source, destination, *words, size=SMALL):
    """The exit code of the command."""
    size = "x".join(map(str, size))
    return cli.main(["prepare-data", str(source), str(destination), "--size", size, *words])


def target(destination: Path) -> Path:
    return destination / "made_up" / "1.0.0"


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def episodes(folder: Path) -> list[dict]:
    """As plain tensorflow-datasets reads them, images still encoded."""
    builder = tfds.builder_from_directory(str(folder))
    decoders = {"steps": tfds.decode.SkipDecoding()}
    return list(builder.as_dataset("train", decoders=decoders).as_numpy_iterator())


@pytest.fixture(scope="module")
def made(stored, tmp_path_factory) -> Path:
    """The made-up set at half its size; the folder for train.data_path."""
    root = tmp_path_factory.mktemp("prepared")
    assert prepare(stored.folder, root) == 0
    return root


def test_images_are_the_loaders_and_everything_else_is_the_sources(stored, made):
    source, small = episodes(stored.folder), episodes(target(made))
    assert len(source) == len(small) > 0
    for before, after in zip(source, small):
        for name in [name.rpartition("/")[2] for name in (*KEPT, WRIST)]:
            old, new = (one["steps"]["observation"].pop(name) for one in (before, after))
            frames = resize_frames(np.stack([decode(data) for data in old]), SMALL)
            assert [encode_jpeg(frame, 95) for frame in frames] == list(new)
        import_tensorflow().nest.map_structure(np.testing.assert_array_equal, before, after)
    assert [f.name for f in files_of(target(made))] == [f.name for f in files_of(stored.folder)]
    builders = [tfds.builder_from_directory(str(f)) for f in (stored.folder, target(made))]
    lengths = [builder.info.splits["train"].shard_lengths for builder in builders]
    assert lengths[0] == lengths[1]
    step = next(iter(next(iter(builders[1].as_dataset("train")))["steps"]))
    assert step["observation"]["wrist_image_left"].shape == (*SMALL, 3)
    notes = builders[1].info.metadata[prepared.KEY]
    assert notes["quality"] == 95
    assert not {"prepare.json", "done"} & set(contents(target(made)))


def test_a_set_with_features_in_an_older_form_is_prepared(copy, made, tmp_path):
    features = tfds.builder_from_directory(str(copy)).info.features
    (copy / "features.json").write_text(json.dumps(features.to_json()))
    assert prepare(copy, tmp_path / "out") == 0
    small = [(target(root) / "features.json").read_text() for root in (made, tmp_path / "out")]
    assert small[0] == small[1]


def test_order_and_numbers_are_the_sources(load, made, tmp_path):
    changes = {"experiment": {"validate": True}, "validation_fraction": 0.3}
    size = {"observation": {"image_dim": list(SMALL)}, "shuffle_buffer_size": 30}
    of_source = load(**changes, **size)
    of_small = load(**changes, **size, data_path=str(made), data_cache_dir=str(tmp_path))
    for before, after in zip(of_source, of_small):
        for rank in (0, 1):
            loaders = [make_loader(one, 3, rank, 2, 7) for one in (before, after)]
            for first, second in zip(*loaders, strict=True):
                assert first["index"].tolist() == second["index"].tolist()
                assert first["language"] == second["language"]
                assert (first["actions"] == second["actions"]).all()
                assert all((first["obs"][key] == second["obs"][key]).all() for key in STATES[:2])
                images = [batch["obs"][CAMERAS[0]].float() for batch in (first, second)]
                assert images[0].shape == images[1].shape and 0 < (images[0] - images[1]).std() < 25
    assert of_source[0].prepared is None
    assert "made_up/1.0.0 at 12x20, JPEG quality 95" in of_small[0].prepared


def test_it_says_how_images_are_stored(load, made):
    def said(**observation):
        return load(data_path=str(made), observation=observation)[0].prepared

    line = said(image_dim=list(SMALL))
    assert line == "prepared from made_up/1.0.0 at 12x20, JPEG quality 95"
    assert "resized again to 6x10" in said(image_dim=[6, 10])


def test_images_of_that_size_stay_as_they_are(stored, tmp_path):
    assert prepare(stored.folder, tmp_path, "--cameras", *KEPT, size=(HEIGHT, WIDTH)) == 0
    for before, after in zip(episodes(stored.folder), episodes(target(tmp_path))):
        assert "wrist_image_left" not in after["steps"]["observation"]
        del before["steps"]["observation"]["wrist_image_left"]
        import_tensorflow().nest.map_structure(np.testing.assert_array_equal, before, after)
    assert prepared.read(target(tmp_path))["dropped"] == [WRIST]


def test_a_damaged_image_of_that_size_is_left_out(copy, tmp_path, capsys):
    rewrite(3, 0, no_picture)(copy)
    assert prepare(copy, tmp_path / "out", "--skip-corrupt", size=(HEIGHT, WIDTH)) == 0
    assert "1 damaged episodes are left out" in capsys.readouterr().err
    notes = prepared.read(target(tmp_path / "out"))
    assert notes["left_out"] == {"train": {"3": [0]}}


def test_other_features_splits_and_encodings(tmp_path, capsys):
    """PNG, images of any size, depth, a group with images only, a compressed tensor, lists of
    features, and a second split.
    """
    random, image = np.random.RandomState(0), tfds.features.Image
    step = {
        "views": {
            "any": image(shape=(None, None, 3), encoding_format="png"),
            "depth": image(shape=(8, 8, 1), encoding_format="png"),
        },
        "left": {"image": image(shape=(24, 32, 3), encoding_format="png")},
        "state": tfds.features.Tensor(shape=(3,), dtype=np.float32),
        "notes": tfds.features.Sequence(tfds.features.Text()),
        "mask": tfds.features.Tensor(shape=(4, 4), dtype=np.uint8, encoding="zlib"),
        "things": tfds.features.Sequence({"at": tfds.features.Tensor(shape=(2,), dtype=np.int64)}),
    }
    about = {"steps": tfds.features.Dataset(step), "thumbnail": image(shape=(8, 8, 3))}

    def pixels(*shape):
        return random.randint(0, 256, shape).astype(np.uint8)

    steps = [
        {
            "views": {"any": pixels(24 + number, 32, 3), "depth": pixels(8, 8, 1)},
            "left": {"image": pixels(24, 32, 3)},
            "state": random.normal(size=3).astype(np.float32),
            "notes": ["a"] * number,
            "mask": pixels(4, 4),
            "things": [{"at": [number, place]} for place in range(number)],
        }
        for number in range(3)
    ]
    examples = [{"steps": steps, "thumbnail": pixels(8, 8, 3)} for _ in range(6)]
    features = tfds.features.FeaturesDict(about)
    folder = other_shapes.write(tmp_path, "arm", features, examples, per_file=2)
    info = json.loads((folder / "dataset_info.json").read_text())
    (train,) = info["splits"]
    info["splits"].append({**train, "name": "val", "shardLengths": ["2"]})
    train["shardLengths"] = ["2", "2"]
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "arm-train.tfrecord-00002").rename(folder / "arm-val.tfrecord-00000")
    assert prepare(folder, tmp_path / "all") == 0
    assert prepare(folder, tmp_path / "one", "--cameras", "left.image", "--quality", "100") == 0
    notes = []
    for name in ("all", "one"):
        builder = tfds.builder_from_directory(str(tmp_path / name / "arm" / "1.0.0"))
        lengths = {name: split.shard_lengths for name, split in builder.info.splits.items()}
        assert lengths == {"train": [2, 2], "val": [2]}
        for split in lengths:
            for episode in builder.as_dataset(split):
                rows = list(episode["steps"])
                assert [len(row["notes"]) for row in rows] == [0, 1, 2]
                assert [len(row["things"]["at"]) for row in rows] == [0, 1, 2]
                assert all(np.array_equal(a["mask"], b["mask"]) for a, b in zip(rows, steps))
                assert all(row["left"]["image"].shape == (*SMALL, 3) for row in rows)
                if name == "all":
                    assert all(row["views"]["any"].shape == (*SMALL, 3) for row in rows)
                    assert (rows[0]["views"]["depth"].numpy() == steps[0]["views"]["depth"]).all()
                assert episode["thumbnail"].shape == (8, 8, 3)
        encoding = builder.info.features["steps"].feature["left"]["image"].encoding_format
        assert encoding == "jpeg"
        assert ("views" in builder.info.features["steps"].feature) == (name == "all")
        notes.append(builder.info.metadata[prepared.KEY])
    assert notes[1]["dropped"] == ["views/any", "views/depth"] and not notes[0]["dropped"]
    with pytest.raises(DataError, match=r"`steps/mask` is encoded Tensor of shape \(4, 4\)"):
        find_fields(features, "arm", ["mask"], (), (), spec.parse_schema({}, "none"))


def test_a_dropped_camera_is_missed_only_by_who_asks_for_it(stored, tmp_path, make_config):
    words = ("--cameras", KEPT[0], "exterior_image_2_left", "--quality", "40")
    assert prepare(stored.folder, tmp_path / "out", *words) == 0
    where = {"data_path": str(tmp_path / "out"), "data_cache_dir": str(tmp_path / "cache")}
    strict = (spec.FOLDER / "droid.yaml").read_text().replace("optional: true", "optional: false")
    (tmp_path / "strict.yaml").write_text(strict)
    for schema in ("droid", str(tmp_path / "strict.yaml")):
        config = make_config(**where, rlds_schema=schema)
        assert len(host_datasets.datasets_from_config(config, config.all_obs_keys)[0])
    config = make_config(**where, cameras=CAMERAS)
    with pytest.raises(DataError, match="prepared without the camera 'camera/image/hand"):
        host_datasets.datasets_from_config(config, config.all_obs_keys)


def as_task(monkeypatch, task, tasks, launcher):
    """The environment of task `task` of `tasks`."""
    names = {"SLURM_ARRAY_TASK_ID": task + 1, "SLURM_ARRAY_TASK_COUNT": tasks, **TASKS}
    if launcher == "torchrun":
        names = rank_variables(task, tasks)
    for name, value in names.items():
        monkeypatch.setenv(name, str(value))


def test_a_dataset_of_a_builder_config_is_trained_on_as_the_report_says(
    stored, load, tmp_path, capsys
):
    folder = tmp_path / "made_up" / "left_arm" / "1.0.0"
    shutil.copytree(stored.folder, folder)
    info = json.loads((folder / "dataset_info.json").read_text())
    (folder / "dataset_info.json").write_text(json.dumps({**info, "configName": "left_arm"}))
    assert prepare(folder, tmp_path / "out") == 0
    name = "made_up/left_arm"
    said = f"train with train.data_path={tmp_path}/out and {name!r} in train.dataset_names\n"
    assert said in capsys.readouterr().out
    where = {"data_path": f"{tmp_path}/out", "data_cache_dir": str(tmp_path / "cache")}
    assert len(load(dataset_names=[name], **where)[0])


@pytest.mark.parametrize("place", ["in a file", "before the end"])
def test_a_stopped_job_continues_to_the_same_bytes(stored, made, tmp_path, monkeypatch, place):
    calls, written = [0], []

    class Killed(BaseException):
        pass

    def after(count, function):
        def stopping(*arguments, **more):
            calls[0] += 1
            if calls[0] > count:
                raise Killed
            return function(*arguments, **more)

        return stopping

    where, name, count = {
        "in a file": (writing, "_rewritten", 9),
        "before the end": (job_module.Job, "_write_metadata", 0),
    }[place]
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(where, name, after(count, getattr(where, name)))
        prepare(stored.folder, tmp_path)
    assert not target(tmp_path).exists()
    work = tmp_path / "made_up" / "1.0.0.incomplete"
    kept = {path.name for path in (work / "done").iterdir()}
    assert len(kept) == {"in a file": 4, "before the end": 7}[place]
    write = writing._write
    monkeypatch.setattr(writing, "_write", lambda job, file, *rest: (
        written.append(f"{file.path.name}.json"), write(job, file, *rest))[1])  # fmt: skip
    assert prepare(stored.folder, tmp_path) == 0
    assert not kept & set(written) and len(written) == 7 - len(kept)
    assert contents(target(tmp_path)) == contents(target(made)) and not work.exists()


def test_a_truncated_file_is_written_again(stored, made, tmp_path, monkeypatch):
    """With what SIGKILL leaves behind, after which no block's end runs."""
    monkeypatch.setattr(job_module.Job, "complete", lambda job: False)
    assert prepare(stored.folder, tmp_path) == 0
    work = tmp_path / "made_up" / "1.0.0.incomplete"
    files_of(work)[2].write_bytes(b"torn")
    (work / ".made_up-train.tfrecord-00001.other-host-1-1.tmp").write_bytes(b"left over")
    monkeypatch.undo()
    assert prepare(stored.folder, tmp_path) == 0
    assert contents(target(tmp_path)) == contents(target(made))


@pytest.mark.parametrize(
    "place",
    [
        (job_module.Job, "_begun"),
        (writing, "_rewritten"),
        (job_module.Job, "_write_metadata"),
    ],
    ids=lambda place: place[1],
)
def test_another_job_may_complete_it_first(stored, made, tmp_path, monkeypatch, place):
    """The other one is writing its notes as this one begins."""
    real, out = getattr(*place), tmp_path / "out"
    (out / "made_up" / "1.0.0.incomplete").mkdir(parents=True)
    (out / "made_up" / "1.0.0.incomplete" / ".prepare.json.other-host-1-1.tmp").touch()

    def overtaken(*arguments):
        result = real(*arguments)
        if not target(out).exists():
            shutil.rmtree(out)
            shutil.copytree(made, out)
        return result

    monkeypatch.setattr(*place, overtaken)
    assert prepare(stored.folder, out) == 0
    assert contents(out) == contents(made) and not list(out.rglob("*.incomplete"))


def test_tasks_that_complete_a_set_together(stored, made, tmp_path, monkeypatch):
    """Each of them writes its metadata to a slow disk, and one of them renames the folder."""
    work, finished = target(tmp_path).with_name("1.0.0.incomplete"), tmp_path / "finished"
    jobs = []

    def stop(job):
        jobs.append(job)
        return False

    with monkeypatch.context() as patched:
        patched.setattr(job_module.Job, "complete", stop)
        assert prepare(stored.folder, tmp_path) == 0
    work.rename(finished)
    together = multiprocessing.get_context("fork")
    for delay in range(0, 75, 15):
        shutil.copytree(finished, work)
        (work / ".features.json.other-host-1-1.tmp").touch()  # of a killed task
        barrier = together.Barrier(2)
        tasks = [
            together.Process(target=_complete, args=(*jobs, barrier, milliseconds))
            for milliseconds in (0, delay)
        ]
        for task in tasks:
            task.start()
        for task in tasks:
            task.join(60)
        assert [task.exitcode for task in tasks] == [0, 0]
        assert contents(target(tmp_path)) == contents(target(made)) and not work.exists()
        shutil.rmtree(target(tmp_path))


def _complete(job, barrier, milliseconds):
    rename = Path.rename
    os.fsync = lambda _: time.sleep(0.005)
    Path.rename = lambda *paths: (time.sleep(0.01), rename(*paths))
    barrier.wait(60)
    time.sleep(milliseconds / 1e3)
    assert job.complete()


def test_a_set_is_reported_while_another_task_tidies_it(stored, tmp_path, monkeypatch, capsys):
    complete = job_module.Job.complete

    def overtaken(job):
        (job.work / "prepare.json").unlink()
        (job.work / "prepare.json").symlink_to("removed")  # listed, and gone when it is read
        monkeypatch.setattr(job_module.Job, "tidy", lambda job: None)
        return complete(job)

    monkeypatch.setattr(job_module.Job, "complete", overtaken)
    assert prepare(stored.folder, tmp_path) == 0
    assert f"train with train.data_path={tmp_path}" in capsys.readouterr().out


@pytest.mark.parametrize("launcher, reporting", [("torchrun", (0,)), ("slurm", (0, 1))])
def test_tasks_share_the_files(stored, made, tmp_path, monkeypatch, capsys, launcher, reporting):
    """reporting: those that say what is missing."""
    for task in range(3):
        as_task(monkeypatch, task, 3, launcher)
        assert prepare(stored.folder, tmp_path) == 0
        assert target(tmp_path).exists() == (task == 2)
        waits = "last task to finish completes the dataset" in capsys.readouterr().out
        assert waits == (task in reporting)
    assert contents(target(tmp_path)) == contents(target(made))
    assert prepare(stored.folder, tmp_path) == 0  # a task that is started again


def test_ranks_of_a_node_print_one_error(tmp_path, monkeypatch, capsys):
    for rank in range(2):
        as_task(monkeypatch, rank, 2, "torchrun")
        assert prepare(tmp_path / "nothing", tmp_path) == 1
        assert ("is not a folder" in capsys.readouterr().err) == (rank == 0)


def refused(capsys, destination, source, *words, said, **more):
    """The command fails with one error that has the words `said`, and changes nothing that was
    there.
    """
    before = contents(destination) if destination.exists() else {}
    assert prepare(source, destination, *words, **more) == 1
    error = capsys.readouterr().err
    for word in said:
        assert word in error, error
    assert error.count("robomimic-ddp:") == 1 and "Traceback" not in error
    after = contents(destination) if destination.exists() else {}
    assert before.items() <= after.items()
    assert not [name for name in after if name.endswith(".tmp")]
    return after


@pytest.fixture
def small_copy(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "out"))


def test_another_destination_is_refused(stored, copy, small_copy, capsys):
    said = ("prepared with quality=95, not 90", "name another destination")
    refused(capsys, small_copy, stored.folder, "--quality", "90", said=said)
    flip(4)(copy)
    files_of(copy)[-1].write_bytes(files_of(copy)[-1].read_bytes() + bytes(16))
    refused(capsys, small_copy, copy, said=("another source", str(stored.folder)))
    refused(capsys, copy.parents[1], copy, said=("is the source itself",))
    (target(small_copy) / "metadata.json").unlink()
    refused(capsys, small_copy, stored.folder, said=("prepare-data has not written",))
    shutil.rmtree(target(small_copy))
    foreign = small_copy / "made_up" / "1.0.0.incomplete"
    foreign.mkdir()
    (foreign / "thesis.tex").touch()
    refused(capsys, small_copy, stored.folder, said=("prepare-data has not written",))
    (foreign / "prepare.json").write_text("{")
    refused(capsys, small_copy, stored.folder, said=("cannot be read",))


def test_other_words_are_refused(stored, tmp_path, capsys):
    refused(capsys, tmp_path, tmp_path / "nothing", said=("is not a folder",))
    refused(capsys, tmp_path, stored.folder, "--cameras", "left", said=("no camera 'left'",))
    for size in ((0, 5), (5,), ("five", 5)):
        with pytest.raises(SystemExit):
            prepare(stored.folder, tmp_path, size=size)
    assert "expected height x width" in capsys.readouterr().err
    assert prepare(stored.folder, tmp_path, size=(1200, 20)) == 2
    assert "more pixels than any camera" in capsys.readouterr().err
    (tmp_path / "file").touch()
    for bad in ("file", "file/below"):
        assert prepare(stored.folder, tmp_path / bad) == 2
        assert "cannot be written to" in capsys.readouterr().err
    (tmp_path / "file").unlink()
    assert not contents(tmp_path)


def test_a_full_disk_is_one_error(stored, made, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    assert prepare(stored.folder, out, "--cameras", "no") == 1  # TensorFlow is loaded
    capsys.readouterr()
    with bad_disks.too_large(tmp_path):
        assert prepare(stored.folder, out) == 1
    error = capsys.readouterr().err
    assert "00000 could not be saved" in error and "Nothing was written there" in error
    assert not [name for name in contents(out) if "tfrecord" in name]
    with monkeypatch.context() as patched:
        patched.setattr(bad_disks.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "full")))
        refused(capsys, out, stored.folder, said=("could not be saved", "full", "then try again"))
    assert prepare(stored.folder, out) == 0
    assert contents(target(out)) == contents(target(made))


def test_a_source_that_cannot_be_read_is_one_error(stored, made, tmp_path, capsys, monkeypatch):
    unreadable = files_of(stored.folder)[3]

    def refusing(path, opened=files.opened):
        if path == unreadable:
            raise OSError(5, "Input/output error")
        return opened(path)

    with monkeypatch.context() as patched:
        patched.setattr(files, "opened", refusing)
        said = (str(unreadable), "Input/output error", "Copy that file again")
        after = refused(capsys, tmp_path, stored.folder, said=said)
    assert not [name for name in after if "tfrecord" in name], "it is found before any is written"
    assert prepare(stored.folder, tmp_path) == 0
    assert contents(target(tmp_path)) == contents(target(made))


def test_the_end_names_what_could_not_be_read_or_written(stored, tmp_path, capsys, monkeypatch):
    saved = f"{target(tmp_path)} could not be saved: "
    for error, words in (
        (
            OSError(13, "no rights", stored.folder / "a.txt"),
            "1.0.0/a.txt cannot be used: no rights",
        ),
        (OSError("a.txt has more than 16 MiB"), f"{saved}a.txt has more than 16 MiB. "),
        (WriteError("the index could not be saved"), "robomimic-ddp: the index could not be saved"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(job_module.metadata, "write", mock.Mock(side_effect=error))
            refused(capsys, tmp_path, stored.folder, said=(words,))
    assert prepare(stored.folder, tmp_path) == 0


FEW = ("corrupt record", "missing file", "a frame that is no picture")


@pytest.mark.parametrize("damage", [d for d in DAMAGES if d.name in FEW], ids=attrgetter("name"))
def test_damage_is_one_error_or_left_out(copy, tmp_path, capsys, damage):
    damage.make(copy)
    lost = {*damage.lost, *damage.unread}
    words = [word for word in damage.words if word != "rank 0" and ", step" not in word]
    words = [word.partition(": episode")[0].partition(" at byte")[0] for word in words]
    after = refused(capsys, tmp_path / "out", copy, said=words)
    if damage.name != "missing file":  # found before any is read
        before = {name for name in after if "tfrecord" in name and "done" not in name}
        assert len(before) == min(lost) // 2  # files before the damaged one are finished
    assert prepare(copy, tmp_path / "out", "--skip-corrupt") == 0
    assert f"{len(lost)} damaged episodes are left out" in capsys.readouterr().err
    found = {one["episode_metadata"]["file_path"] for one in episodes(target(tmp_path / "out"))}
    left = [number for number in range(14) if number not in lost]
    assert len(found) == len(left)
    assert all(any(f"{number:05d}" in path.decode() for path in found) for number in left)
    for name, data in after.items():
        if "tfrecord" in name and "done" not in name:
            assert (target(tmp_path / "out") / Path(name).name).read_bytes() == data


def test_episodes_that_are_left_out_do_not_move_the_split(load, copy, tmp_path):
    def paths(dataset):
        numbers = dataset.index.file[dataset.rows], dataset.index.texts[dataset.rows]
        return set(zip(*map(np.ndarray.tolist, numbers)))

    changes = {"experiment": {"validate": True}, "validation_fraction": 0.4}
    changes |= {"success_only": False, "skip_unlabeled": False}
    whole = [paths(one) for one in load(**changes)]
    for file in (0, 1, 5):
        rewrite(file, 0, no_picture)(copy) if file else flip(file)(copy)
    assert prepare(copy, tmp_path / "out", "--skip-corrupt") == 0
    where = {"data_path": str(tmp_path / "out"), "data_cache_dir": str(tmp_path / "cache")}
    left = [paths(one) for one in load(**changes, **where)]
    assert len(left[0] | left[1]) == 11
    assert left[0] <= whole[0] and left[1] <= whole[1]
    rewrite(0, 0, no_picture)(target(tmp_path / "out"))  # the source's second episode
    for before, after in (("out", "second"), ("second", "third")):
        words = ["--skip-corrupt"] if after == "second" else []
        assert prepare(target(tmp_path / before), tmp_path / after, *words, size=(6, 10)) == 0
        where["data_path"] = str(tmp_path / after)
        left = [paths(one) for one in load(**changes, **where)]
        assert len(left[0] | left[1]) == 10
        assert left[0] <= whole[0] and left[1] <= whole[1]
        left_out = prepared.read(target(tmp_path / after))["left_out"]
        assert left_out == {"train": {"0": [0, 1], "1": [0], "5": [0]}}


@pytest.mark.usefixtures("blank_sheet")
def test_inspect_data_shows_where_it_comes_from(stored, made, capsys, tmp_path):
    assert cli.main(["inspect-data", str(made / "made_up")]) == 0
    said = capsys.readouterr().out
    assert f"from {stored.folder} (" in said and "12x20, JPEG quality 95" in said
    assert cli.main(["inspect-data", "--json", str(made / "made_up")]) == 0
    report = json.loads(capsys.readouterr().out)["prepared"]
    assert prepare(stored.folder, tmp_path, size=(40, 20)) == 0
    words = [str(target(tmp_path)), "-o", str(tmp_path / "o")]
    assert cli.main(["inspect-data", *words]) == 0
    observation = json.loads((tmp_path / "o" / "config.json").read_text())["observation"]
    assert observation["image_dim"] == [40, 20]
    assert report["source"] == "made_up/1.0.0" and report["size"] == list(SMALL)
