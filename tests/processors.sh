#!/usr/bin/env bash
# Usage: tests/processors.sh PROCESSOR ...
#
# The tests on processors that this machine does not have, under QEMU:
#     arm64 s390x ppc64el riscv64 ...  architectures of Debian, of which s390x is big-endian
#     Nehalem Haswell ...              models of x86-64: these have x86-64-v2 and x86-64-v3
# On Debian (apt install mmdebstrap qemu-user-static binfmt-support), architectures as root and with
# their compiler (apt install gcc-aarch64-linux-gnu, ...).
#
# Models run the build in use, under PYTHON (python3 by default).  An architecture has a root of its
# own, build/processors/NAME, made once of SUITE (testing by default; MMDEBSTRAP has further options
# for mmdebstrap): its Python and NumPy, unpacked and not configured.  Only what is tested is
# emulated, not what builds it.
#
# An emulated core has a hundredth of the speed, so the tests are those that compare with the twins
# at small shapes, or CHOSEN of pytest's -k; then come CASES (1000) random calls with poisoned
# scratch.
set -euo pipefail
cd "$(dirname "$0")/.."

chosen='test_forward or test_backward or test_dplr or test_layouts or test_split_anywhere
    or test_sixteen_bits or test_map_objects or test_adjoint or test_packed or test_key_lengths
    or test_broadcasting or test_heads or test_cross_attention or test_eps_and_scale
    or (test_half and not test_rounding and not without)
    or (test_gated and test_maps and not test_gated_delta)
    or (test_numerics and (large_and_small or test_maps))
    or (test_conv and (twin or every_split or out_may))
    or (test_interleave and interleaved_heads_of_other)
    or (test_scratch and (elementwise or convolution or softmax-float32))'
files=(tests/test_{forward,backward,half,twin,numerics,delta,gated,gated_delta,dplr,conv,interleave,scratch}.py)

# All of it, by the command that is Python.
check() {
    "$@" -m linattn info
    "$@" -m linattn selftest
    "$@" -m pytest -q -p no:cacheprovider -k "${CHOSEN:-${chosen//$'\n'/ }}" "${files[@]}"
    "$@" tests/differential.py --cases "${CASES:-1000}" --poison
}

# A command in /linattn of a root, which has the kernel's file systems for as long as it runs.  What
# is not configured has no links to its libraries.
inside() {
    # shellcheck disable=SC2016
    unshare --mount --pid --fork bash -c '
        mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec env -i "$@"' "$root" \
        PATH=/usr/bin:/bin HOME=/root LC_ALL=C.UTF-8 OPENBLAS_NUM_THREADS=1 \
        PYTHONPATH=/linattn LD_LIBRARY_PATH="/usr/lib/$triplet/blas:/usr/lib/$triplet/lapack" \
        unshare --root="$root" --wd=/linattn "$@"
}

architecture() {
    local name=$1 isa=generic contract=off python kernels=() compile
    root=$PWD/build/processors/$name
    [ "$name" != arm64 ] || isa=neon contract=fast
    if [ ! -e "$root/made" ]; then
        # What it mounts is seen by it alone, and is gone with it: /dev is not to be removed from.
        rm -rf --one-file-system "$root"
        mkdir -p "$(dirname "$root")"
        # shellcheck disable=SC2086
        unshare --mount mmdebstrap --variant=extract --architectures="$name" ${MMDEBSTRAP-} \
            --include=base-files,dash,libpython3-dev,python3-numpy,python3-ml-dtypes,python3-pytest \
            "${SUITE:-testing}" "$root"
        touch "$root/made"
    fi
    rm -rf "$root/linattn" && mkdir "$root/linattn"
    git ls-files -z | tar --create --null --files-from=- --ignore-failed-read |
        tar --extract --directory="$root/linattn"
    # As setup.py has it.  Headers of the root's C library come last: the compiler has its own.
    triplet=$(basename "$root"/usr/lib/*-linux-gnu*)
    python=$(echo "$root"/usr/include/python3.*)
    compile=("$triplet-gcc" -std=gnu11 -O3 -fPIC -fwrapv -fvisibility=hidden)
    for dtype in FLOAT DOUBLE; do
        kernels+=("$root/linattn/$dtype.o")
        "${compile[@]}" -ffp-contract="$contract" -DLA_ISA="$isa" -DLA_"$dtype" \
            -c src/kernel/kernels.c -o "${kernels[-1]}"
    done
    "${compile[@]}" -DPy_LIMITED_API=0x030b0000 -DLA_HAS_"$isa" -I"$python" \
        -I"$root/usr/lib/python3/dist-packages/numpy/_core/include" -idirafter "$root/usr/include" \
        -shared src/ext/*.c "${kernels[@]}" -lm -pthread -o "$root/linattn/linattn/_linattn.abi3.so"
    check inside python3
}

model() {
    # A library of NumPy's may have been told of another processor.
    check env -u OPENBLAS_CORETYPE OPENBLAS_NUM_THREADS=1 QEMU_CPU="$1" PYTHONPATH="$PWD" \
        qemu-x86_64-static "$(command -v "${PYTHON:-python3}")"
}

for processor in "${@:?a processor, such as arm64 or Nehalem}"; do
    case $processor in
    [A-Z]*) model "$processor" ;;
    *) architecture "$processor" ;;
    esac
done
