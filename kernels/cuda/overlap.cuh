// SPDX-License-Identifier: BSD-3-Clause
// Per-pixel maths of the methods whose footprint follows the map. Exact: the area that the quadrilateral between four
// mapped corners shares with each source pixel, by Green's theorem; drizzle: with each shrunk source pixel. See
// kernels/cpu/overlap.py.
#pragma once
#include "resample.cuh"

namespace overlap {

using resample::Pixel;
using resample::Source;

constexpr double SLIVER = 1e-9;   // part of a target pixel that must lie on the source
constexpr double TRACE = 1e-5;    // part of full cover that drops must have for a value
constexpr float SEAM = 4.0f;      // larger than the derivatives of the map say by this: corners on both sides of a seam
constexpr double TOUCHES = 1e-3;
constexpr double TAPER = 2.0 / 1.69;                    // of the Gaussian, exp(-TAPER r^2)
constexpr double REGION = 3.0;                          // half side of the square whose box in the source is summed over
constexpr double LIVE = 6.907755278982137 / TAPER;      // r^2 of a thousandth of the largest weight
constexpr double INNER = 1.0;                           // r^2 up to which all planes are passed on

// An edge of a quadrilateral. Slopes are float32: what the pixels on both sides of an edge take from it is the same to
// the last bits of a float64, and the parts of an edge sum to the whole of it, whatever the slope.
struct Edge {
  double x, y;  // of its middle, of its first corner
  float lean;   // half the width per height; 0: level
  float steep;  // half the signed height per width; 0: upright
};

// The four edges of a pixel, `stride` apart: on a device in shared memory, since registers are short.
struct Edges {
  Edge* first;
  int stride;

  HD void set(const double (&xs)[4], const double (&ys)[4], double x0, double y0) const {
    UNROLL for (int k = 0; k < 4; ++k) {
      const double x = xs[(k + 1) % 4];
      const float dx = (float)(x - xs[k]), dy = (float)(ys[(k + 1) % 4] - ys[k]);
      first[k * stride] = {0.5 * (xs[k] + x) - x0, ys[k] - y0, dy == 0.0f ? 0.0f : 0.5f * divided(dx, dy),
                           dx == 0.0f ? 0.0f : 0.5f * divided(dy, fabsf(dx))};
    }
  }

  // Integral of min(x, c) dy along their parts between two heights; `whole` is that of x dy.
  HD double below(double low, double high, double c, double& whole) const {
    double y = first[0].y, from = minimum(maximum(y, low), high), total = whole = 0.0;
    KEEP_LOOP for (int k = 0; k < 4; ++k) {
      const Edge edge = first[k * stride];
      const double next = first[(k + 1) % 4 * stride].y, to = minimum(maximum(next, low), high);
      const double height = to - from, middle = edge.x + ((from + to) - (y + next)) * edge.lean;
      const double half = fabs(height * edge.lean), over = middle + half - c;
      const bool beyond = middle - half >= c;
      const double part = !beyond && over > 0.0 ? over : 0.0;
      whole += height * middle;
      total += height * (beyond ? c : middle) - part * part * edge.steep;
      y = next;
      from = to;
    }
    return total;
  }
};

// One target pixel from its corners, in turn around it, where source pixel i covers i to i + 1. With DROPS source pixels
// are shrunk to pixfrac of their side, filled ones have no drop, and values are means.
template <bool DROPS>
HD Pixel gather(const Source& in, const double (&xs)[4], const double (&ys)[4], const Edges& edges, float limit,
                bool flux, double pixfrac = 1.0) {
  const double side = DROPS ? pixfrac : 1.0, margin = 0.5 * (1.0 - side);
  const double area2 = (xs[2] - xs[0]) * (ys[3] - ys[1]) - (xs[3] - xs[1]) * (ys[2] - ys[0]);
  const double area = 0.5 * fabs(area2), turn = area2 > 0.0 ? 1.0 : -1.0;
  Pixel out = resample::nothing(in);
  if (!(area > 0.0 && area <= limit)) return out;
  int x0 = floor_int(xs[0]), x1 = x0, y0 = floor_int(ys[0]), y1 = y0;  // first and last pixels under the corners
  UNROLL for (int k = 1; k < 4; ++k) {
    const int x = floor_int(xs[k]), y = floor_int(ys[k]);
    x0 = minimum(x0, x);
    x1 = maximum(x1, x);
    y0 = minimum(y0, y);
    y1 = maximum(y1, y);
  }
  if (x1 < 0 || x0 >= in.w || y1 < 0 || y0 >= in.h) return out;
  edges.set(xs, ys, x0 + margin, y0 + margin);  // positions are counted from the first pixel
  const double touches = TOUCHES * minimum(side * side, area);
  double total = 0.0, seen = 0.0, lost = 0.0, v = 0.0, kept2 = 0.0, lost2 = 0.0;
  int m = 0, spoiled = 0;
  KEEP_LOOP for (int y = maximum(y0, 0); y <= minimum(y1, in.h - 1); ++y) {
    const int first = maximum(x0, 0), last = minimum(x1, in.w - 1);
    const double low = y - y0, high = low + side;
    double whole, before = DROPS || first == x0 ? 0.0 : edges.below(low, high, first - x0, whole);
    KEEP_LOOP for (int x = first; x <= last; ++x) {
      if constexpr (DROPS) before = edges.below(low, high, x - x0, whole);
      // what lies left of the end of the last column is all there is, which the column before it found
      const double after =
          !DROPS && x == x1 && x > first ? whole : edges.below(low, high, x - x0 + side, whole);
      const double a = (after - before) * turn;
      before = after;
      if (!(a > 0.0)) continue;
      const size_t p = (size_t)y * in.w + x;
      const int flags = in.work[p];
      if (DROPS && flags < 0) {
        if (a > touches) spoiled |= flags;
        continue;
      }
      seen += a;
      total += a * in.values[p];
      if (flags < 0) {
        lost += a;
        lost2 += a * a;
      } else {
        kept2 += a * a;
        if (in.variance) v += a * a * in.variance[p];
      }
      if (a > touches) m |= flags | (flags < 0 ? in.interp : 0);
    }
  }
  m &= 0x7fffffff;
  const double cover = side * side * area;  // of the drops under a pixel, where they are all there
  if (seen <= (DROPS ? TRACE : SLIVER) * cover) {
    out.mask |= spoiled & 0x7fffffff;
    return out;
  }
  bool cut = !DROPS && seen < (1.0 - TOUCHES) * area;
  if (DROPS && (x0 < 0 || y0 < 0 || x1 >= in.w || y1 >= in.h))
    UNROLL for (int k = 0; k < 4; ++k)
      cut = cut || minimum(xs[k], ys[k]) < -TOUCHES || xs[k] > in.w + TOUCHES || ys[k] > in.h + TOUCHES;
  if (cut) m |= in.edge;
  const bool gone = lost > 0.5 * seen || kept2 == 0.0;
  out.mask = gone ? m | in.no_data : m;
  out.weight = (float)minimum(1.0 / (side * side), (seen - lost) * reciprocal(cover));
  if (gone) return out;
  if (lost2 > 0.0) v *= 1.0 + lost2 / kept2;
  // exact sums, so that pixels cut by the border hold what they cover
  const double scale = !flux ? reciprocal(seen) : DROPS ? area * reciprocal(seen) : 1.0;
  out.image = (float)(total * scale);
  out.variance = (float)(v * scale * scale);
  return out;
}

// The same by the Gaussian of DeForest (2004): with J the derivatives of the map and U the eigenvectors of J J^T, r^2 is
// a quadratic form of the offset in the source with the same U and the eigenvalues 1 / max(1, those of J J^T).
HD Pixel smoothed(const Source& in, const double (&xs)[4], const double (&ys)[4], float limit, bool flux) {
  const double area = 0.5 * fabs((xs[2] - xs[0]) * (ys[3] - ys[1]) - (xs[3] - xs[1]) * (ys[2] - ys[0]));
  const double px = 0.25 * (xs[0] + xs[1] + xs[2] + xs[3]) - 0.5, py = 0.25 * (ys[0] + ys[1] + ys[2] + ys[3]) - 0.5;
  Pixel out = resample::nothing(in);
  if (!(area > 0.0 && area <= limit && px >= -0.5 && px <= in.w - 0.5 && py >= -0.5 && py <= in.h - 0.5)) return out;
  const double a = 0.5 * (xs[1] - xs[0] + xs[2] - xs[3]), b = 0.5 * (xs[3] - xs[0] + xs[2] - xs[1]);
  const double c = 0.5 * (ys[1] - ys[0] + ys[2] - ys[3]), d = 0.5 * (ys[3] - ys[0] + ys[2] - ys[1]);
  const double mean = 0.5 * (a * a + b * b + c * c + d * d), half = 0.5 * (a * a + b * b - c * c - d * d);
  const double cross = a * c + b * d, spread = sqrt(half * half + cross * cross), det = a * d - b * c;
  const double large = mean + spread, little = det * det / large;
  const bool turned = spread > 1e-12 * mean;
  const double cosine = turned ? half / spread : 0.0, sine = turned ? cross / spread : 0.0;  // of twice the angle of U
  const double i1 = 1.0 / maximum(1.0, large), i2 = 1.0 / maximum(1.0, little);
  const double qxx = 0.5 * (i1 + i2 + (i1 - i2) * cosine), qyy = 0.5 * (i1 + i2 - (i1 - i2) * cosine);
  const double qxy = (i1 - i2) * sine;
  const double k1 = maximum(1.0, 1.0 / sqrt(large)), k2 = maximum(1.0, 1.0 / sqrt(little));
  const double kxx = 0.5 * (k1 + k2 + (k1 - k2) * cosine), kyy = 0.5 * (k1 + k2 - (k1 - k2) * cosine);
  const double kxy = 0.5 * (k1 - k2) * sine;
  const double rx = REGION * (fabs(kxx * a + kxy * c) + fabs(kxx * b + kxy * d));
  const double ry = REGION * (fabs(kxy * a + kyy * c) + fabs(kxy * b + kyy * d));
  const int first = (int)ceil(px - rx), last = (int)floor(px + rx);
  const int lowest = (int)ceil(py - ry), highest = (int)floor(py + ry);
  float total = 0.0f, whole = 0.0f, seen = 0.0f, lost = 0.0f, v = 0.0f, kept2 = 0.0f, total2 = 0.0f;
  int m = 0;
  KEEP_LOOP for (int y = lowest; y <= highest; ++y) {
    const double oy = y - py;
    KEEP_LOOP for (int x = first; x <= last; ++x) {
      const double ox = x - px, r2 = qxx * ox * ox + qxy * ox * oy + qyy * oy * oy;
      const float g = expf((float)(-TAPER * r2));
      whole += g;
      if (y < 0 || y >= in.h || x < 0 || x >= in.w) {
        lost += g;
        if (r2 <= LIVE) m |= in.edge;
        continue;
      }
      const size_t p = (size_t)y * in.w + x;
      const int flags = in.work[p];
      seen += g;
      total += g * in.values[p];
      total2 += g * g;
      if (flags < 0) {
        lost += g;
      } else {
        kept2 += g * g;
        if (in.variance) v += g * g * in.variance[p];
      }
      if (r2 <= LIVE) m |= (r2 <= INNER ? flags : flags & in.grow) | (flags < 0 ? in.interp : 0);
    }
  }
  m &= 0x7fffffff;
  const bool gone = lost > 0.5f * whole || kept2 == 0.0f;
  out.mask = gone ? m | in.no_data : m;
  out.weight = maximum(0.0f, 1.0f - lost / whole);
  if (gone) return out;
  const float scale = (flux ? (float)area : 1.0f) / seen;
  out.image = total * scale;
  out.variance = v * total2 / kept2 * scale * scale;
  return out;
}

}  // namespace overlap
