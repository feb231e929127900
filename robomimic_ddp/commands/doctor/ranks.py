"""`--ranks N`: a real job of N ranks that times its collectives."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from robomimic_ddp.commands.doctor.findings import FAIL, OK, Context, Finding
from robomimic_ddp.distributed import known_errors, rendezvous

PATIENCE_SECONDS = 120


def check_ranks(context: Context) -> Iterator[Finding]:
    if context.ranks is None:
        return
    if "error" in context.torch:
        found = f"--ranks {context.ranks}: none was started, since torch cannot be imported"
        yield Finding("ranks", FAIL, found, "See torch, above.")
        return
    gpus = len(context.gpus)
    if gpus and context.ranks > gpus:
        found = f"--ranks {context.ranks} with {gpus} visible GPU(s)"
        yield Finding("ranks", FAIL, found, f"Ask for at most {gpus}.")
        return
    with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
        answer = Path(folder) / "answer.json"
        code, text = _start(context.ranks, answer)
        if code == 0 and answer.exists():
            timed = json.loads(answer.read_text(encoding="utf-8"))
            yield Finding(
                "ranks",
                OK,
                f"{context.ranks} rank(s) over {timed['backend']}: round trip "
                f"{timed['round_trip_ms']:.2f} ms, all-reduce of {timed['megabytes']:.0f} MB (the "
                f"gradients of a 67 M policy) {timed['all_reduce_ms']:.0f} ms",
            )
            return
    yield _failure(context.ranks, code, text)


def _start(ranks: int, answer: Path) -> tuple[int | None, str]:
    """(exit code, or None after a timeout; output of the job)."""
    launcher = ["-m", "torch.distributed.run", *rendezvous.on_this_machine()]
    launcher.append(f"--nproc_per_node={ranks}")
    job = subprocess.Popen(
        [sys.executable, *launcher, "-m", "robomimic_ddp.commands.doctor.round_trip", str(answer)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        text, _ = job.communicate(timeout=PATIENCE_SECONDS)
        return job.returncode, text
    except subprocess.TimeoutExpired:
        job.send_signal(signal.SIGTERM)  # torchrun ends its ranks
        text, _ = job.communicate()
        return None, text


def _failure(ranks: int, code: int | None, text: str) -> Finding:
    lines = [line.strip() for line in text.splitlines() if "Error" in line or "error" in line]
    end = f"did not finish in {PATIENCE_SECONDS} s" if code is None else f"ended with {code}"
    cause = next((line for line in lines if "ChildFailedError" not in line), "no error text")
    remedy = known_errors.remedy(text)
    remedy = remedy or "A firewall between the ranks, or a wrong *_SOCKET_IFNAME, is usual."
    return Finding("ranks", FAIL, f"the job of {ranks} rank(s) {end}: {cause}", remedy)
