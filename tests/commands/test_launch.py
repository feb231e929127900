"""The launcher's flags, devices and arithmetic, without starting anything."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

from robomimic_ddp import cli
from robomimic_ddp.commands.launch import arguments, checks, devices, summary, torchrun
from robomimic_ddp.commands.launch.__main__ import main
from robomimic_ddp.config import env
from robomimic_ddp.distributed import rendezvous
from robomimic_ddp.errors import ConfigError, UsageError
from tests.hosts import ROOT

EIGHT = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
NONE = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def config(tmp_path):
    def write(**sections):
        path = tmp_path / "cfg.json"
        rate = {"policy": {"learning_rate": {"initial": 1e-4}}}
        base = {"algo_name": "x", "train": {"batch_size": 32}, "algo": {"optim_params": rate}}
        path.write_text(json.dumps({**base, **sections}))
        return str(path)

    return write


@pytest.fixture
def node_with(tmp_path, monkeypatch):
    """`node_with(n)`: from now on nvidia-smi lists n GPUs."""

    def set_up(gpus):
        tool = tmp_path / "nvidia-smi"
        lines = "".join(f'echo "GPU {index}: H"; echo "  MIG 1g: x"; ' for index in range(gpus))
        tool.write_text(f'#!/bin/sh\n[ "$1" = --list-gpus ] || exit 1\n{lines}\n')
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return set_up


def settings(*argv, **variables):
    return arguments.parse([str(word) for word in argv], variables)


def test_every_flag_has_a_variable_and_the_flag_wins():
    variables = {
        "CONFIG_PATH": "a.json",
        "NUM_GPUS": "4",
        "LR_SCALING": "sqrt",
        "BATCH": "per-rank",
        "NUM_NODES": "2",
        "NODE_RANK": "1",
        "RDZV": "node0:29400",
        "MASTER_PORT": "1234",
        "MAX_RESTARTS": "3",
        "RESUME": "true",
        "MODULE": "lab.train",
        "DRY_RUN": "1",
    }
    by_variables = settings(**variables)
    by_flags = settings(
        *("--config", "a.json", "--gpus", 4, "--lr-scaling", "sqrt", "--batch", "per-rank"),
        *("--nodes", 2, "--node-rank", 1, "--rdzv", "node0:29400", "--port", 1234),
        *("--max-restarts", 3, "--resume", "--module", "lab.train", "--dry-run"),
    )
    for name in arguments.VARIABLES:
        assert getattr(by_variables, name) == getattr(by_flags, name), name
    assert set(by_flags.given) == set(arguments.VARIABLES)
    assert settings("--config", "b.json", **variables).config == "b.json"
    assert settings("--config", "c", "--gpus", "0,2", **variables).gpus == ("0", "2")


@pytest.mark.parametrize(
    "argv, words",
    [
        ([], "no config"),
        (["--config", "c", "--gpus", "two"], "--gpus two"),
        (["--config", "c", "--gpus", "0"], None),
        (["--config", "c", "--gpus", "1,1"], "each once"),
        (["--config", "c", "--gpus", "-1"], "--gpus"),
        (["--config", "c", "--nodes", "2"], "without --rdzv"),
        (["--config", "c", "--rdzv", "h:1"], "--rdzv h:1 without --nodes"),
        (["--config", "c", "--nodes", "2", "--rdzv", "here"], "HOST:PORT"),
        (["--config", "c", "--nodes", "2", "--rdzv", "h:1", "--node-rank", "2"], "0 to 1"),
        (["--config", "c", "--lr-scaling", "cubic"], "--lr-scaling"),
        (["--config", "c", "--max-restarts", "-2"], "--max-restarts"),
        (["--config", "c", "--port", "99999"], "at most 65535"),
        (["--config", "c", "--module", "a b"], "dotted name"),
        (["--config", "c", "--conf", "d"], "unrecognized"),
        (["--config", "c", "train.batch_size=8"], "unrecognized"),
        (["--config", "c", "--", "a=1", "train.batch_size"], "found 'train.batch_size'"),
        (["--config", "c", "--", "--resume"], "found '--resume', expected key=value"),
        (["--config", "c", "--", "--gpus=2"], "found '--gpus=2'"),
        (["--config", "c", "--", ""], "found ''"),
    ],
)
def test_what_cannot_be_meant(argv, words):
    if words is None:  # one device, by its number
        assert settings(*argv).gpus == ("0",)
        return
    with pytest.raises(UsageError, match=words.replace(".", r"\.")):
        settings(*argv)


@pytest.mark.parametrize(
    "argv, overrides",
    [
        (["--", "+a=1", "~b", "c=[1, 2]"], ("+a=1", "~b", "c=[1, 2]")),
        (["--", "--help"], ("--help",)),
        (["--module", "lab.train", "--", "--debug", "x"], ("--debug", "x")),
    ],
)
def test_words_for_the_entry_are_passed_on(argv, overrides):
    assert settings("--config", "c", *argv).overrides == overrides


def test_one_node_may_be_said_with_a_meeting_point():
    """As train_slurm.sbatch does for jobs of any number of nodes."""
    assert settings("--config", "c", "--nodes", 1, "--rdzv", "h:1").nodes == 1
    with pytest.raises(UsageError, match="RDZV h:1 without --nodes"):
        settings("--config", "c", RDZV="h:1")
    assert settings("--config", "c", MASTER_ADDR="h", MASTER_PORT="1").rdzv is None


@pytest.mark.parametrize(
    "asked, variables, ranks, visible",
    [
        (None, EIGHT, 8, None),
        (3, EIGHT, 3, None),
        (("0", "2"), EIGHT, 2, "0,2"),
        (("0", "2"), {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, 2, "4,6"),
        (("1",), {"CUDA_VISIBLE_DEVICES": "GPU-aa,MIG-bb"}, 1, "MIG-bb"),
        (None, {"CUDA_VISIBLE_DEVICES": "3,-1,5"}, 1, None),
        (2, NONE, 2, None),
        (None, NONE, 1, None),
    ],
)
def test_devices(asked, variables, ranks, visible, node_with):
    node_with(8)
    chosen = devices.choose(asked, variables)
    assert (chosen.ranks, chosen.visible) == (ranks, visible)
    assert (chosen.gpus == 0) == (variables is NONE)


@pytest.mark.parametrize(
    "asked, variables, words",
    [
        (9, EIGHT, "8 GPU"),
        (("2",), {"CUDA_VISIBLE_DEVICES": "4,5"}, "no device 2 among the 2"),
        (("0",), NONE, "no GPU is visible"),
    ],
)
def test_devices_that_are_not_there(asked, variables, words, node_with):
    node_with(8)
    with pytest.raises(UsageError, match=words):
        devices.choose(asked, variables)


def test_gpus_are_counted_by_the_drivers_tool(node_with, tmp_path):
    node_with(2)
    assert devices.visible_devices({}) == ["0", "1"]
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho failed because of the driver\nexit 9\n")
    assert devices.visible_devices({}) == []


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("installed", "named", "missing"),
    [
        (2, "5", "names GPU 5, and this node has 2"),
        (2, "0,3,1,2", "names GPU 3, 2, and"),
        (2, "1,0", ""),
        (2, "1,-1,7", ""),
        (2, "GPU-5aa,MIG-77/1/0", ""),
        (2, "", ""),
        (2, None, ""),
        (0, "5", ""),
        (0, "GPU-5aa", ""),
    ],
)
def test_a_gpu_that_is_not_installed(installed, named, missing, node_with, config, capsys):
    """Without any the ranks are on the CPU, as torch has them."""
    node_with(installed)
    variables = {} if named is None else {"CUDA_VISIBLE_DEVICES": named}
    assert (missing in devices.absent(variables)) if missing else not devices.absent(variables)
    where = next(iter(summary.lines(settings("--config", config()), variables)))
    on_cpu = named == "" or (installed == 0 and named == "5")
    why = f" (CUDA_VISIBLE_DEVICES={named})" if named else ""
    on_the_cpu = f"on the CPU, since no GPU is visible{why}; --gpus N starts N ranks"
    assert where.endswith(on_the_cpu if on_cpu else "on GPUs")


@pytest.mark.bad_input
def test_a_missing_gpu_is_refused_and_noted_in_a_dry_run(node_with, config, capsys, monkeypatch):
    node_with(1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    words = ["--config", config(), "--module", "lab.train"]
    assert main(words) == 2 and "this node has 1" in capsys.readouterr().err
    assert main([*words, "--dry-run"]) == 0
    said = capsys.readouterr()
    assert "note: CUDA_VISIBLE_DEVICES=5 names GPU 5" in said.err and "command: " in said.out


def command_of(config, *argv, **variables):
    made = settings("--config", config, *argv, **{**NONE, **variables})
    command, added = torchrun.command(made, {**NONE, **variables})
    return shlex.join(command[3:]), added


def test_one_node(config):
    path = config()
    words, added = command_of(path, "--gpus", 2, "--max-restarts", 1, "--", "a=b c")
    flag, variable = torchrun.passes_on_signals()  # by torch's version: one or the other
    assert torchrun.SIGNALS in "".join([*flag, *variable.values()])
    found = re.fullmatch(
        "--nproc_per_node=2 --rdzv_backend=c10d --rdzv_endpoint=localhost:0 "
        f"--rdzv_id=([-0-9a-f]{{36}}) {''.join(f'{word} ' for word in flag)}--max_restarts=1 "
        f"-m robomimic.scripts.train_rlds load_from={re.escape(str(path))} 'a=b c'",
        words,
    )
    assert found, words
    again, _ = command_of(path)
    assert found[1] not in again, "a job's id is its own"
    assert added == {"ROBOMIMIC_DDP_LR_SCALING": "linear", **variable}
    words, _ = command_of(path, "--port", 1234)
    assert "--master_addr=127.0.0.1 --master_port=1234" in words


def test_several_nodes(config):
    words, _ = command_of(
        config(), *("--nodes", 3, "--node-rank", 1, "--rdzv", "n0:1"), SLURM_JOB_ID="77"
    )
    assert "--nnodes=3 --node_rank=1 --rdzv_backend=c10d --rdzv_endpoint=n0:1 --rdzv_id=77" in words
    words, _ = command_of(config(), "--nodes", 2, MASTER_ADDR="head", MASTER_PORT="5000")
    assert "--rdzv_endpoint=head:5000" in words


def test_who_sets_the_rule_of_the_learning_rate(config):
    _, signals = torchrun.passes_on_signals()
    assert command_of(config(ddp={"lr_scaling": "sqrt"}))[1] == signals
    assert command_of(config(), "--", "ddp.lr_scaling=none")[1] == signals
    assert command_of(config(), ROBOMIMIC_DDP_LR_SCALING="auto")[1] == signals
    asked = command_of(config(ddp={"lr_scaling": "sqrt"}), "--lr-scaling", "linear")
    assert asked[1] == {"ROBOMIMIC_DDP_LR_SCALING": "linear", **signals}


@pytest.mark.parametrize(
    "argv, samples, rate",
    [
        ([], "32 per rank x 4 rank(s) = 128", "0.0001 -> 0.0004 (linear"),
        (["--lr-scaling", "sqrt"], "= 128", "0.0001 -> 0.0002 (sqrt"),
        (["--lr-scaling", "none"], "= 128", "0.0001 -> 0.0001 (none"),
        (["--batch", "global"], "8 per rank x 4 rank(s) = 32", "0.0001 -> 0.0001 (linear"),
        (["--lr-scaling", "auto"], "= 128", "0.0001, by the size of the policy"),
        (["--", "train.batch_size=4"], "4 per rank x 4 rank(s) = 16", "0.0001 -> 0.0004"),
        (
            ["--", "algo.optim_params.policy.learning_rate.initial=0.003"],
            "= 128",
            "0.003 -> 0.003 (none",
        ),
    ],
)
def test_samples_and_learning_rate(config, argv, samples, rate):
    made = settings("--config", config(), "--gpus", 4, *argv)
    text = "\n".join(summary.lines(made, NONE))
    assert samples in text and f"learning rate (policy): {rate}" in text
    assert "none" in text and "linear" in text and "sqrt" in text, "the other choices"


@pytest.mark.parametrize(
    "argv, variables",
    [
        (["--resume"], {}),
        (["--", "ddp.resume=true"], {}),
        (["--", "resume=True"], {}),
        (["--module", "lab.train", "--", "--resume"], {}),
        ([], {"ROBOMIMIC_DDP_RESUME": "1"}),
        ([], {"ROBOMIMIC_DDP_RESUME": "auto"}),
    ],
)
def test_a_resumed_run_is_said_to_keep_its_learning_rate(config, argv, variables):
    words = ("--config", config(), "--gpus", 4)
    kept = "a resumed run keeps the one that it was saved with"
    text = list(summary.lines(settings(*words, *argv), {**NONE, **variables}))
    assert kept in text[-1] and "0.0001 -> 0.0004" in text[-2]
    for more in ([], ["--", "resume=false"], ["--", "ddp.resume=false"]):
        assert kept not in "\n".join(summary.lines(settings(*words, *more), NONE))


def test_what_the_config_leaves_to_the_host_is_reported_as_a_factor(config):
    text = "\n".join(summary.lines(settings("--config", config(train={}), "--gpus", 4), NONE))
    assert "the host's own default, x 4 (4 rank(s))" in text and "0.0001 -> 0.0004" in text
    bare = config(train={"batch_size": 8}, algo={})
    for rule, said in (("sqrt", "sqrt scaling"), ("auto", "by the size of the policy")):
        made = settings("--config", bare, "--gpus", 4, "--lr-scaling", rule)
        text = "\n".join(summary.lines(made, NONE))
        assert "learning rate: not in the config" in text and said in text
        assert "none x 1, linear x 4, sqrt x 2" in text


def test_the_folder_of_the_runs(config, capsys):
    path = config(train={"output_dir": "/data/my runs"}, experiment={"name": "e"})
    assert main(["--config", path, "--print-runs"]) == 0
    assert capsys.readouterr().out == "/data/my runs/e\n"
    for train in ({}, {"output_dir": "../runs"}):
        made = settings("--config", config(train=train, experiment={"name": "e"}))
        with pytest.raises(ConfigError, match="train.output_dir"):
            summary.runs_folder(made)


def test_the_command_holds_the_path_to_a_checkout(config, capsys, monkeypatch):
    for path, shown in ((f"/else where:{ROOT}", True), ("/else where", False)):
        monkeypatch.setenv("PYTHONPATH", path)
        assert main(["--config", config(), "--dry-run"]) == 0
        command = capsys.readouterr().out.partition("command: ")[2]
        assert command.startswith(f"PYTHONPATH={shlex.quote(path)} ") == shown
        assert shown or "PYTHONPATH" not in command


def test_it_is_a_command_too(config, capsys):
    words = ["--config", config(), "--dry-run", "--", "train.batch_size=8"]
    assert (main(words), cli.main(["launch", *words])) == (0, 0)
    lines = capsys.readouterr().out.splitlines()
    commands = [line.split()[-3:] for line in lines if line.startswith("command: ")]
    assert len(commands) == 2 and commands[0] == commands[1]  # ports differ


def test_help_and_errors_name_the_command_that_was_typed(capsys):
    for call, name in ((main, "train_multi_gpu.sh"), (cli.main, "robomimic-ddp launch")):
        words = [] if call is main else ["launch"]
        assert call([*words, "--dry-run"]) == call([*words, "--nonsense"]) == 2
        no_config, unknown = capsys.readouterr().err.splitlines()
        assert no_config.startswith(f"{name.removesuffix('.sh')}: no config")
        assert unknown.endswith(f"See {name} --help.")
        with pytest.raises(SystemExit):
            call([*words, "--help"])
        assert capsys.readouterr().out.startswith(f"usage: {name} [-h]")


def test_errors_are_one_line(config, capsys):
    assert main(["--config", config(), "--gpus", "zero"]) == 2
    assert main(["--config", "/no/such.json", "--dry-run"]) == 1
    assert main(["--config", config(), "--dry-run", "--", "train.batch_size='"]) == 1
    assert main(["--config", config(), "--dry-run", "--", "train.batch_size", "8"]) == 2
    reported = capsys.readouterr().err.splitlines()
    assert len(reported) == 4 and all(line.startswith("train_multi_gpu: ") for line in reported)


def test_a_python_that_cannot_train_is_named(tmp_path):
    bare = ["-S", "-m", "robomimic_ddp.commands.launch", "--config", "x", "--dry-run"]
    done = subprocess.run([sys.executable, *bare], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "has no torch and no omegaconf" in done.stderr


@pytest.mark.parametrize(
    ("module", "text", "word"),
    [
        ("train_rlds", None, "there is no"),
        ("train_rlds", "from robomimic_ddp.train_rlds import main", ""),
        ("train", "def train(config, device):", "is not patched"),
        ("train", "@DDPUtils.distributed  # of robomimic_ddp\ndef train(config, device):", ""),
        ("evaluate", "def main():", ""),
        ("nowhere", None, ""),
    ],
)
def test_an_unpatched_host_is_named_before_ranks_start(
    module, text, word, tmp_path, config, monkeypatch, capsys
):
    for folder in ("scripts", "utils"):
        (tmp_path / "robomimic" / folder).mkdir(parents=True)
    for name in ("__init__.py", "utils/train_utils.py"):
        (tmp_path / "robomimic" / name).write_text("")
    if text is not None:
        (tmp_path / "robomimic/scripts" / f"{module}.py").write_text(text)
    monkeypatch.delitem(sys.modules, "robomimic", raising=False)
    monkeypatch.setattr(checks, "refusal", lambda settings: None)  # it would import this host here
    monkeypatch.syspath_prepend(tmp_path)
    started = []
    monkeypatch.setattr("robomimic_ddp.config.env.become", lambda *given: started.append(given))
    name = f"robomimic.scripts.{module}"
    arguments = ["--config", config(), "--gpus", "2", "--module", name]
    assert main(arguments) == (1 if word else 0)
    err = capsys.readouterr().err
    assert ("robomimic-ddp apply" in err, bool(started)) == (bool(word), not word)
    assert word in err
    assert main([*arguments, "--dry-run"]) == 0
    assert word in capsys.readouterr().err


NOTE = f'printf "Resume with:\\n  torchrun" > ${env.RESUME_NOTE}'
TRAPPED = 'trap "exit 75" TERM USR1; touch "$0.$LOCAL_RANK"; while :; do sleep 0.1; done'


@pytest.mark.parametrize(
    ("script", "sent", "code", "said"),
    [
        (f"{NOTE}; exit 75", None, 75, "stopped on request; Resume with:\n  torchrun\n"),
        (f"{NOTE}; exit $((75 + LOCAL_RANK))", None, 1, "cause above; Resume with:\n  torchrun\n"),
        ("exit 3", None, 1, "a rank has failed, see the root cause above\n"),
        (TRAPPED, signal.SIGTERM, 128 + signal.SIGTERM, "have ended after SIGTERM\n"),
    ],
)
def test_how_to_resume_is_printed_last(script, sent, code, said, tmp_path):
    file = tmp_path / "up"
    plain = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    plain += [*rendezvous.on_this_machine(), "--no-python", "sh", "-c", script, str(file)]
    job = subprocess.Popen(
        torchrun.quiet(plain), cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while sent and len(list(tmp_path.iterdir())) < 2 and job.poll() is None:
        time.sleep(0.05)
    if sent:
        job.send_signal(sent)
    err = job.communicate(timeout=60)[1]
    assert job.returncode == code and err.endswith(said), err
    assert "Traceback" not in err and ("Root Cause" in err) == (code == 1), err
