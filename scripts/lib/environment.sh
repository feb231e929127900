# shellcheck shell=bash
# Sourced by scripts/test.sh, scripts/demo.sh and scripts/demo_robosuite.sh:
#   make_environment CHECKOUT EXTRAS [FOLDER] [CONSTRAINTS [complete]]
# makes CHECKOUT/FOLDER (.venv) with the package (editable), its extras and the tested versions
# (constraints.txt), and sets $environment_python. "complete": CONSTRAINTS lists every package, and
# what those say they depend on is not asked. A second call finds the stamp of the first and returns
# at once. PYTHON=/path/to/python chooses the interpreter: an environment of another version is made again.

# The wheels of constraints.txt exist for these; a script with other constraints sets others.
oldest_python="3.10"
newest_python="3.13"

suits() {  # does this interpreter exist, and is it within the range?
    "$1" - "$oldest_python" "$newest_python" >/dev/null 2>&1 <<'PYTHON_END'
import sys
oldest, newest = (tuple(int(part) for part in text.split(".")) for text in sys.argv[1:])
sys.exit(not oldest <= sys.version_info[:2] <= newest)
PYTHON_END
}

find_python() {
    local candidates=(python3 python3.13 python3.12 python3.11 python3.10 python)
    if [ -n "${PYTHON:-}" ]; then candidates=("$PYTHON"); fi
    local candidate
    for candidate in "${candidates[@]}"; do
        if suits "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    {
        echo "error: found no Python from $oldest_python to $newest_python (tried: ${candidates[*]})."
        echo "The tested versions of all packages have wheels for these only. Install one, or name"
        echo "one: PYTHON=/path/to/python$newest_python $0"
    } >&2
    return 1
}

minor_version() { "$1" -c 'import sys; print(*sys.version_info[:2])'; }

is_asked_for() {  # has this environment the version of $PYTHON, if that is given?
    [ -z "${PYTHON:-}" ] || ! suits "$PYTHON" || [ "$(minor_version "$1")" = "$(minor_version "$PYTHON")" ]
}

# check_arguments SCRIPT ARGUMENTS: ends the script for --help and for arguments that it does not know,
# before anything is installed. Without a Python, make_environment says what is missing.
check_arguments() {
    local python code=0
    python="$(find_python 2>/dev/null || command -v python3)" || return 0
    "$python" "$(dirname "${BASH_SOURCE[0]}")/../arguments.py" "$@" || code=$?
    case "$code" in 0) ;; 3) exit 0 ;; *) exit "$code" ;; esac
}

# A new setup.py, constraints file, extras, place or interpreter means a new installation.
installation_stamp() {
    "$1" - "$2" "$3" "$4" <<'PYTHON_END'
import hashlib, pathlib, sys
checkout, extras, constraints = sys.argv[1:]
parts = [(pathlib.Path(checkout) / name).read_bytes() for name in ("setup.py", constraints)]
parts += [text.encode() for text in (checkout, extras, sys.version)]
print(hashlib.sha256(b"\0".join(parts)).hexdigest()[:16])
PYTHON_END
}

make_environment() {
    local checkout="$1" extras="$2" constraints="${4:-constraints.txt}" base stamp
    local versions=(--constraint "$checkout/$constraints")
    if [ "${5:-}" = complete ]; then versions=(--no-deps --requirement "$checkout/$constraints"); fi
    local folder="$checkout/${3:-.venv}"
    environment_python="$folder/bin/python"
    if [ -e "$folder.unfinished" ] || ! suits "$environment_python" || ! is_asked_for "$environment_python"; then
        base="$(find_python)" || return 1
        echo "making ${3:-.venv} with $("$base" --version): 3 GB to download, 6 GB on disk, a fifth more with the tests" >&2
        touch "$folder.unfinished" || return 1  # an interrupted venv has a python, and no pip
        "$base" -m venv --clear "$folder" || {
            echo "error: '$base -m venv' failed: Debian and Ubuntu need the package python3-venv." >&2
            return 1
        }
        rm "$folder.unfinished"
    fi
    stamp="$folder/installed-$(installation_stamp "$environment_python" "$checkout" "$extras" "$constraints")"
    if [ -e "$stamp" ]; then return 0; fi
    echo "installing robomimic-ddp${extras:+[$extras]}: minutes, more on a slow network" >&2
    (
        set -o pipefail # of pip's lines those that take long
        "$environment_python" -m pip install --progress-bar off --disable-pip-version-check \
            "${versions[@]}" --editable "$checkout${extras:+[$extras]}" |
            sed -un 's/^Installing collected packages.*/  Installing them: minutes without a line on a slow disk/p; /[0-9] [MG]B)$/p' >&2
    ) || return 1
    touch "$stamp"
}
