"""What the products of bfloat16 operands are computed in."""

from __future__ import annotations

from contextlib import ContextDecorator

import linattn._linattn as _linattn  # not from the package, which imports this module

PRODUCTS = ("float32", "bfloat16")


def get_products() -> str:
    """What the products of bfloat16 operands are computed in.

    Returns
    -------
    str
        ``"float32"`` or ``"bfloat16"``; initially the environment variable ``LINATTN_PRODUCTS``,
        otherwise ``"float32"``.

    Examples
    --------
    >>> import linattn
    >>> linattn.get_products()
    'float32'
    """
    return _linattn.get_products()


def set_products(name: str) -> None:
    """Choose what the products of bfloat16 operands are computed in.

    Parameters
    ----------
    name : str
        ``"float32"``: results are rounded once, to bfloat16.  ``"bfloat16"``: features, scores and
        the state are also rounded to bfloat16 where they are factors of a product.  Products are
        summed in float32.  States, gates, normalisers and the substitution of the delta rules stay
        in float32.

    Raises
    ------
    TypeError
        If ``name`` is not a string.
    ValueError
        If it is neither of the two.

    See Also
    --------
    products : A context with one choice.

    Notes
    -----
    It applies to causal and gated attention, the delta rules and their gradients (``linattn info``
    lists the operators), if their tokens are bfloat16.  All other operators and steps compute
    products in float32, and so do calls with a feature map that is an object, and gradients with
    ``state_at``.  With ``"bfloat16"``, processors with AMX-BF16 use it on Linux, unless
    ``LINATTN_AMX`` is 0 in the environment.  They and AMD's processors with AVX512-BF16 are
    faster; others compute such products and are slower.  :doc:`/guarantees` has the error bound.
    Calls in progress in other threads finish with the choice they started with.

    Examples
    --------
    >>> import linattn
    >>> linattn.set_products("bfloat16")
    >>> linattn.get_products()
    'bfloat16'
    >>> linattn.set_products("float32")
    """
    if not isinstance(name, str):
        raise TypeError(f"set_products: name is {name!r}; expected a string")
    if name not in PRODUCTS:
        raise ValueError(f"set_products: name is {name!r}; expected 'float32' or 'bfloat16'")
    _linattn.set_products(name == "bfloat16")


class products(ContextDecorator):
    """A context with one choice of `set_products`; on exit, the choice before it is restored.

    Parameters
    ----------
    name : str
        ``"float32"`` or ``"bfloat16"``.

    Raises
    ------
    TypeError, ValueError
        As `set_products`, on entry.

    Notes
    -----
    The choice holds for the calls of all threads.

    Examples
    --------
    >>> import linattn
    >>> with linattn.products("bfloat16"):
    ...     linattn.get_products()
    'bfloat16'
    >>> linattn.get_products()
    'float32'
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.before: list[str] = []

    def __enter__(self) -> None:
        before = get_products()
        set_products(self.name)
        self.before.append(before)

    def __exit__(self, *exception: object) -> None:
        set_products(self.before.pop())
