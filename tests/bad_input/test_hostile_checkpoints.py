"""Checkpoints that robomimic would not write: one error."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from robomimic_ddp import cli
from robomimic_ddp.checkpoint import safe_load, state_file
from robomimic_ddp.errors import CheckpointError
from tests.checkpoint import small
from tests.hostile import PROGRAM, Calls

pytestmark = [pytest.mark.bad_input, pytest.mark.timeout(60)]


def outcomes(path: Path, capsys: pytest.CaptureFixture) -> list[str]:
    """Return the errors of `ckpt show`, `ckpt convert`, and a training that begins from `path`."""
    errors = []
    for words in (["show", "--keys", path], ["convert", path, "-o", path.with_name("out.pth")]):
        assert cli.main(["ckpt", *map(str, words)]) == 1
        errors.append(capsys.readouterr().err)
        assert errors[-1].count("robomimic-ddp: ") == 1
    with pytest.raises(CheckpointError) as caught:
        safe_load.check(path, "bc")
    assert not path.with_name("out.pth").exists()
    return [*errors, str(caught.value)]


def compressed(path: Path) -> None:
    """torch would map the compressed bytes as the numbers."""
    small.write(path, torch.zeros(4))
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as old:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
            for name in old.namelist():
                new.writestr(name, old.read(name))


def several_disks(path: Path) -> None:
    small.write(path, torch.zeros(4))
    data = bytearray(path.read_bytes())
    struct.pack_into("<L", data, len(data) - 22 - 4, 9)
    path.write_bytes(data)


ARCHIVES = {
    compressed: "its archive is compressed",
    several_disks: "is not a torch checkpoint",
}


@pytest.mark.parametrize(("write", "words"), ARCHIVES.items(), ids=lambda value: str(value)[:20])
def test_archives_that_torch_does_not_write(write, words, tmp_path: Path, capsys) -> None:
    path = tmp_path / "odd.pth"
    write(path)
    for error in outcomes(path, capsys):
        assert words in error


def test_a_changed_byte_of_a_tensor(tmp_path: Path, capsys) -> None:
    """torch would load other weights, and `evaluate` would publish their success."""
    path = tmp_path / "odd.pth"
    small.write(path, torch.full((4,), 0.7))
    data = path.read_bytes()
    number = struct.pack("<f", 0.7)
    assert data.count(number) == 4
    path.write_bytes(data.replace(number, struct.pack("<f", 0.6), 1))
    for error in outcomes(path, capsys):
        assert "the checksum of odd/data/0 is wrong" in error


@pytest.mark.skipif(
    not hasattr(torch.serialization, "set_crc32_options"), reason="a choice since torch 2.6"
)
def test_an_archive_without_checksums_is_read(tmp_path: Path) -> None:
    path = tmp_path / "fast.pth"
    torch.serialization.set_crc32_options(False)
    try:
        small.write(path, torch.ones(4))
    finally:
        torch.serialization.set_crc32_options(True)
    assert safe_load.read_known(path, "it")["algo_name"] == "bc"


def test_a_state_with_such_an_archive_is_damaged(tmp_path: Path) -> None:
    several_disks(tmp_path / state_file.STATE)
    with pytest.raises(CheckpointError, match="is damaged and cannot be used"):
        state_file.read_file(tmp_path / state_file.STATE)


@pytest.mark.parametrize("content", [PROGRAM, Calls(print, ())], ids=["blocked", "unknown"])
def test_why_a_state_was_not_loaded_is_no_advice_to_run_its_code(content, tmp_path: Path) -> None:
    torch.save({"state": content}, tmp_path / state_file.STATE)
    with pytest.raises(CheckpointError, match=r"posix\.mkdir|\bprint\b") as error:
        state_file.read_file(tmp_path / state_file.STATE)
    assert "weights_only" not in str(error.value) and "safe_globals" not in str(error.value)


MODELS = {
    "no names": {"nets": [1, 2]},
    "a dictionary as a tensor": {"nets": {"policy.net": {"weight": torch.zeros(1)}}},
    "a tensor as the average": {"nets": {}, "ema": torch.zeros(3)},
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_models_that_have_no_named_tensors(model: Any, tmp_path: Path, capsys) -> None:
    torch.save({"model": model, "config": "{}"}, tmp_path / "odd.pth")
    for words in (["show"], ["convert", "-o", str(tmp_path / "out.pth")]):
        assert cli.main(["ckpt", *words[:1], str(tmp_path / "odd.pth"), *words[1:]]) == 1
        assert "odd.pth: its model has" in capsys.readouterr().err


@pytest.mark.parametrize("config", ['{"experiment": 3}', 5, "[" * 10**5, "\ud800"], ids=repr)
def test_configs_that_are_none(config: Any, tmp_path: Path, capsys) -> None:
    of_8_bits = getattr(torch, "float8_e4m3fn", torch.float32)  # torch 2.1
    odd = small.content(torch.zeros(1).to(of_8_bits), config=config, variable_state="epoch")
    odd["model"][1] = 2
    torch.save(odd, tmp_path / "odd.pth")
    safe_load.check(tmp_path / "odd.pth", "bc")
    assert cli.main(["ckpt", "show", str(tmp_path / "odd.pth")]) == 0
    assert "experiment None" in capsys.readouterr().out
