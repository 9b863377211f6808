// SPDX-License-Identifier: BSD-3-Clause
// Sums of products for convolutions: a thread makes several outputs, each pixel and each tap is read once for them all.
#pragma once
#include "common.cuh"

constexpr int RUN = 8;   // outputs side by side, of a convolution with one kernel
constexpr int STEP = 4;  // taps taken together down a column, of one with a kernel that varies

// Four floats at a 16-byte boundary.
HD void load4(const float* from, float* to)
{
#ifdef __CUDA_ARCH__
    const float4 v = *reinterpret_cast<const float4*>(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
#else
    for (int i = 0; i < 4; ++i) to[i] = from[i];
#endif
}

HD void load8(const float* from, float* to)
{
    load4(from, to);
    load4(from + 4, to + 4);
}

// sum[r] += sum over t < n of taps[t] source[r + t]; TAIL = n % RUN. Whole runs are read: `taps` holds n rounded up to
// a multiple of RUN, `source` that and one run more.
template <int TAIL>
HD void convolve_run(const float* source, const float* taps, int n, float* sum)
{
    float held[2 * RUN], tap[RUN];
    load8(source, held);
    int t = 0;
#ifdef __CUDACC__
#pragma unroll 2
#endif
    for (; t + RUN <= n; t += RUN) {
        load8(source + t + RUN, held + RUN);
        load8(taps + t, tap);
        UNROLL for (int i = 0; i < RUN; ++i)
            UNROLL for (int r = 0; r < RUN; ++r) sum[r] += tap[i] * held[r + i];
        UNROLL for (int r = 0; r < RUN; ++r) held[r] = held[r + RUN];
    }
    if (TAIL) {
        load8(source + t + RUN, held + RUN);
        load8(taps + t, tap);
        UNROLL for (int i = 0; i < TAIL; ++i)
            UNROLL for (int r = 0; r < RUN; ++r) sum[r] += tap[i] * held[r + i];
    }
}

// Floats that one tap of a kernel of this order takes: its value in every spatial term, rounded up to whole quadruples.
template <int ORDER>
struct Tap {
    static constexpr int SIZE = ((ORDER + 1) * (ORDER + 2) / 2 + 3) / 4 * 4;
};

// Value of a tap for each degree j along y: value[j] = sum_i T_i(u) terms[j, i], i + j <= ORDER; `along_x` holds T_0 to
// T_ORDER at u.
template <int ORDER>
HD void tap_values(const float* terms, const float* along_x, float* value)
{
    float term[Tap<ORDER>::SIZE];
    UNROLL for (int p = 0; p < Tap<ORDER>::SIZE; p += 4) load4(terms + p, term + p);
    int p = 0;
    UNROLL for (int j = 0; j <= ORDER; ++j) {
        value[j] = term[p++];  // T_0 = 1
        UNROLL for (int i = 1; i <= ORDER - j; ++i) value[j] += along_x[i] * term[p++];
    }
}

// sum[j][r] += sum over t < n of value_j[t] source[(r + t) pitch]: a column of taps for ROWS outputs one below the
// other, apart for each degree along y. `terms` as for `tap_values`, for each tap from the top.
template <int ORDER, int ROWS>
HD void convolve_varying(const float* source, int pitch, const float* terms, int n, const float* along_x,
                         float (&sum)[ORDER + 1][ROWS])
{
    float held[ROWS + STEP - 1], value[ORDER + 1];
    int t = 0;
    KEEP_LOOP for (; t + STEP <= n; t += STEP) {
        UNROLL for (int r = 0; r < ROWS + STEP - 1; ++r) held[r] = source[(t + r) * pitch];
        UNROLL for (int c = 0; c < STEP; ++c) {
            tap_values<ORDER>(terms + (t + c) * Tap<ORDER>::SIZE, along_x, value);
            UNROLL for (int j = 0; j <= ORDER; ++j)
                UNROLL for (int r = 0; r < ROWS; ++r) sum[j][r] += value[j] * held[r + c];
        }
    }
    KEEP_LOOP for (; t < n; ++t) {
        tap_values<ORDER>(terms + t * Tap<ORDER>::SIZE, along_x, value);
        UNROLL for (int r = 0; r < ROWS; ++r) held[r] = source[(t + r) * pitch];
        UNROLL for (int j = 0; j <= ORDER; ++j)
            UNROLL for (int r = 0; r < ROWS; ++r) sum[j][r] += value[j] * held[r];
    }
}

// sum over i < n of taps[i] source[i stride].
HD float weighted_sum(const float* source, int stride, const float* taps, int n)
{
    float sum = 0.0f;
    for (int i = 0; i < n; ++i) sum += taps[i] * source[i * stride];
    return sum;
}

// Mean of the good pixels around, fading to zero where there are none.
HD float filling(float sum, float weight) { return sum / maximum(weight, 1e-3f); }
