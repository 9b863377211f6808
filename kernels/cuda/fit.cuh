// SPDX-License-Identifier: BSD-3-Clause
// Maths of the lobe fits: PSF value and gradient, Gram sums of a pixel, small symmetric solves, one LM decision.
#pragma once
#include "common.cuh"

enum FitStatus { FIT_CONVERGED, FIT_AT_BOUND, FIT_SINGULAR, FIT_MAX_EVALUATIONS, FIT_NO_DATA };

HD void bspline_weights(double t, double w[4], double d[4])
{
    const double s = 1 - t;
    w[0] = s * s * s / 6;
    w[1] = (4 - 6 * t * t + 3 * t * t * t) / 6;
    w[2] = (4 - 6 * s * s + 3 * s * s * s) / 6;
    w[3] = t * t * t / 6;
    d[0] = -s * s / 2;
    d[1] = (-4 * t + 3 * t * t) / 2;
    d[2] = (4 * s - 3 * s * s) / 2;
    d[3] = t * t / 2;
}

HD int mirrored(int i, int n)
{
    if (i < 0) i = -i;
    if (i >= n) i = 2 * (n - 1) - i;
    return clampi(i, 0, n - 1);
}

// PSF and its gradient at (dx, dy) px from its middle; zero outside its stamp.
HD void psf_at(const double* c, int p, double dx, double dy, double* value, double* gx, double* gy)
{
    *value = *gx = *gy = 0;
    const double u = dx + p / 2, v = dy + p / 2;
    if (!(u >= 0 && v >= 0 && u <= p - 1 && v <= p - 1)) return;
    const int iu = minimum((int)u, maximum(p - 2, 0)), iv = minimum((int)v, maximum(p - 2, 0));
    double wu[4], du[4], wv[4], dv[4];
    bspline_weights(u - iu, wu, du);
    bspline_weights(v - iv, wv, dv);
    for (int j = 0; j < 4; ++j) {
        const double* row = c + (long long)mirrored(iv - 1 + j, p) * p;
        double a = 0, b = 0;
        for (int i = 0; i < 4; ++i) {
            const double k = row[mirrored(iu - 1 + i, p)];
            a += wu[i] * k;
            b += du[i] * k;
        }
        *value += wv[j] * a;
        *gx += wv[j] * b;
        *gy += dv[j] * a;
    }
}

// Columns of K lobes: value, d/dx, d/dy of each, then 1.
template <int K>
struct Sums {
    static constexpr int N = 3 * K + 1;
    static constexpr int COUNT = N * (N + 1) / 2 + N + 2;
    double s[COUNT];  // upper triangle of the Gram matrix row by row, right-hand side, sum w d^2, pixels with weight

    HD void clear() { for (int i = 0; i < COUNT; ++i) s[i] = 0; }

    HD void add(const double* column, double d, double w)
    {
        int k = 0;
        for (int i = 0; i < N; ++i) {
            const double wc = w * column[i];
            for (int j = i; j < N; ++j) s[k++] += wc * column[j];
        }
        for (int i = 0; i < N; ++i) s[k++] += w * column[i] * d;
        s[k++] += w * d * d;
        s[k] += 1;
    }

    HD double gram(int i, int j) const
    {
        if (i > j) { const int t = i; i = j; j = t; }
        return s[i * N - i * (i - 1) / 2 + j - i];
    }
    HD double rhs(int i) const { return s[N * (N + 1) / 2 + i]; }
    HD double data() const { return s[COUNT - 2]; }
    HD double pixels() const { return s[COUNT - 1]; }
};

template <int K>
HD void add_pixel(Sums<K>& sums, const double* c, int p, int s, int y, int x, const double* q, double d, double w)
{
    double column[3 * K + 1];
    for (int k = 0; k < K; ++k) {
        double gx, gy;
        psf_at(c, p, x - s / 2 - q[2 * k], y - s / 2 - q[2 * k + 1], &column[3 * k], &gx, &gy);
        column[3 * k + 1] = -gx;
        column[3 * k + 2] = -gy;
    }
    column[3 * K] = 1;
    sums.add(column, d, w);
}

// Invert a symmetric positive definite N x N matrix in place by scaled Cholesky; false when it is not.
template <int N>
HD bool invert(double* a)
{
    double scale[N], l[N * N];
    for (int i = 0; i < N; ++i) {
        if (!(a[i * N + i] > 0)) return false;
        scale[i] = 1 / sqrt(a[i * N + i]);
    }
    for (int i = 0; i < N; ++i)
        for (int j = 0; j <= i; ++j) {
            double v = a[i * N + j] * scale[i] * scale[j];
            for (int k = 0; k < j; ++k) v -= l[i * N + k] * l[j * N + k];
            if (i == j) {
                if (!(v > 1e-12)) return false;
                l[i * N + i] = sqrt(v);
            } else
                l[i * N + j] = v / l[j * N + j];
        }
    for (int c = 0; c < N; ++c) {
        double z[N];
        for (int i = 0; i < N; ++i) {
            double v = i == c;
            for (int k = 0; k < i; ++k) v -= l[i * N + k] * z[k];
            z[i] = v / l[i * N + i];
        }
        for (int i = N - 1; i >= 0; --i) {
            for (int k = i + 1; k < N; ++k) z[i] -= l[k * N + i] * z[k];
            z[i] /= l[i * N + i];
        }
        for (int i = 0; i < N; ++i) a[i * N + c] = z[i] * scale[i] * scale[c];
    }
    return true;
}

// Linear parameters at a position: fluxes of the K lobes, then the background; and chi2.
template <int K>
HD bool solve_linear(const Sums<K>& g, double* flux, double* chi2, double* inverse)
{
    constexpr int N = K + 1;
    int column[N];
    for (int i = 0; i < N; ++i) column[i] = 3 * i;
    for (int i = 0; i < N; ++i)
        for (int j = 0; j < N; ++j) inverse[i * N + j] = g.gram(column[i], column[j]);
    if (!invert<N>(inverse)) return false;
    *chi2 = g.data();
    for (int i = 0; i < N; ++i) {
        flux[i] = 0;
        for (int j = 0; j < N; ++j) flux[i] += inverse[i * N + j] * g.rhs(column[j]);
    }
    for (int i = 0; i < N; ++i) *chi2 -= flux[i] * g.rhs(column[i]);
    return true;
}

// Gradient (of -chi2/2) and Kaufman's curvature for the 2K positions.
template <int K>
HD void position_equations(const Sums<K>& g, const double* flux, const double* inverse, double* slope, double* curve)
{
    constexpr int N = K + 1, M = 2 * K;
    double cross[M * N];
    for (int a = 0; a < M; ++a) {
        const int ca = 3 * (a / 2) + 1 + a % 2;
        const double fa = flux[a / 2];
        slope[a] = fa * g.rhs(ca);
        for (int i = 0; i < N; ++i) {
            cross[a * N + i] = fa * g.gram(ca, 3 * i);
            slope[a] -= cross[a * N + i] * flux[i];
        }
        for (int b = 0; b < M; ++b) curve[a * M + b] = fa * flux[b / 2] * g.gram(ca, 3 * (b / 2) + 1 + b % 2);
    }
    for (int a = 0; a < M; ++a)
        for (int b = 0; b < M; ++b)
            for (int i = 0; i < N; ++i)
                for (int j = 0; j < N; ++j) curve[a * M + b] -= cross[a * N + i] * inverse[i * N + j] * cross[b * N + j];
}

// A Levenberg-Marquardt optimiser fed with Gram sums, one evaluation at a time. The sums of the best position live in
// the caller's memory: on a device every lane of a warp holds the same optimiser and writes the same values there.
template <int K>
struct Optimiser {
    static constexpr int M = 2 * K;
    double q[M], trial[M], start[M], flux[K + 1], chi2, damping, bound;
    Sums<K>* best;
    int evaluations, status, limit;
    bool running;

    // On a device a warp shares `best` and its lanes take the same way: one writes, and nobody reads meanwhile.
    HD void keep(const Sums<K>& g)
    {
#ifdef __CUDA_ARCH__
        __syncwarp();
        if (threadIdx.x % 32 == 0) *best = g;
        __syncwarp();
#else
        *best = g;
#endif
    }

    HD void begin(const double* from, double bound_, int limit_, Sums<K>* best_)
    {
        for (int i = 0; i < M; ++i) q[i] = trial[i] = start[i] = from[i];
        damping = 1e-3;
        bound = bound_;
        limit = limit_;
        best = best_;
        evaluations = 0;
        status = FIT_MAX_EVALUATIONS;
        running = true;
    }

    HD void finish(int s)
    {
        status = s;
        running = false;
    }

    // Take the sums at `trial`, decide, and set the next trial.
    HD void step(const Sums<K>& g)
    {
        double inverse[(K + 1) * (K + 1)], f[K + 1], c;
        const bool first = evaluations++ == 0;
        const bool solved = g.pixels() > 3 * K + 1 && solve_linear<K>(g, f, &c, inverse);
        if (first && !solved) {
            keep(g);
            for (int i = 0; i <= K; ++i) flux[i] = 0;
            chi2 = g.data();
            finish(g.pixels() > 3 * K + 1 ? FIT_SINGULAR : FIT_NO_DATA);
            return;
        }
        double moved = 0;
        for (int i = 0; i < M; ++i) moved = maximum(moved, fabs(trial[i] - q[i]));
        if (first || (solved && c <= chi2)) {
            const double gain = first ? 0 : chi2 - c;
            for (int i = 0; i < M; ++i) q[i] = trial[i];
            for (int i = 0; i <= K; ++i) flux[i] = f[i];
            chi2 = c;
            keep(g);
            if (!first) {
                // a short step means the minimum only when damping did not shorten it
                const bool done = damping < 1 && (moved < 1e-6 || (gain < 1e-9 * (1 + chi2) && moved < 1e-3));
                damping = maximum(damping * 0.1, 1e-9);
                if (done) return finish(at_bound());
            }
        } else {
            damping *= 10;
            if (moved < 1e-7) return finish(at_bound());
        }
        if (evaluations >= limit) return finish(FIT_MAX_EVALUATIONS);
        propose();
    }

    HD int at_bound() const
    {
        for (int i = 0; i < M; ++i)
            if (fabs(q[i] - start[i]) >= bound * (1 - 1e-9)) return FIT_AT_BOUND;
        return FIT_CONVERGED;
    }

    HD void propose()
    {
        double inverse[(K + 1) * (K + 1)], f[K + 1], c, slope[M], curve[M * M];
        solve_linear<K>(*best, f, &c, inverse);
        KEEP_LOOP
        for (;; damping *= 10) {
            position_equations<K>(*best, flux, inverse, slope, curve);
            double largest = 0;
            for (int i = 0; i < M; ++i) largest = maximum(largest, curve[i * M + i]);
            if (!(largest > 0 && damping <= 1e12)) return finish(at_bound());
            for (int i = 0; i < M; ++i) {
                // a position at its bound that would leave it stands still and lets the others move freely
                const bool pushed = (slope[i] > 0 && q[i] >= start[i] + bound) ||
                                    (slope[i] < 0 && q[i] <= start[i] - bound);
                if (pushed) {
                    slope[i] = 0;
                    for (int j = 0; j < M; ++j) curve[i * M + j] = curve[j * M + i] = 0;
                }
                curve[i * M + i] += damping * maximum(curve[i * M + i], 1e-3 * largest);
            }
            if (invert<M>(curve)) break;
        }
        for (int i = 0; i < M; ++i) {
            double move = 0;
            for (int j = 0; j < M; ++j) move += curve[i * M + j] * slope[j];
            move = maximum(-1.0, minimum(1.0, move));  // a pixel at most: the model is local
            trial[i] = maximum(start[i] - bound, minimum(start[i] + bound, q[i] + move));
        }
    }

    // Covariance of flux, x, y of each lobe and the background; false when singular.
    HD bool covariance(double* a) const
    {
        constexpr int N = 3 * K + 1;
        for (int i = 0; i < N; ++i)
            for (int j = 0; j < N; ++j) {
                const double si = i % 3 == 0 ? 1 : flux[i / 3], sj = j % 3 == 0 ? 1 : flux[j / 3];
                a[i * N + j] = si * sj * best->gram(i, j);
            }
        return invert<N>(a);
    }
};

// The linear dipole at a fixed centre: flux, moment_x, moment_y, background, covariance and chi2.
HD bool solve_moment(const Sums<1>& g, double* m, double* covariance, double* chi2)
{
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) covariance[i * 4 + j] = g.gram(i, j);
    if (!invert<4>(covariance)) return false;
    *chi2 = g.data();
    for (int i = 0; i < 4; ++i) {
        m[i] = 0;
        for (int j = 0; j < 4; ++j) m[i] += covariance[i * 4 + j] * g.rhs(j);
        *chi2 -= m[i] * g.rhs(i);
    }
    return true;
}
