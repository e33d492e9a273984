#!/usr/bin/env bash
# Usage: tools/coverage.sh [--kernels] [arguments of pytest]
#
# Lines and branches of src/ext, or of src/kernel, that the quick tests (or the tests named in the
# arguments) reach.  Clang counts them in the source (-fcoverage-mapping).  A branch is a condition
# in the source, each operand of && and || separately, and counts twice, true and false.  gcov would
# count the jumps of the object code instead: those in macros of Python, NumPy and the C library,
# and every copy of a tile in a kernel.  Here a line counts once however often it is inlined or
# unrolled, and once for both dtypes.
#
# The kernels are compiled for this run only, for one instruction set (ISA, default: x86-64-v3), with
# little optimisation.  Tests of time and memory may fail there, which changes no figure.
# build/coverage/*/listing shows how often every line was reached, build/coverage/*/missing what was
# not reached.  Nothing is excluded, not even other processors' code.  PYTHON is the interpreter,
# CLANG the compiler; llvm-profdata and llvm-cov of its version have to be in the same folder.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3} clang=${CLANG:-clang} isa=${ISA:-x86-64-v3}
tools=$(dirname "$(readlink -f "$(command -v "$clang")")")
folder=src/ext
# Counters are in a mapped file, so that a child process counts even if it ends abruptly.
count=(-fprofile-instr-generate -fcoverage-mapping -fprofile-update=atomic
    -mllvm -runtime-counter-relocation -Wno-unused-command-line-argument)
# Models, documents and other bridges reach the same code as these.
flags=(-O0 "${count[@]}")
tests=(tests/guarantees tests/operators tests/jax tests/torch tests/tools/test_c_{interface,mistakes}.py)
if [ "${1-}" = --kernels ]; then
    shift
    folder=src/kernel flags=(-O1 -fprofile-instr-generate) tests=(tests/guarantees tests/operators)
fi
copy=$PWD/build/coverage/${folder#*/}
rm -rf "$copy"
if [ $folder = src/kernel ]; then
    export KERNELS=$copy/kernels
    for dtype in f32 f64; do
        object=$KERNELS/${isa//-/_}_$dtype/src/kernel/kernels.o
        mkdir -p "$(dirname "$object")"
        # With the same file name, the two dtypes would be counted as one file.
        "$clang" -std=gnu11 -O1 -fPIC -fvisibility=hidden -w "-march=$isa" -ffp-contract=fast \
            "-DLA_ISA=${isa//-/_}" -DLA_DTYPE=$dtype "${count[@]}" \
            -Xclang -main-file-name -Xclang "kernels_$dtype.c" \
            -c src/kernel/kernels.c -o "$object" &
    done
    wait
fi
if [[ " $*" = *" tests/"* ]]; then
    tests=() # the arguments name the tests
fi
tools/rebuild.sh "$copy" "$clang" "${flags[@]}"
mkdir "$copy/profiles"
(cd "$copy" && PYTHONPATH=$copy LLVM_PROFILE_FILE=$copy/profiles/%m%c.profraw \
    "$python" -m pytest -q -n 2 -p no:cacheprovider "${tests[@]}" "$@") || true
"$tools/llvm-profdata" merge -o "$copy/profile" "$copy"/profiles/*.profraw
"$tools/llvm-cov" show -show-branches=count -show-instantiations=false \
    -instr-profile "$copy/profile" "$copy"/linattn/_linattn*.so >"$copy/listing"
"$python" tools/covered.py $folder "$copy/missing" <"$copy/listing"
