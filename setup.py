"""Builds linattn._linattn: compiles the kernels per instruction set and dtype, the rest once.

Metadata is in pyproject.toml; this file has what setuptools cannot read there.
"""

import copy
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from glob import glob

import numpy
from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext

WINDOWS = sys.platform == "win32"
MACHINE = platform.machine().lower()
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

# The kernels use the vector types of gcc and clang, which MSVC lacks; and gcc on Windows puts
# vectors of 32 and 64 bytes on a stack that is aligned to 16.  So Windows builds use ziglang's
# clang, a build requirement in pyproject.toml there, with mingw-w64's headers and libraries.  For
# other targets that it supports, name it in CC (tools/wheels.py).
_CC = [os.path.basename(word) for word in os.environ.get("CC", "").split()]
ZIG = WINDOWS or any(word.startswith("zig") for word in _CC)

# Instruction sets: the suffix of the kernels' table, and the flags that select the set.
# CONTRIBUTING.md lists what else a new one takes.
if MACHINE in ("x86_64", "amd64"):
    level = "-march=x86_64_v" if ZIG else "-march=x86-64-v"
    ISAS = {
        "x86_64_v2": [f"{level}2"],
        "x86_64_v3": [f"{level}3"],
        # Without the second flag, compilers prefer 256-bit vectors.
        "x86_64_v4": [f"{level}4", "-mprefer-vector-width=512"],
    }
elif MACHINE in ("aarch64", "arm64"):
    ISAS = {"neon": []}
else:
    # Compilers would fuse multiply-adds in some tiles and not in others.
    ISAS = {"generic": ["-ffp-contract=off"]}

# LINATTN_ISAS names the instruction sets to build, by default all.
wanted = os.environ.get("LINATTN_ISAS", "").replace("-", "_").split()
if unknown := [isa for isa in wanted if isa not in ISAS]:
    sys.exit(f"LINATTN_ISAS has {', '.join(unknown)}; expected any of {', '.join(ISAS)}")
ISAS = {isa: flags for isa, flags in ISAS.items() if not wanted or isa in wanted}

for name in ("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS"):
    try:
        words = shlex.split(os.environ.get(name, "-"))
    except ValueError as error:
        sys.exit(f"linattn: {name} is {os.environ[name]!r}: {str(error).lower()}")
    if name == "CC" and not words:
        sys.exit("linattn: CC is empty; name a compiler in it, or unset it")

COMMON = ["-std=gnu11", "-fvisibility=hidden", "-Wall", "-Wextra"]
# Python's own flags may ask for debug information, which few want; CFLAGS can ask for it, and for
# less optimisation (docs/developing.md).
CFLAGS = shlex.split(os.environ.get("CFLAGS", ""))
DEBUG_LEVEL = [flag for flag in CFLAGS if flag in ("-O0", "-O1", "-Og")][-1:]
if not any(flag.startswith("-g") for flag in CFLAGS):
    COMMON += ["-g0"]
# Allows fused multiply-adds; arithmetic follows IEEE otherwise.
KERNEL = [*COMMON, "-ffp-contract=fast"]


KERNELS = "src/kernel/kernels.c"
with open("src/kernel/dtypes.def", encoding="utf-8") as rows:
    DTYPES = re.findall(r"^LA_FLOAT\(\w+, (\w+),", rows.read(), flags=re.M)
# The compilations of the kernels.  Those of the widest vectors take longest and come first, so that
# no processor waits for them at the end.
UNITS = [
    (isa, dtype, [*KERNEL, *flags]) for isa, flags in reversed(ISAS.items()) for dtype in DTYPES
]


def optimization(version, isa=None):
    """-O3; with gcc those parts of it that kernels gain from, in less than half of the time.

    The analyses that are left out find little in the kernels, which are long functions of vectors.
    -fira-loop-pressure keeps the constants of loops in registers, as -fgcse would.  Kernels for
    processors from before 2013 are compiled at -O1, in 0.63 of the time, and take 1.05 of it.
    A lower level in CFLAGS replaces all of these flags.
    """
    if DEBUG_LEVEL:
        return DEBUG_LEVEL
    if "Free Software Foundation" not in version:
        return ["-O3"]
    more = ["-fvect-cost-model=dynamic", "-fpeel-loops", "-funswitch-loops", "-fira-loop-pressure"]
    less = ["-fno-gcse", "-fno-thread-jumps", "-fno-tree-dominator-opts", "-fno-tree-vrp"]
    return ["-O1" if isa == "x86_64_v2" else "-O2", *more, *less]


def zig(host):
    """ziglang's clang for Windows, with the include folders and macros of ``host``, MSVC."""
    from distutils.unixccompiler import UnixCCompiler  # setuptools provides it

    if importlib.util.find_spec("ziglang") is None:
        sys.exit("linattn: MSVC is not supported; pip install ziglang, which contains clang")
    target = {"arm64": "aarch64"}.get(MACHINE, "x86_64")
    command = [sys.executable, "-m", "ziglang", "cc", "-target", f"{target}-windows-gnu"]
    compiler = UnixCCompiler()
    compiler.set_executables(compiler_so=command, linker_so=[*command, "-shared"])
    compiler.set_include_dirs(host.include_dirs)
    compiler.set_library_dirs(host.library_dirs)
    compiler.macros = [*host.macros, ("MS_WIN64", "")]  # pyconfig.h defines it only for MSVC
    return compiler


def need(compiler, include_dirs):
    """Ends the build with a one-line message if the compiler or Python.h is missing."""
    command = compiler.compiler_so
    if shutil.which(command[0]) is None:
        sys.exit(
            f"linattn: no C compiler ({command[0]}); install gcc or clang (Debian and Ubuntu: "
            "apt install gcc; macOS: xcode-select --install), or name one in CC"
        )
    if not any(os.path.exists(f"{folder}/Python.h") for folder in include_dirs):
        sys.exit(
            "linattn: no Python.h; install Python's header files (Debian and Ubuntu: "
            "apt install python3-dev; Fedora: dnf install python3-devel)"
        )


def write_stubs(package):
    """Writes stubs from the built module, or generic ones if it does not run on this machine.

    Without -B, Python would leave what it compiles in the folder that becomes the wheel.
    """
    command = [sys.executable, "-B", "-m", "linattn._bridges.stubs"]
    done = subprocess.run(command, cwd=os.path.dirname(package) or ".", capture_output=True)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        print(f"linattn: stubs have no types because the built module does not run: {reason}")
        subprocess.run([sys.executable, "-P", f"{package}/_bridges/generic_stubs.py"], check=True)


def read(file):
    """Its text, or nothing if there is no such file."""
    if not os.path.exists(file):
        return ""
    with open(file, encoding="utf-8") as lines:
        return lines.read()


def up_to_date(stem, recipe):
    """Whether STEM.o was compiled by this recipe, and since then none of its sources changed."""
    if not os.path.exists(f"{stem}.o") or read(f"{stem}.recipe") != recipe:
        return False
    # The compiler writes a rule for make.  Headers outside src change with the recipe's versions.
    words = read(f"{stem}.d").replace("\\\n", " ").split()
    sources = [word for word in words if word.startswith("src")]
    made = os.path.getmtime(f"{stem}.o")
    return bool(sources) and all(
        os.path.exists(source) and os.path.getmtime(source) <= made for source in sources
    )


class BuildExt(build_ext):
    """Compiles in parallel what is not up to date, links the extension, and writes stubs.

    Next to each object are the list of its sources, STEM.d, and the command, macros, flags and
    versions that it was compiled with, STEM.recipe.
    """

    def finalize_options(self):
        super().finalize_options()
        if self.editable_mode:  # setuptools would compile in a temporary folder
            usual = Distribution().get_command_obj("build")
            usual.ensure_finalized()
            self.build_temp = usual.build_temp

    def run(self):
        super().run()
        package = "linattn" if self.inplace else f"{self.build_lib}/linattn"
        if os.path.exists(f"{package}/__init__.py"):
            write_stubs(package)

    def build_extensions(self):
        if WINDOWS:
            self.compiler = zig(self.compiler)
        need(self.compiler, self.include_dirs)
        super().build_extensions()

    def build_extension(self, ext):
        command = [*self.compiler.compiler_so, "--version"]
        self.version = subprocess.run(command, capture_output=True, text=True).stdout
        units = []
        for isa, dtype, flags in UNITS:
            folder, level = f"{self.build_temp}/{isa}_{dtype}", optimization(self.version, isa)
            macros = [("LA_ISA", isa), ("LA_DTYPE", dtype)]
            units.append((folder, KERNELS, macros, [], [*level, *flags]))
        flags = [*ext.extra_compile_args, *optimization(self.version)]
        for source in ext.sources:
            units.append((self.build_temp, source, ext.define_macros, ext.include_dirs, flags))
        linked = copy.copy(ext)
        linked.sources = []
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            linked.extra_objects = list(pool.map(self.compile_unit, units))
        # Links even if the objects are older than the module, as those of other flags may be.
        self.force = self.compiler.force = True
        super().build_extension(linked)
        if WINDOWS:  # remove the linker's import library and debug information
            folder = os.path.dirname(self.get_ext_fullpath(ext.name))
            for file in glob(f"{folder}/*.lib") + glob(f"{folder}/*.pdb"):
                os.remove(file)

    def compile_unit(self, unit):
        """The object of a unit, compiled unless it is up to date."""
        folder, source, macros, include_dirs, flags = unit
        stem = f"{folder}/{os.path.splitext(source)[0]}"
        # Versions instead of include folders, which differ each time pip isolates a build.
        versions = (sys.version, numpy.__version__) if include_dirs else ()
        compiler = self.compiler.compiler_so, self.version, self.compiler.macros
        recipe = repr((*compiler, *versions, macros, flags))
        if self.force or not up_to_date(stem, recipe):
            os.makedirs(os.path.dirname(stem), exist_ok=True)
            with open(f"{stem}.recipe", "w", encoding="utf-8") as file:
                self.compiler.compile(
                    [source],
                    output_dir=folder,
                    macros=macros,
                    include_dirs=include_dirs,
                    extra_postargs=[*flags, "-MMD", "-MF", f"{stem}.d"],
                )
                file.write(recipe)  # it stays empty if the compiler fails
        return f"{stem}.o"

    def get_libraries(self, ext):
        """On Windows, python3 is the library of the stable ABI."""
        stable = ["python3t" if FREE_THREADED else "python3"]
        return stable if WINDOWS and ext.py_limited_api else super().get_libraries(ext)


def description():
    """The README without relative links and images, which a package index cannot resolve."""
    with open("README.md", encoding="utf-8") as readme:
        text = re.sub(r"^!\[.*\]\((?!https?:).*\)\n\n", "", readme.read(), flags=re.M)
    return re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", text)


# The stable ABI needs one wheel for all versions from the oldest on; free-threaded builds have it
# since 3.15 (PEP 803), with NumPy 2.5.
if not FREE_THREADED:
    oldest, macros = "cp311", [("Py_LIMITED_API", "0x030b0000")]
elif sys.version_info >= (3, 15):
    oldest, macros = "cp315", [("Py_TARGET_ABI3T", "0x030f0000")]
else:
    oldest, macros = False, []
macros += [(f"LA_HAS_{isa}", None) for isa in ISAS]

setup(
    long_description=description(),
    long_description_content_type="text/markdown",
    ext_modules=[
        Extension(
            "linattn._linattn",
            sources=sorted(glob("src/ext/*.c")),
            # Source distributions include these.
            depends=[KERNELS, *sorted(glob("src/**/*.h", recursive=True) + glob("src/*/*.def"))],
            include_dirs=[numpy.get_include()],
            define_macros=macros,
            extra_compile_args=COMMON,
            libraries=[] if WINDOWS else ["m"],
            extra_link_args=[] if WINDOWS or sys.platform == "darwin" else ["-pthread"],
            py_limited_api=bool(oldest),
        )
    ],
    cmdclass={"build_ext": BuildExt},
    options={"bdist_wheel": {"py_limited_api": oldest}},
)
