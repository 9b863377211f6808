// SPDX-License-Identifier: BSD-3-Clause
// Maths of the star kernels: symmetric filter, peaks of smoothed light, rings, windowed moments, soft apertures.
#pragma once
#include "common.cuh"

namespace stars {

// A plane with its usable pixels; others and those outside are zero.
struct Plane {
    const float* image;
    const unsigned char* good;
    int height, width;

    HD bool usable(int y, int x) const
    {
        return y >= 0 && y < height && x >= 0 && x < width && good[(long long)y * width + x];
    }
    HD float at(int y, int x) const { return usable(y, x) ? image[(long long)y * width + x] : 0.0f; }
};

// Pixels of a square around one that are usable, all of them.
HD bool clean(const Plane& plane, int y, int x, int core)
{
    for (int j = -core; j <= core; ++j)
        for (int i = -core; i <= core; ++i)
            if (!plane.usable(y + j, x + i)) return false;
    return true;
}

// Symmetric filter around *middle, taps[0] in the middle; far to near and in pairs: mirror images give the same bits.
HD float filtered(const float* middle, int stride, const double* taps, int radius)
{
    double sum = middle[0] * taps[0];
    for (int k = radius; k > 0; --k) sum += ((double)middle[-k * stride] + (double)middle[k * stride]) * taps[k];
    return (float)sum;
}

// Signal-to-noise of smoothed light whose variance is `noise`; 0 where that or the pixel is unusable.
HD float light_snr(float light, bool good, float noise)
{
    return good && noise > 0 ? light / sqrtf(noise) : 0.0f;
}

// The rank-th smallest (from 0) of |a - centre| of n sorted numbers: sorted leftwards before `split`, rightwards from
// there.
HD float ranked_distance(const float* a, int n, float centre, int split, int rank)
{
    int low = maximum(0, rank - (n - split)), high = minimum(rank, split);
    while (low < high) {
        const int left = (low + high) / 2;
        if (fabsf(a[split - 1 - left] - centre) < fabsf(a[split + rank - left - 1] - centre))
            low = left + 1;
        else
            high = left;
    }
    const int right = split + rank - low;
    if (low >= split) return fabsf(a[right] - centre);
    const float best = fabsf(a[split - 1 - low] - centre);
    return right < n ? minimum(best, fabsf(a[right] - centre)) : best;
}

// Median, 1.4826 times the median absolute deviation, and the limit above them, of sorted numbers with NaN last.
HD void robust_levels(const float* a, int size, float times, float least, float* out)
{
    int n = 0, high = size;
    while (n < high) {
        const int middle = (n + high) / 2;
        if (a[middle] != a[middle])
            high = middle;
        else
            n = middle + 1;
    }
    if (n == 0) {
        out[0] = out[1] = out[2] = quiet_nan();
        return;
    }
    const float centre = (a[(n - 1) / 2] + a[n / 2]) * 0.5f;
    int split = 0;
    high = n;
    while (split < high) {
        const int middle = (split + high) / 2;
        if (a[middle] < centre)
            split = middle + 1;
        else
            high = middle;
    }
    const float inner = ranked_distance(a, n, centre, split, (n - 1) / 2);
    const float outer = ranked_distance(a, n, centre, split, n / 2);
    out[0] = centre;
    out[1] = 1.4826f * ((inner + outer) * 0.5f);
    out[2] = centre + times * maximum(least, out[1]);
}

// Above the later pixels of a circle, not below the earlier ones.
HD bool is_peak(const float* light, int height, int width, int y, int x, int radius)
{
    const float v = light[(long long)y * width + x];
    for (int j = maximum(-radius, -y); j <= minimum(radius, height - 1 - y); ++j)
        for (int i = maximum(-radius, -x); i <= minimum(radius, width - 1 - x); ++i) {
            if ((i == 0 && j == 0) || j * j + i * i > radius * radius + 1) continue;
            const float other = light[(long long)(y + j) * width + x + i];
            const bool later = j > 0 || (j == 0 && i > 0);
            if (other > v || (later && other == v)) return false;
        }
    return true;
}

// Place of values[k] among n values in ascending order; equal ones keep their order.
HD int rank_of(const float* values, int n, int k)
{
    const float v = values[k];
    int rank = 0;
    for (int i = 0; i < n; ++i) rank += values[i] < v || (values[i] == v && i < k);
    return rank;
}

HD double window_weight(double d, double variance) { return exp(-d * d / (2 * variance)); }

// Light times weight times 1, x, y, x^2, xy, y^2.
struct Moments {
    double s[6];

    HD void clear() { for (int k = 0; k < 6; ++k) s[k] = 0; }

    HD void add(double value, double wx, double dx, double wy, double dy)
    {
        const double v = value * wx * wy, x = v * dx, y = v * dy;
        s[0] += v;
        s[1] += x;
        s[2] += y;
        s[3] += x * dx;
        s[4] += x * dy;
        s[5] += y * dy;
    }
};

// At most 1 px, none where it is not a number.
HD double limited(double step) { return step != step ? 0.0 : minimum(maximum(step, -1.0), 1.0); }

// The next centre of the window; true when it stays where it is.
HD bool move_centre(const Moments& m, int half, double still, double* cx, double* cy)
{
    const double x = minimum(maximum(*cx + limited(2 * m.s[1] / m.s[0]), (double)-half), (double)half);
    const double y = minimum(maximum(*cy + limited(2 * m.s[2] / m.s[0]), (double)-half), (double)half);
    const bool arrived = fabs(x - *cx) < still && fabs(y - *cy) < still;
    *cx = x;
    *cy = y;
    return arrived;
}

// (det C)^(1/4) and ellipticity of moments freed of their window: each eigenvalue 1 / c = 1 / m - 1 / w.
HD void freed_shape(const Moments& m, double variance, double infinity, double* size, double* ellipticity)
{
    const double mx = m.s[1] / m.s[0], my = m.s[2] / m.s[0];
    const double xx = m.s[3] / m.s[0] - mx * mx, xy = m.s[4] / m.s[0] - mx * my, yy = m.s[5] / m.s[0] - my * my;
    const double mid = (xx + yy) / 2, spread = hypot((xx - yy) / 2, xy);
    double major = mid + spread, minor = maximum(mid - spread, 0.0);
    *size = infinity;
    *ellipticity = 1;
    if (!(m.s[0] > 0 && is_finite(xx + yy + xy) && major < variance)) return;
    major = major * variance / (variance - major);
    minor = minor * variance / (variance - minor);
    *size = minor > 0 ? sqrt(sqrt(major * minor)) : 0.0;
    if (major > 0) *ellipticity = 1 - sqrt(minor / major);
}

// Share of a pixel at distance r that counts to a circle.
HD double soft_edge(double aperture, double r) { return minimum(maximum(aperture + 0.5 - r, 0.0), 1.0); }

// Index of the first of n ascending numbers that is not below a value.
HD int first_at_least(const int* sorted, int n, long long value)
{
    int low = 0, high = n;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (sorted[middle] < value) low = middle + 1;
        else high = middle;
    }
    return low;
}

// Peaks (ascending pixel numbers) within a radius of peak k and above a share of its height.
HD int count_neighbours(const int* pixel, const float* height, int n, int k, int width, double radius, double share)
{
    const int x0 = pixel[k] % width, y0 = pixel[k] / width, rows = (int)radius;
    const double level = share * (double)height[k];
    int count = 0;
    for (int i = first_at_least(pixel, n, (long long)(y0 - rows) * width); i < n; ++i) {
        const int y = pixel[i] / width;
        if (y > y0 + rows) break;
        const double dx = pixel[i] % width - x0, dy = y - y0;
        count += dx * dx + dy * dy <= radius * radius && (double)height[i] > level;
    }
    return count;
}

}  // namespace stars
