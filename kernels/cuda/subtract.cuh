// SPDX-License-Identifier: BSD-3-Clause
// Per-pixel steps of a subtraction.
#pragma once
#include "common.cuh"

HD void subtract(float fixed, float convolved, float factor, float& difference)
{
    difference = (fixed - convolved) * factor;
}

HD void add_variance(float fixed, float spread, float& sum) { sum = fixed + spread; }

// The kernel reaches bad pixels: too much of its weight lies on them, or what may be wrong with their filling (`leak`)
// shows against the noise.
HD void judge(int good, float lost, float most, float leak, float variance, float limit, int& reached, int& usable)
{
    reached = !(lost <= most) || leak * leak > limit * variance;
    usable = good != 0 && !reached;
}

HD void blank(float difference, float sum, float factor, int usable, float& difference_out, float& variance_out)
{
    difference_out = usable ? difference : quiet_nan();
    variance_out = usable ? sum * factor : quiet_nan();
}
