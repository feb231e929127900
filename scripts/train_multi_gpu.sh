#!/usr/bin/env bash
# Trains on several GPUs of this machine, or of several nodes: wraps torchrun.
#   train_multi_gpu.sh --config cfg.json --gpus 4 [--lr-scaling linear] [-- train.batch_size=128]
# --help lists every flag, --dry-run prints the command alone. The Python that runs it (PYTHON, else
# `python`, else `python3` of the PATH) must have torch and robomimic-ddp.
set -euo pipefail
python="${PYTHON:-}"
if [ -z "$python" ]; then
    python="$(command -v python || command -v python3 || true)"
fi
if [ -z "$python" ] || ! command -v "$python" >/dev/null; then
    echo "train_multi_gpu: found no Python (${python:-python, python3}); set PYTHON=/path/to/python" >&2
    exit 2
fi
# From a checkout the script works without an installation.
checkout="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
if [ -e "$checkout/robomimic_ddp/__main__.py" ]; then
    case "${PYTHONPATH:-}:" in
    "$checkout:"*) ;; # it is first already
    *) export PYTHONPATH="$checkout${PYTHONPATH:+:$PYTHONPATH}" ;;
    esac
fi
exec "$python" -m robomimic_ddp launch "$@"
