"""Findings, problems, and what is (not) written of them."""

from __future__ import annotations

import libcst as cst
import pytest

from robomimic_ddp.errors import PatchError
from robomimic_ddp.patches import engine, record, registry
from robomimic_ddp.patches.host import hosts
from robomimic_ddp.patches.outcomes import (
    AlreadyApplied,
    Applied,
    Fixer,
    NotPresent,
    Unrecognised,
)
from robomimic_ddp.patches.report import problems
from robomimic_ddp.patches.syntax.source import Edit
from tests.patches.support import append, examine, snapshot


def replace(path, old, new) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def outcomes(examination) -> dict:
    return {finding.fixer.name: finding.outcome for finding in examination.findings}


def test_a_plain_host_is_not_patched_and_nothing_is_written(host):
    before = snapshot(host)
    examination = examine(host)
    assert (examination.state, examination.blocked) == ("not patched", False)
    assert [patch.path for patch in examination.patches] == [
        "algo/diffusion_policy.py",
        "scripts/train.py",
        "scripts/train_rlds.py",
        "utils/torch_utils.py",
        "utils/train_utils.py",
    ]
    assert snapshot(host) == before


def test_without_leaves_a_fixer_out_and_does_not_require_it(host):
    replace(host / "utils/torch_utils.py", '["initial"]', '["first"]')
    assert examine(host).blocked
    examination = examine(host, without=["scale_lr"])
    assert not examination.blocked
    assert "scale_lr" not in outcomes(examination)


@pytest.mark.parametrize(
    ("path", "old", "new", "fixer"),
    [
        ("scripts/train.py", "def train(config, device", "def train(device, config", "distributed"),
        ("scripts/train.py", "def main(", "def start(", "entry_point"),
        ("scripts/train.py", "DataLoader(dataset", "make(dataset", "train_loader"),
        ("scripts/train.py", "for epoch in range(3)", "while True", "epochs"),
        ("scripts/train.py", "config_factory(ext", "make_config(ext", "prepare_config"),
        ("utils/train_utils.py", "def run_epoch(", "def epoch(", "epoch_log"),
        ("utils/train_utils.py", "def save_model(", "def save(", "save_model"),
        ("utils/train_utils.py", "def get_exp_dir(", "def folders(", "run_directory"),
        ("utils/torch_utils.py", "def get_torch_device(", "def device(", "cuda_device"),
        ("utils/torch_utils.py", "optimizer_from_optim_params", "make_optimizer", "scale_lr"),
    ],
)
def test_a_required_seam_that_is_missing_blocks(host, path, old, new, fixer):
    replace(host / path, old, new)
    examination = examine(host)
    assert examination.state == "blocked"
    problem = {finding.fixer.name: finding for finding in examination.problems}[fixer]
    assert isinstance(problem.outcome, Unrecognised)
    assert "DDPUtils." in problem.outcome.by_hand


@pytest.mark.parametrize(
    ("path", "old", "new", "name"),
    [
        ("utils/train_utils.py", 'input("overwrite? ")', "None", "ask"),
        ("utils/train_utils.py", "torch.save(model, path)", "model.save(path)", "atomic_save"),
        ("scripts/train.py", "        print(e)", "        raise", "reraise"),
    ],
)
def test_an_optional_seam_may_be_missing(host, path, old, new, name):
    replace(host / path, old, new)
    examination = examine(host)
    assert not examination.blocked
    assert isinstance(outcomes(examination)[name], NotPresent)


@pytest.mark.parametrize("data", [b"<<<<<<< HEAD\nimport h5py\n", b"\xff\xfe\x00"])
def test_a_file_elsewhere_that_does_not_parse_does_not_matter(host, data):
    (host / "algo/broken.py").write_bytes(data)
    (host / "broken_accelerate.py").write_bytes(data + b"accelerate")
    assert not examine(host).blocked


def test_a_file_with_a_seam_that_does_not_parse_blocks_with_its_line(host):
    replace(host / "utils/train_utils.py", "return model(loader)", "return model loader")
    examination = examine(host)
    assert examination.blocked
    assert {finding.outcome.where for finding in examination.problems} == {10}
    assert problems(examination).endswith(
        "train_utils.py:10: the file is left alone: it is not valid Python: invalid syntax"
    )
    assert problems(examination).count("\n") == 0


@pytest.mark.bad_input
@pytest.mark.parametrize("text", ["-" * 9000 + "1", "1" + "+1" * 900], ids=["signs", "sums"])
def test_what_is_nested_too_deeply_is_left_alone(host, text):
    (host / "algo/deep.py").write_text(f"x = {text}  # accelerate\n")
    assert not examine(host).blocked
    append(host / "utils/train_utils.py", f"\nx = {text}\n")
    examination = examine(host)
    assert examination.blocked
    assert "the file is left alone: it " in examination.problems[0].outcome.why


@pytest.mark.bad_input
@pytest.mark.timeout(20)
def test_long_lines_take_no_time(host):
    (host / "algo/long.py").write_text("run_" * 60_000)
    assert not examine(host).blocked


def test_a_lost_import_is_put_back(host):
    record.apply(examine(host))
    edited = (host / "utils/torch_utils.py").read_bytes()
    replace(host / "utils/torch_utils.py", "import robomimic_ddp.api as DDPUtils\n", "")
    examination = examine(host)
    assert examination.patches[0].after == edited
    assert examination.state == "partly patched"


def test_another_alias_of_the_users_is_kept(host):
    record.apply(examine(host))
    path = host / "utils/torch_utils.py"
    path.write_text(path.read_text().replace("DDPUtils", "D"))
    examination = examine(host)
    assert isinstance(outcomes(examination)["cuda_device"], AlreadyApplied)
    assert examination.patches == ()


def test_our_alias_taken_by_another_import_blocks(host):
    replace(host / "utils/torch_utils.py", "import torch\n", "import torch\nimport x as DDPUtils\n")
    examination = examine(host)
    assert {finding.fixer.name for finding in examination.problems} == {"cuda_device", "scale_lr"}
    assert "DDPUtils" in examination.problems[0].outcome.why


@pytest.mark.planted_fault
def test_confirm_catches_a_fixer_that_never_ends(host):
    def find(source, module):
        yield Edit(module.body[-1], lambda node: cst.FlattenSentinel([node, node]))

    fixers = [Fixer("x", ("utils/torch_utils.py",), find, "", words=("torch",), name="x")]
    examination = engine.examine(hosts.find_host(str(host)), fixers)
    with pytest.raises(PatchError, match="utils/torch_utils.py are not stable"):
        engine.confirm(examination, fixers)


@pytest.mark.parametrize(
    "text",
    [
        b"import torch\r\n\ndef get_torch_device(c):\n\treturn torch.device('cuda')\r\n",
        b"#!/usr/bin/env python\nimport torch; import os\ndef get_torch_device(c):\n"
        b"    return torch.device( 'cuda' )\n# end",
    ],
    ids=["mixed ends and tabs", "shebang"],
)
def test_all_other_bytes_stay(text):
    fixer = registry.all_fixers()["cuda_device"]
    outcome, patch = engine.patch_file("utils/torch_utils.py", text, [fixer])
    ours = [b"import robomimic_ddp.api as DDPUtils\r\n", b"import robomimic_ddp.api as DDPUtils\n"]
    after = patch.after
    for line in ours:
        after = after.replace(line, b"")
    call = b"torch.device( 'cuda' )" if b"( '" in text else b"torch.device('cuda')"
    assert isinstance(outcome[0], Applied)
    assert after.replace(b"DDPUtils.cuda_device()", call) == text
