# SPDX-License-Identifier: BSD-3-Clause
"""Machine instructions that Numba has no name for: byte swap, leading zeros, reinterpreted and unaligned words."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload


@intrinsic
def swapped(typing: Any, x: Any) -> Any:
    """The bytes of an integer in reverse order; same type."""
    if not isinstance(x, types.Integer):
        return None

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return args[0] if x.bitwidth == 8 else builder.bswap(args[0])

    return x(x), build


@intrinsic
def leading_zeros(typing: Any, x: Any) -> Any:
    """Number of leading zero bits of a uint64 as int64; 64 for 0."""
    if x != types.uint64:
        return None

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(x), build


@intrinsic
def as_float(typing: Any, x: Any) -> Any:
    """The bits of an int32 or int64 as float32 or float64."""
    if not isinstance(x, types.Integer) or x.bitwidth not in (32, 64):
        return None
    result = types.float32 if x.bitwidth == 32 else types.float64

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(result))

    return result(x), build


@intrinsic
def word_at(typing: Any, array: Any, at: Any) -> Any:
    """Eight bytes of a uint8 array from index ``at`` as a big-endian uint64; the caller checks that there are."""
    if not isinstance(array, types.Array) or array.dtype != types.uint8 or not isinstance(at, types.Integer):
        return None

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(array)(context, builder, args[0]).data
        place = builder.gep(data, [args[1]])
        word = builder.load(builder.bitcast(place, ir.IntType(64).as_pointer()))
        word.align = 1
        return builder.bswap(word)

    return types.uint64(array, at), build


def cast(like, x):
    """``x`` in the floating-point type of ``like``."""
    return np.float32(x) if isinstance(like, np.float32) else np.float64(x)


@overload(cast, inline="always")
def _cast(like, x):
    if like == types.float32:
        return lambda like, x: np.float32(x)
    return lambda like, x: np.float64(x)


def unsigned(x):
    """The value of a stored integer after its top bit is inverted, in a type that holds it."""
    raise TypeError("unsigned is for compiled code")


@overload(unsigned, inline="always")
def _unsigned(x):
    if x.bitwidth == 8:
        return lambda x: np.int32(np.int32(x) - 128)
    if x.bitwidth == 16:
        return lambda x: np.int32(np.int32(x) + 32768)
    if x.bitwidth == 32:
        return lambda x: np.int64(x) + 2147483648
    return lambda x: np.uint64(x) ^ np.uint64(1 << 63)
