// SPDX-License-Identifier: BSD-3-Clause
// Per-pixel maths of detection: is a pixel a peak, and union-find on pixel numbers.
#pragma once
#include "common.cuh"

// 1 at a positive peak beyond the threshold, -1 at a negative one, else 0; the later of equal neighbours wins.
HD signed char peak_sign(const float* image, int height, int width, int y, int x, float threshold)
{
    const float v = image[(long long)y * width + x];
    const float size = v < 0 ? -v : v;
    if (!(size > threshold)) return 0;
    const float sign = v > 0 ? 1.0f : -1.0f;
    for (int j = maximum(y - 1, 0); j < minimum(y + 2, height); ++j)
        for (int i = maximum(x - 1, 0); i < minimum(x + 2, width); ++i) {
            const float w = sign * image[(long long)j * width + i];
            const bool later = j > y || (j == y && i > x);
            if (w > size || (later && w == size)) return 0;
        }
    return (signed char)sign;
}

// A peak in one number that sorts by pixel: the pixel's number above the bits of its value.
HD unsigned long long packed(int pixel, float value)
{
    union {
        float f;
        unsigned u;
    } bits;
    bits.f = value;
    return (unsigned long long)(unsigned)pixel << 32 | bits.u;
}

// Both pixels belong to a component and to the same one.
HD bool joined(float a, float b, float threshold)
{
    return (a > threshold && b > threshold) || (a < -threshold && b < -threshold);
}

// The smallest pixel number of a tree; parents are never larger than their children. parent[i] is 1 more than the number
// of pixel i's parent, so that 0 says that pixel i is in no component.
HD int find_root(const int* parent, int i)
{
    while (parent[i] != i + 1) i = parent[i] - 1;
    return i;
}
