"""log, exp and the normal quantile, built only from operations that every device rounds the same way.

The logarithms of NumPy, torch and CUDA are not rounded the same way. The arguments are float64 NumPy arrays or torch
tensors; results are bit-identical, and within a few units in the last place of the true value.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_LN2_HIGH, _LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
_SQRT2 = 1.4142135623730951
_EXPONENT_ONE = 1023 << 52
_FRACTION = (1 << 52) - 1

# Wichura's AS 241 (PPND16) for the quantile, coefficients from the highest power down.
# fmt: off
_CENTRE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
     13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608),
    (5226.495278852545925, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867,
     5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0),
)
_TAIL = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258,
     3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459,
     0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0),
)
_FAR = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386, 0.026532189526576123093,
     0.29656057182850489123, 1.7848265399172913358, 5.4637849111641143699, 6.6579046435011037772),
    (2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4,
     0.0148753612908506148525, 0.13692988092273580531, 0.59983220655588793769, 1.0),
)
# fmt: on


def _polynomial(coefficients: tuple[float, ...], x: Any) -> Any:
    value = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        value = value * x + coefficient
    return value


def _bits(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return x.view(np.int64)
    import torch

    return x.view(torch.int64)


def _floats(bits: Any) -> Any:
    if isinstance(bits, np.ndarray):
        return bits.view(np.float64)
    import torch

    return bits.view(torch.float64)


def _whole(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return x.astype(np.int64)
    import torch

    return x.to(torch.int64)


def _real(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return x.astype(np.float64)
    import torch

    return x.to(torch.float64)


def _choose(condition: Any, yes: Any, no: Any) -> Any:
    if isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    import torch

    return torch.where(condition, yes, no)


def _sqrt(x: Any) -> Any:
    return np.sqrt(x) if isinstance(x, np.ndarray) else _sqrt_of_tensor(x)


def _sqrt_of_tensor(x: Any) -> Any:
    """The correctly rounded square root. That of torch is not, where MKL computes it, so it is only a first guess.

    A number is M * 2**(2n) for an integer M from 2**104 to 2**106, and its root is Y * 2**n for the integer Y nearest
    to the root of M. M - Y * Y is small, so int64 holds it exactly although both terms overflow.
    """
    import torch

    tiny = x < 2.0**-1022
    normal = torch.where(tiny, x * 2.0**54, x)
    bits = _bits(normal)
    power = bits >> 52
    square = ((bits & _FRACTION) | (1 << 52)) << (53 - (power & 1))
    shift = ((power + 1021) >> 1) << 52
    root = _bits(torch.sqrt(normal)) - shift
    root = root + _whole((_real(square - root * root) / _real(2 * root)).round())
    rest = square - root * root
    root = root + _whole(rest > root) - _whole(rest <= -root)
    value = _floats(root + shift)
    value = torch.where(tiny, value * 2.0**-27, value)
    # 0, infinity and NaN are their own roots; a negative number has none.
    return torch.where((x > 0) & (x < float("inf")), value, torch.where(x < 0, x * float("nan"), x))


def log(x: Any) -> Any:
    """The natural logarithm of normal numbers above 0."""
    bits = _bits(x)
    power = (bits >> 52) - 1023
    m = _floats((bits & _FRACTION) | _EXPONENT_ONE)
    large = m > _SQRT2
    m = _choose(large, m * 0.5, m)
    power = power + _whole(large)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    series = _polynomial(tuple(2.0 / n for n in range(23, 1, -2)), z)
    power = _real(power)
    return power * _LN2_HIGH + (s * 2.0 + (s * z * series + power * _LN2_LOW))


def exp(x: Any) -> Any:
    """e to the x, for x from -700 to 700."""
    turns = _whole(x * (1.0 / (_LN2_HIGH + _LN2_LOW)) + _choose(x < 0, x * 0.0 - 0.5, x * 0.0 + 0.5))
    times = _real(turns)
    r = (x - times * _LN2_HIGH) - times * _LN2_LOW
    value = r * 0.0 + 1.0
    for n in range(17, 0, -1):
        value = value * r * (1.0 / n) + 1.0
    return value * _floats((turns + 1023) << 52)


def normal(u: Any) -> Any:
    """The standard normal quantile of u in (0, 1)."""
    q = u - 0.5
    r = 0.180625 - q * q
    centre = q * _polynomial(_CENTRE[0], r) / _polynomial(_CENTRE[1], r)
    r = _sqrt(-log(_choose(q < 0, u, 1.0 - u)))
    near, far = r - 1.6, r - 5.0
    tail = _choose(
        r <= 5.0,
        _polynomial(_TAIL[0], near) / _polynomial(_TAIL[1], near),
        _polynomial(_FAR[0], far) / _polynomial(_FAR[1], far),
    )
    return _choose(abs(q) <= 0.425, centre, _choose(q < 0, -tail, tail))
