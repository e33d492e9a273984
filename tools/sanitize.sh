#!/usr/bin/env bash
# Usage: tools/sanitize.sh address|thread [arguments of pytest | --script FILE ...]
#
# Runs the tests under gcc's AddressSanitizer and UndefinedBehaviorSanitizer, or those that start
# threads under clang's ThreadSanitizer.  The extension is built in a copy of the tree,
# build/sanitize; the existing build does not change.  PYTHON is the interpreter (default: python3).
# LINATTN_ISAS sets the instruction sets; one is usually enough, and builds faster.  CLANG is a clang
# whose ThreadSanitizer works when preloaded: 19 does, 14 does not.
set -euo pipefail
cd "$(dirname "$0")/.."

kind=${1:?address or thread}
shift
python=${PYTHON:-python3} clang=${CLANG:-clang}
copy=$PWD/build/sanitize/$kind
mkdir -p "$copy/bin"

# Debug information for lines but not variables (-g1), and no warnings (-w): with sanitizers gcc
# takes many minutes for either.
flags=(-O1 -g1 -w -fno-omit-frame-pointer)
case $kind in
address)
    # The address sanitizer finds what these two look for.
    flags+=(-fsanitize=address,undefined -fno-sanitize=null,object-size)
    preload="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)"
    run=()
    # What calls C in ways of its own.  Layers, models and other bridges are Python over these.
    tests=(
        tests/guarantees
        tests/operators
        tests/jax/test_{errors,every_case,results,xla_ffi}.py
        tests/tools/test_c_{interface,mistakes}.py
        tests/torch/test_{complex,direct,errors,fused,half_states,machinery,memory,pools,results,runner}.py
        -m "not slow and not unsanitized"
    )
    ;;
thread)
    flags+=(-fsanitize=thread -shared-libsan)
    preload=$("$clang" -print-file-name="libclang_rt.tsan-$(uname -m).so")
    run=(setarch -R) # it does not support this much address randomisation
    # Under it, children of a process with threads hang; the address sanitizer runs the fork tests.
    tests=(
        tests/guarantees/test_bits.py::test_threads
        tests/guarantees/test_stages.py::test_packed_sequences
        tests/guarantees/test_stages.py::test_lengths
        tests/guarantees/test_stages.py::test_a_state_in_place
        tests/guarantees/test_stages.py::test_a_call_that_chooses_stages
        tests/guarantees/test_stages.py::test_more_groups_than_there_is_memory_for
        tests/guarantees/test_stages.py::test_heads_left_over
        tests/guarantees/test_stages.py::test_noncausal_chooses_stages
        tests/guarantees/test_threads.py::test_a_backward_of_one_head
        tests/guarantees/test_threads.py::test_a_pool_that_grows
        tests/guarantees/test_interleave.py
        tests/guarantees/test_interrupts.py::test_threads_of_python
    )
    ;;
*)
    echo "sanitizer is $kind; expected address or thread" >&2
    exit 2
    ;;
esac

if [ "$kind" = address ]; then
    # Keeps the times of files, so that unchanged files are not rebuilt.
    git ls-files -z --cached --others --exclude-standard |
        tar --create --null --files-from=- --ignore-failed-read |
        tar --extract --directory="$copy"
    cd "$copy"
    # The flags come last on every command line, after those of setup.py and of Python.
    printf '#!/bin/sh\nexec gcc "$@" %s\n' "${flags[*]}" >bin/cc
    chmod +x bin/cc
    CC=$copy/bin/cc "$python" setup.py build_ext --inplace >build.log 2>&1 ||
        { cat build.log; exit 1; }
else
    # Only src/ext synchronises threads; the kernels do not, and come from the existing build.
    tools/rebuild.sh "$copy" "$clang" "${flags[@]}"
    cd "$copy"
fi

# Any finding ends the process, with the stack on stderr.  Python leaks by design, and
# ThreadSanitizer cannot see its locks.  Tests ask for more memory than there is, and expect a
# MemoryError.  Freed memory is kept from use for a while, to find accesses to it: 32 MiB of it, since
# the usual 256 MiB take a fifth of the time.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=32
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS=halt_on_error=1:ignore_noninstrumented_modules=1
# Tests of response times allow for this factor, since sanitized code is slow.
export LINATTN_SLOWER=10
export PYTHONPATH=$copy PYTHONDONTWRITEBYTECODE=1

if [ "${1-}" = --script ]; then
    exec "${run[@]}" env LD_PRELOAD="$preload" "$python" "${@:2}"
fi
if [[ " $*" = *" tests/"* ]]; then
    tests=() # the arguments name the tests
fi
exec "${run[@]}" env LD_PRELOAD="$preload" \
    "$python" -m pytest -s -p no:cacheprovider "${tests[@]}" "$@"
