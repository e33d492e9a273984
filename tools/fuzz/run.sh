#!/usr/bin/env bash
# Usage: tools/fuzz/run.sh [arguments of libFuzzer, such as -max_total_time=3600]
#
# Runs fuzz.c under clang's libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer, with one
# instruction set.  It starts from seeds.txt, one seed per line in hexadecimal digits.  Findings are
# saved in build/fuzz; name such a file to run it again.
set -euo pipefail
cd "$(dirname "$0")/../.."

isa=${ISA:-x86-64-v3}
name=${isa//-/_}
work=build/fuzz
mkdir -p "$work/corpus"
flags=(-std=gnu11 -O1 -w -fno-omit-frame-pointer)
sanitizers=-fsanitize=fuzzer-no-link,address,undefined
objects=()

# compile NAME SOURCE FLAG...: compiles an object if it is older than the sources.
compile() {
    local object=$work/$1.o source=$2
    objects+=("$object")
    if [ -z "$(find src tools/fuzz -newer "$object" -name '*.[chd]*' 2>&1 | head -n 1)" ]; then
        return
    fi
    clang "${flags[@]}" "${@:3}" -c "$source" -o "$object"
}

for dtype in f32 f64; do
    compile "kernels_$dtype" src/kernel/kernels.c "-march=$isa" "-DLA_ISA=$name" -DLA_DTYPE=$dtype \
        -ffp-contract=fast -fsanitize=address &
    objects+=("$work/kernels_$dtype.o")
done
wait
for part in call plan job split channel_split stages lift interleave sequences pool num_threads \
    operators form signature scratch cpu os_posix; do
    compile $part "src/ext/$part.c" "-DLA_HAS_$name" -g $sanitizers
done
compile fuzz tools/fuzz/fuzz.c -Isrc/ext -g $sanitizers
clang -fsanitize=fuzzer,address,undefined "${objects[@]}" -lm -pthread -o $work/fuzz
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
if [ $# -gt 0 ] && [ -f "${!#}" ]; then
    exec $work/fuzz "$@"
fi
while read -r seed; do
    # shellcheck disable=SC2059
    printf "$(sed 's/../\\x&/g' <<<"$seed")" >"$work/corpus/$seed"
done <tools/fuzz/seeds.txt
exec $work/fuzz -artifact_prefix=$work/ -max_len=256 "$@" $work/corpus
