"""XLA's foreign function interface as src/ext/xla_ffi.h declares it, and incompatible frames."""

import ctypes
import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest
from processes import start

import linattn
from linattn._linattn import xla_handler

HEADERS = Path(__file__).resolve().parents[2] / "src" / "ext"

# Our names, and those of jaxlib's header.
STRUCTS = {
    "extension": ("Extension_Base", "struct_size type next"),
    "version": (
        "Api_Version", "struct_size extension:extension_start major:major_version "
        "minor:minor_version",
    ),
    "metadata": ("Metadata", "struct_size version:api_version"),
    "metadata_extension": ("Metadata_Extension", "base:extension_base metadata"),
    "error_args": (
        "Error_Create_Args", "struct_size extension:extension_start message code:errc",
    ),
    "api": (
        "Api", "struct_size extension:extension_start version:api_version internal:internal_api "
        "create_error:XLA_FFI_Error_Create",
    ),
    "buffer": ("Buffer", "struct_size extension:extension_start dtype data rank dims"),
    "buffers": ("Args", "struct_size extension:extension_start size types buffers:args"),
    "bytes": ("ByteSpan", "data:ptr size:len"),
    "scalar": ("Scalar", "dtype value"),
    "array": ("Array", "dtype size data"),
    "attributes": (
        "Attrs", "struct_size extension:extension_start size types names values:attrs",
    ),
    "frame": (
        "CallFrame", "struct_size extension:extension_start api context:ctx stage args rets "
        "attributes:attrs",
    ),
}  # fmt: skip
NAMES = {
    "DataType": "S32 S64 F16 F32 F64 BF16",
    "Error_Code": "INVALID_ARGUMENT RESOURCE_EXHAUSTED UNIMPLEMENTED",
    "ArgType": "BUFFER",
    "RetType": "BUFFER",
    "AttrType": "ARRAY SCALAR STRING",
}
# Whole, as one holds another or is an item of an array.
SIZES = {
    "extension": "Extension_Base", "version": "Api_Version", "buffers": "Args",
    "attributes": "Attrs", "bytes": "ByteSpan", "scalar": "Scalar", "array": "Array",
}  # fmt: skip
# jaxlib 0.11.2 calls the base of extensions XLA_FFI_InternalExtension.
HEAD = """\
#include <xla/ffi/api/c_api.h>
#include "xla_ffi.h"
typedef __typeof__(((XLA_FFI_Metadata_Extension *)0)->extension_base) XLA_FFI_Extension_Base;"""


def asserts():
    """That both headers say the same, in C."""
    for ours, (theirs, fields) in STRUCTS.items():
        one, other = f"struct la_xla_{ours}", f"XLA_FFI_{theirs}"
        for field in fields.split():
            x, _, y = field.partition(":")
            y = y or x
            yield f"offsetof({one}, {x}) == offsetof({other}, {y})"
            yield f"sizeof((({one} *)0)->{x}) == sizeof((({other} *)0)->{y})"
    for x, y in SIZES.items():
        yield f"sizeof(struct la_xla_{x}) == sizeof(XLA_FFI_{y})"
    yield "sizeof(struct la_xla_buffers) == sizeof(XLA_FFI_Rets)"
    yield "offsetof(struct la_xla_buffers, buffers) == offsetof(XLA_FFI_Rets, rets)"
    for kind, names in NAMES.items():
        for name in names.split():
            yield f"(int)LA_XLA_{name} == (int)XLA_FFI_{kind}_{name}"
    yield "(int)LA_XLA_METADATA == (int)XLA_FFI_Extension_Metadata"
    yield "(int)LA_XLA_MAJOR == XLA_FFI_API_MAJOR"


def test_header_is_that_of_jaxlib(tmp_path):
    spec = importlib.util.find_spec("jaxlib")
    compiler = shutil.which("cc")
    if spec is None or compiler is None:
        pytest.skip("needs jaxlib and a C compiler")
    program = tmp_path / "same.c"
    lines = [f'_Static_assert({x}, "{x}");' for x in asserts()]
    program.write_text("\n".join([HEAD, *lines, ""]))
    folder = Path(spec.origin).parent / "include"
    done = start(compiler, "-std=gnu11", "-fsyntax-only", "-I", HEADERS, "-I", folder, program)
    assert done.returncode == 0, done.stderr
    assert len(lines) > 100


size, number, pointer = ctypes.c_size_t, ctypes.c_int64, ctypes.c_void_p


def struct(name, **fields):
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})


Version = struct("Version", size=size, ext=pointer, major=ctypes.c_int, minor=ctypes.c_int)
Metadata = struct("Metadata", size=size, version=Version, traits=ctypes.c_uint32)
Extension = struct("Extension", size=size, type=ctypes.c_int, next=pointer, metadata=pointer)
Error = struct("Error", size=size, ext=pointer, message=ctypes.c_char_p, code=ctypes.c_int)
Api = struct("Api", size=size, ext=pointer, version=Version, internal=pointer, error=pointer)
Buffer = struct(
    "Buffer", size=size, ext=pointer, dtype=ctypes.c_int, data=pointer, rank=number, dims=pointer
)
Bytes = struct("Bytes", data=ctypes.c_char_p, size=size)
Array = struct("Array", dtype=ctypes.c_int, count=size, data=pointer)
Buffers = struct("Buffers", size=size, ext=pointer, count=number, types=pointer, buffers=pointer)
Attributes = struct(
    "Attributes", size=size, ext=pointer, count=number, types=pointer, names=pointer,
    values=pointer,
)  # fmt: skip
Frame = struct(
    "Frame", size=size, ext=pointer, api=pointer, context=pointer, stage=ctypes.c_int,
    args=Buffers, rets=Buffers, attributes=Attributes,
)  # fmt: skip


def handler():
    """The function in the capsule."""
    try:
        from linattn.jax._custom_calls import _called
    except ImportError:
        _called = print  # never called here
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = pointer, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.CFUNCTYPE(pointer, pointer)(
        address(xla_handler(_called), b"xla._CUSTOM_CALL_TARGET")
    )


class Call:
    """A frame of linattn.causal of x, and the errors that it makes."""

    def __init__(self, x):
        self.errors, self.kept = [], []
        self.o = np.full_like(x, -1)

        @ctypes.CFUNCTYPE(pointer, pointer)
        def error(given):
            self.errors.append(Error.from_address(given))
            return 1

        self.kept.append(error)
        version = Version(size=ctypes.sizeof(Version), major=0, minor=3)
        self.api = Api(
            size=ctypes.sizeof(Api), version=version, error=ctypes.cast(error, pointer).value
        )
        self.buffers = [self.buffer(y) for y in (x, x, x, self.o)]
        numbers = np.array([1.0, 1e-6])
        array = Array(dtype=12, count=2, data=numbers.ctypes.data)
        names = [Bytes(data=y, size=len(y)) for y in (b"numbers", b"operator")]
        values = [array, Bytes(data=b"causal_elu", size=10)]
        self.kept += [x, numbers]
        self.frame = Frame(
            size=ctypes.sizeof(Frame), api=ctypes.addressof(self.api), stage=3,
            args=self.list(self.buffers[:3]), rets=self.list(self.buffers[3:]),
            attributes=Attributes(
                size=ctypes.sizeof(Attributes), count=2, types=self.keep((ctypes.c_int * 2)(1, 4)),
                names=self.pointers(names), values=self.pointers(values),
            ),
        )  # fmt: skip

    def keep(self, x):
        self.kept.append(x)
        return ctypes.addressof(x)

    def pointers(self, items):
        return self.keep((pointer * len(items))(*map(self.keep, items)))

    def buffer(self, x):
        dims = self.keep((number * x.ndim)(*x.shape))
        return Buffer(
            size=ctypes.sizeof(Buffer), dtype=12, data=x.ctypes.data, rank=x.ndim, dims=dims
        )

    def list(self, buffers):
        return Buffers(
            size=ctypes.sizeof(Buffers), count=len(buffers), buffers=self.pointers(buffers)
        )

    def run(self):
        """Whether the handler returned an error."""
        return handler()(ctypes.addressof(self.frame)) is not None


X = np.random.default_rng(0).standard_normal((2, 5, 3))


def test_frame():
    call = Call(X)
    assert not call.run() and not call.errors
    np.testing.assert_array_equal(call.o, linattn.causal(X, X, X))


def smaller(x, by=8):
    x.size -= by


def larger(x):
    x.size += 8


STRANGE = {
    "another major version": lambda call: setattr(call.api.version, "major", 1),
    "a smaller frame": lambda call: smaller(call.frame),
    "a smaller buffer": lambda call: smaller(call.buffers[1]),
    "a smaller result": lambda call: smaller(call.buffers[3]),
    "smaller arguments": lambda call: smaller(call.frame.args),
    "larger arguments": lambda call: larger(call.frame.args),
    "larger results": lambda call: larger(call.frame.rets),
    "smaller attributes": lambda call: smaller(call.frame.attributes),
}


@pytest.mark.parametrize("case", STRANGE)
def test_strange_frames_are_errors(case):
    call = Call(X)
    STRANGE[case](call)
    assert call.run()
    (error,) = call.errors
    assert error.message.startswith(b"linattn: XLA's foreign function interface is not")
    assert (error.size, error.code) == (ctypes.sizeof(Error) - 4, 12)
    assert (call.o == -1).all()


def test_structs_may_grow():
    """As they do from one minor version to the next."""
    call = Call(X)
    for x in (call.frame, call.api, *call.buffers):
        larger(x)
    call.api.version.minor = 99
    assert not call.run() and not call.errors
    np.testing.assert_array_equal(call.o, linattn.causal(X, X, X))


@pytest.mark.parametrize("case", ["no api", "a small api", "a tiny frame"])
def test_no_way_to_make_errors(case):
    """Nothing is read, or written."""
    call = Call(X)
    if case == "no api":
        call.frame.api = None
    elif case == "a small api":
        smaller(call.api)
    else:
        call.frame.size = 16
    assert not call.run() and not call.errors and (call.o == -1).all()


@pytest.mark.parametrize("version", [(0, 1), (0, 3), (0, 7), (2, 5)])
def test_version_told(version):
    """XLA's own, lest JAX cannot start; calls are refused where it is another."""
    call = Call(X)
    call.api.version.major, call.api.version.minor = version
    metadata = Metadata(size=ctypes.sizeof(Metadata) - 4)
    extension = Extension(size=32, type=1, metadata=call.keep(metadata))
    call.frame.ext = call.keep(extension)
    assert not call.run()
    assert (metadata.version.major, metadata.version.minor) == version
    metadata.size = 24
    metadata.version.major = -1
    assert not call.run() and metadata.version.major == -1
