#!/usr/bin/env bash
# Usage: tests/coverage.sh [--kernels] [arguments of pytest]
#
# Lines and branches of src/ext, or of src/kernel, that the tests reach, or that those reach which
# the arguments name.  Clang counts them in the source (-fcoverage-mapping): a branch is a condition
# that somebody wrote, each operand of && and || by itself, and counts twice, true and false.  gcov
# counts the jumps of the object code instead: those in macros of Python, NumPy and the C library,
# and in a kernel every copy of a tile.  Here a line is one line however often it is inlined or
# unrolled, and for both dtypes.
#
# Kernels are compiled for this alone, for one instruction set (ISA, x86-64-v3 by default), with
# little optimisation: tests of time and of memory may fail there, which changes no figure.
# build/coverage/*/listing shows every line with how often it was reached, build/coverage/*/missing
# what was not; nothing is left out of the count, other processors' code neither.  PYTHON names the
# interpreter, CLANG the compiler, beside which llvm-profdata and llvm-cov of its version have to be.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3} clang=${CLANG:-clang} isa=${ISA:-x86-64-v3}
tools=$(dirname "$(readlink -f "$(command -v "$clang")")")
folder=src/ext
# Counters are those of a file that is mapped, so that a child counts that ends without a word.
count=(-fprofile-instr-generate -fcoverage-mapping -fprofile-update=atomic
    -mllvm -runtime-counter-relocation -Wno-unused-command-line-argument)
# Left out is what calls either as others do: the arithmetic in hundreds of shapes for src/ext, what
# is above and around a call for src/kernel; layers, models and documents for both.
flags=(-O0 "${count[@]}")
tests=(tests/test_{array_libraries,fast_call,errors,faults,forward,functions,initial_state}.py
    tests/test_{interrupts,isa,jax,key_lengths,layout,log_decay,memory,module,neighbours}.py
    tests/test_{packed,segments,state,state_errors,step,streaming,threads,interleave,ufuncs}.py)
if [ "${1-}" = --kernels ]; then
    shift
    folder=src/kernel flags=(-O1 -fprofile-instr-generate)
    tests=(tests/test_{differential,interleave,functions,feature_maps,mapped,errors,threads}.py
        tests/test_{interrupts,packed,segments,softmax,conv,half,key_lengths,l2norm}.py
        tests/test_{log_decay,state,step,forward,backward,dplr,gated,delta}.py)
fi
copy=$PWD/build/coverage/${folder#*/}
rm -rf "$copy"
if [ $folder = src/kernel ]; then
    export KERNELS=$copy/kernels
    for dtype in f32 f64; do
        object=$KERNELS/${isa//-/_}_$dtype/src/kernel/kernels.o
        macro=$([ $dtype = f64 ] && echo -DLA_DOUBLE || echo -DLA_SINGLE)
        mkdir -p "$(dirname "$object")"
        # The two would be taken for one file of the same functions but for its name.
        "$clang" -std=gnu11 -O1 -fPIC -fvisibility=hidden -w "-march=$isa" -ffp-contract=fast \
            "-DLA_ISA=${isa//-/_}" "$macro" "${count[@]}" \
            -Xclang -main-file-name -Xclang "kernels_$dtype.c" \
            -c src/kernel/kernels.c -o "$object" &
    done
    wait
fi
if [[ " $*" = *" tests/"* ]]; then
    tests=() # others are named
fi
tests/rebuild.sh "$copy" "$clang" "${flags[@]}"
mkdir "$copy/profiles"
(cd "$copy" && PYTHONPATH=$copy LLVM_PROFILE_FILE=$copy/profiles/%m%c.profraw \
    "$python" -m pytest -q -m "" -p no:cacheprovider "${tests[@]}" "$@") || true
"$tools/llvm-profdata" merge -o "$copy/profile" "$copy"/profiles/*.profraw
"$tools/llvm-cov" show -show-branches=count -show-instantiations=false \
    -instr-profile "$copy/profile" "$copy"/linattn/_linattn*.so >"$copy/listing"
"$python" tests/covered.py $folder "$copy/missing" <"$copy/listing"
