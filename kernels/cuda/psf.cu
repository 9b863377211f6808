// SPDX-License-Identifier: BSD-3-Clause
// A block takes one star; sums of its threads are added in a fixed order. Where stars are summed, a block takes 32
// pixels and each of its warps every eighth star.
#include "psf.cuh"

using namespace psf;

namespace {

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr unsigned ALL = 0xffffffffu;

// Sums over the block, for every thread; `shared` holds WARPS * N numbers.
template <int N>
__device__ void block_sum(double (&v)[N], double* shared)
{
    UNROLL
    for (int i = 0; i < N; ++i)
        for (int offset = 16; offset > 0; offset /= 2) v[i] += __shfl_xor_sync(ALL, v[i], offset);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        for (int i = 0; i < N; ++i) shared[threadIdx.x / 32 * N + i] = v[i];
    __syncthreads();
    UNROLL
    for (int i = 0; i < N; ++i) {
        v[i] = 0;
        for (int warp = 0; warp < (int)blockDim.x / 32; ++warp) v[i] += shared[warp * N + i];
    }
}

__device__ double block_maximum(double v, double* shared)
{
    for (int offset = 16; offset > 0; offset /= 2) v = maximum(v, __shfl_xor_sync(ALL, v, offset));
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    for (int warp = 0; warp < (int)blockDim.x / 32; ++warp) v = maximum(v, shared[warp]);
    return v;
}

// The rank-th smallest (from 0) of the positive numbers that are usable, bit by bit: they sort as their bit patterns.
__device__ float ranked(const double* values, const bool* usable, int count, int rank)
{
    __shared__ int below[WARPS];
    unsigned found = 0;
    for (int bit = 30; bit >= 0; --bit) {
        const unsigned trial = found | 1u << bit;
        int less = 0;
        for (int i = threadIdx.x; i < count; i += THREADS)
            less += usable[i] && __float_as_uint((float)values[i]) < trial;
        for (int offset = 16; offset > 0; offset /= 2) less += __shfl_xor_sync(ALL, less, offset);
        __syncthreads();
        if (threadIdx.x % 32 == 0) below[threadIdx.x / 32] = less;
        __syncthreads();
        less = 0;
        for (int warp = 0; warp < WARPS; ++warp) less += below[warp];
        if (less <= rank) found = trial;
    }
    return __uint_as_float(found);
}

}  // namespace

__global__ void __launch_bounds__(THREADS)
star_stamps(const float* __restrict__ image, const float* __restrict__ variance, const int* __restrict__ mask,
            int height, int width, int invalid, const double* __restrict__ x, const double* __restrict__ y, int half,
            double* __restrict__ scratch, double* values, double* own, bool* usable, double* __restrict__ typical)
{
    extern __shared__ double dynamic[];
    __shared__ double sums[WARPS];
    const int m = 2 * half + 1, w = m + 2 * MARGIN, star = blockIdx.x;
    const long long work = (long long)w * w + w * m + 2 * w - 1, pixels = (long long)m * m;
    double* filled = scratch ? scratch + star * work : dynamic;
    double* along = filled + w * w;
    double* weights = along + w * m;
    const Planes planes{image, variance, mask, height, width, invalid};
    const int i = (int)rint(x[star]), j = (int)rint(y[star]);
    values += star * pixels;
    own += star * pixels;
    usable += star * pixels;

    for (int k = threadIdx.x; k < w * w; k += THREADS) filled[k] = faded_pixel(planes, j, i, k / w, k % w, w);
    for (int k = threadIdx.x; k < 2 * w - 1; k += THREADS) weights[k] = shift_weight(k - w + 1 + i - x[star], w);
    __syncthreads();
    for (int k = threadIdx.x; k < w * m; k += THREADS) {
        const double* line = filled + k / m * w;
        const double* weight = weights + w - 1 - MARGIN - k % m;
        double sum = 0;
        for (int c = 0; c < w; ++c) sum += line[c] * weight[c];
        along[k] = sum;
    }
    __syncthreads();
    for (int k = threadIdx.x; k < 2 * w - 1; k += THREADS) weights[k] = shift_weight(k - w + 1 + j - y[star], w);
    __syncthreads();
    double good[1] = {0};
    for (int k = threadIdx.x; k < m * m; k += THREADS) {
        const int r = k / m, c = k % m, b = j + r - half, a = i + c - half;
        const double* weight = weights + w - 1 - MARGIN - r;
        double sum = 0;
        for (int row = 0; row < w; ++row) sum += along[row * m + c] * weight[row];
        values[k] = sum;
        usable[k] = planes.usable(b, a);
        own[k] = usable[k] && variance ? variance[(long long)b * width + a] : 0;
        good[0] += usable[k];
    }
    block_sum(good, sums);
    const int count = variance ? (int)good[0] : 0;
    const double usual = count ? ranked(own, usable, m * m, (count - 1) / 2) : 0;
    for (int k = threadIdx.x; k < m * m; k += THREADS)
        if (!usable[k]) own[k] = usual;
    if (threadIdx.x == 0) typical[star] = usual;
}

__global__ void __launch_bounds__(128)
profile_sums(const double* __restrict__ values, const bool* __restrict__ kept, const double* __restrict__ flux,
             const double* __restrict__ sky, const double* __restrict__ noise, const bool* __restrict__ used,
             const double* __restrict__ phi, Field field, int terms, int m, double reach, double* __restrict__ out)
{
    __shared__ double shared[WARPS * PROFILE_SUMS];
    const int star = blockIdx.x, half = m / 2, span = minimum((int)reach, half), side = 2 * span + 1;
    double sums[PROFILE_SUMS] = {};
    if (used[star]) {
        const Profile profile(field, phi + star * terms, terms);
        const double amplitude = profile.amplitude(flux[star]);
        for (int k = threadIdx.x; k < side * side; k += blockDim.x) {
            const int dy = k / side - span, dx = k % side - span;
            const long long at = ((long long)star * m + half + dy) * m + half + dx;
            if (dx * dx + dy * dy > reach * reach || !kept[at]) continue;
            add_profile_pixel(sums, profile, amplitude, dx, dy, noise[star], values[at] - sky[star]);
        }
    }
    block_sum(sums, shared);
    if (threadIdx.x == 0) eliminate_amplitude(sums, out + 20 * star);
}

__global__ void __launch_bounds__(THREADS)
profile_stamps(const double* __restrict__ phi, Field field, int terms, int m, double* __restrict__ out)
{
    __shared__ double shared[WARPS];
    const int half = m / 2;
    const Profile profile(field, phi + blockIdx.x * terms, terms);
    out += (long long)blockIdx.x * m * m;
    double sum[1] = {0};
    for (int k = threadIdx.x; k < m * m; k += THREADS) {
        const double value = profile.at(k % m - half, k / m - half);
        out[k] = value;
        sum[0] += value;
    }
    block_sum(sum, shared);
    for (int k = threadIdx.x; k < m * m; k += THREADS) out[k] /= sum[0];
}

template <int P>
__global__ void __launch_bounds__(THREADS)
pixel_departure(const double* __restrict__ values, const bool* __restrict__ kept, const double* __restrict__ profiles,
                const double* __restrict__ flux, const double* __restrict__ sky, const double* __restrict__ noise,
                const bool* __restrict__ used, const double* __restrict__ phi, int n, int m, double* __restrict__ out)
{
    constexpr int PAIRS = P * (P + 1) / 2, SUMS = PAIRS + P;
    __shared__ double matrix[PAIRS], passed[SUMS][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, pixels = m * m, middle = pixels / 2;
    const int pixel = blockIdx.x * 32 + lane;
    for (int k = warp; k < PAIRS; k += WARPS) {
        int p = 0;
        while ((p + 1) * (p + 2) / 2 <= k) ++p;
        const int q = k - p * (p + 1) / 2;
        double sum = 0;
        for (int s = lane; s < n; s += 32)
            if (used[s])
                sum += star_weight(flux[s], noise[s], profiles[(long long)s * pixels + middle]) * phi[s * P + p] *
                       phi[s * P + q];
        for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(ALL, sum, offset);
        if (lane == 0) {
            matrix[k] = sum;
            // rows of `out` end with those of the matrix
            if (blockIdx.x == 0) {
                out[(long long)p * (pixels + P) + pixels + q] = sum;
                out[(long long)q * (pixels + P) + pixels + p] = sum;
            }
        }
    }
    double sums[SUMS] = {};
    for (int s = warp; s < n && pixel < pixels; s += WARPS) {
        const long long at = (long long)s * pixels + pixel;
        if (!used[s] || !kept[at]) continue;
        const double f = flux[s], w = star_weight(f, noise[s], profiles[(long long)s * pixels + middle]);
        if (!(w > 0)) continue;
        const double d = (values[at] - sky[s]) / f - profiles[at];
        int k = 0;
        UNROLL
        for (int p = 0; p < P; ++p) {
            const double wp = w * phi[s * P + p];
            UNROLL
            for (int q = 0; q <= p; ++q) sums[k++] += wp * phi[s * P + q];
            sums[PAIRS + p] += wp * d;
        }
    }
    for (int from = 1; from < WARPS; ++from) {
        __syncthreads();
        if (warp == from)
            for (int k = 0; k < SUMS; ++k) passed[k][lane] = sums[k];
        __syncthreads();
        if (warp == 0)
            for (int k = 0; k < SUMS; ++k) sums[k] += passed[k][lane];
    }
    if (warp != 0 || pixel >= pixels) return;
    UNROLL
    for (int k = 0; k < PAIRS; ++k) sums[k] += 1e-6 * matrix[k];
    solve_lower<P>(sums, sums + PAIRS);
    UNROLL
    for (int p = 0; p < P; ++p) out[(long long)p * (pixels + P) + pixel] = sums[PAIRS + p];
}

__global__ void __launch_bounds__(THREADS)
compare_stars(const double* __restrict__ values, const double* __restrict__ variance, const bool* __restrict__ usable,
              const bool* __restrict__ kept, const double* __restrict__ profiles, const double* __restrict__ phi,
              const double* __restrict__ departure, const double* __restrict__ blurred, double fwhm, double sigma,
              int taps_width, int terms, int m, double* scratch, double* __restrict__ rows, bool* __restrict__ after)
{
    extern __shared__ double dynamic[];
    __shared__ double shared[WARPS * COMPARED];
    const int star = blockIdx.x, stars = gridDim.x, half = m / 2, pixels = m * m, width = taps_width;
    const long long first = (long long)star * pixels;
    double* taps = dynamic;
    double* model = scratch ? scratch + 4 * first : taps + 2 * width + 1;
    double* deviation = model + pixels;
    double* lines = deviation + pixels;
    values += first;
    variance += first;
    usable += first;
    kept += first;
    profiles += first;
    blurred += first;
    after += first;
    phi += star * terms;

    for (int k = threadIdx.x; k <= 2 * width; k += THREADS) taps[k] = exp(-0.5 * (k - width) * (k - width) / (sigma * sigma));
    double sums[6] = {}, peak = -1e300;
    for (int k = threadIdx.x; k < pixels; k += THREADS) {
        double p = profiles[k];
        for (int t = 0; t < terms; ++t) p += phi[t] * departure[(long long)t * pixels + k];
        model[k] = p;
        sums[0] += p;
        peak = maximum(peak, p);
        if (kept[k]) {
            const double v = values[k];
            sums[1] += 1;
            sums[2] += p;
            sums[3] += p * p;
            sums[4] += v;
            sums[5] += p * v;
        }
    }
    block_sum(sums, shared);
    peak = block_maximum(peak, shared);
    double total = 0;
    for (int k = 0; k <= 2 * width; ++k) total += taps[k];
    const double over = 1 / sums[0];
    double flux, sky;
    fit_flux(sums[1], sums[2] * over, sums[3] * over * over, sums[4], sums[5] * over, &flux, &sky);
    for (int k = threadIdx.x; k < pixels; k += THREADS) {
        const double p = model[k] * over, signal = flux * p, d = values[k] - sky - signal;
        const int dy = k / m - half, dx = k % m - half;
        model[k] = p;
        deviation[k] = usable[k] ? d : 0;
        after[k] = usable[k] && (!clipped(d, signal, variance[k]) || dx * dx + dy * dy <= 0.25 * fwhm * fwhm);
    }
    __syncthreads();
    double compared[COMPARED] = {};
    for (int k = threadIdx.x; k < pixels; k += THREADS)
        if (usable[k]) add_compared_pixel(compared, model, m, k / m, k % m, deviation[k], variance[k], fwhm);
    const int search = minimum((int)(2 * fwhm), half), side = 2 * search + 1;
    const int low = maximum(half - search - width, 0), high = minimum(half + search + width, m - 1);
    for (int k = threadIdx.x; k < (high - low + 1) * side; k += THREADS) {
        const int y = low + k / side, x = half - search + k % side;
        lines[y * m + x] = filtered(deviation + y * m, 1, x, m, taps, width);
        lines[pixels + y * m + x] = filtered(model + y * m, 1, x, m, taps, width);
    }
    block_sum(compared, shared);  // also ends the writing of `lines`
    double strongest = 0;
    const double norm = 1 / (total * total);
    for (int k = threadIdx.x; k < side * side; k += THREADS) {
        const int dy = k / side - search, dx = k % side - search, y = half + dy, x = half + dx;
        if (dx * dx + dy * dy > 4 * fwhm * fwhm) continue;
        const double d = norm * filtered(lines + x, m, y, m, taps, width);
        const double own = MODEL_ERROR * flux * norm * filtered(lines + pixels + x, m, y, m, taps, width);
        strongest = maximum(strongest, fabs(d) / sqrt(blurred[y * m + x] + own * own));
    }
    strongest = block_maximum(strongest, shared);
    if (threadIdx.x != 0) return;
    rows += star;
    rows[FLUX * stars] = flux;
    rows[SKY * stars] = sky;
    rows[RESIDUAL * stars] = strongest;
    compared_rows(compared, flux, flux * peak * over, rows, stars);
}
