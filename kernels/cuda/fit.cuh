// SPDX-License-Identifier: BSD-3-Clause
// Maths of the lobe fits: where a PSF lies on the pixels, Gram sums of a column, small symmetric solves, one LM decision.
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

// One axis of a PSF of p px centred q px from the middle of s pixels. Pixels of stamp and PSF are of one size, so every
// pixel i takes its coefficients mirrored(i + first) and the next three with the same weights; outside low..high the
// PSF is zero.
struct Taps {
    int first, low, high;
    double w[4], d[4];

    HD void place(double q, int s, int p)
    {
        const double base = p / 2 - s / 2 - q;
        const bool far = !(fabs(base) < 1e6);  // NaN too: nothing of it is on the stamp
        const int whole = far ? 0 : (int)floor(base);
        const double t = far ? 0 : base - whole;
        first = whole - 1;
        low = far ? s : maximum(-whole, 0);
        high = minimum(p - 1 - whole - (t > 0), s - 1);
        bspline_weights(t, w, d);
    }
    HD bool inside(int i) const { return i >= low && i <= high; }
};

// A PSF of p x p px, given by its coefficients, at one pixel.
HD double psf_at(const double* c, int p, const Taps& across, const Taps& down, int x, int y)
{
    if (!across.inside(x) || !down.inside(y)) return 0;
    double value = 0;
    for (int j = 0; j < 4; ++j) {
        const double* row = c + (long long)mirrored(y + down.first + j, p) * p;
        double a = 0;
        for (int i = 0; i < 4; ++i) a += across.w[i] * row[mirrored(x + across.first + i, p)];
        value += down.w[j] * a;
    }
    return value;
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
        UNROLL
        for (int i = 0; i < N; ++i) {
            const double wc = w * column[i];
            UNROLL
            for (int j = i; j < N; ++j) s[k++] += wc * column[j];
        }
        const double wd = w * d;
        UNROLL
        for (int i = 0; i < N; ++i) s[k++] += wd * column[i];
        s[k++] += wd * d;
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

// The four rows of coefficients under a pixel of one column, filtered across: they move down with it.
struct Window {
    double a[4], b[4];

    HD void push(const double* c, int p, const Taps& across, const int* column, int row)
    {
        UNROLL
        for (int j = 0; j < 3; ++j) { a[j] = a[j + 1]; b[j] = b[j + 1]; }
        const double* line = c + (long long)mirrored(row, p) * p;
        a[3] = b[3] = 0;
        UNROLL
        for (int i = 0; i < 4; ++i) {
            const double k = line[column[i]];
            a[3] += across.w[i] * k;
            b[3] += across.d[i] * k;
        }
    }
};

// Add the pixels of column x, rows from up to below to; taps are those of lobe 0 across, down, then of lobe 1.
template <int K>
HD void add_column(Sums<K>& sums, const float* data, const float* weight, const double* c, int p, int s,
                   const Taps* taps, int x, int from, int to)
{
    Window window[K];
    int column[K][4];
    UNROLL
    for (int k = 0; k < K; ++k) {
        UNROLL
        for (int i = 0; i < 4; ++i) column[k][i] = mirrored(x + taps[2 * k].first + i, p);
        UNROLL
        for (int j = 0; j < 4; ++j) window[k].a[j] = window[k].b[j] = 0;
        UNROLL
        for (int j = 0; j < 3; ++j)
            window[k].push(c, p, taps[2 * k], column[k], from + taps[2 * k + 1].first + j);
    }
    KEEP_LOOP
    for (int y = from; y < to; ++y) {
        double model[3 * K + 1];
        UNROLL
        for (int k = 0; k < K; ++k) {
            const Taps &across = taps[2 * k], &down = taps[2 * k + 1];
            window[k].push(c, p, across, column[k], y + down.first + 3);
            double value = 0, gx = 0, gy = 0;
            UNROLL
            for (int j = 0; j < 4; ++j) {
                value += down.w[j] * window[k].a[j];
                gx -= down.w[j] * window[k].b[j];
                gy -= down.d[j] * window[k].a[j];
            }
            const bool inside = across.inside(x) && down.inside(y);
            model[3 * k] = inside ? value : 0;
            model[3 * k + 1] = inside ? gx : 0;
            model[3 * k + 2] = inside ? gy : 0;
        }
        model[3 * K] = 1;
        const float w = weight[y * s + x];
        if (w > 0) sums.add(model, data[y * s + x], w);
    }
}

HD double inverse_root(double v)
{
#ifdef __CUDA_ARCH__
    return rsqrt(v);
#else
    return 1 / sqrt(v);
#endif
}

// Cholesky factor of a symmetric positive definite N x N matrix, row by row, the diagonal inverted.
template <int N>
struct Cholesky {
    double l[N * N];

    // False when the matrix is singular.
    HD bool factor(const double* a)
    {
        for (int i = 0; i < N; ++i)
            for (int j = 0; j <= i; ++j) {
                double v = a[i * N + j];
                for (int k = 0; k < j; ++k) v -= l[i * N + k] * l[j * N + k];
                if (i == j) {
                    if (!(v > 1e-12 * a[i * N + i] && v > 0)) return false;
                    l[i * N + i] = inverse_root(v);
                } else
                    l[i * N + j] = v * l[j * N + j];
            }
        return true;
    }

    HD void solve(double* z) const
    {
        for (int i = 0; i < N; ++i) {
            for (int k = 0; k < i; ++k) z[i] -= l[i * N + k] * z[k];
            z[i] *= l[i * N + i];
        }
        for (int i = N - 1; i >= 0; --i) {
            for (int k = i + 1; k < N; ++k) z[i] -= l[k * N + i] * z[k];
            z[i] *= l[i * N + i];
        }
    }
};

template <int N>
HD bool invert(double* a)
{
    Cholesky<N> c;
    if (!c.factor(a)) return false;
    for (int j = 0; j < N; ++j) {
        double z[N];
        for (int i = 0; i < N; ++i) z[i] = i == j;
        c.solve(z);
        for (int i = 0; i < N; ++i) a[i * N + j] = z[i];
    }
    return true;
}

// Solve for every STEP-th column, the constant included; gives the inverse of the matrix and chi2.
template <int STEP, int K>
HD bool solve_linear(const Sums<K>& g, double* solution, double* chi2, double* inverse)
{
    constexpr int N = 3 * K / STEP + 1;
    for (int i = 0; i < N; ++i)
        for (int j = 0; j < N; ++j) inverse[i * N + j] = g.gram(STEP * i, STEP * j);
    if (!invert<N>(inverse)) return false;
    *chi2 = g.data();
    for (int i = 0; i < N; ++i) {
        solution[i] = 0;
        for (int j = 0; j < N; ++j) solution[i] += inverse[i * N + j] * g.rhs(STEP * j);
    }
    for (int i = 0; i < N; ++i) *chi2 -= solution[i] * g.rhs(STEP * i);
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
    }
    for (int a = 0; a < M; ++a) {
        double along[N];
        for (int j = 0; j < N; ++j) {
            along[j] = 0;
            for (int i = 0; i < N; ++i) along[j] += cross[a * N + i] * inverse[i * N + j];
        }
        for (int b = 0; b <= a; ++b) {
            double v = flux[a / 2] * flux[b / 2] * g.gram(3 * (a / 2) + 1 + a % 2, 3 * (b / 2) + 1 + b % 2);
            for (int j = 0; j < N; ++j) v -= along[j] * cross[b * N + j];
            curve[a * M + b] = curve[b * M + a] = v;
        }
    }
}

// A Levenberg-Marquardt optimiser fed with Gram sums, one evaluation at a time.
template <int K>
struct Optimiser {
    static constexpr int M = 2 * K;
    double q[M], trial[M], start[M], flux[K + 1], inverse[(K + 1) * (K + 1)], chi2, damping, bound;
    Sums<K> best;
    int evaluations, status, limit;
    bool running;

    HD void begin(const double* from, double bound_, int limit_)
    {
        for (int i = 0; i < M; ++i) q[i] = trial[i] = start[i] = from[i];
        damping = 1e-3;
        bound = bound_;
        limit = limit_;
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
        double inv[(K + 1) * (K + 1)], f[K + 1], c = 0;
        const bool first = evaluations++ == 0;
        const bool solved = g.pixels() > 3 * K + 1 && solve_linear<3>(g, f, &c, inv);
        if (first && !solved) {
            best = g;
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
            for (int i = 0; i < (K + 1) * (K + 1); ++i) inverse[i] = inv[i];
            chi2 = c;
            best = g;
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
        double slope[M], whole[M * M], curve[M * M], largest = 0;
        position_equations<K>(best, flux, inverse, slope, whole);
        for (int i = 0; i < M; ++i) largest = maximum(largest, whole[i * M + i]);
        for (int i = 0; i < M; ++i) {
            // a position at its bound that would leave it stands still and lets the others move freely
            const bool pushed = (slope[i] > 0 && q[i] >= start[i] + bound) ||
                                (slope[i] < 0 && q[i] <= start[i] - bound);
            if (!pushed) continue;
            slope[i] = 0;
            for (int j = 0; j < M; ++j) whole[i * M + j] = whole[j * M + i] = 0;
        }
        Cholesky<M> factor;
        KEEP_LOOP
        for (;; damping *= 10) {
            if (!(largest > 0 && damping <= 1e12)) return finish(at_bound());
            for (int i = 0; i < M * M; ++i) curve[i] = whole[i];
            for (int i = 0; i < M; ++i) curve[i * M + i] += damping * maximum(curve[i * M + i], 1e-3 * largest);
            if (factor.factor(curve)) break;
        }
        factor.solve(slope);
        for (int i = 0; i < M; ++i) {
            const double move = maximum(-1.0, minimum(1.0, slope[i]));  // a pixel at most: the model is local
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
                a[i * N + j] = si * sj * best.gram(i, j);
            }
        return status != FIT_NO_DATA && invert<N>(a);
    }
};

// Highest usable of the middle 3 x 3 pixels above the background, over the fitted PSF there; NaN without either.
HD double sharpness_of(const float* data, const float* weight, const double* c, int p, int s, double flux, double x,
                       double y, double background)
{
    Taps across, down;
    across.place(x, s, p);
    down.place(y, s, p);
    double height = 0, top = 0;
    int at = -1;
    for (int j = s / 2 - 1; j <= s / 2 + 1; ++j)
        for (int i = s / 2 - 1; i <= s / 2 + 1; ++i) {
            if (!(weight[j * s + i] > 0)) continue;
            const double here = data[j * s + i] - background, signed_here = flux < 0 ? -here : here;
            if (at >= 0 && !(signed_here > top)) continue;
            at = j * s + i;
            top = signed_here;
            height = here;
        }
    const double model = at < 0 ? 0 : flux * psf_at(c, p, across, down, at % s, at / s);
    return model != 0 ? height / model : quiet_nan();
}

// What the linear filter of an interpolating cubic B-spline needs for lines of n samples mirrored at both ends.
HD void spline_ratios(double* ratio, int n)
{
    ratio[0] = 0.5;
    for (int i = 1; i < n; ++i) ratio[i] = 1 / (4 - ratio[i - 1]);
    if (n > 1) ratio[n - 1] = 1 / (4 - 2 * ratio[n - 2]);
}

// Samples to coefficients in place: c[i-1] + 4 c[i] + c[i+1] = 6 s[i], by elimination.
HD void spline_line(double* line, int n, int stride, const double* ratio)
{
    if (n < 2) return;
    double last = line[0] = 1.5 * line[0];
    for (int i = 1; i < n; ++i) {
        double& v = line[(long long)i * stride];
        last = v = (6 * v - (i == n - 1 ? 2 * last : last)) * ratio[i];
    }
    for (int i = n - 2; i >= 0; --i) {
        double& v = line[(long long)i * stride];
        last = v = v - ratio[i] * last;
    }
}
