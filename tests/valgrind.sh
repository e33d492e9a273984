#!/usr/bin/env bash
# A few tests under Valgrind's memcheck, or those that the arguments name to pytest.  It knows no
# AVX-512, so that the kernels are those of x86-64-v3; errors count where a frame is ours.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
tests=("$@")
[ $# -gt 0 ] || tests=(tests/test_fast_call.py tests/test_bounds.py tests/test_delta_rules.py::test_poison_stays)
PYTHONMALLOC=malloc PYTHONPATH=$PWD LINATTN_ISA=x86-64-v3 valgrind --quiet --log-file="$log" \
    --num-callers=12 --undef-value-errors=yes "$python" -m pytest -q -p no:cacheprovider "${tests[@]}"
if grep -q "_linattn" "$log"; then
    grep -B 12 -A 4 "_linattn" "$log" | head -n 200
    exit 1
fi
echo "valgrind: nothing that is ours"
