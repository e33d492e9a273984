"""The instructions of AMX (src/kernel/tiles/amx.h), where the processor lacks them.

A signal handler computes them (trapped_amx.c).  test_amx.py has their sums in plain C.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from linattn import _linattn
from linattn._core import settings

ISAS = settings.available_isas()

TRAPPED_SCRIPT = """
import ctypes
import ml_dtypes, numpy as np
import linattn
from linattn import _linattn
from linattn._linattn import operators
from states import flat
from table import ATTENTION, first_of

trap = ctypes.CDLL(sys.argv[1])
assert trap.trapped_begin() == 0
linattn.set_num_threads(1)  # other threads block signals
linattn.set_isa("x86-64-v4")
linattn.set_products("bfloat16")
cases = [x for x in first_of(ATTENTION) if operators[x.name]["products"]]
for n, d, m in ((1, 1, 1), (31, 5, 20), (70, 40, 33), (150, 64, 64), (100, 130, 70), (80, 20, 200)):
    for case, backward in ((x, y) for x in cases for y in (False, True)):
        operands = case.operands((), n, d=d, m=m, dtype=ml_dtypes.bfloat16)
        call = lambda: (case.backward if backward else case.forward)(operands)
        name = str(case), backward
        _linattn.set_amx(2)
        expected = [x.tobytes() for x in flat(call())]
        before = [trap.trapped_count(i) for i in range(5)]
        _linattn.set_amx(3)
        found = [x.tobytes() for x in flat(call())]
        assert found == expected, (name, n, d, m)
        configured, released, loads, stores, products = (
            trap.trapped_count(i) - x for i, x in enumerate(before)
        )
        assert configured == released > 0, name
        assert not trap.trapped_is_configured(), name
        assert products > 0 < stores, name
print("done")
"""

HANDLER_SCRIPT = """
import ctypes, signal
import ml_dtypes, numpy as np
import linattn
from linattn import _linattn

trap = ctypes.CDLL(sys.argv[1])
assert trap.trapped_begin() == 0
linattn.set_num_threads(1)
linattn.set_isa("x86-64-v4")
linattn.set_products("bfloat16")
x = np.random.default_rng(0).standard_normal((20000, 64)).astype(ml_dtypes.bfloat16)
_linattn.set_amx(2)
expected = linattn.causal(x, x, x)
_linattn.set_amx(3)
seen = []
signal.signal(signal.SIGALRM, lambda *_: seen.append(trap.trapped_is_configured()))
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
before = trap.trapped_count(0)
found = linattn.causal(x, x, x)
configured = trap.trapped_count(0) - before
signal.setitimer(signal.ITIMER_REAL, 0)
assert found.tobytes() == expected.tobytes()
assert len(seen) > 1 and not any(seen), seen
assert configured > 1, configured
print("done")
"""


@pytest.mark.any_isa
@pytest.mark.parametrize("script", [TRAPPED_SCRIPT, HANDLER_SCRIPT], ids=["bits", "handlers"])
def test_instructions(interpreter, tmp_path, script):
    """A signal handler computes each of them, with the bits of plain C.

    Tiles are released after a call, and before Python runs signal handlers.
    """
    if shutil.which("cc") is None or sys.platform != "linux":
        pytest.skip("no compiler here, or no Linux")
    if "x86-64-v4" not in ISAS or not _linattn.has_bfloat16_products or _linattn.has_amx:
        pytest.skip("no processor with AVX512-BF16 and without AMX")
    library = tmp_path / "trapped_amx.so"
    flags = ["-std=gnu11", "-O2", "-ffp-contract=off", "-shared", "-fPIC", "-Wall", "-Werror"]
    source = Path(__file__).parents[1] / "support" / "trapped_amx.c"
    subprocess.run(["cc", *flags, source, "-o", library, "-lm"], check=True)
    stdout, _ = interpreter(script.replace("sys.argv[1]", repr(str(library))), timeout=300)
    assert stdout.strip() == "done"


TILE_INSTRUCTIONS = "tilezero", "tileloadd", "tilestored", "tdpbf16ps"


@pytest.mark.slow
@pytest.mark.any_isa
def test_each_function_with_tiles_sets_them_up():
    """In the disassembly: LDTILECFG before the first tile instruction.

    The trapped instructions show that calls and polls release them.
    """
    if shutil.which("objdump") is None or "x86-64-v4" not in ISAS:
        pytest.skip("no objdump, or no kernels with AMX")
    command = ["objdump", "-d", "--no-show-raw-insn", "-M", "intel", _linattn.__file__]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    functions = [x for x in text.split("\n\n") if "tdpbf16ps" in x]
    assert functions
    for function in functions:
        words = [line.split("\t")[1].split() for line in function.splitlines() if "\t" in line]
        names = [x[0] for x in words]
        tiles = [i for i, x in enumerate(names) if x in TILE_INSTRUCTIONS]
        assert names.count("ldtilecfg") == 1
        assert names.index("ldtilecfg") < min(tiles)
        multiplied = {x[1] for x in words if x[0] == "tdpbf16ps"}
        assert multiplied <= {f"tmm{i},tmm{4 + i // 2},tmm{6 + i % 2}" for i in range(4)}
        stored = {x[-1] for x in words if x[0] == "tilestored"}
        assert all(x.rpartition(",")[2] in {f"tmm{i}" for i in range(4)} for x in stored)
