"""doctor's checks, each with a machine that is well and one that is not."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import socket
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from robomimic_ddp import API_VERSION
from robomimic_ddp.commands.doctor import command, machine, round_trip, software
from robomimic_ddp.commands.doctor.findings import FAIL, OK, WARN, Context
from robomimic_ddp.commands.doctor.probe import probe
from robomimic_ddp.config.launch_env import LaunchEnv
from robomimic_ddp.distributed import group
from tests.patches.support import write_host

ROOT = Path(__file__).resolve().parents[2]
GIB = 2**30
GOOD_TORCH = {"version": "2.12.1", "cuda_build": "13.0", "gloo": True, "nccl": True, "gpus": []}


def gpu(name="H200", free=130, **changes):
    return {"name": name, "memory": 140 * GIB, "free": free * GIB, **changes}


def context(variables=None, ranks=None, packages=None, **torch):
    probed = dict.fromkeys(command.PROBED, {})
    return Context(
        variables or {}, {**probed, "torch": {**GOOD_TORCH, **torch}, **(packages or {})}, ranks
    )


def worst(findings):
    """(level, text) of the worst finding."""
    finding = max(findings, key=lambda finding: (OK, WARN, FAIL).index(finding.level))
    assert finding.level == OK or finding.remedy, f"no remedy: {finding}"
    return finding.level, f"{finding.message} -> {finding.remedy}"


def test_packages_that_hosts_need(monkeypatch):
    assert worst(software.check_versions(context()))[0] == OK
    monkeypatch.setattr(software, "version", lambda name: None)
    level, text = worst(software.check_versions(context()))
    assert level == WARN and "Hosts need it" in text
    assert worst(software.check_rlds(context()))[0] == OK


@pytest.mark.parametrize(
    "torch, level, words",
    [
        ({}, OK, "torch 2.12.1"),
        ({"error": "OSError: libcudart.so.12"}, FAIL, "libcudart.so.12"),
        ({"version": "2.0.0+cu117"}, FAIL, "2.0.1 or later"),
        ({"error": "RuntimeError: Numpy is not available"}, FAIL, "numpy<2"),
        ({"packages": {"torchvision": {"error": "operator torchvision::nms"}}}, FAIL, "(N + 15)"),
        ({"gloo": False}, FAIL, "gloo is missing"),
        ({"nccl": False}, OK, "with gloo"),
        ({"nccl": False, "gpus": [gpu()]}, WARN, "a Linux build of torch"),
    ],
)
def test_torch(torch, level, words):
    found = worst(software.check_torch(context(**torch)))
    assert found[0] == level and words in found[1]


@pytest.mark.parametrize(
    "answer, level, words",
    [
        ({"version": "4.9.10", "resized": "numba"}, OK, "frames resized by numba"),
        ({"version": "4.9.10", "resized": "numpy"}, WARN, "several times faster"),
        ({"error": "No module named 'simplejpeg'"}, WARN, "'.[rlds]'"),
    ],
)
def test_rlds(answer, level, words, monkeypatch):
    monkeypatch.setattr(software, "version", lambda name: "4.9.10")
    found = worst(software.check_rlds(context(packages={"tensorflow_datasets": answer})))
    assert found[0] == level and words in found[1]


@pytest.mark.parametrize(
    "gpus, level, words",
    [
        ([gpu(), gpu()], OK, "130.0 of 140.0 GiB free"),
        ([gpu(), gpu(free=10)], WARN, "Other processes"),
        ([gpu(), gpu("A100")], WARN, "different kinds"),
        ([gpu(error="CUDA error: unspecified launch failure")], FAIL, "unspecified"),
        ([], OK, "runs on the CPU"),
    ],
)
def test_gpus(gpus, level, words):
    found = worst(machine.check_gpus(context(gpus=gpus)))
    assert found[0] == level and words in found[1]


OLD_DRIVER = "The NVIDIA driver on your system is too old (found version 11040)"


@pytest.mark.parametrize(
    "visible, torch, words",
    [
        (None, {"cuda_error": OLD_DRIVER}, (OLD_DRIVER, "not newer than the driver's")),
        (None, {}, ("a build without CUDA",)),
        ("-1", {"cuda_error": "No CUDA GPUs are available"}, ("'-1' hides them", "-> Unset")),
    ],
)
def test_gpus_that_torch_does_not_see(visible, torch, words, node_with):
    node_with(1)
    variables = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    level, text = worst(machine.check_gpus(context(variables, **torch)))
    assert level == FAIL and all(word in text for word in words), text


@pytest.mark.parametrize(("least", "level"), [(1, OK), (2**62, WARN)])
def test_shared_memory(least, level, monkeypatch):
    monkeypatch.setattr(machine, "LEAST_SHARED_MEMORY", least)
    found = worst(machine.check_shared_memory(context()))
    assert found[0] == level and ("--shm-size=16g or --ipc=host" in found[1]) == (level == WARN)


@pytest.mark.parametrize(
    "ranks, level, words",
    [
        (4, OK, "room for 1 data worker(s) each (HDF5)"),
        (8, OK, "room for 0"),
        (9, WARN, "most 8 ranks"),
    ],
)
def test_cores(ranks, level, words, monkeypatch):
    monkeypatch.setattr(machine.machine, "usable_cores", lambda: 8)
    found = worst(machine.check_cores(context(ranks=ranks)))
    assert found[0] == level and words in found[1]


def test_a_network_that_does_not_know_itself(monkeypatch):
    def broken(*_, **__):
        raise OSError("no route")

    monkeypatch.setattr(machine.socket, "getaddrinfo", broken)
    level, text = worst(machine.check_network(context()))
    assert "cannot connect to itself" in text or "does not resolve" in text
    monkeypatch.setattr(machine.socket, "create_connection", broken)
    level, text = worst(machine.check_network(context()))
    assert level == FAIL and "firewall" in text


@pytest.mark.parametrize(
    "name, good, bad",
    [
        ("MASTER_PORT", "", ("abc", "70000")),
        ("MASTER_ADDR", "127.0.0.1", ("no..name", "no such host")),
        ("NCCL_SOCKET_IFNAME", "^docker,nosuch", ("nosuch7",)),
        ("GLOO_SOCKET_IFNAME", "lo", ("nosuch7",)),
    ],
)
def test_where_ranks_meet(name, good, bad):
    assert worst(machine.check_network(context({name: good})))[0] != FAIL
    for text in bad:
        findings = machine.check_network(context({name: text}))
        (finding,) = [finding for finding in findings if finding.level == FAIL]
        assert f"{name}={text}" in finding.message and "unset" in finding.remedy.lower()


def test_a_port_that_is_taken():
    with socket.create_server(("", 0)) as server:
        port = str(server.getsockname()[1])
        level, text = worst(machine.check_network(context({"MASTER_PORT": port})))
    assert level == FAIL and "Address already in use" in text


@pytest.mark.parametrize(
    "variables, level, words",
    [
        ({}, OK, ""),
        ({"NCCL_P2P_DISABLE": "0"}, OK, ""),
        ({"NCCL_P2P_DISABLE": "1"}, WARN, "Unset NCCL_P2P_DISABLE"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, WARN, "every launch"),
        ({"RANK": "0"}, FAIL, "but not WORLD_SIZE"),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, WARN, "Unset them"),
        ({"ROBOMIMIC_DDP_LR_SCALNG": "sqrt"}, FAIL, "LR_SCALING"),
    ],
)
def test_variables(variables, level, words):
    found = worst(machine.check_variables(context(variables)))
    assert found[0] == level and words in found[1]


UNEDITED = '"""See robomimic_ddp.api."""\n# import robomimic_ddp.api as D, api_version=1\n'
EDITED = "from robomimic_ddp import api\n@api.entry_point(api_version={})\ndef f(): 0\n"


@pytest.mark.parametrize(
    "script, level, words",
    [
        (UNEDITED, WARN, "robomimic-ddp apply"),
        (EDITED.format(API_VERSION), OK, f"(1 files, API {API_VERSION})"),
        (EDITED.format(API_VERSION + 1), FAIL, "this host was patched for API version 2 of"),
        ("from robomimic_ddp import api\n", FAIL, "no script is an entry point"),
    ],
)
def test_host(script, level, words, tmp_path, monkeypatch):
    write_host(tmp_path, files={"__init__.py": "", "scripts/train.py": script})
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "robomimic", raising=False)
    found = worst(software.check_host(context()))
    assert found[0] == level and words in found[1] and f"{tmp_path}/robomimic" in found[1]


def test_a_host_that_cannot_be_read(tmp_path, monkeypatch):
    """It is not a fault of ours to report."""
    package_in(tmp_path, "robomimic", "")
    (tmp_path / "robomimic" / "scripts").mkdir()
    with open(tmp_path / "robomimic" / "scripts" / "train.py", "wb") as file:
        file.truncate(2**30)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "robomimic", raising=False)
    level, text = worst(software.check_host(context()))
    assert level == FAIL and "the host cannot be read: " in text and "train.py" in text


def test_a_current_folder_that_was_removed(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert worst(software.check_host(context()))[0] == FAIL


def package_in(folder, name, text):
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(text)


def test_the_command_runs_every_check_where_torch_is_broken(tmp_path):
    package_in(tmp_path, "torch", "raise OSError('libcudart.so: cannot open')")
    done = subprocess.run(
        [sys.executable, "-m", "robomimic_ddp", "doctor", "--json"],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    findings = {item["check"]: item for item in json.loads(done.stdout)}
    assert findings["torch"]["level"] == "fail"
    assert "libcudart.so" in findings["torch"]["message"]
    assert {"versions", "rlds", "shared memory", "cores", "network", "host"} <= findings.keys()


def found_by(check, package, folder, monkeypatch):
    """(level, text) of the worst that the check says of the package as `folder` has it."""
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{ROOT}")
    return worst(check(context(packages={package: probe(package)})))


@pytest.mark.parametrize(
    "package, text, check, words",
    [
        ("torch", "import os; os.kill(os.getpid(), 11)", software.check_torch, "exit code -11"),
        (
            "torch",
            "import os; os.write(2, bytes([255])); os._exit(3)",  # not UTF-8
            software.check_torch,
            "\N{REPLACEMENT CHARACTER} (exit code 3)",
        ),
        (
            "diffusers",
            "raise ImportError(\"cannot import name 'cached_download' from 'huggingface_hub'\")",
            software.check_versions,
            "hub<0.26",
        ),
        ("torch", "raise OSError(24, 'Too many open files')", software.check_torch, "ulimit -n"),
    ],
)
def test_a_package_that_cannot_be_imported_is_a_finding(
    package, text, check, words, tmp_path, monkeypatch
):
    package_in(tmp_path, package, text)
    level, said = found_by(check, package, tmp_path, monkeypatch)
    assert level == FAIL and words in said


def test_a_host_that_lacks_a_package(tmp_path, monkeypatch):
    package_in(tmp_path, "robomimic", "import of_the_lab")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "robomimic", raising=False)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    probed = {software.HOST: probe(software.HOST), "tensorflow_datasets": {"error": "none here"}}
    assert worst(software.check_host(context(packages=probed)))[0] != FAIL, "apply may mend it"
    (tmp_path / "robomimic/scripts").mkdir()
    (tmp_path / "robomimic/scripts/train.py").write_text(EDITED.format(API_VERSION))
    level, said = worst(software.check_host(context(packages=probed)))
    assert level == FAIL and "No module named 'of_the_lab'" in said and "Install what it" in said
    assert software.HOST in command.PROBED
    probed["torch"] = {"error": "libcudart.so"}
    assert worst(software.check_host(context(packages=probed)))[0] != FAIL, "torch's fault"


def test_a_package_whose_import_takes_long_need_not_be_installed_again(tmp_path, monkeypatch):
    package_in(tmp_path, "torch", "import time; time.sleep(60)")
    monkeypatch.setattr("robomimic_ddp.config.machine._PATIENCE_SECONDS", 1)
    level, said = found_by(software.check_torch, "torch", tmp_path, monkeypatch)
    assert level == FAIL and "gave no answer within 1 s" in said and "run doctor again" in said


def test_tensorflow_need_not_be_installed(monkeypatch):
    folder = ROOT / "tests" / "without_tensorflow"
    alone = {"PYTHONPATH": str(folder)}
    done = subprocess.run([sys.executable, "-c", "import tensorflow"], env=alone, check=False)
    assert done.returncode == 1
    level, said = found_by(software.check_rlds, "tensorflow_datasets", folder, monkeypatch)
    assert level == OK and "frames resized by numba" in said and "ensorflow is" not in said


def test_a_torchvision_of_another_torch_is_a_finding(tmp_path, monkeypatch):
    """Its Python files without the compiled library that fits: as after a wrong pip install."""
    shutil.copytree(
        Path(importlib.util.find_spec("torchvision").origin).parent,
        tmp_path / "torchvision",
        ignore=lambda _, names: [name for name in names if ".so" in name],
    )
    level, said = found_by(software.check_torch, "torchvision", tmp_path, monkeypatch)
    assert level == FAIL and "operator torchvision::nms does not exist" in said


def test_a_check_that_breaks_hides_no_other(monkeypatch):
    def check_odd(_):
        raise ValueError("odd machine")

    monkeypatch.setattr(command, "CHECKS", (check_odd, machine.check_variables))
    monkeypatch.setattr(command, "probe", lambda package: {})
    odd, others = command.examine()
    assert (odd.check, odd.level, others.level) == ("odd", WARN, OK)
    assert "odd machine" in odd.message


@pytest.mark.timeout(200)
def test_two_real_ranks(monkeypatch):
    output_of = round_trip.machine.output_of

    def small(*command, **options):
        return output_of(*command[:-1], "tests.commands.small_round_trip", **options)

    monkeypatch.setattr(round_trip.machine, "output_of", small)
    (finding,) = round_trip.check_ranks(context(ranks=2))
    assert finding.level == OK, finding
    assert re.search(r"over gloo: round trip [\d.]+ ms, all-reduce of 4 MB", finding.message)


@pytest.mark.parametrize("ranks, sum_of_ranks, is_right", [(999, 999, True), (65, 64, False)])
def test_the_sum_of_many_ranks_is_checked(ranks, sum_of_ranks, is_right, monkeypatch, capsys):
    monkeypatch.setattr(round_trip, "PARAMETERS", 100)
    monkeypatch.setattr(round_trip.launch_env, "read_launch_env", lambda: LaunchEnv(True, 0, ranks))
    monkeypatch.setattr(group, "process_group", lambda *_, **__: nullcontext())
    monkeypatch.setattr(group, "barrier", lambda: None)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("torch.distributed.all_reduce", lambda ones: ones.mul_(sum_of_ranks))
    with nullcontext() if is_right else pytest.raises(RuntimeError, match="gave 64.0, expected 65"):
        round_trip.measure()
    assert ("all-reduce of" in capsys.readouterr().out) == is_right


def test_ranks_that_cannot_meet(monkeypatch):
    text = "RuntimeError: Unable to find address for: nosuch7\ntorch.distributed.elastic: ..."
    monkeypatch.setattr(round_trip.machine, "output_of", lambda *_, **__: (1, text))
    level, said = worst(round_trip.check_ranks(context(ranks=1)))
    assert level == FAIL and "the job of 1 rank(s) ended with exit code 1" in said
    assert "nosuch7" in said and "elastic" not in said


@pytest.mark.parametrize(
    "torch, ranks, words",
    [
        ({"error": "No module named 'torch'"}, 3, "no rank was started"),
        ({"gpus": [gpu(), gpu()]}, 3, "Use at most 2 ranks"),
        ({}, 99999, "--ranks 99999 with 0 visible GPU(s)"),
    ],
)
def test_ranks_that_cannot_be_started(torch, ranks, words):
    level, text = worst(round_trip.check_ranks(context(ranks=ranks, **torch)))
    assert level == FAIL and words in text
