"""The documentation builds as a site without a warning, its links lead somewhere, and its commands
run: the README's too.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import torch

from robomimic_ddp import api, cli
from tests.configs import make_config, write_config
from tests.e2e.docs.pages import DOCS, MADE, PAGES, TEXTS, commands, program_of
from tests.hosts import FINISHED, ROOT, Host, copy_host, python, require_clean, torchrun

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
NOT_RUN = (
    *("pip", "git", "docker", "scripts/test.sh", "scripts/demo.sh", ".venv/bin/pip", "cd"),
    *("tensorboard", "wandb", "./isaaclab.sh", "kubectl", "sky"),
)
"""They need a network, another machine or an hour, or serve; tests run demo.sh, test.sh."""
BUILD = ".venv/bin/python"
"""Of the site: the fixture `site` runs it."""
TRAINING = ("torchrun", "python")


class Anchors(HTMLParser):
    """The ids and the links of a page of the site."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list) -> None:
        given = dict(attrs)
        self.ids |= {given["id"]} if "id" in given else set()
        if tag in ("a", "link") and given.get("href"):
            self.links.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built by the documented command, without a network."""
    folder = tmp_path_factory.mktemp("documentation")
    ignored = shutil.ignore_patterns("_build", MADE, "__pycache__")
    copy = shutil.copytree(DOCS, folder / "docs", ignore=ignored)
    (line,) = (one for one in commands(DOCS / "contributing.md") if program_of(one) == BUILD)
    _, *words, source, _ = line.split()
    assert source == "docs" and "-W" in words
    words = [sys.executable, *words, "--keep-going", "-q", copy, folder / "site"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    built = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert built.returncode == 0, built.stderr
    return folder / "site"


@pytest.mark.slow
def test_the_site_has_every_page_and_message(site: Path) -> None:
    for page in PAGES:
        assert (site / f"{page.stem}.html").exists(), page.name
    shown = re.sub(r"<[^>]+>", "", (site / "messages.html").read_text())
    assert "sample(s) would be dropped each step" in shown
    assert "sample(s) would be dropped each step" in (site / "_sources/messages.md.txt").read_text()


@pytest.mark.slow
def test_pages_link_to_the_messages(site: Path) -> None:
    for page in ("index", "troubleshooting"):
        main = (
            (site / f"{page}.html").read_text().partition("<article")[2].partition("</article")[0]
        )
        assert 'href="messages.html"' in main, page


def test_the_first_script_prints_what_its_page_shows(tmp_path: Path) -> None:
    page = (DOCS / "first_ddp.md").read_text()
    (script,), (shown,) = (
        re.findall(rf"```{kind}\n(.*?)```", page, re.S) for kind in ("python", "text")
    )
    (tmp_path / "hello.py").write_text(script)
    result = torchrun(Host(tmp_path), "hello")
    require_clean(result)
    # Two unbuffered ranks may write their texts first, and then both ends of lines.
    printed = [f"rank {text.strip()}" for text in result.stdout.split("rank ")[1:]]
    assert sorted(printed) == shown.splitlines()


@pytest.mark.slow
def test_the_api_page_has_every_name_with_its_docstring(site: Path) -> None:
    page = (site / "api.html").read_text(encoding="utf-8")
    names = set(re.findall(r'id="robomimic_ddp\.api\.(\w+)"', page))
    constants = {name for name in api.__all__ if not callable(getattr(api, name))}
    assert names == {*api.__all__} - constants
    assert "Collective: returns the main rank" in page


@pytest.mark.slow
def test_links_of_the_site_lead_somewhere(site: Path) -> None:
    pages = {path: Anchors(path) for path in site.rglob("*.html")}
    inside = 0
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                assert parts.scheme in ("https", "http", "mailto") and parts.netloc, link
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{path.name}: {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].ids, f"{path.name}: {link}"
                inside += 1
    assert inside > 100


def test_links_of_the_sources_lead_somewhere() -> None:
    checked = 0
    for page in TEXTS:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
                checked += 1
    assert checked > 5


def test_commands_in_the_text_exist(capsys: pytest.CaptureFixture) -> None:
    """Those that stand inside sentences and tables, with their flags."""

    def help_of(*command: str) -> str:
        with pytest.raises(SystemExit):
            cli.main([*command, "--help"])
        return capsys.readouterr().out

    checked = set()
    for page in TEXTS:
        for line in re.findall(r"`((?:robomimic-ddp|doctor) [^`]+)`", page.read_text()):
            name, *words = line.removeprefix("robomimic-ddp ").split()
            if name.startswith("--"):
                assert name in help_of(), f"{page.name}: {line}"
                continue
            for command in name.split("|"):
                assert command in cli.COMMANDS, f"{page.name}: {line}"
                known = help_of(command)
                if words and re.search(rf"^    {re.escape(words[0])}\b", known, re.MULTILINE):
                    known += help_of(command, words[0])  # an action, such as `ckpt show`
                for flag in (word for word in words if re.match(r"--?[a-z]", word)):
                    assert flag.split("=")[0].rstrip(",;") in known, f"{page.name}: {line}"
                checked.add(command)
    assert checked >= {"doctor", "watch", "plot", "ckpt", "status", "diff", "apply", "revert"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with the checkouts, checkpoints and config that the pages speak of."""
    host = copy_host(tmp_path / "host").folder
    for name in ("droid_policy_learning", "my_fork", "robomimic", "my_robomimic"):
        shutil.copytree(host, tmp_path / name)
    nets = {"policy.obs_encoder.module.weight": torch.zeros(2)}
    known = {"algo_name": "x", "config": '{"algo_name": "x"}', "shape_metadata": {}}
    for name in ("last", "epoch_80", "epoch_90", "epoch_100"):
        torch.save({**known, "model": {"nets": nets, "ema": nets}}, f"{tmp_path}/{name}.pth")
    runs = {"experiment": {"name": "e"}, "train": {"batch_size": 4, "output_dir": str(tmp_path)}}
    (tmp_path / "cfg.json").write_text(json.dumps({"algo_name": "x", **runs}))
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    for name, text in STAND_INS.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


STAND_INS = {
    "sbatch": 'while [[ "$1" == --* ]]; do shift; done; SLURM_JOB_ID=7 SLURM_JOB_NODELIST=n[0-1] '
    'SLURM_JOB_NUM_NODES=2 exec bash "$1" --dry-run "${@:2}"',
    "scontrol": "echo localhost",
    "srun": 'while [[ "$1" == --* ]]; do shift; done; exec "$@"',
}
"""For a cluster's commands: a dry run on the first of two nodes."""


@pytest.mark.slow
@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_commands_run(page: Path, home: Path) -> None:
    environment = {**os.environ, "HOME": str(home), "PYTHONPATH": str(ROOT)}
    environment |= {"PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    environment["PATH"] = f"{home / 'bin'}:{environment['PATH']}"
    ours = f"{sys.executable} -m robomimic_ddp"
    for line in commands(page):
        program = program_of(line)
        if program in (*TRAINING, BUILD) or any(word in line.split() for word in NOT_RUN):
            continue
        known = ("robomimic-ddp", "scripts/train_multi_gpu.sh", "sbatch")
        assert program in known, line
        shell = re.sub(r"^robomimic-ddp", ours, line)
        shell = re.sub(r"^(scripts/train_multi_gpu.sh|.* launch)", r"\1 --dry-run", shell)
        words = ["bash", "-c", shell]
        done = subprocess.run(
            words, cwd=home, env=environment, capture_output=True, text=True, check=False
        )
        expected = {0, 1} if "--check" in line or "doctor" in line else {0}
        assert done.returncode in expected, (line, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, (line, done.stderr)


def training_commands() -> list[str]:
    """The commands of all pages that train, each kind once: on two ranks, and a small batch."""
    pages = [page for page in TEXTS if page.name != "examples.md"]  # test_examples.py runs its
    found = [line for page in pages for line in commands(page) if program_of(line) in TRAINING]
    small = (re.sub(r"batch_size=\d+", "batch_size=4", line) for line in found)
    ranks = (re.sub(r"--nproc_per_node=\d+", "--nproc_per_node=2", line) for line in small)
    return sorted({re.sub(r"[^\s=]*(cfg|config)\.json", "cfg.json", line) for line in ranks})


@pytest.fixture(scope="module")
def trained_with(tmp_path_factory, host_copy, low_dim_dataset: Path) -> tuple:
    """(an edited host, an unedited one, the config that both train with)."""
    folder = tmp_path_factory.mktemp("commands")
    one = {"experiment": {"epoch_every_n_steps": 1}, "train": {"num_epochs": 1}}
    config = make_config("diffusion_policy", low_dim_dataset, folder / "runs", one)
    return host_copy, copy_host(folder / "plain"), write_config(folder / "cfg.json", config)


def test_several_kinds_of_commands_train() -> None:
    assert len(training_commands()) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("line", training_commands())
def test_commands_train(line: str, trained_with: tuple) -> None:
    edited, plain, config = trained_with
    program, *words = shlex.split(line.replace("cfg.json", str(config)))
    flags = words[: words.index("-m")]
    module, *arguments = words[words.index("-m") + 1 :]
    host = plain if module == "robomimic_ddp" else edited
    if program == "torchrun":
        assert flags == ["--nproc_per_node=2"], line
        result = torchrun(host, module, *arguments)
    else:
        result = python(host, module, *arguments)
    require_clean(result)
    assert FINISHED in result.stdout
