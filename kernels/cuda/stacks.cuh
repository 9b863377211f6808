// SPDX-License-Identifier: BSD-3-Clause
// Steps on stacks of tiles and their spectra.
#pragma once
#include "common.cuh"

HD void scaled(Complex a, float factor, Complex& out) { out = a * factor; }

HD void sum_of_two(Complex a, Complex x, Complex b, Complex y, Complex& out) { out = a * x + b * y; }

HD void correlated(Complex a, Complex b, Complex& out) { out = a * conjugate(b); }

HD void weigh(float whitened, float raw, float floor, bool usable, float& inverse, float& variance, float& signal)
{
    variance = maximum(raw, floor);
    inverse = usable ? 1.0f / variance : 0.0f;
    signal = whitened * inverse;
}

// Pixel (y, x) lies in an image of this size.
HD bool inside(int y, int x, int height, int width) { return y >= 0 && y < height && x >= 0 && x < width; }
