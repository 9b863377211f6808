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

// Columns of K lobes: value, d/dx, d/dy of each, then the first B of 1, x, y (from the middle): the background.
template <int K, int B>
struct Sums {
    static constexpr int N = 3 * K + B;
    static constexpr int COUNT = N * (N + 1) / 2 + N + 2;
    double s[COUNT];  // upper triangle of the Gram matrix row by row, right-hand side, sum w d^2, pixels with weight

    // Where row i of the triangle begins; the sums with the data are row N.
    HD static constexpr int row(int i) { return i > N ? COUNT : i * N - i * (i - 1) / 2; }

    HD void clear() { for (int i = 0; i < COUNT; ++i) s[i] = 0; }

    // A pixel, to rows FROM up to below TO.
    template <int FROM, int TO>
    HD void add(const double* column, double d, double w)
    {
        int k = row(FROM);
        UNROLL
        for (int i = FROM; i < minimum(TO, N); ++i) {
            const double wc = w * column[i];
            UNROLL
            for (int j = i; j < N; ++j) s[k++] += wc * column[j];
        }
        if (TO <= N) return;
        const double wd = w * d;
        UNROLL
        for (int i = 0; i < N; ++i) s[k++] += wd * column[i];
        s[k++] += wd * d;
        s[k] += 1;
    }

    HD double gram(int i, int j) const
    {
        if (i > j) { const int t = i; i = j; j = t; }
        return s[row(i) + j - i];
    }
    HD double rhs(int i) const { return s[row(N) + i]; }
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

// Add the pixels of column x, rows from up to below to; taps are those of lobe 0 across, down, then of lobe 1. FROM and
// TO are rows of the sums: all if not given.
template <int K, int B, int FROM = 0, int TO = 3 * K + B + 1>
HD void add_column(Sums<K, B>& sums, const float* data, const float* weight, const double* c, int p, int s,
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
        double model[3 * K + B];
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
        const double background[3] = {1, double(x - s / 2), double(y - s / 2)};
        UNROLL
        for (int i = 0; i < B; ++i) model[3 * K + i] = background[i];
        const float w = weight[y * s + x];
        if (w > 0) sums.template add<FROM, TO>(model, data[y * s + x], w);
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
    const auto column = [&](int j) {
        double z[N];
        for (int i = 0; i < N; ++i) z[i] = i == j;
        c.solve(z);
        for (int i = 0; i < N; ++i) a[i * N + j] = z[i];
    };
    if constexpr (N > 4) {  // unrolled it takes more registers than there are
        KEEP_LOOP
        for (int j = 0; j < N; ++j) column(j);
    } else
        for (int j = 0; j < N; ++j) column(j);
    return true;
}

// The i-th column that is solved for: every STEP-th of K lobes, then those of the background.
template <int STEP, int K>
HD int linear(int i) { return i < 3 * K / STEP ? STEP * i : i + 3 * K - 3 * K / STEP; }

// Solve for every STEP-th column of the lobes and the background; gives the inverse of the matrix and chi2.
template <int STEP, int K, int B>
HD bool solve_linear(const Sums<K, B>& g, double* solution, double* chi2, double* inverse)
{
    constexpr int N = 3 * K / STEP + B;
    for (int i = 0; i < N; ++i)
        for (int j = 0; j < N; ++j) inverse[i * N + j] = g.gram(linear<STEP, K>(i), linear<STEP, K>(j));
    if (!invert<N>(inverse)) return false;
    *chi2 = g.data();
    for (int i = 0; i < N; ++i) {
        solution[i] = 0;
        for (int j = 0; j < N; ++j) solution[i] += inverse[i * N + j] * g.rhs(linear<STEP, K>(j));
    }
    for (int i = 0; i < N; ++i) *chi2 -= solution[i] * g.rhs(linear<STEP, K>(i));
    return true;
}

// Gradient (of -chi2/2) and Kaufman's curvature for the 2K positions.
template <int K, int B>
HD void position_equations(const Sums<K, B>& g, const double* flux, const double* inverse, double* slope, double* curve)
{
    constexpr int N = K + B, M = 2 * K;
    double cross[M * N];
    for (int a = 0; a < M; ++a) {
        const int ca = 3 * (a / 2) + 1 + a % 2;
        const double fa = flux[a / 2];
        slope[a] = fa * g.rhs(ca);
        for (int i = 0; i < N; ++i) {
            cross[a * N + i] = fa * g.gram(ca, linear<3, K>(i));
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

// A Levenberg-Marquardt optimiser of K lobes on B terms of background, fed with Gram sums, one evaluation at a time.
template <int K, int B>
struct Optimiser {
    static constexpr int M = 2 * K, L = K + B, N = 3 * K + B;
    double q[M], trial[M], start[M], flux[L], inverse[L * L], chi2, damping, bound;  // flux: then the background
    Sums<K, B> best;
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
    HD void step(const Sums<K, B>& g)
    {
        double inv[L * L], f[L], c = 0;
        const bool first = evaluations++ == 0;
        const bool solved = g.pixels() > N && solve_linear<3>(g, f, &c, inv);
        if (first && !solved) {
            best = g;
            for (int i = 0; i < L; ++i) flux[i] = 0;
            chi2 = g.data();
            finish(g.pixels() > N ? FIT_SINGULAR : FIT_NO_DATA);
            return;
        }
        double moved = 0;
        for (int i = 0; i < M; ++i) moved = maximum(moved, fabs(trial[i] - q[i]));
        if (first || (solved && c <= chi2)) {
            const double gain = first ? 0 : chi2 - c;
            for (int i = 0; i < M; ++i) q[i] = trial[i];
            for (int i = 0; i < L; ++i) flux[i] = f[i];
            for (int i = 0; i < L * L; ++i) inverse[i] = inv[i];
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
        position_equations(best, flux, inverse, slope, whole);
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

    // What a column is multiplied by to be the derivative of the model.
    HD double by(int i) const { return i % 3 == 0 || i >= 3 * K ? 1 : flux[i / 3]; }

    // Covariance of flux, x, y of each lobe and the background; false when singular.
    HD bool covariance(double* a) const
    {
        for (int i = 0; i < N; ++i)
            for (int j = 0; j < N; ++j) a[i * N + j] = by(i) * by(j) * best.gram(i, j);
        return status != FIT_NO_DATA && invert<N>(a);
    }
};

// Highest usable of the middle 3 x 3 pixels above the background, over the fitted PSF there; NaN without either.
HD double sharpness_of(const float* data, const float* weight, const double* c, int p, int s, double flux, double x,
                       double y, const double* background, int terms)
{
    Taps across, down;
    across.place(x, s, p);
    down.place(y, s, p);
    double height = 0, top = 0;
    int at = -1;
    for (int j = s / 2 - 1; j <= s / 2 + 1; ++j)
        for (int i = s / 2 - 1; i <= s / 2 + 1; ++i) {
            if (!(weight[j * s + i] > 0)) continue;
            double here = data[j * s + i];
            if (terms > 0) here -= background[0];
            if (terms > 1) here -= background[1] * (i - s / 2) + background[2] * (j - s / 2);
            const double signed_here = flux < 0 ? -here : here;
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
