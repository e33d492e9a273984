"""How far each kind of feature map propagates an error, with every factor made positive.

`moved(phi, x)`: the error of phi(x) from rounding inside phi, in units of u, in addition to a few
roundings of phi(x) itself.  `spread(phi, x, grad)`: the magnitude of ``phi.backward``, linear in a
positive `grad`.  Both take the twins of `linattn.reference.maps`.
"""

import numpy as np

from linattn.reference import maps


def moved(phi, x):
    if isinstance(phi, maps.Fourier):
        return np.tile(_sums(phi, x), 2) / phi.omega.shape[-1] ** 0.5
    if isinstance(phi, maps.Positive):
        return phi(x) * _exponent(phi, x)
    if isinstance(phi, maps.Generalized):
        return _slope(phi, x) * _sums(phi, x) / phi.omega.shape[-1] ** 0.5
    if isinstance(phi, maps.Feedforward):
        return _through_units(phi, x)
    if isinstance(phi, maps.L2Norm):
        return 2 * abs(phi(x))  # |J| |x|, of x itself and of its norm
    return 0 * phi(x)  # functions of single numbers, and sums of what is never negative


def spread(phi, x, grad):
    if isinstance(phi, maps.Elementwise):
        return abs(phi.backward(x, grad))
    if isinstance(phi, maps.L2Norm):
        y = abs(phi(x))  # (g - (g.y) y) / norm is a difference: both its terms count
        return (grad + (grad * y).sum(-1, keepdims=True) * y) / phi._norm(x)
    if isinstance(phi, maps.SumNormalized):
        return spread(phi.feature_map, x, _of_quotient(phi.feature_map(x), grad, phi.eps))
    if isinstance(phi, maps.DPFP):
        plain = maps.DPFP(phi.nu, normalize=False)
        if phi.normalize:
            grad = _of_quotient(plain(x), grad, phi.eps)
        return abs(plain.backward(x, grad))
    if isinstance(phi, maps.Rebased):
        return abs(phi.backward(abs(x), grad))
    if isinstance(phi, maps.Feedforward):
        return _back_through_units(phi, x, grad)
    factor, omega = phi.temperature**0.5, abs(phi.omega)
    if isinstance(phi, maps.Positive):
        du = grad * phi(x) * (1 + _exponent(phi, x))
        return factor * du @ omega.T + phi.temperature * du.sum(-1, keepdims=True) * abs(x)
    if isinstance(phi, maps.Fourier):
        grad = sum(np.split(grad, 2, -1))
    du = grad * _slope(phi, x) * (1 + _sums(phi, x)) / omega.shape[-1] ** 0.5
    return factor * du @ omega.T


def _sums(phi, x):
    """|u| with every product in it positive."""
    return phi.temperature**0.5 * (abs(x) @ abs(phi.omega))


def _exponent(phi, x):
    return _sums(phi, x) + phi.temperature * (x * x).sum(-1, keepdims=True) / 2


def _slope(phi, x):
    """The largest slope of the function near u."""
    if getattr(phi, "fn", None) != "exp":
        return 1.0
    return np.exp(phi.temperature**0.5 * (x @ phi.omega))


def _of_quotient(y, grad, eps):
    """The gradient of y / (sum y + eps) with respect to y."""
    t = y.sum(-1, keepdims=True) + eps
    return grad / t + (grad * y).sum(-1, keepdims=True) / t**2


def _through_units(phi, x):
    """The error e of each unit's input, through f(x W) sigmoid(x A B)."""
    e = 0 * x
    for i, unit in enumerate(phi.weights):
        f, slope, gate, y = phi._parts(i, unit, x)
        of_a, of_b = _times(unit[:1], x, e), _times(unit[1:], x, e)
        e = gate * slope * of_a + (abs(f) * gate * (1 - gate) * of_b if len(unit) > 1 else 0)
        e, x = e + abs(y), y
    return e


def _times(factors, x, e):
    """The error of x times the factors."""
    size = abs(x)
    for w in factors:
        size, e = size @ abs(w), (size + e) @ abs(w)
    return e


def _back_through_units(phi, x, grad):
    tape = [x]
    for i, unit in enumerate(phi.weights):
        tape.append(phi._parts(i, unit, tape[-1])[-1])
    for i in reversed(range(len(phi.weights))):
        unit = phi.weights[i]
        f, slope, gate, _ = phi._parts(i, unit, tape[i])
        carried = 1 + _times(unit[:1], tape[i], 0 * tape[i])
        dx = (grad * slope * gate * carried) @ abs(unit[0]).mT
        if len(unit) > 1:
            inside = 1 + _times(unit[1:], tape[i], 0 * tape[i])
            db = grad * (abs(f) * inside + carried) * gate * (1 - gate)
            for w in reversed(unit[1:]):
                db = db @ abs(w).mT
            dx = dx + db
        grad = dx
    return grad
