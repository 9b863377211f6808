// SPDX-License-Identifier: BSD-3-Clause
// Maths of the PSF kernels: Fourier shift of a stamp, elliptical Moffat profile and its sums, pixels by least squares,
// comparison of a star with its model. Constants as in kernels/psf.py.
#pragma once
#include "common.cuh"

namespace psf {

constexpr double PI = 3.14159265358979323846;
constexpr double SCALE_BOUND = 0.7, SHAPE_BOUND = 0.6, SHAPE_ERROR = 0.03, MODEL_ERROR = 0.01, PIXEL_CLIP = 5.0;
constexpr double NO_WIDTH = 1e6, TINY = 2.2250738585072014e-308;
constexpr int MARGIN = 6, OWN = 4, MOST_TERMS = 6;
enum Row { FLUX, SKY, RESIDUAL, BROADER, ERROR, CHI2, EXCESS, PEAK, ROWS };

// The planes that stamps are cut from; variance and mask may be missing.
struct Planes {
    const float* image;
    const float* variance;
    const int* mask;
    int height, width, invalid;

    HD bool usable(int y, int x) const
    {
        if (y < 0 || x < 0 || y >= height || x >= width) return false;
        const long long at = (long long)y * width + x;
        if (!is_finite(image[at]) || (mask && flagged(mask[at], invalid))) return false;
        return !variance || (variance[at] > 0 && is_finite(variance[at]));
    }
};

HD double sin_pi(double x)
{
#ifdef __CUDA_ARCH__
    return sinpi(x);
#else
    return sin(PI * x);
#endif
}

// Window of a stamp of side w: 1, and sin^2 towards the ends.
HD double fade(int i, int w)
{
    const int edge = minimum(i, w - 1 - i);
    if (edge >= MARGIN) return 1;
    const double s = sin_pi((edge + 0.5) / (2 * MARGIN));
    return s * s;
}

// Weight of a pixel at distance d for trigonometric interpolation on w pixels, odd w.
HD double shift_weight(double d, int w) { return d == 0 ? 1 : sin_pi(d) / (w * sin_pi(d / w)); }

// Pixel (r, c) of the larger stamp around (x, y), filled and faded.
HD double faded_pixel(const Planes& p, int y, int x, int r, int c, int w)
{
    int b = y + r - w / 2, a = x + c - w / 2;
    if (!p.usable(b, a)) {
        b = 2 * y - b;
        a = 2 * x - a;
        if (!p.usable(b, a)) return 0;
    }
    return p.image[(long long)b * p.width + a] * fade(r, w) * fade(c, w);
}

// Coefficients of ln a, e1 and e2, then ln(beta - 1): passed by value.
struct Field {
    double c[3 * MOST_TERMS];
    double slope;
};

struct Profile {
    double e1, e2, rest, shear, scale, beta;

    HD Profile(const Field& field, const double* phi, int terms)
    {
        double v[3] = {0, 0, 0};
        for (int k = 0; k < 3; ++k)
            for (int p = 0; p < terms; ++p) v[k] += field.c[k * terms + p] * phi[p];
        const double middle = field.c[0];
        const double log_a = minimum(maximum(v[0], middle - SCALE_BOUND), middle + SCALE_BOUND);
        e1 = minimum(maximum(v[1], -SHAPE_BOUND), SHAPE_BOUND);
        e2 = minimum(maximum(v[2], -SHAPE_BOUND), SHAPE_BOUND);
        rest = 1 - e1 * e1 - e2 * e2;
        shear = 1 / sqrt(rest);
        scale = exp(-2 * log_a);
        beta = 1 + exp(field.slope);
    }

    HD double r2(double dx, double dy) const
    {
        return shear * ((1 - e1) * dx * dx - 2 * e2 * dx * dy + (1 + e1) * dy * dy);
    }

    // Of peak 1.
    HD double at(double dx, double dy) const { return exp(-beta * log(1 + r2(dx, dy) * scale)); }

    // A profile of peak 1 has the flux pi a^2 / (beta - 1).
    HD double amplitude(double flux) const { return flux * (beta - 1) * scale / PI; }
};

// Sums of a pixel for amplitude, ln a, e1, e2, ln(beta - 1): upper triangle row by row, then the right-hand side.
constexpr int PROFILE_SUMS = 20;

HD void add_profile_pixel(double* sums, const Profile& f, double amplitude, double dx, double dy, double noise,
                          double value)
{
    const double r2 = f.r2(dx, dy), u = r2 * f.scale, log_u = log(1 + u), m = exp(-f.beta * log_u);
    const double by_r2 = -amplitude * f.beta * f.scale * m / (1 + u), soft = SHAPE_ERROR * amplitude * m;
    const double c[5] = {m, -2 * r2 * by_r2, by_r2 * (f.shear * (dy * dy - dx * dx) + r2 * f.e1 / f.rest),
                         by_r2 * (-2 * f.shear * dx * dy + r2 * f.e2 / f.rest),
                         -amplitude * m * log_u * (f.beta - 1)};
    const double w = 1 / (noise * noise + soft * soft), left = value - amplitude * m;
    int k = 0;
    UNROLL
    for (int i = 0; i < 5; ++i) {
        const double wc = w * c[i];
        UNROLL
        for (int j = i; j < 5; ++j) sums[k++] += wc * c[j];
        sums[15 + i] += wc * left;
    }
}

// The 4 x 4 matrix and right-hand side (20 numbers) without the amplitude.
HD void eliminate_amplitude(const double* sums, double* out)
{
    for (int i = 0; i < 20; ++i) out[i] = 0;
    if (!(sums[0] > 0)) return;
    for (int i = 1; i < 5; ++i) {
        for (int j = 1; j < 5; ++j) {
            const int a = minimum(i, j), b = maximum(i, j);
            out[4 * (i - 1) + j - 1] = sums[5 * a - a * (a - 1) / 2 + b - a] - sums[i] * sums[j] / sums[0];
        }
        out[15 + i] = sums[15 + i] - sums[i] * sums[15] / sums[0];
    }
}

HD double star_weight(double flux, double noise, double peak)
{
    const double sky = noise / flux, model = MODEL_ERROR * peak;
    return 1 / (sky * sky + model * model);
}

// Solve for b in place by Cholesky; a holds the lower triangle row by row and becomes the factor.
template <int N>
HD void solve_lower(double* a, double* b)
{
    UNROLL
    for (int i = 0; i < N; ++i) {
        UNROLL
        for (int j = 0; j <= i; ++j) {
            double v = a[i * (i + 1) / 2 + j];
            UNROLL
            for (int k = 0; k < j; ++k) v -= a[i * (i + 1) / 2 + k] * a[j * (j + 1) / 2 + k];
            a[i * (i + 1) / 2 + j] = i == j ? sqrt(v) : v / a[j * (j + 1) / 2 + j];
        }
    }
    UNROLL
    for (int i = 0; i < N; ++i) {
        UNROLL
        for (int k = 0; k < i; ++k) b[i] -= a[i * (i + 1) / 2 + k] * b[k];
        b[i] /= a[i * (i + 1) / 2 + i];
    }
    UNROLL
    for (int i = N - 1; i >= 0; --i) {
        UNROLL
        for (int k = i + 1; k < N; ++k) b[i] -= a[k * (k + 1) / 2 + i] * b[k];
        b[i] /= a[i * (i + 1) / 2 + i];
    }
}

// Flux and sky level by linear least squares, the model of unit sum.
HD void fit_flux(double s1, double sp, double spp, double sv, double spv, double* flux, double* sky)
{
    const double determinant = maximum(s1 * spp - sp * sp, 1e-30);
    *flux = (s1 * spv - sp * sv) / determinant;
    *sky = (spp * sv - sp * spv) / determinant;
}

HD bool clipped(double deviation, double signal, double variance)
{
    return deviation * deviation >= PIXEL_CLIP * PIXEL_CLIP * (variance + 0.01 * signal * signal);
}

// What a pixel adds to the comparison of a star: number, chi2, square and expected square within one FWHM, then the
// products of model and mode of broadening within 1.5 FWHM.
constexpr int COMPARED = 9;

HD void add_compared_pixel(double* s, const double* model, int m, int y, int x, double deviation, double variance,
                           double fwhm)
{
    const int dx = x - m / 2, dy = y - m / 2;
    const double r2 = dx * dx + dy * dy;
    if (r2 > 2.25 * fwhm * fwhm) return;
    // differences, one-sided at the ends
    const int left = maximum(x - 1, 0), right = minimum(x + 1, m - 1);
    const int above = maximum(y - 1, 0), below = minimum(y + 1, m - 1);
    const double by_x = (model[y * m + right] - model[y * m + left]) / (right - left);
    const double by_y = (model[below * m + x] - model[above * m + x]) / (below - above);
    const double p = model[y * m + x], w = 1 / variance, mode = -(2 * p + dx * by_x + dy * by_y);
    if (r2 <= fwhm * fwhm) {
        s[0] += 1;
        s[1] += deviation * deviation * w;
        s[2] += deviation * deviation;
        s[3] += variance;
    }
    s[4] += w * p * p;
    s[5] += w * p * mode;
    s[6] += w * mode * mode;
    s[7] += w * deviation * mode;
    s[8] += w * deviation * p;
}

// The rows that follow from these sums; row[k] is at row + k * stride, peak is known.
HD void compared_rows(const double* s, double flux, double peak, double* row, int stride)
{
    const double power = maximum(s[4], TINY), information = maximum(s[6] - s[5] * s[5] / power, TINY);
    const double free = maximum(s[0] - OWN, 1.0);
    row[BROADER * stride] = flux == 0 ? 0 : (s[7] - s[8] * s[5] / power) / (information * flux);
    row[ERROR * stride] = flux == 0 ? NO_WIDTH : minimum(1 / (sqrt(information) * fabs(flux)), NO_WIDTH);
    row[CHI2 * stride] = s[1] / free;
    row[EXCESS * stride] = (s[2] / free - s[3] / maximum(s[0], 1.0)) / (peak * peak);
    row[PEAK * stride] = peak;
}

// Filter a line or column with 2 * width + 1 taps around index i of m, zero beyond the ends.
HD double filtered(const double* line, int stride, int i, int m, const double* taps, int width)
{
    double sum = 0;
    for (int k = maximum(-width, -i); k <= minimum(width, m - 1 - i); ++k) sum += taps[width + k] * line[(i + k) * stride];
    return sum;
}

}  // namespace psf
