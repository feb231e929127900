"""What a process has loaded of a patched host, against what `apply` put in."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest

from robomimic_ddp.config.host import host_edits
from robomimic_ddp.errors import UnpatchedScript
from robomimic_ddp.patches import engine, record, registry
from robomimic_ddp.patches.host import hosts
from robomimic_ddp.patches.syntax.python import api_names
from robomimic_ddp.training import session
from robomimic_ddp.training.epoch import epoch_log
from robomimic_ddp.training.run_directory import run_directory
from tests.hosts import Host, python
from tests.patches.support import write_host
from tests.processes import rank_variables

UTILS = "utils/train_utils.py"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("# import robomimic_ddp.api as DDPUtils\n", None),
        ("import robomimic_ddp.api as DDPUtils\n", set()),
        ("import robomimic_ddp.api as D\nx = D.save  # D.ask\n", {"save"}),
        ("from robomimic_ddp import api\n@api.ask\ndef f(): pass\n", {"ask"}),
        ("from robomimic_ddp.api import save\n", {"save"}),
        ("import robomimic_ddp.api as DDPUtils\n<<<<<<< HEAD\n", None),
    ],
)
def test_names_that_a_file_uses(text, names):
    assert host_edits.api_names(text) == names
    # What `apply` has recorded is compared with that: two readers, since neither side imports the
    # other's.
    assert set(api_names(text.encode())) == (names or set())


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A patched host of which two modules are loaded; its package folder."""
    package = write_host(tmp_path, package="half_host")
    record.apply(engine.examine(hosts.find_host(str(package)), registry.select()))
    (package / UTILS).write_text((package / UTILS).read_text().replace("import robomimic\n", ""))
    monkeypatch.syspath_prepend(tmp_path)
    yield package
    for name in [name for name in sys.modules if name.startswith("half_host")]:
        del sys.modules[name]


def lost(package) -> dict:
    importlib.invalidate_caches()
    for name in ("half_host", "half_host.utils.train_utils"):
        importlib.import_module(name)
    found = host_edits.lost(host_edits.package_folder("half_host"))
    return {path[len(str(package)) + 1 :]: names for path, names in found.items()}


def test_nothing_is_lost_of_a_patched_host_that_the_user_edits(host):
    with (host / UTILS).open("a") as file:
        file.write("mine = 1\n")
    assert lost(host) == {}


def test_a_file_that_was_put_back(host):
    entries = record.load(host)
    plain = entries[UTILS].original.replace(b"import robomimic\n", b"")
    (host / UTILS).write_bytes(plain)
    found = lost(host)
    assert found == {UTILS: ["ask", "epoch_log", "main_rank_only", "run_directory", "save"]}
    message = host_edits.half_patched(found)
    assert f"{UTILS} lacks DDPUtils.ask, " in message and "robomimic-ddp apply" in message


def test_one_line_that_was_lost(host):
    text = (host / UTILS).read_text()
    (host / UTILS).write_text(text.replace("@DDPUtils.epoch_log", "# @DDPUtils.epoch_log"))
    assert lost(host) == {UTILS: ["epoch_log"]}


def test_files_that_are_not_loaded_do_not_matter(host):
    (host / "utils/torch_utils.py").write_text("")
    assert lost(host) == {}


@pytest.mark.parametrize("damaged", ["[]", '{"files": {"a": 1}}'])
def test_damaged_records_are_left_to_status(host, damaged):
    (host / UTILS).write_text("x = 1\n")
    (host / host_edits.RECORD).write_text(damaged)
    assert lost(host) == {}


@pytest.fixture
def launched(monkeypatch):
    """Sets the launcher's variables of one of two ranks."""

    def launch(rank: int) -> None:
        for name, text in rank_variables(rank, 2).items():
            monkeypatch.setenv(name, text)

    return launch


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("decorate", [run_directory, epoch_log])
def test_several_ranks_train_nothing_without_a_patched_script(rank, decorate, launched):
    launched(rank)
    made = []
    with pytest.raises(UnpatchedScript) as refused:
        decorate(lambda: made.append(1))()
    assert made == [] and not isinstance(refused.value, Exception)
    message = str(refused.value.code)
    assert ("without @DDPUtils.distributed" in message) == (rank == 0)
    assert rank or f"{__file__}:" in message and "robomimic-ddp status" in message


def test_an_unpatched_script_may_train_on_one_rank_and_validate_on_several(launched):
    def run_epoch(model, validate=False):
        return validate

    assert epoch_log(run_epoch)(None) is False
    launched(0)
    assert epoch_log(run_epoch)(None, validate=True) is True


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("by_name", [True, False])
def test_a_patched_script_with_the_run_epoch_of_an_unpatched_package(rank, by_name, launched):
    utils = ModuleType("utils")
    exec("def run_epoch(model):\n    pass\n", vars(utils))
    host = {"TrainUtils": utils} if not by_name else {"run_epoch": utils.run_epoch}
    call = "run_epoch" if by_name else "TrainUtils.run_epoch"
    exec(f"def train(config, device):\n    {call}(config)\n", host)
    launched(rank)
    with pytest.raises(UnpatchedScript) as refused:
        session.distributed(host["train"])(SimpleNamespace(experiment={}), "cpu")
    message = str(refused.value.code)
    assert ("`robomimic-ddp apply` on that package, too" in message) == (rank == 0)
    vars(utils)["run_epoch"] = epoch_log(utils.run_epoch)
    host.update((name, utils.run_epoch) for name in host if name == "run_epoch")
    host_edits.require_patched_epoch(host["train"])


def test_script_and_helpers_put_back_together(tmp_path):
    """Nothing of ours runs in either; an import of what is still patched says it, at once."""
    host = write_host(tmp_path)
    script, plain = host / "scripts/train.py", (host / UTILS).read_text()
    text = "import robomimic.utils.torch_utils\n" + script.read_text()
    script.write_text(text)
    record.apply(engine.examine(hosts.find_host(str(host)), registry.select()))
    script.write_text("print('began')\n" + text)
    (host / UTILS).write_text(plain)
    done = python(Host(tmp_path), "robomimic.scripts.train", added=rank_variables(0, 2))
    assert (done.returncode, done.stdout) == (1, "began\n"), done
    assert f"{script} lacks DDPUtils." in done.stderr and "Traceback" not in done.stderr
