// SPDX-License-Identifier: BSD-3-Clause
// Per-pixel steps of a subtraction.
#pragma once
#include "common.cuh"

HD void subtract(float fixed, float convolved, float factor, float& difference)
{
    difference = (fixed - convolved) * factor;
}

HD void add_variance(float fixed, float spread, float factor, float& variance) { variance = (fixed + spread) * factor; }

// A pixel is usable when both images are good there and the kernel kept enough of its weight on good pixels.
HD void judge(int good, float kept, float least, int& usable) { usable = good != 0 && kept >= least; }

HD void blank(float difference, float variance, int usable, float& difference_out, float& variance_out)
{
    difference_out = usable ? difference : quiet_nan();
    variance_out = usable ? variance : quiet_nan();
}
