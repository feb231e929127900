"""The command lines of the scripts that install what they need, read before they install it:
`python scripts/arguments.py SCRIPT ARGUMENTS` ends with 0 where they are right, with 2 and a
message where they are not, and with HELP where help was asked for. Needs the standard library only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
CONFIGS = {
    "diffusion_policy": CHECKOUT / "configs" / "demo_robosuite.json",
    "bc": CHECKOUT / "configs" / "demo_robosuite_bc.json",
}
HELP, WRONG = 3, 2


def demo(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of scripts/demo.sh."""
    parser.add_argument("--root", type=Path, default=Path("runs/demo"), help="where all of it goes")
    parser.add_argument("--config", type=Path, default=CHECKOUT / "configs" / "demo.json")
    parser.add_argument("--demonstrations", type=int, default=300)
    parser.add_argument("--evaluations", type=int, default=100, help="episodes, each time")
    parser.add_argument("--ranks", type=int, help="default: the visible GPUs, or two CPU ranks")
    parser.add_argument(
        "settings", nargs="*", type=_setting, metavar="key=value", help="for the training"
    )


def lift(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of scripts/demo_robosuite.sh."""
    parser.add_argument("--root", type=Path, default=Path("runs/demo_robosuite"))
    parser.add_argument("--algo", choices=CONFIGS, default="diffusion_policy")
    parser.add_argument("--config", type=Path, help="default: the algorithm's, in configs/")
    parser.add_argument("--attempts", type=int, default=100, help="scripted demonstrations")
    parser.add_argument("--ranks", type=int, help="default: the visible GPUs, or two CPU ranks")
    parser.add_argument("--seed", type=int, help="of the training; default: the config's")


def gpu_check(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of scripts/gpu_check.sh."""
    parser.add_argument("--cpu", action="store_true", help="a rehearsal without a GPU")
    parser.add_argument("--only", default="", metavar="NAME,NAME", help="checks that contain one")
    parser.add_argument(
        "--budget", type=float, default=1800.0, metavar="SECONDS", help="then the rest is skipped"
    )
    parser.add_argument("--json", type=Path, default=Path("gpu_check.json"), metavar="FILE")


def mutate(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of scripts/mutate.sh."""
    parser.add_argument("--sample", type=int, help="number of random mutants of each module")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--module", action="append", help="only modules with this in their path")
    parser.add_argument("--line", help="only mutants with this in their line")
    parser.add_argument("--least", type=float, default=0.9, help="a lower score is a failure")
    parser.add_argument("--verbose", action="store_true", help="name what killed each")


PROGRAMS = {"demo": demo, "demo_robosuite": lift, "gpu_check": gpu_check, "mutate": mutate}


def parse(script: str, words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the arguments of scripts/SCRIPT.sh (default: this process's)."""
    parser = argparse.ArgumentParser(
        prog=f"scripts/{script}.sh",
        description=_head(script),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    PROGRAMS[script](parser)
    return parser.parse_args(words)


def _setting(text: str) -> str:
    if "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not a setting: expected key=value")
    return text


def _head(script: str) -> str:
    """Return the comment at the head of a script."""
    lines = (CHECKOUT / "scripts" / f"{script}.sh").read_text(encoding="utf-8").splitlines()[1:]
    end = next(number for number, line in enumerate(lines) if not line.startswith("#"))
    return "\n".join(line[2:] for line in lines[:end])


def main(words: Sequence[str]) -> None:
    script, *rest = words
    if script == "test":  # the rest is pytest's to check
        if {"-h", "--help"} & {*rest}:
            print(_head(script))
            sys.exit(HELP)
        return
    try:
        parse(script, rest)
    except SystemExit as ended:
        sys.exit(ended.code or HELP)


if __name__ == "__main__":
    main(sys.argv[1:])
