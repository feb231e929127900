"""The command that resumes a run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from robomimic_ddp.config.launch_env import OPTION_PREFIX, LaunchEnv

_UNBUFFERED = "-u"
"""torchrun starts its ranks with it."""
_RESUME = ("ddp.resume=", "resume=")


def build(
    launch: LaunchEnv,
    words: Sequence[str],
    variables: Mapping[str, str] | None = None,
    interpreter: str = "",
    folder: str = "",
) -> str:
    """Return what to type to resume the process that `launch` describes; `words` started it
    (`env.command_line`).

    Options in its environment are repeated, and `variables` of it. `interpreter`: where the shell
    would not find this one's `python` and `torchrun`. `folder`: where it runs; from another one
    `-m` may find an unedited host, and each rank would train alone. Several nodes and launchers
    other than torchrun have addresses and flags of which a rank knows nothing: then it is what to
    add to their command; torchrun's is typed on every node, another launcher's once.
    """
    options = {name.upper(): text for name, text in launch.option_texts.items()}
    added = [
        f"{OPTION_PREFIX}{name}={shlex.quote(text)}"
        for name, text in sorted({**options, "RESUME": "true"}.items())
    ]
    program = [word for word in words[1:] if word != _UNBUFFERED and not word.startswith(_RESUME)]
    one_node = launch.elastic and launch.world_size == launch.local_world_size
    if not program or (launch.launched and not one_node):
        where = " on every node" if launch.elastic and not one_node else ""
        return f"{' '.join(added)}, before the same command{where}"
    start = [interpreter or "python"]
    if one_node:
        torchrun = [interpreter, "-m", "torch.distributed.run"] if interpreter else ["torchrun"]
        start = [*torchrun, "--standalone", f"--nproc_per_node={launch.world_size}"]
    return in_shell(" ".join([*added, shlex.join([*start, *program])]), variables or {}, folder)


def in_shell(command: str, variables: Mapping[str, str], folder: str) -> str:
    """Return `command` for a shell in any folder: it runs in `folder`, with `variables`."""
    enter = [f"cd {shlex.quote(folder)} &&"] if folder else []
    assignments = [f"{name}={shlex.quote(text)}" for name, text in variables.items()]
    return " ".join([*enter, *assignments, command])
