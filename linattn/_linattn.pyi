from collections.abc import Callable, Mapping
from typing import Any, Final, TypedDict

import numpy as np

_C_API: Final[Any]  # a capsule of the linattn_api in include/linattn.h
compiler: Final[str]
has_bfloat16_products: Final[bool]
has_amx: Final[bool]  # the system may still refuse its registers
EVEN_PIECES: Final[int]
ufunc_names: Final[tuple[str, ...]]
internal_ufunc_names: Final[tuple[str, ...]]

class _Operator(TypedDict):
    """A row of operators.def; src/ext/describe.c says what the fields hold."""

    inputs: tuple[tuple[str, str, str, bool, bool, str], ...]
    outputs: tuple[tuple[str, str, str, bool, bool, str], ...]
    numbers: tuple[str, ...]
    state: tuple[tuple[str, str], ...]
    maps: bool
    normalizer: bool
    key_lengths: bool
    compensated: bool
    half_states: bool
    products: bool
    blocks: bool
    public: bool
    complex: bool
    elementwise: bool
    summary: str | None
    gradient_of: str | None
    step_of: str | None

class _Map(TypedDict):
    """A row of maps.def."""

    rows: bool
    signed: bool

operators: Final[Mapping[str, _Operator]]
operands: Final[Mapping[str, str]]
maps: Final[Mapping[str, _Map]]

def add_bfloat16(dtype: np.dtype[Any], /) -> None: ...
def available_isas() -> list[str]: ...
def fast_call(gufunc: np.ufunc, /, *operands: Any) -> Any: ...
def fast_step(
    op: int,
    operands: tuple[Any, ...],
    s: Any,
    z: Any,
    in_place: Any,
    feature_map: Any,
    normalize: Any,
    scale: Any,
    eps: Any,
    state_indices: Any = None,
    /,
) -> Any: ...
def delay_workers(ms: int, /) -> None: ...
def get_amx() -> int: ...
def get_isa() -> str: ...
def get_num_threads() -> int: ...
def get_products() -> str: ...
def hold_isa() -> None: ...
def hold_threads(n: int, /) -> None: ...
def force_stages(chunks: int, /) -> int: ...
def make_ufunc(name: str, /) -> np.ufunc: ...
def overlaps_itself(array: np.ndarray, /) -> bool: ...
def pool_call(state_indices: Any, gufunc: np.ufunc, /, *operands: Any) -> Any: ...
def poison_scratch(byte: int, /) -> None: ...
def release_isa() -> None: ...
def set_amx(choice: int, /) -> None: ...  # enum la_amx of src/ext/cpu.h
def set_isa(name: str, /) -> None: ...
def set_num_threads(n: int, /) -> None: ...
def set_products(pairs: bool, /) -> None: ...
def set_runner(address: int, /) -> None: ...
def spin_time(us: int, /) -> int: ...
def xla_finish() -> int: ...
def xla_handler(
    caller: Callable[[int, tuple[memoryview, ...], tuple[memoryview, ...]], str | None], /
) -> Any: ...
def take_jobs() -> list[tuple[int, int]]: ...
def tensor_array(torch: tuple[Any, ...], x: Any, /) -> np.ndarray[Any, Any]: ...
def tensor_call(
    torch: tuple[Any, ...],
    recorded: bool | None,
    function: Callable[..., Any],
    operands: tuple[Any, ...],
    given: dict[str, Any],
    options: dict[str, Any],
    /,
) -> Any: ...
def tensor_planned(
    torch: tuple[Any, ...],
    recorded: bool,
    plans: tuple[tuple[Any, ...], ...],
    named: dict[str, Any],
    states: tuple[Any, ...],
    state_indices: Any,
    /,
) -> Any: ...
def tensor_step(
    torch: tuple[Any, ...],
    step: tuple[Any, ...],
    in_place: bool,
    arguments: tuple[Any, ...],
    /,
) -> Any: ...
def tensor_update(
    torch: tuple[Any, ...],
    recorded: bool,
    gufunc: np.ufunc,
    inputs: tuple[Any, ...],
    states: tuple[Any, ...],
    state_indices: Any,
    /,
) -> Any: ...
