#!/usr/bin/env bash
# Usage: tools/pythons.sh [SUITE [FREE]]
#
# Tests every Python of a Debian suite (default: testing), in its own root, build/pythons/SUITE.
# tools/wheels.py builds the source archive and the wheel there, installs both under each Python and
# runs the selftest; then the tests below run on the wheel.  FREE, such as 3.14, is also built
# free-threaded from the suite's source, to test what the GIL may hide.
# Needs Debian and root (apt install mmdebstrap); the rest comes from Debian and the package index.
# MMDEBSTRAP has more options for mmdebstrap, LINATTN_ISAS the instruction sets to build.
set -euo pipefail
cd "$(dirname "$0")/.."

suite=${1:-testing} free=${2-}
root=$PWD/build/pythons/$suite
tests=(operators/test_{attention,delta,gated,conv_values,conv_states}.py
    guarantees/test_{values,parts,half,errors,bad_input,ufuncs}.py)
free_tests=(guarantees/test_{threads,threads_interrupted,interrupts,memory,interleave}.py
    guarantees/test_bits.py operators/test_gated_delta.py)

# Runs a command in /linattn of the root, with /proc and /dev mounted while it runs.
inside() {
    # shellcheck disable=SC2016
    unshare --mount --pid --fork bash -c '
        mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec env "$@"' "$root" \
        PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
        PIP_ONLY_BINARY=numpy,ml_dtypes unshare --root="$root" --wd=/linattn "$@"
}

if [ ! -e "$root/made" ]; then
    # Mounts are private to the command and end with it, so rm cannot reach the real /dev.
    rm -rf --one-file-system "$root"
    mkdir -p "$(dirname "$root")"
    # shellcheck disable=SC2086
    unshare --mount mmdebstrap --variant=apt ${MMDEBSTRAP-} \
        --include='?name("^python3\.[0-9]+-(dev|venv)$")' --include=ca-certificates,gcc,libc6-dev \
        --include=dpkg-dev,make,zlib1g-dev,libssl-dev,libffi-dev "$suite" "$root"
    touch "$root/made"
fi
# A proxy before the package index may need the certificates of this machine.
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
rm -rf "$root/linattn" && mkdir "$root/linattn"
git ls-files -z | tar --create --null --files-from=- --ignore-failed-read |
    tar --extract --directory="$root/linattn"

if [ -n "$free" ] && [ ! -e "$root/usr/local/bin/python${free}t" ]; then
    # Built with little optimisation, since its speed does not matter here.
    # shellcheck disable=SC2016
    inside sh -euc '
        sed -n "s/^deb /deb-src /p" /etc/apt/sources.list >/etc/apt/sources.list.d/source.list
        apt-get -q update
        cd /opt
        apt-get -q source --download-only "python$0"
        dpkg-source --no-check --skip-patches -x "python$0"_*.dsc "python$0"
        cd "python$0"
        ./configure -q --prefix="/opt/free$0" --disable-gil --disable-test-modules \
            "OPT=-DNDEBUG -O1"
        make -s -j"$(nproc)"
        make -s altinstall
        ln -s "/opt/free$0/bin/python$0t" /usr/local/bin/' "$free" >"$root/build.log" 2>&1 ||
        { tail -n 50 "$root/build.log"; exit 1; }
fi

# shellcheck disable=SC2016
inside bash -euc '
    rm -rf /tests && mkdir /tests
    all=(/usr/bin/python3.??) free=(/usr/local/bin/python3.??t)
    [ -x "${free[0]}" ] || free=()
    "${all[-1]}" -m venv /tests/build
    /tests/build/bin/pip install -q build
    /tests/build/bin/python tools/wheels.py --folder /tests/wheels
    cd tests # so that the installed package is imported
    for python in "${all[@]}" "${free[@]}"; do
        place=/tests/${python##*/}
        "$python" -m venv "$place"
        "$place/bin/pip" install -q numpy pytest ml_dtypes threadpoolctl
        "$place/bin/pip" install -q --no-index --no-deps --find-links /tests/wheels linattn
        read -ra files <<<"$0"
        [[ $python != *t ]] || read -ra files <<<"$0 $1"
        "$place/bin/linattn" info
        "$place/bin/pytest" -q -p no:cacheprovider "${files[@]}"
    done' "${tests[*]}" "${free_tests[*]}"
