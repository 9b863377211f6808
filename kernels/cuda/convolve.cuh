// SPDX-License-Identifier: BSD-3-Clause
// Convolution of a column of outputs that share their input pixels.
#pragma once
#include "common.cuh"

constexpr int COLUMN = 4;  // outputs a thread, one below the other

// sum[r] += sum over taps of kernel(j, i) * source(row r - j, column - i), r = 0 .. COLUMN - 1, for one column of taps.
// `source` points at the pixel under tap (kh - 1, i) of output 0, rows `pitch` apart; `taps` at kernel(0, i), `stride`
// apart. Each pixel is read once for all outputs, each tap once for all pixels.
HD void convolve_column(const float* source, int pitch, const float* taps, int stride, int kh, float* sum)
{
    float held[COLUMN] = {};
    for (int step = 0; step < kh + COLUMN - 1; ++step) {
        for (int r = COLUMN - 1; r > 0; --r) held[r] = held[r - 1];
        held[0] = step < kh ? taps[(kh - 1 - step) * stride] : 0.0f;
        const float v = source[step * pitch];
        for (int r = 0; r < COLUMN; ++r) sum[r] += held[r] * v;
    }
}
