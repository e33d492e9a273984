#!/usr/bin/env bash
# Usage: tools/valgrind.sh [arguments of pytest]
#
# Runs a few tests, or those in the arguments, under Valgrind's memcheck.  Valgrind does not support
# AVX-512, so the kernels are those of x86-64-v3.  An error counts if one of its frames is linattn's.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
tests=("$@")
[ $# -gt 0 ] || tests=(tests/guarantees/test_{fast_call,bounds}.py
    "tests/guarantees/test_bits.py::test_poison_stays[delta-beta(n)-feature_map=identity-scale=0.5-nan]")
PYTHONMALLOC=malloc PYTHONPATH=$PWD LINATTN_ISA=x86-64-v3 valgrind --quiet --log-file="$log" \
    --num-callers=12 --undef-value-errors=yes "$python" -m pytest -q -p no:cacheprovider "${tests[@]}"
if grep -q "_linattn" "$log"; then
    grep -B 12 -A 4 "_linattn" "$log" | head -n 200
    exit 1
fi
echo "valgrind: no errors in linattn"
