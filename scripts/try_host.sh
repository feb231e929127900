#!/usr/bin/env bash
# Tries robomimic-ddp on a copy of a checkout and prints a row of docs/hosts.md:
#   scripts/try_host.sh PATH [FIXER OPTIONS, such as --without copyfile]
# status, diff (git apply --check), apply, apply --check, compilation of what was edited, revert, git status.
# It works on a copy of the folder as it is; the checkout itself is only read. Any Python that has libcst does:
# PYTHON=/path/to/python names one.
# Exit code: 0 patched and reverted, 1 refused or blocked with an explanation, 2 wrong usage, 3 a fault of ours.
set -euo pipefail
checkout="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${PYTHON:-$checkout/.venv/bin/python}"
if [ ! -x "$python" ]; then python="$(command -v "${PYTHON:-python3}" || true)"; fi
if [ $# -lt 1 ] || [ ! -d "$1" ]; then
    echo "usage: scripts/try_host.sh PATH [options of robomimic-ddp apply]; PATH is a folder" >&2
    exit 2
fi
if [ -z "$python" ] || ! PYTHONPATH="$checkout" "$python" -c "import libcst, robomimic_ddp" 2>/dev/null; then
    echo "error: ${python:-python3} lacks libcst. Run scripts/test.sh once, or name another: PYTHON=..." >&2
    exit 2
fi
path="$(cd "$1" && pwd)"
shift
copy="$(mktemp -d)"
trap 'rm -rf "$copy"' EXIT
host="$copy/host"

top="$(git -C "$path" rev-parse --show-toplevel 2>/dev/null || echo "$path")"
commit="$(git -C "$path" rev-parse --short=7 HEAD 2>/dev/null || echo "-")"
name="${NAME:-$(basename "$top")}"
mkdir "$host"
tar -C "$top" --exclude=.git -cf - . | tar -C "$host" -xf -
git -C "$host" init --quiet
git -C "$host" -c core.autocrlf=false -c core.safecrlf=false add --all --force
git -C "$host" -c user.name=try -c user.email=try@localhost commit --quiet --allow-empty --message host

ddp() { PYTHONPATH="$checkout" PYTHONDONTWRITEBYTECODE=1 "$python" -m robomimic_ddp "$@"; }
row() { echo "| $name | $commit | $1 | $2 |"; }
fault() { row "FAULT: $1" "-"; exit 3; }

if ! ddp status "$host" "$@" >"$copy/status.txt" 2>&1; then
    grep -q Traceback "$copy/status.txt" && fault "traceback"
    sed "s|$host/||g" "$copy/status.txt" >&2
    [ -z "$(git -C "$host" status --porcelain)" ] || fault "a refused host was written to"
    state="$(sed -nE 's/^(already distributed|blocked): .*/\1/p' "$copy/status.txt")"
    row "${state:-no host}" "0"
    exit 1
fi
sed "s|$host|$name|g" "$copy/status.txt" >&2
ddp diff "$host" "$@" >"$copy/host.patch"
git -C "$host" apply --check "$copy/host.patch" || fault "git does not take the diff"
ddp apply "$host" "$@" >/dev/null || fault "apply failed after a good status"
# 1 as well where a script is built on an installed robomimic, whose edits are separate.
ddp apply --check "$host" "$@" >"$copy/again.txt" || grep -q "everything is in place" "$copy/again.txt" \
    || fault "applied twice is not applied once"
git -C "$host" add --intent-to-add .
git -C "$host" diff --name-only -z -- '*.py' >"$copy/edited.txt"
(cd "$host" && "$python" - "$copy/edited.txt" <<'PYTHON_END') || fault "an edited file does not compile"
import sys, warnings
warnings.simplefilter("ignore")
for name in filter(None, open(sys.argv[1], encoding="utf-8").read().split("\0")):
    with open(name, "rb") as file:
        compile(file.read(), name, "exec")
PYTHON_END
lines="$(git -C "$host" diff --numstat --diff-filter=M -- '*.py' | awk '{n += $1 + $2} END {print n + 0}')"
git -C "$host" reset --quiet
ddp revert "$host" >/dev/null || fault "revert failed"
[ -z "$(git -C "$host" status --porcelain)" ] || fault "revert left changes"
row "patched, compiled, reverted" "$lines"
