"""`robomimic-ddp launch`: flags, devices and the torchrun command, without training anything."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousConnectionError

from robomimic_ddp.commands.launch import arguments, devices, quiet_torchrun, torchrun
from robomimic_ddp.config import env
from robomimic_ddp.distributed import rendezvous
from tests.hosts import ROOT, python
from tests.patches.support import write_host
from tests.processes import wait_for

EIGHT = "0,1,2,3,4,5,6,7"
LINEAR = {"ROBOMIMIC_DDP_LR_SCALING": "linear"}
ENTRY = ("--module", "lab.train")
"""A module that is in no host."""


@pytest.fixture
def config(tmp_path):
    def write(**sections):
        path = tmp_path / "cfg.json"
        path.write_text(json.dumps({"algo_name": "x", "train": {"batch_size": 32}, **sections}))
        return str(path)

    return write


@pytest.fixture
def launch(command, monkeypatch):
    """`launch(*words, NAME=value)`: (exit code, stdout, stderr). torchrun is not started: `started`
    lists its commands.
    """
    started = []
    monkeypatch.setattr(env, "become", lambda command, added: started.append((command, added)))

    def run(*words, **variables):
        with monkeypatch.context() as patch:
            for name in (*arguments.VARIABLES, "SLURM_JOB_ID", "PYTHONPATH"):
                patch.delenv(name, raising=False)
            for name, value in {"CUDA_VISIBLE_DEVICES": "", **variables}.items():
                if value is None:
                    patch.delenv(name)
                else:
                    patch.setenv(name, value)
            return command("launch", *words)

    run.started = started
    return run


@pytest.fixture
def printed(launch, config):
    """`printed(*words, **variables)`: torchrun's flags and words, and the variables set for it."""

    def run(*words, path=None, **variables):
        words = ("--config", path or config(), "--dry-run", *words)
        code, out, err = launch(*words, **variables)
        assert code == 0, err
        shown = shlex.split(out.partition("command: ")[2])
        begin = shown.index(sys.executable)
        added = dict(word.split("=", 1) for word in shown[:begin])
        for name in torchrun.signal_settings()[1]:
            added.pop(name)
        return shlex.join(shown[begin + 3 :]), added

    return run


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus", "0,1"], "--gpus: 0,1: expected a whole number from 1"),
        (["--nodes", "2"], "--nodes without --rdzv"),
        (["--rdzv", "h:1"], "--rdzv without --nodes"),
        (["--nodes", "2", "--rdzv", "here"], "HOST:PORT"),
        (["--nodes", "2", "--rdzv", "h:0"], "--rdzv: 0: expected a whole number from 1 to 65535"),
        (["--lr-scaling", "cubic"], "--lr-scaling: cubic: expected none | linear"),
        (["--module", "a b"], "dotted name"),
        (["--", "a=1", "train.batch_size"], "found 'train.batch_size'"),
        (["--", ""], "found ''"),
        (["--", "load_from=b.json"], "'load_from=b.json': the ranks would read that file, and"),
        ([*ENTRY, "--gpus", "4", "--", "ddp.batch=huge"], "per_rank | global"),
    ],
)
def test_what_cannot_be_meant(words, message, launch, config):
    code, out, err = launch("--config", config(), "--dry-run", *words)
    assert code in (1, 2) and not out and message in err
    assert len([line for line in err.splitlines() if line.startswith("robomimic-ddp")]) == 1


@pytest.mark.bad_input
def test_a_wrong_variable_and_a_config_without_its_flag_are_named(launch):
    for name, value in (("NUM_GPUS", "two"), ("LR_SCALING", "cubic"), ("MASTER_PORT", "http")):
        assert f"{name}={value}: expected" in launch("--config", "c", **{name: value})[2]
    assert "set CONFIG_PATH" in launch()[2]
    assert "found the word 'a/cfg.json', write --config a/cfg.json." in launch("a/cfg.json")[2]


@pytest.mark.bad_input
def test_a_config_that_cannot_be_read(launch, config):
    code, _, err = launch("--config", "/no/such.json", "--dry-run")
    assert code == 1 and err.startswith("robomimic-ddp: --config /no/such.json")
    code, _, err = launch("--config", config(), "--dry-run", "--", "ddp.batch='")
    assert code == 1 and "could not be read as key=value" in err


def test_the_four_variables_of_the_guide(printed, config):
    variables = {"LR_SCALING": "sqrt", "MASTER_PORT": "1234", "NUM_GPUS": "2"}
    words, added = printed(*ENTRY, **variables)
    assert "--nproc_per_node=2 --master_addr=127.0.0.1 --master_port=1234" in words
    assert added == {"ROBOMIMIC_DDP_LR_SCALING": "sqrt"}
    flags = ("--lr-scaling", "none", "--port", 4321, "--gpus", 3)
    words, added = printed(*flags, *ENTRY, CONFIG_PATH="other.json", **variables)
    assert "--nproc_per_node=3 --master_addr=127.0.0.1 --master_port=4321" in words
    assert added == {"ROBOMIMIC_DDP_LR_SCALING": "none"} and "other.json" not in words


@pytest.mark.parametrize(
    ("words", "passed"),
    [
        (["--", "+a=1", "~b", "c=[1, 2]"], "+a=1 '~b' 'c=[1, 2]'"),
        ([*ENTRY, "--", "--debug", "x", ""], "--debug x ''"),
    ],
)
def test_words_for_the_entry_are_passed_on(words, passed, printed):
    assert printed(*words)[0].endswith(f"cfg.json {passed}")


@pytest.mark.parametrize(
    ("asked", "visible", "ranks"),
    [
        (None, EIGHT, 8),
        (1, "GPU-aa,MIG-bb", 1),
        (None, "3,-1,5", 1),
        (2, "", 2),
        (None, None, 8),
    ],
)
def test_devices(asked, visible, ranks, node_with, printed):
    node_with(8)
    gpus = [] if asked is None else ["--gpus", asked]
    words, added = printed(*gpus, *ENTRY, CUDA_VISIBLE_DEVICES=visible)
    assert f"--nproc_per_node={ranks} " in words and added == LINEAR


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("asked", "visible", "message"),
    [
        ("9", EIGHT, "--gpus 9: 8 GPU(s) are visible (CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7). Give"),
        ("99999", "", "no GPU is visible"),
    ],
)
def test_devices_that_are_not_there(asked, visible, message, node_with, launch, config):
    node_with(8)
    words = ("--config", config(), "--gpus", asked, *ENTRY)
    code, _, err = launch(*words, CUDA_VISIBLE_DEVICES=visible)
    assert code == 2 and message in err and not launch.started


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("installed", "visible", "missing"),
    [
        (2, "0,3,1,2", "names GPU 3, 2, and this node has 2"),
        (2, "1,-1,7", ""),
        (2, "GPU-5aa,MIG-77/1/0", ""),
        (2, "", ""),
        (2, None, ""),
        (0, "5", ""),
        (0, "GPU-5aa", ""),
    ],
)
def test_a_gpu_that_is_not_installed(installed, visible, missing, node_with, launch, config):
    """Without any GPU the ranks are on the CPU, as torch has them."""
    node_with(installed)
    code, out, err = launch("--config", config(), *ENTRY, CUDA_VISIBLE_DEVICES=visible)
    assert (code, bool(launch.started)) == ((2, False) if missing else (0, True))
    assert missing in err and bool(missing) == bool(err)
    on_cpu = visible == "" or (installed == 0 and visible in ("5", None))
    why = f" (CUDA_VISIBLE_DEVICES={visible})" if visible else ""
    where = f"on the CPU, since no GPU is visible{why}; --gpus N starts N ranks"
    assert missing or out.splitlines()[0].endswith(where if on_cpu else "on GPUs")


def test_gpus_that_only_torch_can_count(tmp_path, monkeypatch):
    """As AMD's: torch is asked, and not for the visible ones alone."""
    monkeypatch.setattr(devices, "_DEVICE_FILES", (str(tmp_path),))
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "torch.py").write_text(
        "import os, types\n"
        "seen = os.environ.get('CUDA_VISIBLE_DEVICES')\n"
        "cuda = types.SimpleNamespace(device_count=lambda: 4 if seen is None else 0)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    devices.installed_gpus.cache_clear()
    assert devices.visible_devices({"CUDA_VISIBLE_DEVICES": "1,3"}) == ["1", "3"]
    assert len(devices.visible_devices({})) == 4
    assert devices.visible_devices({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}) == []  # Slurm's for none
    devices.installed_gpus.cache_clear()


def test_the_printed_command_finds_a_checkout_that_is_not_installed(printed):
    path = os.pathsep.join(["/elsewhere", str(ROOT)])
    assert printed(PYTHONPATH=path)[1]["PYTHONPATH"] == path
    assert "PYTHONPATH" not in printed(PYTHONPATH="/elsewhere")[1]


def test_one_node(printed, config):
    words, added = printed("--gpus", 2, "--max-restarts", 1, "--resume", "--", "a=b c")
    flag, variable = torchrun.signal_settings()  # by torch's version: one or the other
    assert ",".join(torchrun.SIGNALS) in "".join([*flag, *variable.values()])
    found = re.fullmatch(
        "--nproc_per_node=2 --rdzv_backend=c10d --rdzv_endpoint=localhost:0 "
        f"--rdzv_id=([-0-9a-f]{{36}}) {''.join(f'{word} ' for word in flag)}--max_restarts=1 "
        f"-m robomimic.scripts.train_rlds load_from={re.escape(config())} 'a=b c'",
        words,
    )
    assert found, words
    assert found[1] not in printed()[0], "a job's id is its own"
    assert added == {**LINEAR, "ROBOMIMIC_DDP_RESUME": "true"}


def test_torchrun_gets_no_defaults_of_a_pod(launch, config):
    """It would wait for other nodes; an id of the job and a folder for logs are the user's."""
    pod = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_LOG_DIR": "/logs", "WORLD_SIZE": "8"}
    code, out, err = launch("--config", config(), *ENTRY, **pod)
    ((_, variables),) = launch.started
    assert code == 0 and "PET_NNODES, PET_NODE_RANK: launch has --gpus, --nodes" in err
    assert {name: variables.get(name) for name in pod} == dict.fromkeys(pod) | {
        "PET_LOG_DIR": "/logs"
    }
    assert variables["ROBOMIMIC_DDP_LR_SCALING"] == "linear"
    command = out.partition("command: env -u PET_NNODES -u PET_NODE_RANK ")[2]
    assert "ROBOMIMIC_DDP_LR_SCALING=linear" in command  # an older torch needs another before it


@pytest.mark.parametrize(
    ("codes", "expected"),
    [((75, -15), 75), ((1, -15), 1), ((75, 1), 1), ((-15, -15), 1)],
)
def test_what_the_ranks_have_ended_with(codes, expected, monkeypatch, capsys, tmp_path):
    """torchrun sends SIGTERM to a rank that ends a moment after the first one."""
    failures = {
        rank: ProcessFailure(rank, rank + 100, code, str(tmp_path / "none"))
        for rank, code in enumerate(codes)
    }

    def torchrun():
        raise ChildFailedError("train", failures)

    monkeypatch.setattr(quiet_torchrun, "torchrun", torchrun)
    assert quiet_torchrun.main() == expected
    assert ("stopped on request" in capsys.readouterr().err) == (expected == 75)


RANK = "true & [ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 1; sleep 6"
"""A rank that fails at its first attempt, and leaves a process, which ends, at each of them."""


@pytest.mark.parametrize("lost", ["lost", pytest.param("none", marks=pytest.mark.slow)])
def test_a_launcher_that_waits_for_a_lost_node_ends_after_its_ranks(lost):
    """It does not take the orphans of a rank, which a container's first process gets, for ranks."""
    torchrun = ["--max_restarts=1", "--monitor_interval=0.1"]  # an older torch asks every 5 s
    words = [*rendezvous.on_this_machine(), *torchrun, "--no-python", "sh", "-c", RANK]
    result = python(None, "tests.commands.quick_launcher", *words, lost, timeout=90)
    assert result.returncode == (lost == "lost") and not result.timed_out, result
    message = "the launcher at localhost:0 does not answer, so this one ends"
    assert (message in result.stderr) == (lost == "lost"), result


def not_reached():
    raise RendezvousConnectionError("failed") from RuntimeError("No route to host.\nframe #0")


def unknown_name():
    raise socket.gaierror("No route to host")


def num_nodes_waiting():
    not_reached()


def next_rendezvous():
    not_reached()


def _assign_worker_ranks():
    raise quiet_torchrun._STORE_ERROR("No route to host\nframe #0")


def is_failed():
    return None.is_failed()


@pytest.fixture
def message(torchrun, monkeypatch, capsys):
    """What the launcher says of the error of a `torchrun` at node01:29400."""
    monkeypatch.setattr(quiet_torchrun, "torchrun", torchrun)
    monkeypatch.setattr(sys, "argv", ["x", "--rdzv_endpoint=node01:29400"])
    assert quiet_torchrun.main() == 1
    return capsys.readouterr().err


@pytest.mark.parametrize("torchrun", [next_rendezvous, _assign_worker_ranks, num_nodes_waiting])
def test_a_node_that_runs_or_waits_while_the_job_ends(torchrun, message):
    words = "the job at node01:29400 has ended, or its first node or the network to it is lost"
    assert message.startswith(f"launch: {words} (No route to host), so this node (")
    assert "Traceback" not in message


@pytest.mark.parametrize("torchrun", [is_failed])
def test_a_node_too_many_is_said_to_be_one(torchrun, message):
    words = "the job at node01:29400 had all its nodes without this one, and has ended"
    assert message == f"launch: {words}\n"


@pytest.mark.parametrize("torchrun", [not_reached, unknown_name])
def test_nodes_that_do_not_meet_get_one_message(torchrun, message):
    words = "the nodes cannot meet at node01:29400: No route to host, on "
    assert message.startswith(f"launch: {words}")
    assert "Traceback" not in message and "frame" not in message


def test_a_port_in_use_on_a_single_node_is_one_message():
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        port = listener.getsockname()[1]
        words = ["--nproc_per_node=1", "--master_addr=127.0.0.1", f"--master_port={port}"]
        module = "robomimic_ddp.commands.launch.quiet_torchrun"
        result = python(None, module, *words, "--no-python", "true", timeout=60)
    assert result.returncode == 1 and f"launch: port {port} is in use on" in result.stderr, result
    assert "leave out --port" in result.stderr and "nodes" not in result.stderr, result


def test_a_node_can_replace_another(printed):
    """torchrun's own store keeps what only its first nodes can read."""
    nodes = ("--nodes", 2, "--rdzv", "node01:29400")
    name = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    assert printed(*nodes, "--max-restarts", 1)[1][name] == "1"
    assert name not in printed(*nodes)[1] and name not in printed("--max-restarts", 1)[1]


def test_torchrun_leaves_an_ignored_hangup_alone():
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        flag, variable = torchrun.signal_settings()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert "=SIGTERM,SIGINT,SIGQUIT,SIGUSR1" in f"{flag} ={variable}".replace(": '", "=")


def test_several_nodes(printed):
    meet = ("--rdzv", "n0:1")
    words, _ = printed("--nodes", 3, *meet, SLURM_JOB_ID="77")
    assert "--nnodes=3 --rdzv_backend=c10d --rdzv_endpoint=n0:1 --rdzv_id=77" in words
    assert "--nnodes" not in printed("--nodes", 1, *meet)[0], "as train_slurm.sbatch may say"


@pytest.mark.parametrize(
    ("section", "words", "variables", "added"),
    [
        ({}, [], {}, LINEAR),
        ({"lr_scaling": "sqrt"}, [], {}, {}),
        ({}, ["--", "ddp.lr_scaling=none"], {}, {}),
        ({}, [], {"ROBOMIMIC_DDP_LR_SCALING": "auto"}, {}),
    ],
)
def test_who_sets_the_rule_of_the_learning_rate(section, words, variables, added, printed, config):
    assert printed(*words, path=config(ddp=section), **variables)[1] == added


def test_the_flag_is_the_command_lines_rule(printed, config):
    """In a file it would leave a learning rate of the command line as it is."""
    rate = "algo.optim_params.policy.learning_rate.initial=1e-3"
    words, added = printed("--lr-scaling", "sqrt", "--", rate, path=config(ddp={"batch": "global"}))
    assert words.endswith(f" ddp.lr_scaling=sqrt {rate}") and not added
    words, added = printed("--", rate, path=config(), LR_SCALING="sqrt")
    assert "ddp.lr_scaling" not in words and added == {"ROBOMIMIC_DDP_LR_SCALING": "sqrt"}
    words, added = printed("--lr-scaling", "sqrt", "--module", "lab.train")
    assert "lr_scaling" not in words and added == {"ROBOMIMIC_DDP_LR_SCALING": "sqrt"}


@pytest.mark.parametrize(
    ("name", "text", "added"),
    [
        ("cfg.yaml", "ddp:\n  lr_scaling: sqrt  # measured\ntrain: {output_dir: /data}\n", {}),
        ("cfg.yaml", "ddp: {verify: false}\n", LINEAR),
        ("cfg.yaml", "base: &base {seed: 1}\ntrain: *base\n", LINEAR),
        ("cfg.json5", "// ours\n{algo_name: 'x',}\n", LINEAR),
        ("cfg", '{"ddp": {"lr_scaling": "none"}}', {}),
    ],
)
def test_a_config_that_only_its_host_reads(name, text, added, printed, launch, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    assert printed("--module", "lab.train", path=path)[1] == added
    if "." in name:  # robomimic_ddp reads the file of load_from
        words = ("--config", path, "--dry-run", "--module", "lab.train_rlds")
        assert "could not be read as JSON" in launch(*words)[2]


@pytest.mark.bad_input
def test_a_config_of_another_kind_that_is_absent(launch, tmp_path):
    words = ("--config", tmp_path / "cfg.yaml", "--dry-run", "--module", "lab.train")
    code, _, err = launch(*words)
    assert code == 1 and "cfg.yaml: no such file" in err


def test_a_python_that_cannot_train_is_named():
    bare = ["-S", "-m", "robomimic_ddp", "launch", "--config", "x", "--dry-run"]
    done = subprocess.run([sys.executable, *bare], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "has no torch and no omegaconf" in done.stderr


@pytest.mark.parametrize(
    ("module", "text", "word"),
    [
        ("train_rlds", None, "there is no"),
        ("train_rlds", "from robomimic_ddp.train_rlds import main", ""),
        ("train", "def train(config, device):", "is not patched"),
        ("train", "@DDPUtils.distributed  # of robomimic_ddp\ndef train(config, device):", ""),
        ("nowhere", None, ""),
    ],
)
def test_an_unpatched_host_is_named_before_ranks_start(
    module, text, word, tmp_path, launch, config, monkeypatch
):
    script = {} if text is None else {f"scripts/{module}.py": text}
    write_host(tmp_path, files={"__init__.py": "", "utils/train_utils.py": "", **script})
    monkeypatch.delitem(sys.modules, "robomimic", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["--config", config(), "--gpus", "2", "--module", f"robomimic.scripts.{module}"]
    code, _, err = launch(*words)
    assert code == (1 if word else 0) and word in err
    assert ("robomimic-ddp apply" in err, bool(launch.started)) == (bool(word), not word)
    code, _, err = launch(*words, "--dry-run")
    assert code == 0 and word in err


NOTE = f'printf "Resume with:\\n  torchrun" > ${env.RESUME_NOTE}'
FAILS = f"{NOTE}; [ $LOCAL_RANK = 1 ] || sleep 9; exit $((75 + LOCAL_RANK))"
TRAPPED = 'trap "exit 75" TERM USR1; touch "$0.$LOCAL_RANK"; while :; do sleep 0.1; done'


def ranks_that_run(script, folder):
    """The command of two ranks of sh."""
    plain = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    plain += [*rendezvous.on_this_machine(), "--no-python", "sh", "-c", script, folder / "up"]
    return torchrun.Command(2, plain, {}).quiet


def test_how_to_resume_is_printed_last(tmp_path):
    _, _, *words = ranks_that_run(FAILS, tmp_path)
    result = python(None, *words)
    assert result.returncode == 1
    assert result.stderr.endswith("cause above; Resume with:\n  torchrun\n"), result
    assert "Traceback" not in result.stderr and "Root Cause" in result.stderr, result


def test_a_signal_ends_the_ranks_without_a_traceback(tmp_path):
    options = {"cwd": ROOT, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    job = subprocess.Popen(ranks_that_run(TRAPPED, tmp_path), **options)
    wait_for(lambda: len(list(tmp_path.iterdir())) == 2 or job.poll() is not None)
    job.send_signal(signal.SIGTERM)
    err = job.communicate(timeout=60)[1]
    assert job.returncode == 128 + signal.SIGTERM, err
    assert err.endswith("have ended after SIGTERM\n") and "Traceback" not in err, err
