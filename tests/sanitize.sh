#!/usr/bin/env bash
# The tests, or those that the arguments name to pytest, or a script after --script, under gcc's
# AddressSanitizer and UndefinedBehaviorSanitizer.  The extension is built in a copy of the tree, build/sanitize, and
# the one in use is left alone.  PYTHON names the interpreter (python3 by default).
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
copy=$PWD/build/sanitize
mkdir -p "$copy/bin"

# Times are kept, so that what has not changed is not built again.
git ls-files -z --cached --others --exclude-standard |
    tar --create --null --files-from=- --ignore-failed-read | tar --extract --directory="$copy"
cd "$copy"

# These flags come last on every line, after those of setup.py and of Python.  Names of lines but
# not of variables (-g1), and no warnings (-w): gcc takes many minutes for either in such code.
cat >bin/cc <<'END'
#!/bin/sh
exec gcc "$@" -O1 -g1 -w -fno-omit-frame-pointer -fsanitize=address,undefined
END
chmod +x bin/cc
CC=$copy/bin/cc "$python" setup.py build_ext --inplace >build.log 2>&1 ||
    { cat build.log; exit 1; }

# Whatever is found ends the process that it is found in, with the stack on its stderr.  Python
# leaks by design.  Tests ask for memory that there is not, and want a MemoryError.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export PYTHONPATH=$copy PYTHONDONTWRITEBYTECODE=1
preload="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)"

if [ "${1-}" = --script ]; then
    LD_PRELOAD=$preload exec "$python" "${@:2}"
fi

# The sanitizers' own memory is in the way of those that measure it; the others build a library
# without sanitizers, and start kernels of Jupyter, to no new end.
without=(
    --deselect tests/test_memory.py::test_beyond_the_arrays
    --deselect tests/test_softmax.py::test_memory_is_linear
    --deselect tests/test_delta_gradients.py::test_memory
    --ignore tests/test_build.py
    --ignore tests/test_notebooks.py
)
LD_PRELOAD=$preload exec "$python" -m pytest -s -p no:cacheprovider "${without[@]}" "$@"
