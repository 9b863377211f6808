// SPDX-License-Identifier: BSD-3-Clause
// Maths of the linear dipole whose centre is free: slopes and curvatures of chi2 from places beside it, Newton's step.
#pragma once
#include "fit.cuh"

// The linear dipole of N parameters about a place, and how chi2 (curve: xx, xy, yy) and the dipole change beside it.
template <int N>
struct Centre {
    double place[2], chi2, moment[N], covariance[N * N], slope[2], curve[3], change[2][N];
};

// Principal axes of the curvature of chi2. One below `least` is no minimum, and counts as that for the errors.
struct Axes {
    double along[2][2], value[2], bend[2];

    HD void of(const double* curve, double least)
    {
        const double middle = 0.5 * (curve[0] + curve[2]), half = 0.5 * (curve[0] - curve[2]);
        const double apart = hypot(half, curve[1]), angle = 0.5 * atan2(curve[1], half);
        along[0][0] = along[1][1] = cos(angle);
        along[0][1] = sin(angle);
        along[1][0] = -along[0][1];
        for (int k = 0; k < 2; ++k) {
            value[k] = k ? middle - apart : middle + apart;
            bend[k] = value[k] > least ? value[k] : least;
        }
    }
};

// With B terms of background.
template <int B>
struct LinearDipole {
    static constexpr int N = 3 + B, ROW = 5 + N + N * N;
    static constexpr int BESIDE = 7;  // the place, a step along and against x, then y, then both
    double start[2], width, bound, settled, share, chi2[BESIDE];
    Centre<N> best, trial;
    int turns;
    bool running, first, last;

    HD void begin(const double* from, double width_, double bound_, double settled_, int turns_)
    {
        for (int k = 0; k < 2; ++k) trial.place[k] = start[k] = from[k];
        width = width_;
        bound = bound_;
        settled = settled_;
        turns = turns_;
        share = 1;
        running = first = true;
        last = false;
    }

    HD double stride() const { return 0.004 * width; }
    HD double least() const { return 2 / (width * width); }

    // Where to look the b-th time.
    HD void place(int b, double* q) const
    {
        const double h = b % 2 ? stride() : -stride();
        q[0] = trial.place[0] + (b == 1 || b == 2 || b > 4 ? h : 0);
        q[1] = trial.place[1] + (b > 2 ? h : 0);
    }

    // Take the sums at the b-th place.
    HD void take(int b, const Sums<1, B>& g)
    {
        double moment[N], covariance[N * N];
        if (!solve_linear<1>(g, moment, chi2 + b, covariance)) {
            chi2[b] = quiet_nan();
            for (int i = 0; i < N * N; ++i) moment[i % N] = covariance[i] = quiet_nan();
        }
        if (b == 0)
            for (int i = 0; i < N * N; ++i) {
                trial.moment[i % N] = moment[i % N];
                trial.covariance[i] = covariance[i];
            }
        else if (b < 5)
            for (int i = 0; i < N; ++i) {
                double& change = trial.change[(b - 1) / 2][i];
                change = b % 2 ? moment[i] : (change - moment[i]) / (2 * stride());
            }
    }

    // All places of this turn are known: keep the better one, and go on from there.
    HD void turn()
    {
        const double h = stride();
        double bend[3];
        for (int k = 0; k < 3; ++k) bend[k] = chi2[2 * k + 1] + chi2[2 * k + 2] - 2 * chi2[0];
        for (int k = 0; k < 2; ++k) trial.slope[k] = (chi2[2 * k + 1] - chi2[2 * k + 2]) / (2 * h);
        trial.curve[0] = bend[0] / (h * h);
        trial.curve[1] = 0.5 * (bend[2] - bend[0] - bend[1]) / (h * h);
        trial.curve[2] = bend[1] / (h * h);
        trial.chi2 = chi2[0];
        running = !last && turns-- > 0;
        if (first || trial.chi2 < best.chi2) {
            best = trial;
            share = 1;
        } else {
            running = running && share == 1;
            share = 0.25;  // a step that leads up is tried once more, shorter
        }
        first = false;
        if (running) move();
    }

    // Newton's step from the best place, a PSF's sigma at most along each axis; none where the slopes are not known.
    HD void move()
    {
        Axes axes;
        axes.of(best.curve, least());
        double step[2] = {0, 0}, far = 0;
        for (int k = 0; k < 2; ++k) {
            const double up = axes.along[k][0] * best.slope[0] + axes.along[k][1] * best.slope[1];
            // where chi2 has no minimum nearby: downhill
            double by = axes.value[k] > least() ? -up / axes.bend[k] : up > 0 ? -width : width;
            by = maximum(-width, minimum(width, by));
            running = running && is_finite(up) && is_finite(by);
            far = maximum(far, fabs(by) * sqrt(axes.bend[k] / 2));
            for (int i = 0; i < 2; ++i) step[i] += by * axes.along[k][i];
        }
        last = far <= settled;
        for (int i = 0; i < 2; ++i)
            trial.place[i] = maximum(start[i] - bound, minimum(start[i] + bound, best.place[i] + share * step[i]));
    }

    // chi2; x, y; their errors; flux, moment and background; their covariance with the centre's part in it.
    HD void result(double* out) const
    {
        Axes axes;
        axes.of(best.curve, least());
        double *moment = out + 5, *covariance = moment + N, variance[2] = {0, 0};
        for (int i = 0; i < N; ++i) moment[i] = best.moment[i];
        for (int i = 0; i < N * N; ++i) covariance[i] = best.covariance[i];
        for (int k = 0; k < 2; ++k) {
            const double spread = 2 / axes.bend[k];
            double change[N];
            for (int i = 0; i < N; ++i)
                change[i] = axes.along[k][0] * best.change[0][i] + axes.along[k][1] * best.change[1][i];
            for (int i = 0; i < N * N; ++i) covariance[i] += spread * change[i / N] * change[i % N];
            for (int i = 0; i < 2; ++i) variance[i] += spread * axes.along[k][i] * axes.along[k][i];
        }
        out[0] = best.chi2;
        for (int i = 0; i < 2; ++i) {
            out[1 + i] = best.place[i];
            out[3 + i] = sqrt(variance[i]);
        }
    }
};
