# mypy: ignore-errors
"""``state_indices`` and ``state_at`` of the twins: what they mean, from calls without them.

A pool is a state with rows in place of a batch: the call is that of the rows, and its last states
take their places.  The state after p tokens is that of a sequence which ends there, and gradients
are the sum of those of the whole sequence and of those that end at the positions.
"""

import inspect
from functools import wraps

import numpy as np

#: By operator: how many axes the state's first array has of its own; 2 for all others.
_RANKS = {"linear_scan": 1, "wkv": 1}
#: The axes of tokens where they are not the last but one.
_TOKENS = {"slstm": {"x": -4, "grad_out": -3}}
#: Options that steps lack.
_OF_SEQUENCES = ("reverse", "key_lengths", "cu_seqlens", "block", "initial_state", "return_state")


def of_step(f):
    """A twin of one token that takes a pool as well, of which it returns a copy."""

    @wraps(f)
    def call(*operands, state_indices=None, **options):
        given = _arguments(f, operands, options)
        if state_indices is None:
            return f(**given)
        pool = given["state"]
        o, after = f(**given | {"state": _rows(pool, state_indices, 0)})
        return o, _written(pool, state_indices, 0, after)

    return call


def step_of(f, tokens, *, gates="", numbers="", name=""):
    """The twin of one token: f of a sequence of one token, from a state.

    ``tokens`` names the operands (..., n, d), ``numbers`` those (..., n), and ``gates`` those of
    either kind, which have channels if they have as many axes as q, k or v.
    """
    tokens, gates, numbers = tokens.split(), gates.split(), numbers.split()
    given = inspect.signature(f).parameters.values()
    operands = [x for x in given if x.kind is x.POSITIONAL_OR_KEYWORD]
    options = [x for x in given if x.kind is x.KEYWORD_ONLY and x.name not in _OF_SEQUENCES]

    def step(state, **given):
        axes = max(np.ndim(given.get(x)) for x in "qkv")
        for name, x in given.items():
            if name in numbers or (name in gates and np.ndim(x) < axes):
                given[name] = np.asarray(x)[..., None]
            elif name in tokens + gates and np.ndim(x):
                given[name] = np.asarray(x)[..., None, :]
        o, state = f(**given, initial_state=state, return_state=True)
        return o[..., 0, :], state

    step.__name__ = step.__qualname__ = name or f"{f.__name__}_step"
    step.__module__ = f.__module__
    step.__doc__ = f"One token of `{f.__name__}`, from a state: operands without the axis n."
    state = operands[0].replace(name="state")
    step.__signature__ = inspect.Signature([*operands, state, *options])
    return of_step(step)


def of_sequence(f):
    """A twin of all tokens that takes a pool as well, of which it returns a copy, and returns
    states after some tokens."""

    @wraps(f)
    def call(*operands, state_indices=None, state_at=None, **options):
        given = _arguments(f, operands, options)
        pool = given["initial_state"]
        if state_indices is not None:
            axis = _row_axis(f, given)
            given["initial_state"] = _rows(pool, state_indices, axis)
        result = f(**given)
        if state_at is not None:
            each = [f(**_ending(f, given, p))[1] for p in state_at]
            axis = _first(result[1]).ndim - _rank(f)
            return result[0], _each(lambda *x: np.stack(x, axis), *each)
        if state_indices is None or not given["return_state"]:
            return result
        return result[0], _written(pool, state_indices, axis, result[1])

    return call


def of_gradients(f):
    """A twin of gradients that takes both as well."""

    @wraps(f)
    def call(*operands, state_indices=None, state_at=None, **options):
        given = _arguments(f, operands, options)
        if state_indices is not None:
            axis = _row_axis(f, given)
            given["initial_state"] = _rows(given["initial_state"], state_indices, axis)
        states = given["grad_state"]
        if state_at is None or states is None:
            return f(**given)
        axis = _first(states).ndim - _rank(f) - 1
        none = _each(lambda x: 0 * x.take(0, axis), states)
        total = f(**given | {"grad_state": none})
        for i, p in enumerate(state_at):
            ending = _ending(f, given, p) | {
                "grad_state": _each(lambda x, i=i: x.take(i, axis), states)
            }
            ending["grad_out"] = 0 * ending["grad_out"]
            total = [_added(f, given, p, x, y) for x, y in zip(total, f(**ending), strict=True)]
        return tuple(total)

    return call


def _arguments(f, operands, options):
    """All arguments by name."""
    bound = inspect.signature(f).bind(*operands, **options)
    bound.apply_defaults()
    return dict(bound.arguments)


def _rank(f) -> int:
    return _RANKS.get(f.__name__.removesuffix("_backward"), 2)


def _row_axis(f, given) -> int:
    """The axis of a pool's rows."""
    packed = given["cu_seqlens"] is not None
    return _first(given["initial_state"]).ndim - _rank(f) - 1 if packed else 0


def _first(state):
    """The first array of a state, or the array that is one."""
    return state if isinstance(state, np.ndarray) else state[0]


def _each(f, state, *others):
    """A state of f of each of its arrays."""
    if isinstance(state, np.ndarray):
        return f(state, *others)
    return type(state)(
        *(None if xs[0] is None else f(*xs) for xs in zip(state, *others, strict=True))
    )


def _rows(pool, indices, axis):
    return _each(lambda x: x.take(np.asarray(indices), axis), pool)


def _written(pool, indices, axis, state):
    """A copy of the pool with the state in its rows; the twins of scans return arrays."""
    if isinstance(pool, tuple) and not isinstance(state, tuple):
        state = pool._replace(s=state)

    def write(x, y):
        x = np.array(x, np.result_type(x, y))
        x[(*(slice(None),) * axis, np.asarray(indices))] = y
        return x

    return _each(write, pool, state)


def _ending(f, given, p):
    """The arguments of a sequence that ends after p tokens, or, without lengths, of these alone."""
    if "key_lengths" in given:
        lengths = given["key_lengths"]
        return given | {"key_lengths": p if lengths is None else np.minimum(lengths, p)}
    rows = _tokens(f, given, p)
    return given | {
        name: np.asarray(given[name])[_at(rows, _axis(f, name))]
        for name in ("a", "x", "grad_out")
        if name in given
    }


def _axis(f, name) -> int:
    """The axis of tokens of an operand of that name."""
    return _TOKENS.get(f.__name__.removesuffix("_backward"), {}).get(name, -2)


def _at(rows, axis):
    """The index of these rows of an axis, counted from the end."""
    return (..., rows, *(slice(None),) * (-1 - axis))


def _tokens(f, given, p) -> slice:
    """The first p tokens, or the last ones in reverse."""
    n = np.shape(given["x"])[_axis(f, "x")]
    return slice(n - p, n) if given.get("reverse") else slice(p)


def _added(f, given, p, total, part):
    """The sum of two gradients, or of two states'."""
    if isinstance(total, tuple):
        return _each(np.add, total, part)
    if total.shape != part.shape:  # of p tokens
        whole = np.zeros_like(total)
        whole[_at(_tokens(f, given, p), _axis(f, "x"))] = part
        part = whole
    return total + part
