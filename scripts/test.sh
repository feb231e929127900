#!/usr/bin/env bash
# Makes .venv in this checkout if need be (Python 3.10 to 3.13), then runs the tests, on up to four workers.
#   scripts/test.sh                  what every change is tested with
#   scripts/test.sh --all            the slow ones too: more variants, the demo, soaks, notebooks, measurements, builds
#   scripts/test.sh --changed=main   what the files need that you changed since your branch left it
#   scripts/test.sh -k sampler       paths and flags go to pytest
#   scripts/test.sh --oldest ...     in .venv-oldest, with the oldest versions (constraints-oldest.txt)
#                                    and Python 3.10
set -euo pipefail
checkout="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
source "$checkout/scripts/lib/environment.sh"
if [ "${1:-}" = --oldest ]; then
    shift
    newest_python="3.10"
    check_arguments test "$@"
    make_environment "$checkout" "" .venv-oldest constraints-oldest.txt complete
else
    check_arguments test "$@"
    make_environment "$checkout" robomimic,rlds,test
fi
cd "$checkout"
unset PYTHONDONTWRITEBYTECODE  # compiling again in each process takes minutes
# A file stays on one worker (its fixtures are made once), long files first (tests/conftest.py). One
# worker more than cores, since some tests wait; four at most: each may need 5 GB.
workers=$(($(getconf _NPROCESSORS_ONLN) + 1))
parallel=(-n "$workers" --maxprocesses 4 --dist loadfile --no-loadscope-reorder --durations 10)
exec "$environment_python" -m pytest "${parallel[@]}" "$@"
