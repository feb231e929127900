"""docs/troubleshooting.md quotes messages as they are, and is complete; the page of every message
has every message.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import all_messages
import pytest

from robomimic_ddp import errors
from robomimic_ddp.commands.doctor.command import CHECKS
from robomimic_ddp.distributed.known_errors import REMEDIES, remedy

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "troubleshooting.md").read_text()
MESSAGES = re.findall(r"^### `(.+)`$", GUIDE, re.MULTILINE)
OF_OTHERS = {
    "operator torchvision::nms does not exist",
    "The NVIDIA driver on your system is too old",
    "Watchdog caught collective operation timeout",
    "No module named 'robomimic_ddp'",
    "Signal 11 (SIGSEGV) received by PID",
    *REMEDIES,
}


def test_the_guide_quotes_our_messages_as_they_are():
    files = [*(ROOT / "robomimic_ddp").rglob("*.py"), *(ROOT / "patches").rglob("*.py")]
    sources = [path.read_text() for path in files]
    plain = re.sub(r'"\s*f?"', "", "\n".join(sources))  # strings that continue on the next line
    assert set(MESSAGES) >= OF_OTHERS
    for message in set(MESSAGES) - OF_OTHERS:
        said = re.sub(r"\b(RANK|WORLD_SIZE)\b", r".*?\\b\1\\b.*?", re.escape(message))
        assert re.search(said.replace(r"\ ", r"\s"), plain), f"nobody says {message!r}"


def test_the_guide_has_each_check_of_doctor():
    table = GUIDE.partition("## What each check")[2]
    names = {check.__name__.removeprefix("check_").replace("_", " ") for check in CHECKS}
    listed = re.findall(r"^\| ([a-z, ]+) \|", table, re.MULTILINE)
    assert names == {*", ".join(listed).split(", ")} - {"check"}


OF_NO_JOB = {"RobomimicDDPError", "UsageError"}
"""The base, and wrong command lines, whose message is all that there is to say."""


def test_every_kind_of_error_has_an_entry_in_the_guide():
    reported = all_messages.messages()
    for kind in set(all_messages.kinds()) - OF_NO_JOB:
        own = [one.text.lower() for one in reported if one.kind == kind]
        assert own, f"nobody raises {kind}"
        quoted = [words for words in MESSAGES if any(words.lower() in text for text in own)]
        assert quoted, f"docs/troubleshooting.md has no message of {kind}"


def test_the_page_of_messages_holds_every_message():
    known = {name for name, one in vars(errors).items() if isinstance(one, type)}
    known = {name for name in known if issubclass(getattr(errors, name), errors.RobomimicDDPError)}
    reported = {(one.file, one.line) for one in all_messages.messages()}
    package, missing, seen = ROOT / "robomimic_ddp", [], 0
    for path in [*package.rglob("*.py"), *(package / "patches").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            raised = getattr(node, "exc", None) if isinstance(node, ast.Raise) else None
            if isinstance(raised, ast.Call) and getattr(raised.func, "id", None) in known:
                place, seen = (path.relative_to(package).as_posix(), raised.lineno), seen + 1
                missing += [place] if place not in reported else []
    assert seen > 150 and not missing, f"the page lacks the messages of {missing}"
    page = all_messages.page()
    for words in ("sample(s) would be dropped each step", "RANK=", "## DataError", "warning: "):
        assert words in page, words


@pytest.mark.parametrize(
    "text, words",
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "train.batch_size"),
        ("worker killed by signal: Bus error. It is possible that ...", "--shm-size"),
        ("NCCL error in: ../torch/csrc: unhandled system error, ncclSystemError", "SOCKET_IFNAME"),
        ("NCCL error in: a.cpp, Duplicate GPU detected : rank 1 and rank 0", "--nproc_per_node"),
        ("OSError: Can't synchronously read data (filter returned failure)", "h5dump"),
        ("ValueError: 3", ""),
    ],
)
def test_well_known_failures_have_a_remedy(text, words):
    assert words in remedy(text) and bool(remedy(text)) == bool(words)
