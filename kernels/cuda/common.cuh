// SPDX-License-Identifier: BSD-3-Clause
// What every .cuh stands on. Compiles with nvcc, NVRTC and a plain host compiler; includes no CUDA header.
#pragma once

#ifdef __CUDACC__
#define HD __host__ __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define KEEP_LOOP _Pragma("unroll 1")
#else
#include <cmath>
#define HD inline
#define UNROLL
#define KEEP_LOOP
#endif

template <typename T>
HD T minimum(T a, T b) { return b < a ? b : a; }

template <typename T>
HD T maximum(T a, T b) { return a < b ? b : a; }

// i moved into [low, high].
HD int clampi(int i, int low, int high) { return minimum(maximum(i, low), high); }

// Neither NaN nor infinite; needs no math header and holds as long as nothing is built with fast maths.
HD bool is_finite(float v) { return v - v == 0.0f; }
HD bool is_finite(double v) { return v - v == 0.0; }

HD float quiet_nan()
{
#ifdef __CUDA_ARCH__
    return __int_as_float(0x7fc00000);
#else
    return NAN;
#endif
}

// a / b to 2 units of the last place or so, for b from 1e-37 to 1e37.
HD float divided(float a, float b)
{
#ifdef __CUDA_ARCH__
    return __fdividef(a, b);
#else
    return a / b;
#endif
}

// 1 / v to 1e-13, for |v| from 1e-37 to 1e37: a step of Newton's method from a float32.
HD double reciprocal(double v)
{
    const double r = divided(1.0f, (float)v);
    return r * (2.0 - v * r);
}

// Largest integer not above v; int's bounds where it has none.
HD int floor_int(double v)
{
#ifdef __CUDA_ARCH__
    return __double2int_rd(v);
#else
    return (int)floor(minimum(maximum(v, -2147483648.0), 2147483647.0));
#endif
}

// As the host's complex64.
struct alignas(8) Complex {
    float re, im;
};

HD Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
HD Complex operator*(Complex a, Complex b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
HD Complex operator*(Complex a, float b) { return {a.re * b, a.im * b}; }
HD Complex conjugate(Complex a) { return {a.re, -a.im}; }

// Any of `bits` is set in the mask value.
HD bool flagged(int mask, int bits) { return (mask & bits) != 0; }
