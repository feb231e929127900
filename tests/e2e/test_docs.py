"""The documentation builds without a warning, its table of options is the code's, and its commands
run.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.hosts import ROOT, copy_host

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = ("pip", "git", "docker", "sbatch", "torchrun", "scripts/test.sh", ".venv/bin/pip", "cd")
"""They need a network, a cluster or an hour; other tests start torchrun in their own ways."""


def commands(page: Path) -> list[str]:
    """The command lines of a page's bash blocks, with continued lines joined, without comments."""
    text = "\n".join(BLOCK.findall(page.read_text())).replace("\\\n", " ")
    lines = (re.sub(r"\s+#.*", "", line).strip() for line in text.splitlines())
    return [line for line in lines if line]


def page_of_options() -> str:
    spec = importlib.util.spec_from_file_location("docs_conf", DOCS / "conf.py")
    conf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conf)
    return conf.OPTIONS_PAGE + conf.markdown_table() + "\n"


def test_the_page_of_options_is_the_codes() -> None:
    assert (DOCS / "options.md").read_text() == page_of_options(), "build the documentation anew"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("myst_parser", reason="the extra [docs] is not installed")
    copy = shutil.copytree(DOCS, tmp_path / "docs")
    words = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", copy, tmp_path / "site"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    built = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert built.returncode == 0, built.stderr
    for page in PAGES:
        assert (tmp_path / "site" / f"{page.stem}.html").exists()


def test_links_lead_somewhere() -> None:
    checked = 0
    for page in [*PAGES, ROOT / "README.md"]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
                checked += 1
    assert checked > 5


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with the checkouts, checkpoints and config that the pages speak of."""
    host = copy_host(tmp_path / "host").folder
    for name in ("droid_policy_learning", "my_fork", "robomimic"):
        shutil.copytree(host, tmp_path / name)
    nets = {"policy.obs_encoder.module.weight": torch.zeros(2)}
    for name in ("last", "epoch_80", "epoch_90", "epoch_100"):
        torch.save(
            {"algo_name": "x", "model": {"nets": nets, "ema": nets}}, f"{tmp_path}/{name}.pth"
        )
    (tmp_path / "cfg.json").write_text('{"algo_name": "x", "train": {"batch_size": 4}}')
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_run(page: Path, home: Path) -> None:
    environment = {**os.environ, "HOME": str(home), "PYTHONPATH": str(ROOT)}
    environment |= {"PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": "", "DRY_RUN": "1"}
    ours = f"{sys.executable} -m robomimic_ddp"
    for line in commands(page):
        program = line.partition("=")[2] if re.match(r"[A-Z_]+=", line) else line
        if any(word in program.split() for word in NOT_RUN):
            continue
        assert program.startswith(("robomimic-ddp", "scripts/train_multi_gpu.sh")), line
        shell = re.sub(r"^robomimic-ddp", ours, line)
        words = ["bash", "-c", shell]
        done = subprocess.run(
            words, cwd=home, env=environment, capture_output=True, text=True, check=False
        )
        expected = {0, 1} if "--check" in line or "doctor" in line else {0}
        assert done.returncode in expected, (line, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, (line, done.stderr)
