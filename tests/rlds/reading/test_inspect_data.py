"""`robomimic-ddp inspect-data`: reports, statistics, contact sheet and drafts."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from robomimic_ddp.cli import main
from robomimic_ddp.commands.inspect_data import drafts, survey
from robomimic_ddp.config.host import host_config
from robomimic_ddp.config.host.json_config import read_json
from robomimic_ddp.data.rlds import host_datasets
from robomimic_ddp.data.rlds.index import cache as index_cache
from robomimic_ddp.data.rlds.index.source import Source
from robomimic_ddp.data.rlds.loaders.make import make_loader
from robomimic_ddp.data.rlds.schema.spec import load_schema
from robomimic_ddp.errors import DataError
from tests.rlds import other_shapes
from tests.rlds.conftest import FAILED, LENGTHS, WORDLESS
from tests.rlds.damages import files_of, no_camera, no_picture, rewrite

pytestmark = pytest.mark.usefixtures("blank_sheet")
DRAW = drafts._draw


def inspected(capsys, *words):
    """The report of a run with --json."""
    assert main(["inspect-data", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def as_host_config(path, cache, **train):
    """A config file as the host reads it."""
    factory = pytest.importorskip("robomimic.config").config_factory
    given = read_json(path, "")
    config = host_config.prepare_config(factory(given["algo_name"]), given)
    with config.unlocked():
        config.update(given)
        config.train.update(data_cache_dir=str(cache), batch_size=4, **train)
    return config


def test_droid_data_is_described_and_its_schema_found(stored, capsys):
    report = inspected(capsys, stored.folder)
    assert report["episodes"] == len(LENGTHS)
    assert report["bytes"] == sum(file.stat().st_size for file in stored.folder.glob("*tfrecord*"))
    median = float(np.median(LENGTHS))
    assert report["length"] == {
        "read": len(LENGTHS), "min": min(LENGTHS), "median": median, "max": max(LENGTHS)
    }  # fmt: skip
    assert report["cameras"]["observation/wrist_image_left"] == {"height": 24, "width": 40}
    assert report["features"]["observation/joint_position"]["shape"] == [7]
    assert report["language"]["feature"] == "language_instruction"
    assert report["schema"] == "droid"


def test_the_config_of_the_second_schema_is_the_hosts(others, capsys, tmp_path):
    out = tmp_path / "out"
    report = inspected(capsys, others / "bridge_like", "-o", out)
    words = report["language"]
    assert "" not in words["examples"] and len(words["examples"]) == words["different"] > 0
    assert words["empty"] == 2  # the fourth task, which two of eight episodes have
    assert report["schema"] == "bridge"
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "contact_sheet.png"]
    config = as_host_config(out / "config.json", tmp_path / "cache")
    train, _ = host_datasets.datasets_from_config(config, config.all_obs_keys)
    batch = next(iter(make_loader(train, 4, 0, 1, 0)))
    assert set(batch["obs"]) == {"image_0", "eef_position", "eef_rotation", "gripper"}
    assert batch["obs"]["image_0"].shape[2:] == (24, 32, 3)
    assert batch["actions"].shape[2] == 7 and batch["actions"].abs().max() <= 1


def test_the_current_folder_is_a_dataset_with_a_name(others, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(others / "bridge_like" / "1.0.0")
    report = inspected(capsys, ".", "-o", tmp_path)
    assert report["path"] == str(others / "bridge_like/1.0.0")
    config = read_json(tmp_path / "config.json", "")
    assert config["experiment"]["name"] == "bridge_like"
    assert config["train"]["dataset_names"] == ["bridge_like"]


def test_the_sheet_holds_frames_of_every_camera(others, tmp_path, capsys, monkeypatch):
    from PIL import Image

    monkeypatch.setattr(drafts, "_draw", DRAW)
    inspected(capsys, others / "bridge_like", "-o", tmp_path)
    with Image.open(tmp_path / "contact_sheet.png") as sheet:
        assert sheet.format == "PNG"
        pixels = np.asarray(sheet.convert("RGB")).reshape(-1, 3).astype(int)
    shown = survey.read(Source(others / "bridge_like" / "1.0.0"), 0)[:3]
    cameras = {"observation/image_0", "observation/image_1"}
    assert [set(episode.frames) for episode in shown] == [cameras] * 3
    colours = np.unique(pixels, axis=0)
    for episode in shown:
        for frames in episode.frames.values():
            assert frames[0][0] == 0 and frames[-1][0] == max(step for step, _ in frames)
            for _, frame in frames:
                centre = frame[4, 4].astype(int)  # in the middle of an even patch
                assert np.abs(colours - centre).max(1).min() <= 2


def test_a_schema_is_drafted_where_none_fits_and_its_config_works(others, capsys, tmp_path):
    report = inspected(capsys, others / "our_arm", "-o", tmp_path / "out")
    assert report["schema"] is None
    schema = load_schema(str(tmp_path / "out" / "schema.yaml"))
    assert list(schema.cameras) == ["image"] and list(schema.states) == ["state"]
    assert list(schema.actions) == ["gripper", "rotation_delta", "world_vector"]
    assert schema.language.feature == "observation.natural_language_instruction"
    config = as_host_config(tmp_path / "out" / "config.json", tmp_path / "cache")
    assert config.train.rlds_schema == str(tmp_path / "out" / "schema.yaml")
    train, _ = host_datasets.datasets_from_config(config, config.all_obs_keys)
    batch = next(iter(make_loader(train, 4, 0, 1, 0)))
    assert batch["actions"].shape[2] == 8 and batch["obs"]["state"].shape[2] == 8


def test_a_schema_that_people_have_worked_on_is_kept(others, capsys, tmp_path):
    words = (others / "our_arm", "-o", tmp_path / "out")
    inspected(capsys, *words)
    schema, config = tmp_path / "out" / "schema.yaml", tmp_path / "out" / "config.json"
    edited = schema.read_text().replace("  gripper:", "  hand:")
    schema.write_text(edited)
    before = config.read_text()
    assert str(schema) not in inspected(capsys, *words)["written"]
    assert schema.read_text() == edited
    assert "hand" in json.loads(config.read_text())["train"]["action_keys"]
    assert config.with_name("config.json.old").read_text() == before
    taken = tmp_path / "out" / "config.json"
    assert main(["inspect-data", str(words[0]), "-o", str(taken)]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_name_that_the_data_lack_is_refused_here_and_in_training(others, capsys, tmp_path):
    words = ("inspect-data", str(others / "our_arm"), "-o", str(tmp_path))
    assert main(list(words)) == 0
    schema, sound = tmp_path / "schema.yaml", (tmp_path / "schema.yaml").read_text()
    config = as_host_config(tmp_path / "config.json", tmp_path / "cache")
    capsys.readouterr()
    assert main(list(words)) == 0
    assert f"schema: train.rlds_schema={schema}" in (text := capsys.readouterr().out)
    assert "no packaged schema fits" not in text
    for old, new in (("action.world_v", "action.wrld_v"), ("observation.image", "observation.im")):
        schema.write_text(sound.replace(old, new))
        assert main(list(words)) == 1
        error = capsys.readouterr().err
        with pytest.raises(DataError) as caught:
            host_datasets.datasets_from_config(config, config.all_obs_keys)
        for text in (error, str(caught.value)):
            assert new in text and f"The nearest is `{old}" in text and str(schema) in text
    schema.write_text(sound.replace("observation.image", "depth, optional: true"))
    assert main(list(words)) == 0
    assert "without image: no depth" in capsys.readouterr().out


def test_a_draft_without_actions_is_completed_by_hand(tmp_path, capsys):
    from tensorflow_datasets import features

    step = {
        "observation": {"joints": features.Tensor(shape=(7,), dtype=np.float64), "on": np.float64},
        "cmd": {"dpos": features.Tensor(shape=(3,), dtype=np.float64)},
        "is_last": np.bool_,
    }
    values = {"observation": {"joints": np.ones(7), "on": 1.0}, "cmd": {"dpos": np.ones(3)}}
    steps = [{**values, "is_last": False}] * 4
    described = features.FeaturesDict({"steps": features.Dataset(step)})
    folder = other_shapes.write(tmp_path, "odd", described, [{"steps": steps}])
    report = inspected(capsys, folder, "-o", tmp_path / "out")
    drafted = tmp_path / "out" / "schema.yaml"
    assert report["written"] == [str(tmp_path / "out" / "contact_sheet.png"), str(drafted)]
    assert "names no action" in report["next"]
    assert set(load_schema(str(drafted)).states) == {"joints", "on"}
    drafted.write_text(drafted.read_text().replace("actions: {}", "actions:\n  dpos: cmd.dpos"))
    report = inspected(capsys, folder, "-o", tmp_path / "out")
    assert report["schema"] == str(drafted) and "torchrun" in report["next"]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["train"]["action_keys"] == ["dpos"]
    assert set(config["observation"]["modalities"]["obs"]["low_dim"]) == {"joints", "on"}


def test_people_get_tables(others, stored, capsys):
    assert main(["inspect-data", str(others / "bridge_like" / "1.0.0")]) == 0
    text = capsys.readouterr().out
    for part in (
        "8 episodes of 3 to 12 steps, median 6.5",
        "observation/image_0  24      32",
        "episode_metadata/file_path, episode_metadata/has_image_0",
        "'put the cup down'",
        "train.rlds_schema=bridge",
    ):
        assert part in text, text
    assert main(["inspect-data", str(stored.folder), "--episodes", "2"]) == 0
    assert "14 episodes" in (text := capsys.readouterr().out) and "(of 2 episodes read)" in text


def test_hdf5_gets_a_summary(low_dim_dataset, capsys):
    report = inspected(capsys, low_dim_dataset)
    assert report["kind"] == "hdf5" and report["episodes"] == 6
    assert report["length"] == {"read": 6, "min": 6, "median": 10.0, "max": 15}
    assert report["features"]["obs/position"]["shape"] == [3]
    assert report["filter_keys"] == ["train", "valid"]
    assert main(["inspect-data", str(low_dim_dataset)]) == 0
    assert "obs/gripper" in capsys.readouterr().out


def test_the_hdf5_files_of_a_job(low_dim_dataset, capsys, tmp_path):
    config = tmp_path / "cfg.json"
    for data in (str(low_dim_dataset), [{"path": str(low_dim_dataset)}]):
        config.write_text(json.dumps({"algo_name": "bc", "train": {"data": data}}))
        (report,) = inspected(capsys, "--config", config)
        assert report == inspected(capsys, low_dim_dataset)


def test_the_index_and_statistics_of_a_job(make_config, tmp_path, capsys, monkeypatch):
    """They are computed ahead, and what training then finds."""
    path, cache = tmp_path / "cfg.json", tmp_path / "new"
    config = make_config(data_cache_dir=str(cache))
    path.write_text(json.dumps(config))
    assert main(["inspect-data", "--config", str(path)]) == 0
    shown = capsys.readouterr().out
    used = len(LENGTHS) - len(WORDLESS | FAILED)
    assert f"{len(LENGTHS)} episodes, {used} of them used" in shown
    (line,) = [line for line in shown.splitlines() if line.startswith("abs_pos[1]")]
    numbers = [float(number) for number in line.split()[1:]]
    monkeypatch.setattr(index_cache, "make_index", None)  # it is not called again
    (report,) = inspected(capsys, "--config", path)
    assert [*report["actions"]["abs_pos[1]"].values()] == pytest.approx(numbers, abs=1e-4)
    train, _ = host_datasets.datasets_from_config(config, config.all_obs_keys)
    stats = train.get_action_stats()["action/abs_pos"]
    assert [numbers[0], numbers[2]] == pytest.approx(
        [stats["min"][0, 1], stats["mean"][0, 1]], abs=1e-4
    )


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "words, code, message",
    [
        (["{others}"], 1, "several datasets: bridge_like, our_arm"),
        (["{tmp}/nothing"], 1, "does not exist"),
        (["{tmp}/empty"], 1, "dataset_info.json"),
        (["{tmp}/text.txt"], 1, "neither the folder of an RLDS dataset nor an HDF5 file"),
        (["{cut}"], 1, "made_up-train.tfrecord-00000"),
        (["{hdf5}", "-o", "{tmp}/out"], 2, "drafts for RLDS datasets, which are folders"),
        (["{tmp}/a.json"], 2, "`robomimic-ddp inspect-data --config "),
        ([], 2, "name a dataset"),
        (["{hdf5}", "--config", "{tmp}/a.json"], 2, "leave out PATH and -o"),
        (["--config", "{tmp}/none.json"], 1, "no such file"),
        (["--config", "{tmp}/a.json"], 1, "train.data=None: expected at least one dataset"),
        (["--config", "{tmp}/b.json"], 1, "found no algo_name"),
        (["--config", "{tmp}/c.json"], 1, "train=[1], but train is a section"),
        (["--config", "{tmp}/d.json"], 1, "The closest valid key is train.seed"),
    ],
)
def test_mistakes_are_one_clear_error(
    words, code, message, others, stored, low_dim_dataset, capsys, tmp_path
):
    (tmp_path / "empty" / "1.0.0").mkdir(parents=True)
    (tmp_path / "text.txt").write_text("words")
    misspelt = {"data": str(low_dim_dataset), "sed": 1}
    for name, config in {
        "a": {"algo_name": "bc"},
        "b": {"train": {"data_format": "droid_rlds"}},
        "c": {"algo_name": "bc", "train": [1]},
        "d": {"algo_name": "bc", "train": misspelt},
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(config))
    cut = tmp_path / "made_up" / "1.0.0"
    if words[:1] == ["{cut}"]:
        shutil.copytree(stored.folder, cut)
        file = sorted(cut.glob("*tfrecord*"))[0]
        file.write_bytes(file.read_bytes()[:-40])
    places = {"others": others, "cut": cut, "tmp": tmp_path, "hdf5": low_dim_dataset}
    assert main(["inspect-data", *(word.format(**places) for word in words)]) == code
    assert message in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (no_picture, "(step 1, `observation/exterior_image_1_left` cannot be decoded: "),
        (no_camera, "(numbers of steps: {'language_instruction': 2, "),
    ],
)
def test_a_camera_that_is_damaged_is_one_clear_error(change, message, copy, capsys):
    rewrite(0, 1, change)(copy)
    assert main(["inspect-data", str(copy)]) == 1
    error = capsys.readouterr().err
    assert f"{files_of(copy)[0]}: the episode at byte " in error and message in error
    assert "count them: `robomimic-ddp prepare-data --skip-corrupt`." in error


def test_a_folder_that_cannot_be_read_is_no_dataset(stored, capsys, tmp_path, monkeypatch):
    """Such as lost+found, which only root may read."""
    shutil.copytree(stored.folder, tmp_path / "made_up" / "1.0.0")
    (tmp_path / "lost+found").mkdir()
    entries = Path.iterdir

    def iterdir(folder):
        if folder.name == "lost+found":
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return entries(folder)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert inspected(capsys, tmp_path)["path"] == str(tmp_path / "made_up" / "1.0.0")
