"""The command line: exit codes, what goes to which stream, and what is loaded."""

from __future__ import annotations

import os
import subprocess
import sys

import libcst
import pytest
from libcst.metadata.position_provider import PositionProvidingCodegenState

from robomimic_ddp import __version__, cli
from robomimic_ddp.patches import commands
from tests.patches.support import CHECKOUT, run_command, snapshot

SEAM = "utils/train_utils.py"


def break_seam(host) -> None:
    path = host / SEAM
    path.write_text(
        path.read_text().replace("torch.save(model, path)", "torch.save(model, f=path)")
    )


def loaded_by(*lines: list[str]) -> set[str]:
    """Top-level modules in a fresh Python after running these command lines."""
    code = (
        f"import sys\nfrom robomimic_ddp import cli\nfor words in {lines!r}:\n"
        "    try:\n        cli.main(words)\n    except SystemExit:\n        pass\n"
        "print('MODULES', *sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_help_is_light():
    lines = ["--help"], ["--version"], ["apply", "--help"], ["run", "--help"], ["plot"]
    heavy = {"torch", "tensorflow", "libcst", "robomimic", "numpy", "matplotlib"}
    assert not loaded_by(*lines) & heavy


def test_patching_loads_neither_torch_nor_the_host(host):
    loaded = loaded_by(["apply", str(host)])
    assert "libcst" in loaded
    assert not loaded & {"torch", "tensorflow", "robomimic", "numpy"}


def test_version_and_help_in_a_process_of_their_own(tmp_path):
    assert run_command("--version", cwd=tmp_path).stdout == f"robomimic-ddp {__version__}\n"
    done = run_command("--help", cwd=tmp_path)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    listed = [line.split()[0] for line in lines if line.startswith("  ")]
    assert [listed.count(name) for name in cli.COMMANDS] == [1] * len(cli.COMMANDS)


def test_the_name_alone_prints_the_help_as_an_error(command, capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    shown = capsys.readouterr().out
    assert command() == (2, "", shown)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--"], "required: COMMAND"),
        (["retrofit"], "invalid choice"),
        (["aply"], "Did you mean apply?"),
        (["apply", "--chekc", "{host}"], "Did you mean --check?"),
        (["apply", "--chekc", "{host}"], "usage: robomimic-ddp apply [-h]"),
        (["ckpt", "sho"], "Did you mean show?"),
        (["sweep", "run", "somewhere", "--rnaks", "2"], "Did you mean --ranks?"),
        (["apply", "{host}", "--with", "no_such"], "off by default: unet_config."),
    ],
)
def test_wrong_usage_is_two(command, host, arguments, words):
    code, out, err = command(*(argument.format(host=host) for argument in arguments))
    assert (code, out) == (2, "")
    assert words in err


def test_apply_lists_what_the_host_has_and_names_its_path_again(command, host):
    folder = host.with_name("a folder")
    host.rename(folder)
    code, out, _ = command("apply", str(folder))
    assert code == 0 and "patched now" in out and "not present" not in out
    assert f"`robomimic-ddp status '{folder}'`" in out
    assert f"`robomimic-ddp revert '{folder}'`" in out and "installed" not in out


def test_apply_says_that_it_has_edited_an_installed_package(command, host, tmp_path):
    installed = tmp_path / "site-packages"
    host.parent.rename(installed)
    code, out, _ = command("apply", str(installed / host.name))
    assert code == 0 and "the files of an installed package" in out


def test_status_is_readable_on_a_terminal(command, host, monkeypatch):
    whole = command("status", str(host))[1]
    monkeypatch.setattr(commands, "width", lambda stream=None: 80)
    code, out, _ = command("status", str(host))
    lines = out.splitlines()
    assert code == 0 and max(len(line) for line in lines[1:]) <= 80
    table = whole[whole.index("AREA") : whole.index("\n\n", whole.index("AREA"))]
    names = [line.split("  ")[-3].strip() for line in table.splitlines() if "not" not in line]
    assert all(name in out for name in names)
    assert " ".join(out.split()).count("not present:") == whole.count("not present:") > 0


@pytest.mark.planted_fault
@pytest.mark.parametrize("name", ["apply", "diff", "status"])
def test_a_blocked_host_is_one_with_line_and_what_to_do(host, command, name):
    break_seam(host)
    before = snapshot(host)
    code, out, err = command(name, host)
    assert code == 1
    shown = out if name == "status" else err
    assert f"{host / SEAM}:14: atomic_save: torch.save" in shown
    assert "by hand: write the checkpoint with DDPUtils.save(params, path)" in shown
    assert (name == "status") == bool(out)
    assert snapshot(host) == before


def test_status_shows_a_line_for_each_seam(host, command):
    code, out, _ = command("status", host)
    assert code == 0
    assert "utils/torch_utils.py:5" in out
    assert "not patched: apply would edit 4 files and add scripts/train_rlds.py." in out
    command("apply", host)
    code, out, _ = command("status", host)
    assert (code, "can be patched" in out) == (0, False)
    assert "patched: every edit is in place." in out and "revert restores the originals" in out
    assert command("diff", host) == (0, "", "patched: every edit is in place.\n")
    assert "4 files edited, scripts/train_rlds.py added; robomimic-ddp revert restores" in out


def test_apply_names_the_lines_as_they_are_now(host, command):
    _, out, _ = command("apply", host)
    shown = next(line for line in out.splitlines() if " cuda_device " in line)
    assert shown.split()[2:] == ["utils/torch_utils.py:6", "patched", "now"]
    code, out, _ = command("apply", host)
    assert (code, "nothing was written" in out) == (0, True)


def test_revert_names_edited_files_and_force_keeps_them(host, command):
    command("apply", host)
    path = host / SEAM
    path.write_text(path.read_text() + "mine = 1\n")
    shown = " ".join(command("status", host)[1].split())
    assert f"edited by hand since: {SEAM}" in shown and "restores the originals" not in shown
    code, out, err = command("revert", host)
    assert (code, out) == (1, "")
    assert str(path) in err and "--force" in err
    code, out, _ = command("revert", host, "--force")
    assert code == 0
    assert f"kept your version of {path} as train_utils.py.edited" in out


def test_a_reader_that_stops_reading_is_no_error(host, tmp_path):
    done = subprocess.run(
        f"{sys.executable} -m robomimic_ddp diff {host} | head -1",
        shell=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("diff --git")
    assert done.stderr == ""


def test_ctrl_c_while_libcst_reads_is_one_line(host, command, monkeypatch):
    """libcst raises a KeyError in the place of it, whose text is the syntax tree."""
    write = libcst.Return._codegen_impl

    def interrupted(node, state, **options):
        if type(state) is PositionProvidingCodegenState:
            raise KeyboardInterrupt
        write(node, state, **options)

    before = snapshot(host)
    monkeypatch.setattr(libcst.Return, "_codegen_impl", interrupted)
    assert command("apply", host) == (130, "", "robomimic-ddp: interrupted\n")
    assert snapshot(host) == before
