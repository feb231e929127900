"""The added entry scripts/train_rlds.py."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches import record
from robomimic_ddp.patches.outcomes import AlreadyApplied, Applied, NotPresent, Unrecognised
from tests.patches.support import examine, write_host


def examined(package):
    return examine(package, only=["train_rlds"])


def test_leaves_a_script_of_the_hosts_own(tmp_path):
    package = write_host(tmp_path)
    (package / "scripts/train_rlds.py").write_text("print('mine')\n")
    examination = examined(package)
    assert isinstance(examination.findings[0].outcome, NotPresent)
    assert (examination.patches, examination.blocked) == ((), False)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_is_added_once_with_the_hosts_line_ends(tmp_path, newline):
    package = write_host(tmp_path, newline)
    examination = examined(package)
    assert isinstance(examination.findings[0].outcome, Applied)
    assert examination.patches[0].before is None
    record.apply(examination)
    data = (package / "scripts/train_rlds.py").read_bytes()
    assert data.endswith(newline.join(['if __name__ == "__main__":', "    main()", ""]).encode())
    assert data.count(b"\r\n") == (data.count(b"\n") if newline == "\r\n" else 0)
    compile(data, "train_rlds.py", "exec")
    again = examined(package)
    assert isinstance(again.findings[0].outcome, AlreadyApplied)
    assert again.patches == ()


def test_says_so_where_there_is_no_folder_for_it(tmp_path):
    package = write_host(tmp_path)
    (package / "scripts/train.py").unlink()
    assert isinstance(examined(package).problems[0].outcome, Unrecognised)
