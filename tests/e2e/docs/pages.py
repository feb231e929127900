"""The pages of the documentation and the README, and the commands in them."""

from __future__ import annotations

import re
from pathlib import Path

from tests.hosts import ROOT

DOCS = ROOT / "docs"
MADE = "messages.md"
"""Written when the site is built."""
PAGES = sorted(page for page in DOCS.glob("*.md") if page.name != MADE)
TEXTS = [*PAGES, ROOT / "README.md"]
BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(
    r"^    ((?:\S+/)?(?:robomimic-ddp|torchrun|python|pip|scripts/\S+) .*)$", re.M
)
"""As the README writes them."""


def commands(page: Path) -> list[str]:
    """The command lines of a page's blocks, with continued lines joined, without comments."""
    text = "\n".join(BLOCK.findall(page.read_text())).replace("\\\n", " ")
    written = text.splitlines()
    if page.name == "README.md":
        written += INDENTED.findall(page.read_text())
    lines = (re.sub(r"\s+#.*", "", line).strip() for line in written)
    return [line for line in lines if line]


def program_of(line: str) -> str:
    """The first word of a command line after the variables that it sets."""
    return next(word for word in line.split() if not re.match(r"[A-Z_]+=", word))
