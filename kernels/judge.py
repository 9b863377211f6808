# SPDX-License-Identifier: BSD-3-Clause
"""Planes that come with an image, judged where they are: one pass on the host, array operations on a device."""

from __future__ import annotations

import numpy as np

from skydelta.kernels.backend import Array, backend_of, to_host
from skydelta.kernels.cpu import judge as twins

SMALL = 1 << 12
"""Values that are sent to the host rather than folded further."""

CODES = 1 << 16
"""Range of values that a table is made of, to see which of them occur."""


def stated_variance(raw: Array, kind: str, overwrite: bool = False) -> tuple[Array, dict[str, int]]:
    """Variance of a plane, NaN where it says nothing.

    Parameters
    ----------
    raw : float32 or float64 (H, W), C-contiguous
    kind : {"variance", "sigma", "weight"}
        A sigma is squared, a weight inverted, both in the type of ``raw``.
    overwrite : bool
        The result may take the memory of ``raw``.

    Returns
    -------
    values : float32 (H, W)
        Positive and finite, or NaN.
    counts : dict of str to int
        Values of ``raw`` that are not_finite, negative, zero, and positive ones out_of_range of float32.
    """
    backend = backend_of(raw)
    if backend.is_gpu:
        values, found = _stated_variance(raw, kind)
    else:
        taken = overwrite and raw.dtype == np.float32 and raw.flags.writeable
        values = raw if taken else np.empty(raw.shape, np.float32)
        found = twins.stated_variance(raw, kind, values)
    not_finite, negative, zero, bad = found.tolist()
    counts = {"not_finite": not_finite, "negative": negative, "zero": zero}
    return values, {**counts, "out_of_range": bad - sum(counts.values())}


def _stated_variance(raw: Array, kind: str) -> tuple[Array, np.ndarray]:
    xp = backend_of(raw).xp
    finite = xp.isfinite(raw)
    with np.errstate(all="ignore"):
        values = (raw * raw if kind == "sigma" else 1 / raw if kind == "weight" else raw).astype(np.float32)
    good = finite & (raw > 0) & xp.isfinite(values) & (values > 0)
    found = [xp.count_nonzero(wrong) for wrong in (~finite, finite & (raw < 0), raw == 0, ~good)]
    return xp.where(good, values, np.float32(np.nan)), to_host(xp.stack(found))


def median(values: Array, known: int | None = None) -> float:
    """The median of what is not NaN, as `numpy.median` rounds it; NaN of nothing.

    Parameters
    ----------
    values : float32 (H, W), C-contiguous
    known : int, optional
        How many are not NaN.
    """
    backend = backend_of(values)
    if known is None:
        known = values.size - int(backend.xp.count_nonzero(backend.xp.isnan(values)))
    if not known:
        return float("nan")
    ranks = (known - 1) // 2, known // 2
    if backend.is_gpu:
        # NaN comes last
        middle = to_host(backend.xp.sort(values.reshape(-1))[ranks[0] : ranks[1] + 1])
    else:
        middle = twins.order_statistics(values, ranks)
    return float(np.median(middle))


def mark_unknown(variance: Array, mask: Array, no_data: int, invalid: int) -> tuple[Array, int]:
    """Set bits where a variance is not finite, in place; which pixels then carry no invalid bit, and how many.

    Parameters
    ----------
    variance : float32 (H, W)
    mask : int32 (H, W), C-contiguous
    no_data, invalid : int
        Bits that are set, and that forbid a pixel.

    Returns
    -------
    good : bool (H, W)
    count : int
    """
    backend = backend_of(mask)
    if not backend.is_gpu:
        return twins.mark_unknown(np.ascontiguousarray(variance), mask, no_data, invalid)
    xp = backend.xp
    mask |= xp.where(xp.isfinite(variance), np.int32(0), np.int32(no_data))
    good = mask & np.int32(invalid) == 0
    return good, int(xp.count_nonzero(good))


def used_bits(stored: Array) -> int:
    """All bits that are set anywhere in an array of unsigned integers."""
    if not backend_of(stored).is_gpu:
        return int(np.bitwise_or.reduce(stored, axis=None)) if stored.size else 0
    flat = stored.reshape(-1)
    while flat.size > SMALL:
        flat = flat[: (flat.size + 1) // 2] | flat[flat.size // 2 :]
    return used_bits(to_host(flat))


def translate_bits(stored: Array, values: np.ndarray) -> Array:
    """Other bits for the bits of a mask.

    Parameters
    ----------
    stored : unsigned integers (H, W), C-contiguous
    values : int32 (n,)
        On the host: what each bit becomes; bits from n on become nothing.

    Returns
    -------
    int32 (H, W)
    """
    backend = backend_of(stored)
    if not backend.is_gpu:
        return twins.translate_bits(stored, values)
    out = backend.xp.zeros(stored.shape, np.int32)
    kind = stored.dtype.type
    for bit in np.flatnonzero(values).tolist():
        out |= (stored >> kind(bit) & kind(1)).astype(np.int32) * values[bit]
    return out


def distinct(stored: Array) -> list[int]:
    """The values of an array of integers, each once, in ascending order."""
    backend = backend_of(stored)
    if not backend.is_gpu and stored.size:
        lowest, highest = int(stored.min()), int(stored.max())
        if highest - lowest < CODES:
            return [int(v) for v in twins.distinct(np.ascontiguousarray(stored), lowest, highest)]
    return [int(v) for v in to_host(backend.xp.unique(stored))]
