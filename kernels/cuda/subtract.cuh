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
HD void judge(bool good, float lost, float most, float leak, float variance, float limit, bool& reached, bool& usable)
{
    reached = !(lost <= most) || leak * leak > limit * variance;
    usable = good && !reached;
}

HD void blank(float difference, float sum, float factor, bool usable, float& difference_out, float& variance_out)
{
    difference_out = usable ? difference : quiet_nan();
    variance_out = usable ? sum * factor : quiet_nan();
}

HD void doubt(bool good, float filled, float image, int mask, int saturated, float hidden, float& out)
{
    const float light = filled < 0.0f ? -filled : filled, shown = image < 0.0f ? -image : image;
    if (good) out = 0.0f;
    else if (!flagged(mask, saturated)) out = light;
    else out = hidden * (is_finite(image) ? maximum(light, shown) : light);
}
