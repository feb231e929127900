"""Every file that trains is patched, or named with the reason why it is not."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches.outcomes import Applied, Unrecognised
from tests.patches.support import SMALL_HOST, append, examine, snapshot, write_host

SCRIPT = SMALL_HOST["scripts/train.py"]
LOOP = """import robomimic.utils.train_utils as TrainUtils


{header}
{indent}for epoch in range(3):
{indent}    TrainUtils.run_epoch({arguments})
"""


def loop(header: str, arguments: str = "model, loader", indent: str = "    ") -> str:
    return LOOP.format(header=header, arguments=arguments, indent=indent)


def outcome(examination, path: str, *fixers: str):
    found = [one for one in examination.findings if one.path == path]
    found = [one for one in found if not fixers or one.fixer.name in fixers]
    assert len(found) == 1, [(one.path, one.fixer.name) for one in examination.findings]
    return found[0].outcome


@pytest.mark.parametrize(
    ("path", "name"), [("scripts/train_b.py", "train"), ("extra/run.py", "train_multitask")]
)
def test_a_training_function_is_patched_wherever_it_is_and_whatever_its_name(host, path, name):
    (host / path).parent.mkdir(exist_ok=True)
    (host / path).write_text(SCRIPT.replace("train(config", f"{name}(config"))
    examination = examine(host)
    assert not examination.blocked
    patch = next(patch for patch in examination.patches if patch.path == path)
    main = next(patch for patch in examination.patches if patch.path == "scripts/train.py")
    assert patch.after.decode() == main.after.decode().replace("train(config", f"{name}(config")


@pytest.mark.parametrize(
    ("path", "text", "line", "why"),
    [
        (
            "scripts/train_from_checkpoint.py",
            SCRIPT.replace("train(config, device)", "onward_train(model, config)"),
            9,
            "onward_train(model, config) was expected to begin with (config, device)",
        ),
        (
            "scripts/multitask.py",
            SCRIPT.replace("TrainUtils.run_epoch", "TrainUtils.run_multi_epoch"),
            9,
            "no `for epoch in ...` loop that calls run_epoch",
        ),
        ("scripts/finetune.py", loop("def main(args):"), 4, "main(args) was expected to begin"),
        ("scripts/train_c.py", SCRIPT.replace("range(3)", "[1]"), 11, "does not run over a range"),
        ("utils/trainer.py", loop("class Trainer:\n  def fit(self):"), 6, "a method of Trainer"),
        ("scripts/notes.py", loop("", indent=""), 5, "in no function at top level"),
        (
            "scripts/simple.py",
            "def fit(algo):\n    for batch in data:\n        algo.train_on_batch(batch, 1)\n",
            2,
            "fit calls train_on_batch in a separate loop",
        ),
        ("../examples/loop.py", loop("def train(config, device):"), 4, "apply FILE edits it"),
        (
            "../examples/loop.py",
            loop("def train(config, device):").replace("import robomimic", "import fork"),
            4,
            "outside the package, and only the package is edited",
        ),
        ("scripts/train_d.py", "def train(config, device:\n", 1, "not valid Python"),
    ],
)
def test_what_cannot_be_patched_is_named_and_the_rest_is_patched(host, path, text, line, why):
    (host.parent / ".git").mkdir()
    alone = {patch.path: patch.after for patch in examine(host).patches}
    (host / path).parent.mkdir(exist_ok=True)
    (host / path).write_text(text)
    examination = examine(host)
    assert {patch.path: patch.after for patch in examination.patches} == alone
    named = outcome(examination, path)
    assert isinstance(named, Unrecognised) and not named.blocks
    assert named.where == line and why in named.why and "train on one rank" in named.why


def test_the_main_script_blocks_even_where_another_can_be_patched(host):
    (host / "scripts/train_b.py").write_text(SCRIPT)
    (host / "scripts/train.py").write_text(SCRIPT.replace("(config, device)", "(model, config)"))
    assert examine(host).blocked


def test_a_script_with_edits_of_ours_is_not_left_half_patched(host, command):
    (host / "scripts/train_b.py").write_text(SCRIPT)
    assert command("apply", host)[0] == 0
    append(host / "scripts/train_b.py", "\n\ndef train(model, config):\n    pass\n")
    assert examine(host).blocked


@pytest.mark.parametrize(
    ("imported", "name"),
    [
        ("from robomimic.scripts.train import train", "train"),
        ("from .train import train as fit", "fit"),
        ("import robomimic.scripts.train as T", "T.train"),
    ],
)
def test_the_main_of_a_caller_gets_the_edits_of_an_entry(host, imported, name):
    text = SCRIPT[: SCRIPT.index("def train")] + SCRIPT[SCRIPT.index("def main") :]
    text = text.replace("import os\n", f"{imported}\n").replace("train(config", f"{name}(config")
    (host / "scripts/launch.py").write_text(text)
    examination = examine(host)
    for name in ("entry_point", "prepare_config", "reraise"):
        assert isinstance(outcome(examination, "scripts/launch.py", name), Applied)


@pytest.mark.parametrize(
    "text",
    [
        loop("def evaluate(model):", "model, loader, validate=True"),
        "# for epoch in epochs: run_epoch(model)\n",
        "import robomimic.scripts.train\nprint(robomimic)\n",
    ],
)
def test_what_does_not_train_is_not_listed(host, text):
    (host / "scripts/other.py").write_text(text)
    assert all(one.path != "scripts/other.py" for one in examine(host).findings)


def test_packages_around_an_installed_host_are_not_read(tmp_path):
    host = write_host(tmp_path / "lib" / "site-packages")
    other = host.parent / "other" / "train.py"
    other.parent.mkdir()
    other.write_text(loop("def train(config, device):"))
    assert not [one.path for one in examine(host).findings if one.path.startswith("../")]


def test_apply_says_what_stays_unpatched_each_time(host, command):
    text = SCRIPT.replace("train(config, device)", "onward_train(model, config)")
    (host / "scripts/train_b.py").write_text(text)
    before = snapshot(host)
    code, out, _ = command("apply", host)
    assert code == 0 and "onward_train(model, config) was expected" in " ".join(out.split())
    code, out, _ = command("apply", "--check", host)
    assert code == 0 and "everything is in place already" in " ".join(out.split())
    assert f"note: {host / 'scripts/train_b.py'}:9: this file is not patched" in " ".join(
        out.split()
    )
    assert command("revert", host)[0] == 0 and snapshot(host) == before
