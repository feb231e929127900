"""The parts of README.md that are made from the code have not gone stale."""

from __future__ import annotations

from pathlib import Path

from robomimic_ddp.options import markdown_table

ROOT = Path(__file__).resolve().parents[2]


def test_the_option_table_is_the_one_of_the_code() -> None:
    assert markdown_table() in (ROOT / "README.md").read_text(), (
        "README.md's option table is stale: put there what "
        "`python -c 'import robomimic_ddp.options as o; print(o.markdown_table())'` prints"
    )


def test_the_set_up_commands_exist() -> None:
    first_screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:15])
    for command in ("scripts/demo.sh", "scripts/test.sh"):
        assert command in first_screen
        assert (ROOT / command).stat().st_mode & 0o111, f"{command} is not executable"
