"""A separate package that imports an installed robomimic: each has its edits in its own files."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches.outcomes import NotPresent
from tests.hosts import Host, python
from tests.patches.support import CHECKOUT, SMALL_HOST, examine, snapshot, write_host

OWN = {
    "__init__.py": "",
    "algo/__init__.py": "",
    "configs/__init__.py": "def config_factory(name):\n    return name\n",
    "utils/train_utils.py": """import robomimic.utils.train_utils as TrainUtils


def get_exp_dir(config):
    return "here"


def rollout_with_stats(policy, envs, num_episodes):
    return {}
""",
    "scripts/train.py": SMALL_HOST["scripts/train.py"]
    .replace("from robomimic.config import", "from mine.configs import")
    .replace("import os\n", "from mine.utils.train_utils import get_exp_dir\n")
    .replace("    train_loader", "    get_exp_dir(config)\n    train_loader")
    + """

if __name__ == "__main__":
    import robomimic.utils.torch_utils as TorchUtils

    names = TorchUtils.get_torch_device.__code__.co_names
    print(hasattr(train, "is_distributed"), "cuda_device" in names)
""",
}


@pytest.fixture
def package(tmp_path):
    """The package folder `mine`, which is built on it."""
    for name, text in OWN.items():
        path = tmp_path / "repository" / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "repository" / "mine"


@pytest.fixture
def ddp(command):
    """`ddp(*words)`: exit code and words on standard output of `robomimic-ddp`."""

    def run(*words):
        code, out, _ = command(*words)
        return code, " ".join(out.split())

    return run


def test_areas_that_the_installed_robomimic_has_are_not_missed(package, installed):
    examination = examine(package)
    assert not examination.blocked, examination.problems
    assert [one.path for one in examination.patches] == ["scripts/train.py", "utils/train_utils.py"]
    assert examination.base.host.package == installed and examination.base.state == "not patched"
    (entry,) = [one for one in examination.findings if one.fixer.name == "train_rlds"]
    assert isinstance(entry.outcome, NotPresent)


def test_a_copy_of_robomimic_under_another_name_is_not_built_on_it(tmp_path, installed):
    examination = examine(write_host(tmp_path / "other", package="copied"))
    assert examination.base is None and not examination.blocked


@pytest.mark.bad_input
def test_without_an_installed_robomimic_it_says_which_python_to_use(package, monkeypatch):
    monkeypatch.setattr("robomimic_ddp.patches.host.hosts.importlib.util.find_spec", lambda _: None)
    examination = examine(package)
    assert examination.blocked
    for problem in examination.problems:
        assert "mine is built on robomimic" in problem.outcome.why
        assert "with the Python that trains" in problem.outcome.by_hand


@pytest.mark.bad_input
def test_what_blocks_the_installed_one_is_shown_with_its_files(package, installed, ddp):
    (installed / "utils/torch_utils.py").unlink()
    code, said = ddp("status", package)
    assert code == 1 and "mine is built on this robomimic:" in said
    assert f"{installed}/utils/torch_utils.py: cuda_device" in said.replace("//", "/")


def test_apply_edits_its_files_alone_and_says_which_others_lack_theirs(package, installed, ddp):
    before = snapshot(package), snapshot(installed)
    code, said = ddp("apply", package)
    assert code == 0 and "2 files edited" in said
    assert f"robomimic-ddp apply {installed}; or train with robomimic-ddp run" in said
    assert snapshot(installed) == before[1]
    code, said = ddp("apply", "--check", package)
    assert code == 1 and f"robomimic-ddp apply {installed}" in said
    assert f"built on the robomimic in {installed}" in ddp("status", package)[1]
    assert ddp("apply", installed)[0] == 0
    code, said = ddp("apply", "--check", package)
    assert code == 0 and f"built on the robomimic in {installed}, which is patched" in said
    assert (ddp("revert", package)[0], ddp("revert", installed)[0]) == (0, 0)
    assert (snapshot(package), snapshot(installed)) == before


def test_run_edits_both_in_memory(package, installed):
    before = snapshot(package), snapshot(installed)
    done = python(
        Host(package.parent),
        "robomimic_ddp",
        *("run", "--host", package, "mine.scripts.train"),
        added={"PYTHONPATH": f"{installed.parent}:{CHECKOUT}"},
    )
    assert (done.returncode, done.stdout.split()) == (0, ["True", "True"]), done
    assert (snapshot(package), snapshot(installed)) == before
