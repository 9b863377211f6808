// SPDX-License-Identifier: BSD-3-Clause
// Bits of a mask in another numbering, and the bits around a pixel.
#pragma once
#include "common.cuh"

// The bits of a value, each as `bits` says for its number.
HD int translate_bits(int value, const int* bits)
{
    int out = 0;
    for (unsigned rest = value, b = 0; rest && b < 31; ++b, rest >>= 1)
        if (rest & 1) out |= bits[b];
    return out;
}

// Those of the wanted bits that any pixel of the box around (y, x) has.
HD int bits_around(const int* mask, int height, int width, int y, int x, int reach, int wanted)
{
    int found = 0;
    for (int j = maximum(y - reach, 0); j <= minimum(y + reach, height - 1) && found != wanted; ++j)
        for (int i = maximum(x - reach, 0); i <= minimum(x + reach, width - 1); ++i)
            found |= mask[(long long)j * width + i] & wanted;
    return found;
}
