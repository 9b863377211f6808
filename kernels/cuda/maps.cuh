// SPDX-License-Identifier: BSD-3-Clause
// Maths of maps: the chain through two tangent planes at a point, and the check of a cell of a control grid.
#pragma once
#include "common.cuh"

namespace maps {

// As `skydelta.kernels.maps` packs a chain.
constexpr int RADIAL = 4, TERMS = 55, MOST_STEPS = 20;
constexpr int AFFINE = 1, RADIAL_AT = 7, TERMS_AT = 7 + 2 * RADIAL, END = TERMS_AT + 2 * TERMS;
constexpr int HOMOGRAPHY = 2 * END, START = HOMOGRAPHY + 9, BACK = START + 6, UNIT = BACK + 6;
constexpr double STILL = 1e-8;

struct Point {
  double x, y;
};

struct Slopes {
  double xu, xv, yu, yv;
};

HD Point affine(const double* a, Point p) { return {a[0] * p.x + a[1] * p.y + a[2], a[3] * p.x + a[4] * p.y + a[5]}; }

// One component of F and its derivatives along u and v.
HD double component(const double* end, int degree, int k, Point p, double& along_u, double& along_v) {
  const double* terms = end + TERMS_AT + k * TERMS + (degree + 1) * (degree + 2) / 2;
  double f = 0.0, fu = 0.0, fv = 0.0;
  for (int n = 0; n <= degree; ++n) {  // the highest power of v first; n of u go with it
    terms -= n + 1;
    double t = terms[n], slope = 0.0;
    for (int i = n - 1; i >= 0; --i) {
      slope = slope * p.x + t;
      t = t * p.x + terms[i];
    }
    fv = fv * p.y + f;
    f = f * p.y + t;
    fu = fu * p.y + slope;
  }
  const double* c = end + RADIAL_AT + k * RADIAL;
  const double square = p.x * p.x + p.y * p.y;
  if (square > 0.0 && (c[0] != 0.0 || c[1] != 0.0 || c[2] != 0.0 || c[3] != 0.0)) {
    const double r = sqrt(square);
    f += r * (c[0] + square * (c[1] + square * (c[2] + square * c[3])));
    const double slope = (c[0] + square * (3.0 * c[1] + square * (5.0 * c[2] + square * 7.0 * c[3]))) / r;
    fu += slope * p.x;
    fv += slope * p.y;
  }
  along_u = fu;
  along_v = fv;
  return f;
}

HD Point distorted(const double* end, int degree, Point p, Slopes& j) {
  return {component(end, degree, 0, p, j.xu, j.xv), component(end, degree, 1, p, j.yu, j.yv)};
}

HD Point nowhere() { return {quiet_nan(), quiet_nan()}; }

// The point that the source's F takes to g; nowhere when Newton's method meets a fold or does not arrive.
HD Point inverse(const double* chain, int degree, Point g) {
  const double *end = chain + END, *s = chain + START;
  const double limit = STILL * chain[UNIT];
  Point p = affine(s, g);
  KEEP_LOOP for (int step = 0; step < MOST_STEPS; ++step) {
    Slopes j;
    const Point f = distorted(end, degree, p, j);
    // the slopes against their linear part: eigenvalues whose real parts are positive, or a fold lies between
    const double a = s[0] * j.xu + s[1] * j.yu, d = s[3] * j.xv + s[4] * j.yv;
    const double b = s[0] * j.xv + s[1] * j.yv, c = s[3] * j.xu + s[4] * j.yu;
    if (!(a + d > 0.0 && a * d - b * c > 0.0)) break;
    const double x = g.x - f.x, y = g.y - f.y, scale = 1.0 / (j.xu * j.yv - j.xv * j.yu);
    const double dx = (j.yv * x - j.xv * y) * scale, dy = (j.xu * y - j.yu * x) * scale;
    p.x += dx;
    p.y += dy;
    if (dx * dx + dy * dy <= limit * limit) return p;
  }
  return nowhere();
}

// Source pixel of a target pixel.
HD Point position(const double* chain, Point p) {
  p = affine(chain + AFFINE, p);
  const int before = (int)chain[0], after = (int)chain[END];
  Slopes unused;
  if (before) p = distorted(chain, before, p, unused);
  const double* h = chain + HOMOGRAPHY;
  const double w = h[6] * p.x + h[7] * p.y + h[8];
  if (!(w > 0.0)) return nowhere();
  p = {(h[0] * p.x + h[1] * p.y + h[2]) / w, (h[3] * p.x + h[4] * p.y + h[5]) / w};
  if (after) p = inverse(chain, after, p);
  return affine(chain + BACK, p);
}

// ---- control grid ----

constexpr int CELL_INTERPOLATED = -1, CELL_OUTSIDE = -2;

// Points at half the spacing: (2, 2 ny + 5, 2 nx + 5), from two before the first cell on.
struct Fine {
  const double* points;
  int ny, nx;

  HD int across() const { return 2 * nx + 5; }
  HD double at(int axis, int y, int x) const {
    return points[((size_t)axis * (2 * ny + 5) + y) * across() + x];
  }
};

struct Cell {
  double error;    // px, infinite where a point has no map
  double area;     // of a target cell, source px^2
  double away;     // largest difference to the shift, infinite where there is no map
  bool misses;     // the source
  bool lost;       // no map at any of its points
};

HD double infinite() {
#ifdef __CUDA_ARCH__
  return __longlong_as_double(0x7ff0000000000000LL);
#else
  return INFINITY;
#endif
}

// Cubic Lagrange weights of nodes at -1, 0, 1, 2 for the value and the derivative at 1/2.
HD double middle(double a, double b, double c, double d) { return 0.5625 * (b + c) - 0.0625 * (a + d); }
HD double slope(double a, double b, double c, double d) { return (27.0 * (c - b) + a - d) / 24.0; }

// Cell (i, j); `half` of the spacing, and the shift that its points are held against.
HD Cell measured(const Fine& fine, int i, int j, double height, double width, double half, Point shift) {
  const int y = 2 * i + 2, x = 2 * j + 2;
  const double sides[2] = {width, height}, shifts[2] = {shift.x, shift.y};
  Cell out{0.0, 0.0, 0.0, false, true};
  bool known = true;
  double low[2], high[2];
  for (int axis = 0; axis < 2; ++axis) {
    low[axis] = high[axis] = fine.at(axis, y, x);
    for (int k = 0; k < 9; ++k) {
      const double v = fine.at(axis, y + k / 3, x + k % 3);
      known = known && is_finite(v);
      low[axis] = minimum(low[axis], v);
      high[axis] = maximum(high[axis], v);
      const double gap = fabs(v - half * (axis ? 2 * i + k / 3 : 2 * j + k % 3) - shifts[axis]);
      if (!(gap <= out.away)) out.away = is_finite(gap) ? gap : infinite();
    }
  }
  for (int k = 0; k < 9; ++k) {
    const double a = fine.at(0, y + k / 3, x + k % 3), b = fine.at(1, y + k / 3, x + k % 3);
    out.lost = out.lost && (a != a || b != b);
  }
  for (int axis = 0; known && axis < 2; ++axis) {
    const double size = high[axis] - low[axis];
    out.misses = out.misses || high[axis] + size < -0.5 || low[axis] - size > sides[axis] - 0.5;
  }
  double gaps[5] = {}, slopes[2][2];
  for (int axis = 0; axis < 2; ++axis) {
    double down[3][4], fall[4];  // at 0, 1/2 and 1 along y, at the four nodes across
    for (int k = 0; k < 4; ++k) {
      double v[4];
      for (int m = 0; m < 4; ++m) {
        v[m] = fine.at(axis, y - 2 + 2 * m, x - 2 + 2 * k);
        known = known && is_finite(v[m]);
      }
      down[0][k] = v[1];
      down[1][k] = middle(v[0], v[1], v[2], v[3]);
      down[2][k] = v[2];
      fall[k] = slope(v[0], v[1], v[2], v[3]);
    }
    for (int a = 0; a < 5; ++a) {
      const double* d = down[a < 3 ? a : 1];
      const double guess = a < 3 ? middle(d[0], d[1], d[2], d[3]) : d[a - 2];
      const double gap = guess - fine.at(axis, a < 3 ? y + a : y + 1, a < 3 ? x + 1 : a == 3 ? x : x + 2);
      gaps[a] += gap * gap;
    }
    slopes[axis][0] = slope(down[1][0], down[1][1], down[1][2], down[1][3]);
    slopes[axis][1] = middle(fall[0], fall[1], fall[2], fall[3]);
  }
  for (int a = 0; a < 5; ++a) out.error = maximum(out.error, gaps[a]);
  out.error = known ? sqrt(out.error) : infinite();
  out.area = fabs(slopes[0][0] * slopes[1][1] - slopes[0][1] * slopes[1][0]);
  return out;
}

// What a row of cells amounts to, as `CheckedCells.rows`.
constexpr int FOUND = 6;

struct Found {
  double v[FOUND];
};

HD Found nothing() { return {{0.0, infinite(), 0.0, 0.0, 0.0, 0.0}}; }

HD Found merged(const Found& a, const Found& b) {
  return {{maximum(a.v[0], b.v[0]), minimum(a.v[1], b.v[1]), maximum(a.v[2], b.v[2]), a.v[3] + b.v[3], a.v[4] + b.v[4],
           maximum(a.v[5], b.v[5])}};
}

// The verdict on a cell whose error is the largest of it and its neighbours; adds it to what was found.
HD int judged(const Cell& cell, double error, bool outside, double pixels, double tolerance, double goal, bool smooth,
              Found& found) {
  found.v[5] = maximum(found.v[5], cell.away);
  if (outside) return CELL_OUTSIDE;
  if (error > goal) found.v[3] += 1.0;
  if (!smooth || !(error <= tolerance)) {
    found.v[4] += 1.0;
    return 0;
  }
  const double area = cell.area / pixels;
  found.v[0] = maximum(found.v[0], error);
  found.v[1] = minimum(found.v[1], area);
  found.v[2] = maximum(found.v[2], area);
  return CELL_INTERPOLATED;
}

}  // namespace maps
