# SPDX-License-Identifier: BSD-3-Clause
"""CPU kernels of the judgement of planes; `skydelta.kernels.judge` says what they do. All planes are flat."""

from __future__ import annotations

import numba
import numpy as np

from skydelta.kernels.cpu.jit import inline, parallel, prange

HALF = 1 << 16
"""Values of half the bits of a float32."""


@inline
def _part(k, parts, size):
    return size * k // parts, size * (k + 1) // parts


@inline
def _key(bits):
    """An unsigned number in the order of the float32 of these bits."""
    return ~bits if bits >> np.uint32(31) else bits | np.uint32(1 << 31)


@parallel
def _stated_variance(raw, sigma, weight, out, counts):
    parts = len(counts)
    for k in prange(parts):
        first, stop = _part(k, parts, raw.size)
        not_finite = negative = zero = bad = 0
        for i in range(first, stop):
            value = raw[i]
            if not np.isfinite(value):
                not_finite += 1
            elif value < 0:
                negative += 1
            elif value == 0:
                zero += 1
            found = value * value if sigma else np.float32(1) / value if weight else value
            rounded = np.float32(found)
            good = np.isfinite(value) and value > 0 and np.isfinite(rounded) and rounded > 0
            bad += not good
            out[i] = rounded if good else np.float32(np.nan)
        counts[k] = not_finite, negative, zero, bad


@parallel
def _upper_halves(values, found):
    parts = len(found)
    for k in prange(parts):
        first, stop = _part(k, parts, values.size)
        own = found[k]
        for i in range(first, stop):
            if not np.isnan(values[i]):
                own[_key(values.view(np.uint32)[i]) >> np.uint32(16)] += 1


@parallel
def _lower_halves(values, upper, found):
    parts = len(found)
    for k in prange(parts):
        first, stop = _part(k, parts, values.size)
        own = found[k]
        for i in range(first, stop):
            key = _key(values.view(np.uint32)[i])
            if key >> np.uint32(16) == upper and not np.isnan(values[i]):
                own[key & np.uint32(HALF - 1)] += 1


@parallel
def _mark_unknown(variance, mask, no_data, invalid, good, counts):
    parts = len(counts)
    for k in prange(parts):
        first, stop = _part(k, parts, variance.size)
        n = 0
        for i in range(first, stop):
            bits = mask[i] if np.isfinite(variance[i]) else mask[i] | no_data
            mask[i] = bits
            good[i] = not bits & invalid
            n += good[i]
        counts[k] = n


@parallel
def _translate_bits(stored, names, parts, out):
    for k in prange(parts):
        first, stop = _part(k, parts, stored.size)
        for i in range(first, stop):
            bits = np.int32(0)
            if stored[i]:
                for b in range(len(names)):
                    if np.uint64(stored[i]) >> np.uint64(b) & np.uint64(1):
                        bits |= names[b]
            out[i] = bits


@parallel
def _present(stored, lowest, found):
    parts = len(found)
    for k in prange(parts):
        first, stop = _part(k, parts, stored.size)
        own = found[k]
        for i in range(first, stop):
            own[np.int64(stored[i]) - lowest] = True


def stated_variance(raw: np.ndarray, kind: str, out: np.ndarray) -> np.ndarray:
    counts = np.zeros((numba.get_num_threads(), 4), np.int64)
    _stated_variance(raw.reshape(-1), kind == "sigma", kind == "weight", out.reshape(-1), counts)
    return counts.sum(axis=0)


def order_statistics(values: np.ndarray, ranks: tuple[int, ...]) -> np.ndarray:
    """The values (n,) float32 of these ranks, NaN left out."""
    flat, parts = values.reshape(-1), numba.get_num_threads()
    found = np.zeros((parts, HALF), np.int64)
    _upper_halves(flat, found)
    upto = found.sum(axis=0).cumsum()
    uppers = np.searchsorted(upto, ranks, "right")
    keys = np.empty(len(ranks), np.uint32)
    lower = {}
    for i, (rank, upper) in enumerate(zip(ranks, uppers.tolist(), strict=True)):
        if upper not in lower:
            found[:] = 0
            _lower_halves(flat, np.uint32(upper), found)
            lower[upper] = found.sum(axis=0).cumsum()
        before = upto[upper - 1] if upper else 0
        keys[i] = upper * HALF + int(np.searchsorted(lower[upper], rank - before, "right"))
    high = np.uint32(1 << 31)
    return np.where(keys & high, keys ^ high, ~keys).view(np.float32)


def mark_unknown(variance: np.ndarray, mask: np.ndarray, no_data: int, invalid: int) -> tuple[np.ndarray, int]:
    good, counts = np.empty(mask.shape, bool), np.zeros(numba.get_num_threads(), np.int64)
    _mark_unknown(
        variance.reshape(-1), mask.reshape(-1), np.int32(no_data), np.int32(invalid), good.reshape(-1), counts
    )  # fmt: skip
    return good, int(counts.sum())


def translate_bits(stored: np.ndarray, values: np.ndarray) -> np.ndarray:
    out = np.empty(stored.shape, np.int32)
    _translate_bits(stored.reshape(-1), values, numba.get_num_threads(), out.reshape(-1))
    return out


def distinct(stored: np.ndarray, lowest: int, highest: int) -> np.ndarray:
    found = np.zeros((numba.get_num_threads(), highest - lowest + 1), bool)
    _present(stored.reshape(-1), np.int64(lowest), found)
    return np.flatnonzero(found.any(axis=0)) + lowest
