#!/usr/bin/env bash
# Usage: tools/coverage.sh [--kernels] [arguments of pytest]
#
# Lines and branches of src/ext, or of src/kernel, that the tests (or the tests named in the
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
# Leaves out tests that reach the same code as others: for src/ext arithmetic in hundreds of shapes,
# for src/kernel what surrounds a call, and for both layers, models and documents.
flags=(-O0 "${count[@]}")
tests=(tests/guarantees/test_{array_libraries,bad_input,bits,errors,fast_call,faults}.py
    tests/guarantees/test_{initial_state,interleave,parts,values}.py
    tests/guarantees/test_{interrupts,isa,key_lengths,layout,memory,module,neighbours,packed}.py
    tests/guarantees/test_{stages,state,step,streaming,ufuncs}.py
    tests/guarantees/test_{threads,threads_configuration,threads_interrupted}.py
    tests/operators/test_{attention,functions,log_decay}.py
    tests/jax/test_{errors,results,transforms}.py)
if [ "${1-}" = --kernels ]; then
    shift
    folder=src/kernel flags=(-O1 -fprofile-instr-generate)
    tests=(tests/guarantees/test_{bits,differential,errors,half,interleave,interrupts}.py
        tests/guarantees/test_{key_lengths,parts,values}.py
        tests/guarantees/test_{packed,stages,state,step,threads,threads_interrupted}.py
        tests/operators/test_{attention,conv_states,conv_values,delta,dplr}.py
        tests/operators/test_{feature_maps,functions,gated,l2norm,log_decay,mapped}.py
        tests/operators/test_{mapped_rescaled,softmax}.py)
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
    "$python" -m pytest -q -m "" -p no:cacheprovider "${tests[@]}" "$@") || true
"$tools/llvm-profdata" merge -o "$copy/profile" "$copy"/profiles/*.profraw
"$tools/llvm-cov" show -show-branches=count -show-instantiations=false \
    -instr-profile "$copy/profile" "$copy"/linattn/_linattn*.so >"$copy/listing"
"$python" tools/covered.py $folder "$copy/missing" <"$copy/listing"
