"""What the launcher refuses before torchrun starts; config and data are the ranks' to check."""

from __future__ import annotations

from robomimic_ddp import files
from robomimic_ddp.commands.launch.arguments import DOT_LIST_MODULE
from robomimic_ddp.config.host import host_edits
from robomimic_ddp.errors import PatchError


def require_patched(module: str = DOT_LIST_MODULE) -> None:
    """Raise PatchError if a training module of a host, found as a rank finds it and without an
    import, is not patched, or is missing; a module that does not train passes.
    """
    package, *inner = module.split(".")
    folder = host_edits.importable_folder(package)
    if folder is None or not (folder / "utils" / "train_utils.py").is_file():
        return  # it is not a host
    file = folder.joinpath(*inner).with_suffix(".py")
    try:
        text = files.read_bytes(file).decode(errors="replace")
    except OSError:
        text = ""
    if "def train(" in text and "robomimic_ddp" not in text:
        fault = f"{file} is not patched: every rank would train a separate model"
    elif not file.is_file() and module == DOT_LIST_MODULE:
        fault = f"there is no {file}, which robomimic-ddp apply adds to the host"
    else:
        return
    raise PatchError(
        f"{fault}. Python imports this robomimic: run `robomimic-ddp apply` on it, or start in "
        "the folder of the host that is patched."
    )
