// SPDX-License-Identifier: BSD-3-Clause
// One warp a stamp, the whole optimisation inside: every lane sums its pixels, a butterfly adds the lanes in a fixed
// order, and all lanes take the same decision.
#include "fit.cuh"

constexpr int WARPS = 4;

template <int K>
__device__ void sum_stamp(Sums<K>& sums, const float* data, const float* weight, const double* psf, int p, int s,
                          const double* q)
{
    const int lane = threadIdx.x % 32;
    sums.clear();
    for (int i = lane; i < s * s; i += 32) {
        const float w = weight[i];
        if (w > 0) add_pixel<K>(sums, psf, p, s, i / s, i % s, q, data[i], w);
    }
    for (int k = 0; k < Sums<K>::COUNT; ++k)
        for (int offset = 16; offset > 0; offset /= 2) sums.s[k] += __shfl_xor_sync(0xffffffffu, sums.s[k], offset);
}

template <int K>
__global__ void __launch_bounds__(32 * WARPS)
fit_lobes(const float* __restrict__ data, const float* __restrict__ weight, const double* __restrict__ psf,
          const double* __restrict__ start, int n, int s, int p, double bound, int limit, double* __restrict__ parameters,
          double* __restrict__ covariance, double* __restrict__ chi2, int* __restrict__ evaluations,
          int* __restrict__ status, double* __restrict__ moment, double* __restrict__ moment_covariance,
          double* __restrict__ moment_chi2)
{
    constexpr int N = 3 * K + 1;
    const int stamp = blockIdx.x * WARPS + threadIdx.x / 32;
    if (stamp >= n) return;  // whole warps leave: the shuffles of the others are untouched
    const bool writer = threadIdx.x % 32 == 0;
    const long long pixels = (long long)s * s;
    data += stamp * pixels;
    weight += stamp * pixels;
    psf += (long long)stamp * p * p;
    const double nan = quiet_nan();

    __shared__ Sums<K> best[WARPS];
    Optimiser<K> fit;
    Sums<K> sums;
    fit.begin(start + stamp * 2 * K, bound, limit, &best[threadIdx.x / 32]);
    KEEP_LOOP
    while (fit.running) {
        sum_stamp<K>(sums, data, weight, psf, p, s, fit.trial);
        if (K == 1 && fit.evaluations == 0 && writer) {
            double m[4], c[16], x2;
            const bool ok = solve_moment(reinterpret_cast<const Sums<1>&>(sums), m, c, &x2);
            for (int i = 0; i < 4; ++i) moment[stamp * 4 + i] = ok ? m[i] : nan;
            for (int i = 0; i < 16; ++i) moment_covariance[stamp * 16 + i] = ok ? c[i] : nan;
            moment_chi2[stamp] = ok ? x2 : nan;
        }
        fit.step(sums);
    }
    if (!writer) return;
    double c[N * N];
    const bool ok = fit.status != FIT_NO_DATA && fit.covariance(c);
    for (int i = 0; i < N * N; ++i) covariance[(long long)stamp * N * N + i] = ok ? c[i] : nan;
    for (int k = 0; k < K; ++k) {
        parameters[stamp * N + 3 * k] = fit.flux[k];
        parameters[stamp * N + 3 * k + 1] = fit.q[2 * k];
        parameters[stamp * N + 3 * k + 2] = fit.q[2 * k + 1];
    }
    parameters[stamp * N + 3 * K] = fit.flux[K];
    chi2[stamp] = fit.chi2;
    evaluations[stamp] = fit.evaluations;
    status[stamp] = fit.status == FIT_CONVERGED && !ok ? FIT_SINGULAR : fit.status;
}
