"""robomimic-ddp ckpt: what it shows, converts and exports; and what it refuses."""

from __future__ import annotations

import collections
import json
import os
import re
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from robomimic_ddp import cli
from robomimic_ddp.checkpoint import safe_load, state_file
from robomimic_ddp.errors import CheckpointError
from tests.hostile import PROGRAM, Calls


def nets(seed, module):
    torch.manual_seed(seed)
    middle = "module." if module else ""
    return {
        f"policy.obs_encoder.{middle}grid": torch.arange(3),
        f"policy.obs_encoder.{middle}net.weight": torch.randn(3, 2),
        f"policy.noise_pred_net.{middle}module.bias": torch.randn(4),  # a part of that very name
        f"policy.noise_pred_net.{middle}out.bias": torch.randn(4),
    }


@pytest.fixture
def write(tmp_path):
    def make(name="a.pth", seed=0, module=False, ema=True, **more):
        path = tmp_path / name
        model = {"nets": nets(seed, module), "optimizers": {}}
        model["ema"] = nets(seed + 100, module) if ema else None
        config = json.dumps({"experiment": {"name": "lift"}})
        content = {"algo_name": "diffusion_policy", "config": config, "model": model}
        torch.save({**content, "variable_state": {"epoch": 7}, **more}, path)
        return str(path)

    return make


def command(*words):
    return cli.main(["ckpt", *map(str, words)])


def load(path):
    return torch.load(path, weights_only=True)["model"]


def test_show(write, capsys):
    assert command("show", write(module=True), "--keys") == 0
    text = capsys.readouterr().out
    for words in (
        "a host's checkpoint",
        "algorithm diffusion_policy, experiment lift",
        "after epoch 7",
        "nets: 4 tensors, 17 numbers, with module.",
        "policy.obs_encoder: 9",
        "policy.noise_pred_net.module.module.bias [4]",
        "also: optimizers",
    ):
        assert words in text, words
    assert command("show", write("b.pth")) == 0
    assert "17 numbers, plain" in capsys.readouterr().out


def test_a_tensor_with_two_names_counts_once(write, tmp_path, capsys):
    """As robomimic's image encoders have them."""
    content = torch.load(write(), weights_only=True)
    nets = content["model"]["nets"]
    nets["policy.obs_encoder.again.weight"] = nets["policy.obs_encoder.net.weight"]
    torch.save(content, tmp_path / "a.pth")
    assert command("show", tmp_path / "a.pth") == 0
    assert "nets: 5 tensors, 17 numbers, " in capsys.readouterr().out
    assert command("convert", tmp_path / "a.pth", "-o", tmp_path / "b.pth") == 0
    assert "nets (17 numbers)" in capsys.readouterr().out
    content |= {"model": {"nets": nets, "ema": None}, "shape_metadata": {"ac_dim": 7}}
    torch.save(content, tmp_path / "c.pth")
    assert command("export", tmp_path / "c.pth", tmp_path / "policy") == 0
    assert "those of the nets, 17 numbers" in capsys.readouterr().out


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("layout", ["plain", "host", "keep"])
def test_layouts(write, tmp_path, before, layout):
    after = before if layout == "keep" else layout == "host"
    out = tmp_path / "out.pth"
    assert command("convert", write(module=before), "-o", out, "--layout", layout) == 0
    made = load(out)
    for part, seed in (("nets", 0), ("ema", 100)):
        expected = nets(seed, after)
        assert list(made[part]) == list(expected)
        assert all(torch.equal(made[part][key], expected[key]) for key in expected)
    assert made["optimizers"] == {}


def test_averaged_weights_as_nets(write, tmp_path):
    out = tmp_path / "ema.pth"
    assert command("convert", write(module=True), "-o", out, "--ema", "--layout", "plain") == 0
    expected, made = nets(100, False), load(out)
    for section in ("nets", "ema"):  # a host that has averages acts with these
        assert list(made[section]) == list(expected)
        assert all(torch.equal(made[section][key], expected[key]) for key in expected)


@pytest.mark.parametrize("ema", [False, True])
def test_an_export_has_the_weights_that_the_policy_acts_with(write, tmp_path, ema):
    from safetensors.torch import load_file

    stats = {"obs_normalization_stats": {"position": {"mean": np.float32([0.1, 2])}}}
    source = write(ema=ema, shape_metadata={"ac_dim": 7, "all_shapes": {"a": [3]}}, **stats)
    folder = tmp_path / "policy"
    assert command("export", source, folder) == 0
    expected = nets(100 if ema else 0, False)
    weights = load_file(folder / "model.safetensors")
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[key], expected[key]) for key in expected)
    read = {
        path.name: path.read_text() for path in folder.iterdir() if path.suffix != ".safetensors"
    }
    assert json.loads(read.pop("config.json")) == {
        "algo_name": "diffusion_policy",
        "experiment": {"name": "lift"},
    }
    (mean,) = json.loads(read.pop("normalization.json"))["obs_normalization_stats"].values()
    assert np.array_equal(np.float32(mean["mean"]), np.float32([0.1, 2]))
    assert json.loads(read.pop("metadata.json"))["weights"] == ("ema" if ema else "nets")
    assert "| observations | a [3] |\n| actions | 7 numbers |\n" in read.pop("README.md")
    assert {*read} == {"load_policy.py"}


def test_the_model_card_names_a_net_that_the_unedited_host_does_not_build(write, tmp_path, capsys):
    level = "policy.noise_pred_net.down_modules.0.0.blocks.0.block.0.weight"
    config = json.dumps({"algo": {"unet": {"down_dims": [8]}}})
    model = {"nets": {level: torch.zeros(8, 2, 5)}, "ema": None}
    source = write(config=config, model=model, shape_metadata={"ac_dim": 7})
    assert command("export", source, tmp_path / "policy") == 0
    card = (tmp_path / "policy" / "README.md").read_text()
    assert "| net | sized by algo.unet" in card and "the edit unet_config |" in card
    out = capsys.readouterr().out
    assert "works without robomimic-ddp" not in out and "; the net is sized by algo.unet" in out


def hierarchical(content):
    content["model"] = {"planner": content["model"], "actor": content["model"]}


def without_shapes(content):
    del content["shape_metadata"]


def without_config(content):
    content["config"] = "{"


def diverged(content):
    content["model"]["ema"]["policy.noise_pred_net.out.bias"][1] = torch.nan


def with_an_object(content):
    content["shape_metadata"]["dtype"] = np.dtype(">f4")


def with_half_a_character(content):
    content["algo_name"] = "\ud800"


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (hierarchical, "has a model of actor, planner; expected a policy of one part"),
        (without_shapes, "it has no shape_metadata"),
        (without_config, "it has no config that is JSON"),
        (diverged, "its training had diverged, so its policy cannot act"),
        (with_an_object, "an object of the type"),
        (with_half_a_character, "safetensors, JSON or UTF-8 cannot contain"),
    ],
)
def test_what_is_not_exported_is_one_error(write, tmp_path, capsys, change, words):
    path = write(shape_metadata={"ac_dim": 7})
    content = torch.load(path, weights_only=True)
    change(content)
    torch.save(content, path)
    assert command("export", path, tmp_path / "policy") == 1
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert [item.name for item in tmp_path.iterdir()] == ["a.pth"]


@pytest.mark.bad_input
def test_an_export_is_written_completely_to_a_new_folder_or_not_at_all(
    write, tmp_path, capsys, monkeypatch
):
    source, folder = write(shape_metadata={}), tmp_path / "policy"
    for taken in (tmp_path, source):
        assert command("export", source, taken) == 2
        assert "already exists. Name a new folder" in capsys.readouterr().err
    assert command("export", source, Path(source) / "policy") == 2
    assert "cannot be written" in capsys.readouterr().err

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert command("export", source, folder) == 1
    error = capsys.readouterr().err
    assert "No space left on device" in error and "Free disk space" in error
    assert [item.name for item in tmp_path.iterdir()] == ["a.pth"]
    assert command("export", source, folder) == 0


@pytest.mark.bad_input
@pytest.mark.parametrize("model", [{"actor": {"nets": nets(0, False)}}, nets(0, False)])
def test_a_model_without_nets_is_not_written_empty(write, tmp_path, capsys, model):
    """Of a hierarchical policy, and of a host that saves the keys of its nets."""
    path, out = write(model=model), tmp_path / "out.pth"
    assert command("convert", path, "--layout", "host", "-o", out) == 1 and not out.exists()
    assert f'robomimic-ddp: {path} has a model without "nets"' in capsys.readouterr().err


@pytest.mark.bad_input
def test_a_file_that_is_there_is_kept_without_force(write, tmp_path, capsys):
    out = tmp_path / "out.pth"
    out.write_text("the user's")
    assert command("convert", write(), "-o", out) == 2 and out.read_text() == "the user's"
    assert "out.pth' already exists" in capsys.readouterr().err
    assert command("convert", write(), "-o", out, "--force") == 0 and load(out)


@pytest.mark.bad_input
def test_a_checkpoint_is_not_written_over_itself(write, tmp_path, capsys):
    """`--ema` would lose its nets."""
    path = Path(write())
    before = path.read_bytes()
    (tmp_path / "link.pth").symlink_to(path)
    for out in (path, tmp_path / "link.pth"):
        assert command("convert", path, "--ema", "-o", out) == 2
        assert "is the checkpoint to read" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_a_state_of_ours(tmp_path, capsys):
    kept = dict.fromkeys(state_file.PARTS)
    kept |= {"epoch": 3, "steps": 12, "world_size": 2, "samples_per_step": 16}
    kept |= {"save_id": "abc", "best": {"best_valid_loss": 0.5}, "options": {"verify": False}}
    part = {"nets": nets(0, True), "ema": {"averaged_model": nets(100, True), "numbers": {}}}
    part |= {"optimizers": {}, "lr_schedulers": {}, "numbers": {}}
    inside = {"epoch": 4, "steps": 2, "samples": 32, "total": None}
    state_file.write(tmp_path, {**kept, "model": {"": part}, "inside": inside}, best=False)
    assert command("show", tmp_path / state_file.STATE) == 0
    text = capsys.readouterr().out
    assert "after epoch 3 and 2 steps of the next, step 12; 2 rank(s), 16 samples" in text
    assert "per step; save abc" in text
    assert "best_valid_loss" in text
    out = tmp_path / "out.pth"
    assert command("convert", tmp_path / state_file.STATE, "-o", out, "--layout", "plain") == 0
    assert command("export", tmp_path / state_file.STATE, tmp_path / "policy") == 1
    assert "does not say how to build its nets" in capsys.readouterr().err
    expected = nets(100, False)
    assert all(torch.equal(load(out)["ema"][key], expected[key]) for key in expected)


def test_what_hosts_keep_is_allowed(tmp_path):
    """Beside tensors: numpy's arrays, numbers and dtypes, OmegaConf's, and plain Python's."""
    content = {
        "model": {"weight": torch.ones(2)},
        "columns": np.arange(6.0).reshape(2, 3).T,
        "text": np.array(["ab", "c"]),
        "empty": np.zeros((0, 3), ">f4"),
        "number": np.float32(1.5),
        "flag": np.bool_(True),
        "blank": np.str_(""),
        "dtype": np.dtype(">f4"),
        "omega": OmegaConf.create({"a": [1, {"b": None}, 1.5]}),
        "plain": collections.OrderedDict(set={1}, range=range(2), nothing=None, bytes=b""),
    }
    path = tmp_path / "model.pth"
    torch.save(content, path)
    read = safe_load.read_known(path, "model.pth")
    assert torch.equal(read.pop("model")["weight"], torch.ones(2))
    for name in ("columns", "text", "empty"):
        array, expected = read.pop(name), content[name]
        assert type(array) is np.ndarray and array.dtype == expected.dtype
        assert array.shape == expected.shape and (array == expected).all()
    assert type(read["number"]) is np.float32 and type(read["flag"]) is np.bool_
    assert read == {name: content[name] for name in read} and len(read) == 6


def numpy_function(name):
    core = sys.modules.get("numpy._core.multiarray") or np.core.multiarray
    return getattr(core, name)


OBJECTS = np.array([1, None], dtype=object)
SCALAR, RECONSTRUCT = numpy_function("scalar"), numpy_function("_reconstruct")
STATE_OF_ARRAY = (1, (9,), np.dtype("f8"), False, b"short")
BLANKS = (1, (9,), np.dtype("U0"), False, b"")
loop = []
loop.append(loop)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            PROGRAM,
            "asks for posix.mkdir .*Only a training can load it, with ddp.trust_checkpoint=true",
        ),
        (Calls(eval, ("1",)), "asks for (builtins.)?eval "),
        (Calls(np.load, ("a.npy",)), r"asks for numpy.*\bload "),
        (Calls(torch.storage._load_from_bytes, (b"",)), "asks for torch.storage._load_from_bytes"),
        (OBJECTS, "asks for numpy.dtype "),
        (np.zeros(2, [("a", "O")]), "asks for numpy.dtype "),
        (Calls(SCALAR, (np.dtype("O"), 1)), "asks for numpy.dtype "),
        (Calls(SCALAR, (np.dtype("f8"), b"short")), "has 5 bytes"),
        (Calls(RECONSTRUCT, (np.ndarray, (0,), b"b"), STATE_OF_ARRAY), "has 5 bytes"),
        (Calls(RECONSTRUCT, (np.ndarray, (0,), b"b"), BLANKS), "has 0 bytes"),
        (loop, "cannot be read .*recursion"),
    ],
)
def test_what_could_run_a_program_or_reach_memory(tmp_path, monkeypatch, content, words):
    monkeypatch.chdir(tmp_path)
    torch.save({"model": content}, "odd.pth")
    with pytest.raises(CheckpointError, match=words):
        safe_load.read_known(Path("odd.pth"), "odd.pth")
    assert not Path("executed").exists()


def two_central_directories(sound, hostile):
    """Python's zipfile reads the last archive of the file, torch the one at its beginning."""
    return [hostile + sound, sound + hostile]


def unicode_path(sound, hostile):
    """An extra field renames data.pkl for zipfile of Python 3.12 and later."""
    name = b"odd/data.pkl"
    field = struct.pack("<BL", 1, zlib.crc32(name)) + b"odd/other.txt"
    extra = struct.pack("<HH", 0x7075, len(field)) + field
    start = hostile.rindex(name) - 46
    entry = bytearray(hostile[start : start + 46])
    before = struct.unpack_from("<H", entry, 30)[0]
    struct.pack_into("<H", entry, 30, before + len(extra))
    at = start + 46 + len(name) + before
    return [hostile[:start] + entry + hostile[start + 46 : at] + extra + hostile[at:]]


@pytest.mark.bad_input
@pytest.mark.parametrize("disguise", [two_central_directories, unicode_path])
def test_the_bytes_that_are_checked_are_those_that_are_loaded(disguise, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = []
    for content in ({"weight": torch.ones(2)}, PROGRAM):
        torch.save({"model": content}, "odd.pth")
        files.append(Path("odd.pth").read_bytes())
    for data in disguise(*files):
        Path("odd.pth").write_bytes(data)
        try:
            read = safe_load.read_known(Path("odd.pth"), "odd.pth")
            assert torch.equal(read["model"]["weight"], torch.ones(2))
        except CheckpointError as error:
            assert re.search("asks for|cannot be read|no checkpoint", str(error))
    assert not Path("executed").exists()


@pytest.mark.parametrize(
    "content, words",
    [
        ([1, 2], "list"),
        ({"model": None, "config": "{}"}, 'contains null as its "model"; expected'),
        ({"model": PROGRAM}, "could run arbitrary code"),
    ],
)
def test_files_that_are_no_checkpoint(tmp_path, monkeypatch, capsys, content, words):
    monkeypatch.chdir(tmp_path)
    torch.save(content, "odd.pth")
    assert command("show", "odd.pth") == 1
    assert words in capsys.readouterr().err and not (tmp_path / "executed").exists()


def test_a_folder_that_is_missing_is_made(write, tmp_path):
    output = tmp_path / "new/folder/out.pth"
    assert command("convert", write(), "-o", output) == 0 and output.is_file()


def test_files_that_cannot_be_read_or_written(write, tmp_path, capsys):
    output = tmp_path / "out.pth"
    os.mkfifo(tmp_path / "pipe.pth")
    for words, code, message in (
        (("convert", write(), "-o", tmp_path / "out.txt"), 2, "expected a name ending in .pth"),
        (
            ("convert", write(), "-o", tmp_path / "out.safetensors"),
            2,
            "`robomimic-ddp ckpt export`",
        ),
        (("export", tmp_path / "none.pth", output), 1, "none.pth does not exist"),
        (("convert", write(ema=False), "--ema", "-o", output), 1, "trained without EMA"),
        (("show", tmp_path / "none.pth"), 1, "none.pth does not exist"),
        (("show", tmp_path / "pipe.pth"), 1, "pipe.pth is a pipe: a file is needed"),
        (("show", tmp_path), 1, " is a folder: name the file in it, such as"),
    ):
        assert command(*words) == code
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [("nets", "policy.noise_pred_net.out.bias", torch.nan), ("ema", "a.weight", torch.inf)],
)
def test_training_does_not_begin_from_weights_that_are_no_numbers(tmp_path, part, key, value):
    path = tmp_path / "diverged.pth"
    mask = torch.full((3, 3), -torch.inf).triu(1)
    model = {"nets": {"a.mask": mask, "a.step": torch.arange(2)}, "ema": {"a.weight": mask[0]}}
    content = {"algo_name": "diffusion_policy", "config": "{}", "model": model}
    torch.save(content, path)
    safe_load.check(path, "diffusion_policy")
    model[part][key] = torch.tensor([1.0, value])
    torch.save(content, path)
    with pytest.raises(
        CheckpointError, match=rf"diverged.pth contains NaN .*such as {part}\.{key}:"
    ):
        safe_load.check(path, "diffusion_policy")
