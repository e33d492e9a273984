"""src/ext and the kernels compile for Windows, macOS, musl, Arm and RISC-V; the list of wheels.

ziglang has those systems' headers.  Python's and NumPy's are of the system that the tests run on,
with what differs put right.
"""

import sysconfig

import numpy as np
import port
import pytest
from processes import output

pytest.importorskip("ziglang")

HEADERS = {
    "first.h": """
#include <pyconfig.h>
#undef _GNU_SOURCE
#if defined(_WIN32)
#undef HAVE_SYS_SELECT_H
#undef SIZEOF_LONG
#define SIZEOF_LONG 4
#define COMPILER "that of Python, which its headers name on Windows"
#endif
""",
    "endian.h": """
#define LITTLE_ENDIAN 1234
#define BIG_ENDIAN 4321
#define BYTE_ORDER LITTLE_ENDIAN
""",
}
ISAS = {
    "x86_64-windows-gnu": "x86_64_v3",
    "aarch64-macos": "neon",
    "x86_64-linux-musl": "x86_64_v3",
    "aarch64-windows-gnu": "neon",
    "aarch64-linux-musl": "neon",
    "riscv64-linux-musl": "generic",
}


@pytest.mark.parametrize("target", ISAS)
def test_the_extension_compiles(tmp_path, target):
    for name, text in HEADERS.items():
        (tmp_path / name).write_text(text)
    folders = [tmp_path, np.get_include(), sysconfig.get_path("include")]
    for file in sorted(port.ROOT.glob("src/ext/*.c")):
        port.zig(
            target, "-O0", "-DPy_LIMITED_API=0x030b0000",
            f"-DLA_HAS_{ISAS[target]}", "-include", "first.h", *(f"-isystem{x}" for x in folders),
            "-c", file, "-o", tmp_path / "object",
        )  # fmt: skip


@pytest.mark.parametrize("target", ISAS)
def test_the_program_of_digests_compiles(tmp_path, target):
    port.zig(target, "-O0", "-Isrc/ext", "-c", "tools/digests.c", "-o", tmp_path / "object")


@pytest.mark.parametrize(("target", "dtype"), zip(ISAS, ("f32", "f64"), strict=False))
def test_the_kernels_compile(tmp_path, target, dtype):
    port.kernels(target, ISAS[target], tmp_path, "-O0", [dtype])


WHEELS = {
    "linux": ["manylinux_x86_64", "manylinux_aarch64", "musllinux_x86_64", "musllinux_aarch64"],
    "macos": ["macosx_x86_64", "macosx_arm64"],
    "windows": ["win_amd64"],
}


@pytest.mark.parametrize("system", WHEELS)
def test_wheels(system):
    """Of the stable ABI, and for free-threaded Pythons."""
    pytest.importorskip("cibuildwheel")
    options = "--print-build-identifiers", "--platform", system
    told = output("-m", "cibuildwheel", *options, cwd=port.ROOT)
    for wheel in WHEELS[system]:
        assert {f"cp311-{wheel}", f"cp314t-{wheel}", f"cp315t-{wheel}"} <= set(told.split())
