"""Builds linattn._linattn: the kernels once per instruction set, the rest once.

Metadata is in pyproject.toml; this file holds what setuptools cannot be told there.
"""

import platform
import sys
import sysconfig
from glob import glob
from itertools import product

import numpy
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

MACHINE = platform.machine().lower()
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

# Instruction sets: the name of the table the kernels emit, and what selects it.
# A new one is a row here and one in src/ext/cpu.c.
if MACHINE in ("x86_64", "amd64"):
    ISAS = {
        "x86_64_v2": ["-march=x86-64-v2"],
        "x86_64_v3": ["-march=x86-64-v3"],
        # Without the second flag compilers fall back to 256-bit vectors.
        "x86_64_v4": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
    }
else:
    ISAS = {"generic": []}

DTYPES = {"f32": [], "f64": [("LA_DOUBLE", None)]}

COMMON = ["-std=gnu11", "-O3", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra"]
# One rounding per multiply-add; nothing here loosens IEEE arithmetic otherwise.
KERNEL = [*COMMON, "-ffp-contract=fast"]


class BuildExt(build_ext):
    """build_ext that also compiles src/kernel/kernels.c for every instruction set and dtype."""

    def build_extension(self, ext):
        for (isa, flags), (dtype, macros) in product(ISAS.items(), DTYPES.items()):
            ext.extra_objects += self.compiler.compile(
                ["src/kernel/kernels.c"],
                output_dir=f"{self.build_temp}/{isa}_{dtype}",
                macros=[("LA_ISA", isa), *macros],
                extra_postargs=[*KERNEL, *flags],
                depends=ext.depends,
            )
        super().build_extension(ext)


# The stable ABI needs one wheel for all versions; free-threaded builds lack it.
macros = [] if FREE_THREADED else [("Py_LIMITED_API", "0x030b0000")]
options = {} if FREE_THREADED else {"bdist_wheel": {"py_limited_api": "cp311"}}

setup(
    ext_modules=[
        Extension(
            "linattn._linattn",
            sources=sorted(glob("src/ext/*.c")),
            depends=sorted(glob("src/*/*.h") + glob("src/*/*.def")),
            include_dirs=[numpy.get_include()],
            define_macros=macros,
            extra_compile_args=COMMON,
            libraries=["m"],
            extra_link_args=[] if sys.platform == "darwin" else ["-pthread"],
            py_limited_api=not FREE_THREADED,
        )
    ],
    cmdclass={"build_ext": BuildExt},
    options=options,
)
