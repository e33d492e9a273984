#!/usr/bin/env bash
# Usage: tools/processors.sh PROCESSOR ...
#
# Runs the tests on processors that this machine does not have, under QEMU:
#     arm64 s390x ppc64el riscv64 ...  architectures of Debian; s390x is big-endian
#     Nehalem Haswell ...              models of x86-64: these have x86-64-v2 and x86-64-v3
# Needs Debian (apt install mmdebstrap qemu-user-static binfmt-support); architectures need root and
# their compiler (apt install gcc-aarch64-linux-gnu, ...).
#
# Models run the existing build under PYTHON (default: python3).  Each architecture has its own root,
# build/processors/NAME, made once from SUITE (default: testing; MMDEBSTRAP has more options for
# mmdebstrap) with its Python and NumPy, unpacked and not configured.  Only the tests are emulated,
# not the build.
#
# An emulated core is about a hundred times slower, so the tests are those that compare with the
# twins at small shapes, or those that CHOSEN selects, as pytest's -k does.  Then come CASES
# (default: 1000) random calls with poisoned scratch.
set -euo pipefail
cd "$(dirname "$0")/.."

chosen='test_attention or test_dplr or test_sixteen_bits or test_adjoint or test_packed
    or (test_values and (test_gates or test_maps or test_leading_axes or 16-4-5))
    or (test_parts and (test_steps or test_key_lengths or float32-33)) or test_cross_attention or test_eps_and_scale
    or (test_half and not test_rounding and not without)
    or (test_numerics and (large_and_small or test_maps))
    or (test_conv and (plain_convolution or one_token))
    or (test_interleave and test_other_dtypes)
    or (test_scratch and (elementwise or table-float32))'
files=(tests/guarantees/test_{adjoint,half,interleave,numerics,parts,scratch,twin,values}.py
    tests/operators/test_{attention,delta,gated,gated_delta,dplr,conv_values,conv_states}.py)

# Runs everything; the arguments are the command for Python.
check() {
    "$@" -m linattn info
    "$@" -m linattn selftest
    "$@" -m pytest -q -p no:cacheprovider -k "${CHOSEN:-${chosen//$'\n'/ }}" "${files[@]}"
    "$@" tools/differential.py --cases "${CASES:-1000}" --poison
}

# Runs a command in /linattn of a root, with /proc and /dev mounted while it runs.  Packages that are
# not configured lack the links to their libraries, hence LD_LIBRARY_PATH.
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
        # Mounts are private to the command and end with it, so rm cannot reach the real /dev.
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
    # The flags of setup.py.  The root's C headers come last, since the compiler has its own.
    triplet=$(basename "$root"/usr/lib/*-linux-gnu*)
    python=$(echo "$root"/usr/include/python3.*)
    compile=("$triplet-gcc" -std=gnu11 -O3 -fPIC -fwrapv -fvisibility=hidden)
    for dtype in f32 f64; do
        kernels+=("$root/linattn/$dtype.o")
        "${compile[@]}" -ffp-contract="$contract" -DLA_ISA="$isa" -DLA_DTYPE="$dtype" \
            -c src/kernel/kernels.c -o "${kernels[-1]}"
    done
    "${compile[@]}" -DPy_LIMITED_API=0x030b0000 -DLA_HAS_"$isa" -I"$python" \
        -I"$root/usr/lib/python3/dist-packages/numpy/_core/include" -idirafter "$root/usr/include" \
        -shared src/ext/*.c "${kernels[@]}" -lm -pthread -o "$root/linattn/linattn/_linattn.abi3.so"
    check inside python3
}

model() {
    # The environment may have set another processor for NumPy's BLAS.
    check env -u OPENBLAS_CORETYPE OPENBLAS_NUM_THREADS=1 QEMU_CPU="$1" PYTHONPATH="$PWD" \
        qemu-x86_64-static "$(command -v "${PYTHON:-python3}")"
}

for processor in "${@:?a processor, such as arm64 or Nehalem}"; do
    case $processor in
    [A-Z]*) model "$processor" ;;
    *) architecture "$processor" ;;
    esac
done
