"""`robomimic-ddp run`: modules and files as `__main__`, with the edits in memory."""

from __future__ import annotations

import sys

import pytest

from tests.hosts import Host, python
from tests.patches.support import run_command, snapshot, write_host

PROGRAM = """from __future__ import annotations
import inspect
import pickle
import sys

class Local:
    pass

if __name__ == "__main__":
    import robomimic.utils.torch_utils as TorchUtils
    names = TorchUtils.get_torch_device.__code__.co_names
    pickle.loads(pickle.dumps(Local()))
    print("edited" if "cuda_device" in names else "plain", *sys.argv[1:])
    print(__spec__ and __spec__.name, __file__)
    if "fail" in sys.argv:
        raise SystemExit(3)
"""
ENTRY = "import robomimic.scripts.train_rlds\nprint('found', robomimic.scripts.train_rlds.main)\n"
SCRIPT = """import robomimic.utils.train_utils as TrainUtils
from robomimic.config import config_factory
from torch.utils.data import DataLoader

def train(config, device):
    train_loader = DataLoader(dataset=None)
    for epoch in range(3):
        TrainUtils.run_epoch(model=config, loader=train_loader)

def main(args):
    config = config_factory(args["algo_name"])

print("train" if hasattr(train, "is_distributed") else "plain train")
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """The small host with added programs; unedited, and left so."""
    package = write_host(tmp_path_factory.mktemp("running") / "repository")
    (package / "scripts/show.py").write_text(PROGRAM)
    (package / "scripts/train_second.py").write_text(SCRIPT + ENTRY)
    (package / "config.py").write_text("def config_factory(name):\n    return name\n")
    return package


def run(host, *arguments):
    """In a fork of a process that has imported torch, as edited files do."""
    return python(Host(host.parent), "robomimic_ddp", "run", *arguments)


def test_a_module_with_its_arguments_of_a_host_that_python_would_not_import(host):
    before = snapshot(host)
    program = ("--host", str(host), "robomimic.scripts.show", "--config", "x.json", "-m", "a=b")
    done = python(None, "robomimic_ddp", "run", *program)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "edited --config x.json -m a=b",
        f"robomimic.scripts.show {host}/scripts/show.py",
    ]
    assert snapshot(host) == before
    edited = {"torch_utils", "train_utils", "train", "diffusion_policy", "train_rlds"}
    assert not edited & {path.name.partition(".")[0] for path in host.rglob("*.pyc")}


def test_a_file_and_its_exit_code_with_a_fixer_left_out(host):
    script = str(host / "scripts/show.py")
    done = run(host, "--without", "cuda_device", script, "fail")
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.splitlines() == ["plain fail", f"None {script}"]


def test_a_second_training_script_is_edited_and_added_files_are_there(host):
    done = run(host, str(host / "scripts/train_second.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("train\nfound <function main")


def test_triton_is_imported_before_tensorflow_and_only_for_it(host, tmp_path):
    """The real ones end the process in the other order (TensorFlow 2.21, torch 2.12)."""
    (tmp_path / "triton.py").touch()
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow/__init__.py").write_text(
        "import sys\nfirst = 'triton' in sys.modules\n"
    )
    program = tmp_path / "program.py"
    program.write_text(
        "import importlib.util, sys\n"
        "print(importlib.util.find_spec('tensorflow').origin, 'triton' in sys.modules)\n"
        "import tensorflow\n"
        "print(tensorflow.first, tensorflow.__file__)\n"
    )
    program = ("run", "--host", str(host), str(program))
    done = run_command(*program, cwd=tmp_path, paths=(host.parent,))
    file = tmp_path / "tensorflow/__init__.py"
    assert (done.stdout.splitlines(), done.stderr) == ([f"{file} False", f"True {file}"], "")


@pytest.fixture
def importable(host, monkeypatch):
    """This process imports the host, and forgets it and the edits when the test ends."""
    monkeypatch.setattr(sys, "path", [str(host.parent), *sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    for name in names_of_robomimic():
        monkeypatch.delitem(sys.modules, name)
    yield
    for name in names_of_robomimic():
        del sys.modules[name]


def names_of_robomimic():
    return [name for name in sys.modules if name.partition(".")[0] == "robomimic"]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["robomimic.scripts.no_such"], 2, "neither a file nor a module"),
        (["no_such_package.train"], 2, "neither a file nor a module"),
        (["../train"], 2, "neither a file nor a module"),
        (["no/such/file.py"], 2, "there is no such file"),
        ([], 2, "PROGRAM"),
        (["--with", "no_such", "robomimic.scripts.show"], 2, "no edit or area is named"),
        (["--host", "{other}", "robomimic.scripts.show"], 1, "accelerate"),
        (["{other}/scripts/train.py"], 2, "--host {other}"),
    ],
)
def test_a_mistake_is_one_message(importable, command, tmp_path, arguments, code, words):
    other = write_host(tmp_path / "other")
    (other / "scripts/train_mine.py").write_text("import accelerate\naccelerate.Accelerator()\n")
    found, out, err = command("run", *(word.format(other=other) for word in arguments))
    assert (found, out) == (code, "")
    assert words.format(other=other) in err and "Traceback" not in err


@pytest.mark.bad_input
def test_a_package_that_cannot_be_imported_says_why(importable, command, tmp_path, monkeypatch):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/__init__.py").write_text('raise ImportError("numba needs an older numpy")')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="needs an older numpy"):
        command("run", "broken.train")
