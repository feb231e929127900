"""The installed robomimic stays as pip wrote it: tests and demo edit copies."""

from __future__ import annotations

import base64
import hashlib
from importlib import metadata

from tests.hosts import DISTRIBUTION


def test_the_installed_host_is_as_recorded() -> None:
    recorded = [
        file
        for file in metadata.distribution(DISTRIBUTION).files or ()
        if file.hash is not None and file.parts[0] == "robomimic"
    ]
    assert len(recorded) > 50
    changed = []
    for file in recorded:
        digest = hashlib.new(file.hash.mode, file.locate().read_bytes()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            changed.append(str(file))
    assert not changed, f"somebody edited the installed host: {changed}; reinstall {DISTRIBUTION}"


def test_the_installed_host_holds_no_file_of_ours() -> None:
    package = metadata.distribution(DISTRIBUTION).locate_file("robomimic")
    assert not (package / "scripts" / "train_rlds.py").exists()
    texts = (path.read_text(errors="replace") for path in package.rglob("*.py"))
    assert not any("robomimic_ddp" in text for text in texts)
