#!/usr/bin/env bash
# Usage: tools/rebuild.sh COPY COMPILER FLAG...
#
# Makes a copy of the package and the tests, with src/ext compiled by this compiler and these flags,
# and linked with the kernels of the existing build, or with those in the folder KERNELS.  PYTHON is
# the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3} copy=$1 compiler=$2
shift 2
mapfile -t kernels < <(compgen -G "${KERNELS:-build/temp.*}/*/src/kernel/kernels.o")
[ ${#kernels[@]} -gt 0 ] ||
    { echo "build first: $python setup.py build_ext --inplace" >&2; exit 1; }
mkdir -p "$copy/objects"
cp -r linattn tests tools benchmarks pyproject.toml README.md "$copy"
read -r -a own < <("$python" -c "
import sys
import sysconfig
import numpy
isas = {x.split('/')[-4].rsplit('_', 1)[0] for x in sys.argv[1:]}
print('-isystem', numpy.get_include(), '-isystem', sysconfig.get_path('include'),
      *('-DLA_HAS_' + isa for isa in isas))" "${kernels[@]}")
for file in src/ext/*.c; do
    "$compiler" -std=gnu11 -fPIC -fwrapv -fvisibility=hidden -w -DPy_LIMITED_API=0x030b0000 \
        "${own[@]}" "$@" -c "$file" -o "$copy/objects/$(basename "$file" .c).o"
done
rm -f "$copy/linattn/_linattn.abi3.so"
"$compiler" -shared "$@" "$copy"/objects/*.o "${kernels[@]}" -lm -pthread \
    -o "$copy/linattn/_linattn.abi3.so"
