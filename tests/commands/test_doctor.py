"""doctor's checks, each with a machine that is well and one that is not."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from robomimic_ddp import API_VERSION
from robomimic_ddp.commands.doctor import (
    command,
    findings,
    job,
    machine,
    network,
    ranks,
    settings,
    software,
)
from robomimic_ddp.commands.doctor.findings import FAIL, OK, WARN, Context

ROOT = Path(__file__).resolve().parents[2]
GIB = 2**30
GOOD_TORCH = {
    "version": "2.12.1",
    "cuda_build": "13.0",
    "driver_cuda": None,
    "distributed": True,
    "gloo": True,
    "nccl": True,
    "torchvision": None,
    "gpus": [],
}


def gpu(name="H200", free=130, **more):
    return {"name": name, "memory": 140 * GIB, "free": free * GIB, "peers": [1], **more}


def context(variables=None, config=None, ranks=None, **torch):
    return Context(variables or {}, {**GOOD_TORCH, **torch}, ranks, None, config)


def worst(findings):
    """(level, text) of the worst finding."""
    ordered = sorted(findings, key=lambda finding: (OK, WARN, FAIL).index(finding.level))
    last = ordered[-1]
    assert last.level == OK or last.remedy, f"no remedy: {last}"
    return last.level, f"{last.found} -> {last.remedy}"


@pytest.mark.parametrize(
    "installed, level, words",
    [
        ({"torch": "2.12.1+cu130", "torchvision": "0.27.1", "numpy": "2.4"}, OK, ""),
        ({"torch": "2.0.1", "torchvision": "0.15.2", "numpy": "1.26"}, OK, ""),
        ({"torch": "2.13.0", "torchvision": "0.27.1"}, FAIL, "torchvision==0.28"),
        ({"torch": "2.0.1", "numpy": "2.1.0"}, FAIL, "numpy<2"),
        ({"torch": "1.13.1"}, FAIL, "2.0.1 or later"),
        ({"torch": "2.0.0+cu117", "torchvision": "0.15.1"}, FAIL, "2.0.1 or later"),
        ({"torch": "2.1.0", "torchvision": "0.16"}, OK, ""),
        ({"diffusers": "0.11.1", "huggingface_hub": "0.35.3"}, FAIL, "huggingface_hub<0.26"),
        ({"diffusers": "0.11.1", "huggingface_hub": "0.23.4"}, OK, ""),
        ({"diffusers": "0.28.2", "huggingface_hub": "0.26.0"}, FAIL, "huggingface_hub<0.26"),
        ({"diffusers": "0.29.2", "huggingface_hub": "0.26.0"}, OK, ""),
        ({"tensorflow": "2.15.1", "numpy": "2.0.2"}, FAIL, "TensorFlow 2.18"),
        ({"tensorflow-cpu": "2.15.1", "numpy": "1.26.4"}, OK, ""),
        ({"tensorflow-cpu": "2.21.0", "numpy": "2.4.6"}, OK, ""),
        ({}, OK, ""),
    ],
)
def test_pairs_of_versions(installed, level, words):
    found = list(software.bad_pairs(installed))
    assert bool(found) == (level == FAIL)
    assert not found or words in worst(found)[1]


@pytest.mark.parametrize(
    "torch, level, words",
    [
        ({}, OK, "torch 2.12.1"),
        ({"error": "ModuleNotFoundError: No module named 'torch'"}, FAIL, "not installed"),
        ({"error": "OSError: libcudart.so.12"}, FAIL, "libcudart.so.12"),
        ({"torchvision": "RuntimeError: operator torchvision::nms"}, FAIL, "nms"),
        ({"gloo": False}, FAIL, "gloo"),
    ],
)
def test_torch(torch, level, words):
    found = worst(software.check_torch(context(**torch)))
    assert found[0] == level and words in found[1]


@pytest.mark.parametrize(
    "gpus, level, words",
    [
        ([gpu(), gpu()], OK, "130.0 of 140.0 GiB free"),
        ([gpu(), gpu(free=10)], WARN, "Other processes"),
        ([gpu(), gpu("A100")], WARN, "different kinds"),
        ([gpu(peers=[]), gpu()], WARN, "peer access"),
        ([gpu(error="CUDA error: unspecified launch failure")], FAIL, "unspecified"),
        ([], OK, "runs on the CPU"),
    ],
)
def test_gpus(gpus, level, words):
    found = worst(machine.check_gpus(context(gpus=gpus)))
    assert found[0] == level and words in found[1]


@pytest.mark.parametrize(
    "build, driver, level",
    [
        ("12.4", "12.2", OK),
        ("12.4", "13.0", OK),
        ("13.0", "12.8", FAIL),
        (None, "12.8", None),
        ("13.0", None, None),
    ],
)
def test_cuda_of_torch_and_of_the_driver(build, driver, level):
    found = list(machine.check_driver(context(cuda_build=build, driver_cuda=driver)))
    assert [one.level for one in found] == ([] if level is None else [level])
    assert level != FAIL or "CUDA 13.0, the driver knows CUDA 12.8" in worst(found)[1]


def test_other_processes_on_the_gpus(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\ncase "$1" in --query-compute*) echo "4711, 900 MiB";; esac\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    level, text = worst(machine.check_gpus(context(gpus=[gpu(), gpu()])))
    assert level == WARN and "other processes" in text and "4711, 900 MiB" in text


def test_an_old_python_and_packages_that_are_not_there(monkeypatch):
    monkeypatch.setattr(software.sys, "version_info", (3, 8, 1))
    assert worst(software.check_python(context()))[0] == FAIL
    monkeypatch.setattr(software, "version", lambda name: None)
    level, text = worst(software.check_packages(context()))
    assert level == WARN and "Hosts need it" in text


@pytest.mark.parametrize(
    "answer, level, words",
    [
        ({"gpus": 0, "version": "2.21.0"}, OK, "sees 0 GPU(s)"),
        ({"gpus": 2, "version": "2.21.0"}, FAIL, "tensorflow-cpu"),
        ({"error": "No module named 'tensorflow'"}, FAIL, "'.[rlds]'"),
    ],
)
def test_tensorflow_is_started_for_data_that_it_reads(answer, level, words, monkeypatch):
    monkeypatch.setattr(software, "probe", lambda package: answer)
    config = {"train": {"data_format": "droid_rlds"}}
    found = worst(software.check_tensorflow(context(config=config, gpus=[gpu()])))
    assert found[0] == level and words in found[1]
    assert not list(software.check_tensorflow(context(config={"train": {}})))
    monkeypatch.setattr(software, "version", lambda name: "2.21.0")
    assert worst(software.check_tensorflow(context(gpus=[gpu()])))[0] == OK


def test_the_rlds_loaders_tensorflow_sees_no_gpu():
    pytest.importorskip("tensorflow_datasets", reason="the extra [rlds] is not installed")
    assert findings.probe("tensorflow")["gpus"] == 0


def test_gpus_that_torch_does_not_see(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho GPU 0: H200\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    old = "The NVIDIA driver on your system is too old (found version 11040)"
    level, text = worst(machine.check_gpus(context(warnings=[old])))
    assert level == FAIL and old in text
    level, text = worst(machine.check_gpus(context({"CUDA_VISIBLE_DEVICES": ""})))
    assert level == FAIL and "hides them" in text
    for hidden in ("", "-1"):
        none = {"cuda_error": "No CUDA GPUs are available"}
        found = machine.check_gpus(context({"CUDA_VISIBLE_DEVICES": hidden}, **none))
        level, text = worst(found)
        assert level == FAIL and f"{hidden!r} hides them" in text
        assert "-> unset CUDA_VISIBLE_DEVICES" in text and "Install" not in text


def test_backends():
    assert worst(machine.check_backends(context(gpus=[gpu()])))[0] == OK
    assert worst(machine.check_backends(context(gpus=[gpu()], nccl=False)))[0] == WARN


def test_small_shared_memory_limits_and_disk(monkeypatch, tmp_path):
    config = {"train": {"output_dir": str(tmp_path / "not" / "made" / "yet")}}
    checks = {
        "_LEAST_SHARED_MEMORY": machine.check_shared_memory,
        "_LEAST_OPEN_FILES": machine.check_limits,
        "_LEAST_DISK": machine.check_disk,
    }
    for name, check in checks.items():
        for least, level in ((1, OK), (2**62, WARN)):
            monkeypatch.setattr(machine, name, least)
            assert worst(check(context(config=config)))[0] == level, name


def test_a_disk_that_may_not_be_written(monkeypatch, tmp_path):
    monkeypatch.setattr(machine.os, "access", lambda path, mode: False)  # root may write anywhere
    level, text = worst(machine.check_disk(context(config={"train": {"output_dir": "~/x"}})))
    assert level == FAIL and "not writable" in text


def test_a_small_shared_memory_in_a_container(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "CONTAINER", tmp_path)
    monkeypatch.setattr(machine, "_LEAST_SHARED_MEMORY", 2**62)
    level, text = worst(machine.check_shared_memory(context()))
    assert level == WARN and "--shm-size" in text and "--ipc=host" in text


def test_cores(monkeypatch):
    monkeypatch.setattr(machine.machine, "usable_cores", lambda: 8)
    for workers, level in ((1, OK), (2, WARN)):
        config = {"train": {"num_data_workers": workers}}
        assert worst(machine.check_cores(context(config=config, ranks=4)))[0] == level


@pytest.mark.parametrize(
    "gpus, level, words",
    [
        ([], OK, "with FSDP over 2 ranks"),
        ([gpu(), gpu()], OK, "is not needed"),
        ([gpu(), {**gpu(), "memory": 2 * GIB}], WARN, "is worth it"),
    ],
)
def test_memory_of_a_policy(gpus, level, words):
    found = worst(machine.check_memory(context(gpus=gpus)))
    assert found[0] == level and words in found[1]
    assert found[1].startswith("67 M parameters x 20 bytes")


@pytest.mark.parametrize(
    "file, variable, level, words",
    [
        ({}, "3", WARN, "3 data worker(s) each -> Use at most 1 ddp.workers"),
        ({"workers": 3}, "1", OK, "1 data worker(s)"),
        ({"workers": "auto"}, None, OK, "1 data worker(s)"),
        ({}, None, WARN, "9 data worker(s) each -> Use at most 1 train.num_data_workers"),
    ],
)
def test_cores_for_the_workers_of_the_options(file, variable, level, words, monkeypatch):
    monkeypatch.setattr(machine.machine, "usable_cores", lambda: 8)
    config = {"train": {"num_data_workers": 9}, "ddp": file}
    variables = {"ROBOMIMIC_DDP_WORKERS": variable} if variable else {}
    found = worst(machine.check_cores(context(variables, config, ranks=4)))
    assert found[0] == level and words in found[1]


def test_a_network_that_does_not_know_itself(monkeypatch, tmp_path):
    def broken(*_, **__):
        raise OSError("no route")

    known = socket.getaddrinfo
    monkeypatch.setattr(
        network.socket,
        "getaddrinfo",
        lambda host, *more, **kw: (known if host == "127.0.0.1" else broken)(host, *more, **kw),
    )
    level, text = worst(network.check_network(context()))
    assert level == WARN and "does not resolve" in text and "/etc/hosts" in text
    monkeypatch.setattr(network, "CONTAINER", tmp_path)
    monkeypatch.setattr(network.socket, "create_connection", broken)
    found = list(network.check_network(context()))
    assert worst(found)[0] == FAIL and "firewall" in worst(found)[1]
    assert any("network_mode: host" in one.found for one in found)


def test_network():
    assert worst(network.check_network(context()))[0] in (OK, WARN)
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        level, text = worst(network.check_network(context({variable: "nosuch7"})))
        assert level == FAIL and f"{variable}=nosuch7 names no interface" in text
    level, _ = worst(network.check_network(context({"NCCL_SOCKET_IFNAME": "^docker,nosuch"})))
    assert level != FAIL
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        level, text = worst(network.check_network(context({"MASTER_PORT": port})))
        assert level == FAIL and "Address already in use" in text


@pytest.mark.parametrize(
    "name, good, bad, words",
    [
        ("MASTER_PORT", "", ("abc", "-1", "70000"), "Unset it"),
        ("MASTER_ADDR", "127.0.0.1", ("no..name", "no such host"), "does not resolve"),
    ],
)
def test_where_ranks_meet(name, good, bad, words):
    assert not [one for one in network.check_network(context({name: good})) if one.level == FAIL]
    for text in bad:
        found = [one for one in network.check_network(context({name: text})) if one.level == FAIL]
        assert len(found) == 1 and f"{name}={text}" in found[0].found, found
        assert words in f"{found[0].found} {found[0].remedy}"


@pytest.mark.parametrize(
    "variables, level, words",
    [
        ({}, OK, ""),
        ({"NCCL_P2P_DISABLE": "0"}, OK, ""),
        ({"NCCL_P2P_DISABLE": "1"}, WARN, "unset NCCL_P2P_DISABLE"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, WARN, "every kernel"),
        ({"RANK": "0"}, FAIL, "but not WORLD_SIZE"),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, WARN, "unset them"),
        ({"ROBOMIMIC_DDP_LR_SCALNG": "sqrt"}, FAIL, "LR_SCALING"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, OK, ""),
        ({"CUDA_VISIBLE_DEVICES": "0,7"}, WARN, "names 2 device(s), torch sees 0"),
        ({"OMP_NUM_THREADS": "4,2"}, OK, ""),
        ({"OMP_NUM_THREADS": "abc"}, WARN, "OMP_NUM_THREADS=abc"),
        ({"OMP_NUM_THREADS": "0"}, WARN, "OMP_NUM_THREADS=0"),
        ({"NCCL_IB_DISABLE": "1"}, WARN, "unset NCCL_IB_DISABLE"),
        ({"NCCL_P2P_LEVEL": "SYS"}, WARN, "unset NCCL_P2P_LEVEL"),
    ],
)
def test_variables(variables, level, words):
    found = worst(settings.check_variables(context(variables)))
    assert found[0] == level and words in found[1]


def test_host(tmp_path, monkeypatch):
    package = tmp_path / "robomimic"
    (package / "scripts").mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "robomimic", raising=False)
    script = package / "scripts" / "train.py"
    script.write_text("def main(args): pass\n")
    level, text = worst(settings.check_host(context()))
    assert level == WARN and f"robomimic-ddp apply {tmp_path}" in text and "(installed)" in text
    script.write_text(
        '"""See robomimic_ddp.api."""\n# import robomimic_ddp.api as D, api_version=1\n'
    )
    assert worst(settings.check_host(context()))[0] == WARN
    for version, expected in ((API_VERSION, OK), (API_VERSION + 1, FAIL)):
        script.write_text(
            f"import robomimic_ddp.api as D\n@D.entry_point(api_version={version})\ndef f(): 0\n"
        )
        assert worst(settings.check_host(context()))[0] == expected
    script.write_text(
        f"from robomimic_ddp import api\n@api.entry_point(api_version={API_VERSION})\ndef f(): 0\n"
    )
    assert worst(settings.check_host(context()))[0] == OK


def test_the_host_in_the_current_folder_is_the_one_that_torchrun_trains(tmp_path, monkeypatch):
    installed, checkout = tmp_path / "installed", tmp_path / "checkout"
    for folder in (installed, checkout):
        (folder / "robomimic").mkdir(parents=True)
        (folder / "robomimic" / "__init__.py").write_text("print(__file__)")
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.delitem(sys.modules, "robomimic", raising=False)
    for folder, package, where in (
        (checkout, checkout, "in the current folder"),
        (tmp_path, installed, "installed"),
    ):
        monkeypatch.chdir(folder)
        _, text = worst(settings.check_host(context()))
        assert f"{package / 'robomimic'} ({where})" in text
        started = subprocess.run(
            [sys.executable, "-m", "robomimic.none"],
            env={"PYTHONPATH": str(installed)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert started.stdout.strip() == str(package / "robomimic" / "__init__.py")


@pytest.mark.parametrize(
    "train, ddp, level, words",
    [
        ({"batch_size": 8}, {}, OK, "8 samples per rank x 3 = 24"),
        ({"batch_size": 8}, {"batch": "global"}, FAIL, "6 or 9"),
        ({"batch_size": 8}, {"bacth": "global"}, FAIL, "batch"),
        ({"batch_size": 8, "data": "/no/such.hdf5"}, {}, FAIL, "/no/such.hdf5"),
        ({"batch_size": 8, "data": [{"path": __file__}]}, {}, FAIL, "has no robomimic data"),
        ({"batch_size": 8, "data": ["/no/such.hdf5"]}, {}, FAIL, "/no/such.hdf5"),
        ({"data_path": "/no", "dataset_names": ["droid"]}, {}, FAIL, "train.data_path='/no'"),
        ({"data_path": str(ROOT), "dataset_names": ["droid"]}, {}, FAIL, "no dataset 'droid'"),
    ],
)
def test_config(train, ddp, level, words):
    found = worst(job.check_config(context(config={"train": train, "ddp": ddp}, ranks=3)))
    assert found[0] == level and words in found[1]


def test_the_environments_options_count_in_a_jobs_arithmetic():
    config = {"train": {"batch_size": 9}}
    whole = {"ROBOMIMIC_DDP_BATCH": "global"}
    level, text = worst(job.check_config(context(whole, config, ranks=3)))
    assert level == OK and "3 samples per rank x 3 = 9" in text
    level, text = worst(job.check_config(context(whole, config, ranks=2)))
    assert level == FAIL and "8 or 10" in text
    odd = {"ROBOMIMIC_DDP_BATCH": "all"}
    level, text = worst(job.check_config(context(odd, config, ranks=3)))
    assert level == FAIL and "ROBOMIMIC_DDP_BATCH='all'" in text and "environment" in text


@pytest.mark.parametrize(
    "config, words",
    [
        ({"train": [1]}, "train=[1]: expected a section"),
        ({"train": None}, "train=None: expected a section"),
        ({"ddp": [1]}, '"ddp" is [1]; expected a section of options'),
        ({"observation": 3}, "observation=3: expected a section"),
        ({"train": {"num_data_workers": "many"}}, "'many': expected a whole number of at least 0"),
        ({"train": {"frame_stack": "x", "shuffle_buffer_size": 9}}, "train.frame_stack='x'"),
        ({"algo": {"a": {"learning_rate": {"initial": "x"}}}}, "learning_rate.initial='x'"),
        ({"train": {"batch_size": "8"}}, "train.batch_size='8': expected a whole number"),
        ({"train": {"data_path": "x", "dataset_names": 5}}, "train.dataset_names=5"),
        ({"observation": {"modalities": [1]}, "train": {"shuffle_buffer_size": 9}}, ""),
    ],
)
def test_an_odd_config_is_a_finding_of_the_config_and_breaks_no_check(config, words, monkeypatch):
    checks = (machine.check_disk, machine.check_cores, software.check_tensorflow)
    monkeypatch.setattr(command, "CHECKS", (*checks, job.check_config))
    found = list(command.examine(context(config=config)))
    assert not [one for one in found if "check failed" in one.found], found
    failed = [one for one in found if one.level == FAIL]
    assert [one.check for one in failed] == (["config"] if words else [])
    assert not words or words in failed[0].found


def test_data_that_can_be_read(tmp_path):
    h5py = pytest.importorskip("h5py", reason="hosts bring h5py")
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file.create_group("data/demo_0")
    version = tmp_path / "droid" / "1.0.0"
    version.mkdir(parents=True)
    (version / "dataset_info.json").write_text("{}")
    rlds = {"data_path": str(tmp_path), "dataset_names": ["droid"]}
    for train, words in (({"data": str(tmp_path / "a.hdf5")}, "1 episode(s)"), (rlds, "1.0.0")):
        found = list(job.check_config(context(config={"train": train})))
        assert worst(found)[0] == OK and words in found[-1].found
    shutil.copy(tmp_path / "a.hdf5", tmp_path / "b.hdf5")
    os.truncate(tmp_path / "b.hdf5", 600)
    cut = {"train": {"data": [{"path": str(tmp_path / "b.hdf5")}]}}
    assert worst(job.check_config(context(config=cut)))[0] == FAIL


def doctor(*arguments, folder=None, **variables):
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{folder or ''}:{ROOT}", **variables}
    return subprocess.run(
        [sys.executable, "-m", "robomimic_ddp", "doctor", *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "text, words",
    [
        ("raise OSError('libcudart.so: cannot open shared object file')", "libcudart.so"),
        ("import os; os.kill(os.getpid(), 11)", "exit code -11"),
    ],
)
def test_a_broken_torch_is_a_finding(tmp_path, text, words):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(text)
    done = doctor("--json", folder=tmp_path)
    assert done.returncode == 1, done.stderr
    (found,) = [item for item in json.loads(done.stdout) if item["level"] == "fail"]
    assert found["check"] == "torch" and words in found["found"]
    assert "torch cannot say what it sees" in done.stdout


def test_a_torchvision_of_another_torch_is_a_finding(tmp_path):
    """Its Python files without the compiled library that fits: as after a wrong pip install."""
    spec = importlib.util.find_spec("torchvision")
    shutil.copytree(
        Path(spec.origin).parent,
        tmp_path / "torchvision",
        ignore=lambda folder, names: [name for name in names if not name.endswith(".py")],
    )
    done = doctor("--json", folder=tmp_path)
    assert done.returncode == 1, done.stderr
    (found,) = [item for item in json.loads(done.stdout) if item["level"] == "fail"]
    assert "operator torchvision::nms does not exist" in found["found"]
    assert findings.probe("torchvision") == {}


def test_usage(tmp_path):
    wrong = (("--ranks", "0"), ("--parameters", "many"), ("--config", tmp_path / "none.json"))
    for arguments in wrong:
        done = doctor(*arguments)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr


def test_a_check_that_breaks_hides_no_other(monkeypatch):
    def check_odd(_):
        raise ValueError("odd machine")

    monkeypatch.setattr(command, "CHECKS", (check_odd, software.check_python))
    odd, python = command.examine(context())
    assert (odd.check, odd.level, python.level) == ("odd", WARN, OK) and "odd machine" in odd.found


@pytest.mark.timeout(200)
def test_two_real_ranks_and_one_that_cannot_meet_any(monkeypatch):
    (well,) = ranks.check_ranks(context(ranks=2))
    assert well.level == OK and re.search(
        r"over gloo: round trip [\d.]+ ms, all-reduce of 268 MB", well.found
    )
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch7")
    (ill,) = ranks.check_ranks(context(ranks=1))
    assert ill.level == FAIL and "the job of 1 rank(s) ended with 1" in ill.found and ill.remedy


def test_no_ranks_without_torch():
    (found,) = ranks.check_ranks(context(ranks=2, error="No module named 'torch'"))
    assert found.level == FAIL and "none was started" in found.found


def test_more_ranks_than_gpus():
    (found,) = ranks.check_ranks(context(ranks=3, gpus=[gpu(), gpu()]))
    assert found.level == FAIL and "at most 2" in found.remedy
