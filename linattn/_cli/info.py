"""``linattn info``: a description of the machine and this build, for bug reports."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from linattn import _linattn
from linattn._core import settings
from linattn._core.control_groups import cpu_quota

#: Environment variables that set up linattn and the threads of similar libraries.
VARIABLES = (
    "LINATTN_AMX",
    "LINATTN_ISA",
    "LINATTN_NUM_THREADS",
    "LINATTN_PRODUCTS",
    "LINATTN_SPIN_TIME",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
)
#: Packages that linattn works with if they are installed.
PACKAGES = ("torch", "transformers", "jax", "dask", "mpi4py", "ml_dtypes", "threadpoolctl")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the report; 1 if the environment holds wrong values."""
    report = describe()
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        print("\n".join(f"{name:>18}: {_text(value)}" for name, value in report.items()))
    for problem in report["problems"]:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if report["problems"] else 0


def describe() -> dict[str, Any]:
    """The report, in plain values; None for what the system does not tell."""
    config = settings.config()
    return {
        "linattn": config["version"],
        "path": str(Path(__file__).parent),
        "module": Path(_linattn.__file__).name,
        "compiler": config["compiler"],
        "instruction set": config["isa"],
        "available": list(config["isas"]),
        "products": config["products"],
        "products of": [x for x, row in _linattn.operators.items() if row["products"]],
        "AVX512-BF16": config["AVX512-BF16"],
        "AMX-BF16": config["AMX-BF16"],
        "threads": config["threads"],
        "environment": {name: os.environ.get(name) for name in VARIABLES},
        "problems": list(settings.problems),
        "python": f"{platform.python_implementation()} {sys.version}".replace("\n", ""),
        "free-threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        "numpy": config["numpy"],
        "packages": {name: _version(name) for name in PACKAGES},
        "os": platform.platform(),
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "machine": platform.machine(),
        "cpu": cpu(),
        "cpus": os.cpu_count(),
        "cpus to run on": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else None,
        "cpu quota": cpu_quota(),
        "caches": _caches(),
    }


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {x}" for name, x in value.items() if x is not None) or "-"
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return "-" if value is None else str(value)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu() -> str | None:
    """The processor's name; Linux on Arm has only numbers for it."""
    if sys.platform == "darwin":
        return _sysctl("machdep.cpu.brand_string")
    lines = [line.partition(":") for line in _read("/proc/cpuinfo").splitlines()]
    fields = {name.strip(): value.strip() for name, _, value in lines}
    if name := fields.get("model name"):
        return name
    numbers = [f"{x} {fields[x]}" for x in ("CPU implementer", "CPU part") if x in fields]
    return ", ".join(numbers) or platform.processor() or None


def _caches() -> dict[str, str]:
    """The sizes of one core's caches, by level and kind."""
    if sys.platform == "darwin":
        names = {"L1 Data": "hw.l1dcachesize", "L2 Unified": "hw.l2cachesize"}
        return {name: size for name, key in names.items() if (size := _sysctl(key))}
    sizes = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (_read(folder / x).strip() for x in ("level", "type", "size"))
        sizes[f"L{level} {kind}"] = size
    return sizes


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _sysctl(name: str) -> str | None:
    done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
