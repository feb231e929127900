#!/usr/bin/env bash
# Makes .venv in this checkout if need be (Python 3.10 to 3.13), then runs the tests; arguments go to
# pytest:  scripts/test.sh -k sampler
# With --oldest first, in .venv-oldest with the oldest versions (constraints-oldest.txt; Python 3.9 or 3.10).
set -euo pipefail
checkout="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
source "$checkout/scripts/lib/environment.sh"
if [ "${1:-}" = --oldest ]; then
    shift
    oldest_python="3.9"
    newest_python="3.10"
    make_environment "$checkout" "" .venv-oldest constraints-oldest.txt complete
else
    make_environment "$checkout" robomimic,rlds,test
fi
cd "$checkout"
unset PYTHONDONTWRITEBYTECODE  # compiled anew, a thousand times over, the tests take minutes more
exec "$environment_python" -m pytest "$@"
