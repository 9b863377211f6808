// SPDX-License-Identifier: BSD-3-Clause
// One block a fit, the whole optimisation inside: lanes take columns, warps bands of rows; their sums are added in a
// fixed order, and one thread decides where to look next.
#include "fit.cuh"
#include "moment.cuh"

constexpr int WARPS = 4;

// Add n values over the lanes of a warp into out[n]: every step halves what a lane still has to add.
template <int N, int OFFSET>
__device__ void fold(double* v, int first, int end, double* out)
{
    if constexpr (OFFSET == 0) {
        UNROLL
        for (int i = 0; i < N; ++i)
            if (first + i < end) out[first + i] = v[i];
    } else {
        constexpr int H = (N + 1) / 2;
        const bool upper = threadIdx.x & OFFSET;
        UNROLL
        for (int i = 0; i < H; ++i) {
            const double high = i + H < N ? v[i + H] : 0;
            const double got = __shfl_xor_sync(0xffffffffu, upper ? v[i] : high, OFFSET);
            v[i] = (upper ? high : v[i]) + got;
        }
        fold<H, OFFSET / 2>(v, upper ? first + H : first, upper ? end : minimum(end, first + H), out);
    }
}

// Rows FROM up to below TO of the sums of a block's warps, to `part`; a lane has no registers for all rows of the largest.
template <int K, int B, int FROM, int TO>
__device__ void sum_rows(const float* data, const float* weight, const double* psf, int p, int s, const Taps* taps,
                         double* part)
{
    constexpr int BEGIN = Sums<K, B>::row(FROM), END = Sums<K, B>::row(TO);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, from = s * warp / WARPS, to = s * (warp + 1) / WARPS;
    Sums<K, B> own;
    own.clear();
    KEEP_LOOP
    for (int x = lane; x < s; x += 32) add_column<K, B, FROM, TO>(own, data, weight, psf, p, s, taps, x, from, to);
    fold<END - BEGIN, 16>(own.s + BEGIN, 0, END - BEGIN, part + BEGIN);
}

// What a block needs to sum a stamp.
template <int K, int B>
struct Scratch {
    Taps taps[2 * K];
    double part[WARPS][Sums<K, B>::COUNT];
    Sums<K, B> sums;
};

// Sums of a stamp with its lobes at `place`; the block waits for that before, and for the sums at the end.
template <int K, int B>
__device__ __noinline__ void sum_stamp(const float* data, const float* weight, const double* psf, const double* place, int s,
                          int p, Scratch<K, B>& to)
{
    constexpr int N = 3 * K + B, COUNT = Sums<K, B>::COUNT, SPLIT = N > 7 ? 3 : N + 1;
    const int thread = threadIdx.x, warp = thread / 32;
    __syncthreads();
    if (thread < 2 * K) to.taps[thread].place(place[thread], s, p);
    __syncthreads();
    sum_rows<K, B, 0, SPLIT>(data, weight, psf, p, s, to.taps, to.part[warp]);
    if constexpr (SPLIT <= N) sum_rows<K, B, SPLIT, N + 1>(data, weight, psf, p, s, to.taps, to.part[warp]);
    __syncthreads();
    if (thread < COUNT) {
        double total = 0;
        for (int w = 0; w < WARPS; ++w) total += to.part[w][thread];
        to.sums.s[thread] = total;
    }
    __syncthreads();
}

// start: for each fit x, y of its lobes, then the number of its stamp. out: for each fit chi2, evaluations, status,
// pixels, parameters, covariance; with one lobe then chi2, flux, x, y, background, covariance of the moment, sharpness.
template <int K, int B>
__global__ void __launch_bounds__(32 * WARPS)
fit_lobes(const float* __restrict__ data, const float* __restrict__ weight, const double* __restrict__ psf,
          const double* __restrict__ start, int s, int p, double bound, int limit, double* __restrict__ out)
{
    constexpr int N = 3 * K + B, MOMENT = 1 + N + N * N;
    constexpr int ROW = 4 + N + N * N + (K == 1 ? MOMENT + 1 : 0);
    __shared__ Optimiser<K, B> fit;
    __shared__ Scratch<K, B> scratch;
    __shared__ double matrix[N * N];
    const int thread = threadIdx.x;
    start += blockIdx.x * (2 * K + 1LL);
    out += blockIdx.x * (long long)ROW;
    const long long stamp = (long long)start[2 * K];
    data += stamp * s * s;
    weight += stamp * s * s;
    psf += stamp * p * p;
    if (thread == 0) fit.begin(start, bound, limit);
    KEEP_LOOP
    do {
        sum_stamp<K, B>(data, weight, psf, fit.trial, s, p, scratch);
        if (thread == 0) {
            if constexpr (K == 1)
                if (fit.evaluations == 0) {
                    double* moment = out + 4 + N + N * N;
                    if (!solve_linear<1>(scratch.sums, moment + 1, moment, moment + 1 + N))
                        for (int i = 0; i < MOMENT; ++i) moment[i] = quiet_nan();
                }
            fit.step(scratch.sums);
        }
        __syncthreads();
    } while (fit.running);
    if (thread != 0) return;
    const bool ok = fit.covariance(matrix);
    out[0] = fit.chi2;
    out[1] = fit.evaluations;
    out[2] = fit.status == FIT_CONVERGED && !ok ? FIT_SINGULAR : fit.status;
    out[3] = fit.best.pixels();
    for (int k = 0; k < K; ++k) {
        out[4 + 3 * k] = fit.flux[k];
        out[5 + 3 * k] = fit.q[2 * k];
        out[6 + 3 * k] = fit.q[2 * k + 1];
    }
    for (int i = 0; i < B; ++i) out[4 + 3 * K + i] = fit.flux[K + i];
    for (int i = 0; i < N * N; ++i) out[4 + N + i] = ok ? matrix[i] : quiet_nan();
    if constexpr (K == 1)
        out[ROW - 1] = sharpness_of(data, weight, psf, p, s, fit.flux[0], fit.q[0], fit.q[1], B > 0 ? fit.flux + 1 : nullptr, B);
}

// start: for each dipole x, y of its centre, the PSF's sigma, then the number of its stamp. out: rows of
// `LinearDipole::result`.
template <int B>
__global__ void __launch_bounds__(32 * WARPS)
linear_dipole(const float* __restrict__ data, const float* __restrict__ weight, const double* __restrict__ psf,
              const double* __restrict__ start, int s, int p, double bound, double settled, int turns,
              double* __restrict__ out)
{
    __shared__ LinearDipole<B> fit;
    __shared__ Scratch<1, B> scratch;
    __shared__ double place[2];
    const bool leader = threadIdx.x == 0;
    start += blockIdx.x * 4LL;
    const long long stamp = (long long)start[3];
    data += stamp * s * s;
    weight += stamp * s * s;
    psf += stamp * p * p;
    if (leader) fit.begin(start, start[2], bound, settled, turns);
    __syncthreads();
    KEEP_LOOP
    while (fit.running) {
        KEEP_LOOP
        for (int b = 0; b < LinearDipole<B>::BESIDE; ++b) {
            if (leader) fit.place(b, place);
            sum_stamp<1, B>(data, weight, psf, place, s, p, scratch);
            if (leader) fit.take(b, scratch.sums);
        }
        __syncthreads();
        if (leader) fit.turn();
        __syncthreads();
    }
    if (leader) fit.result(out + blockIdx.x * (long long)LinearDipole<B>::ROW);
}

// Take the light of lobes away from stamps, one block a stamp: those of stamp k are first[k] to first[k + 1] - 1, each
// flux, x, y.
extern "C" __global__ void subtract_lobes(const float* __restrict__ data, const float* __restrict__ weight,
                                          const double* __restrict__ psf, const int* __restrict__ first,
                                          const double* __restrict__ lobes, int s, int p, float* __restrict__ out)
{
    __shared__ Taps taps[2];
    const long long stamp = blockIdx.x, at = stamp * s * s;
    psf += stamp * p * p;
    const int begin = first[stamp], end = first[stamp + 1];
    for (int i = threadIdx.x; i < s * s; i += blockDim.x) out[at + i] = data[at + i];
    for (int k = begin; k < end; ++k) {
        __syncthreads();
        if (threadIdx.x < 2) taps[threadIdx.x].place(lobes[3 * k + 1 + threadIdx.x], s, p);
        __syncthreads();
        for (int i = threadIdx.x; i < s * s; i += blockDim.x)
            if (weight[at + i] > 0)
                out[at + i] -= (float)(lobes[3 * k] * psf_at(psf, p, taps[0], taps[1], i % s, i / s));
    }
}

// Samples of PSF stamps to B-spline coefficients in place, one block a stamp; dynamic shared memory holds one double
// for each sample of the longer side.
extern "C" __global__ void spline_coefficients(double* __restrict__ psf, int height, int width)
{
    extern __shared__ double ratio[];
    psf += blockIdx.x * (long long)height * width;
    for (int axis = 0; axis < 2; ++axis) {
        const int n = axis ? width : height, lines = axis ? height : width;
        if (threadIdx.x == 0) spline_ratios(ratio, n);
        __syncthreads();
        for (int i = threadIdx.x; i < lines; i += blockDim.x)
            spline_line(axis ? psf + (long long)i * width : psf + i, n, axis ? 1 : width, ratio);
        __syncthreads();
    }
}
