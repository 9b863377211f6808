// SPDX-License-Identifier: BSD-3-Clause
// Per-pixel maths of the methods whose footprint follows the map. Exact: the area that the quadrilateral between four
// mapped corners shares with each source pixel, by Green's theorem; drizzle: with each shrunk source pixel. See
// kernels/cpu/overlap.py.
#pragma once
#include "resample.cuh"

namespace overlap {

using resample::Map;
using resample::Pixel;
using resample::Source;

constexpr double UPRIGHT = 1e-7;  // edges that move by less along x are upright
constexpr double SLIVER = 1e-9;   // part of a target pixel that must lie on the source
constexpr double TRACE = 1e-5;    // part of full cover that drops must have for a value
constexpr float SEAM = 4.0f;      // larger than the derivatives of the map say by this: corners on both sides of a seam
constexpr double TOUCHES = 1e-3;
constexpr double TAPER = 2.0 / 1.69;                    // of the Gaussian, exp(-TAPER r^2)
constexpr double REGION = 3.0;                          // half side of the square whose box in the source is summed over
constexpr double LIVE = 6.907755278982137 / TAPER;      // r^2 of a thousandth of the largest weight
constexpr double INNER = 1.0;                           // r^2 up to which all planes are passed on

struct Corner {
  double x, y;  // NaN: no map
  float area;   // of a target pixel, source pixels; infinite where the map is smooth
};

// Corner (y, x) of the map of corners.
HD Corner corner(const Map& map, int y, int x) {
  const int i = y / map.spacing, j = x / map.spacing, ty = y - i * map.spacing, tx = x - j * map.spacing;
  const int cell = map.cells[(size_t)i * map.nx + j];
  Corner out{quiet_nan(), quiet_nan(), quiet_nan()};
  if (cell == resample::CELL_INTERPOLATED) {
    double across[4], up[4];
    resample::lagrange(tx * map.inverse, across);
    resample::lagrange(ty * map.inverse, up);
    const size_t stride = map.nx + 3;
    const double* xs = map.nodes + (size_t)i * stride + j;
    const double* ys = xs + (size_t)(map.ny + 3) * stride;
    out.x = out.y = 0.0;
    for (int k = 0; k < 4; ++k) {
      double column_x = 0.0, column_y = 0.0;
      for (int n = 0; n < 4; ++n) {
        column_x += up[n] * xs[(size_t)n * stride + k];
        column_y += up[n] * ys[(size_t)n * stride + k];
      }
      out.x += across[k] * column_x;
      out.y += across[k] * column_y;
    }
    out.area = 3.0e38f;
  } else if (cell >= 0) {
    const size_t plane = (size_t)map.spacing * map.spacing;
    const double* at = map.exact + (size_t)cell * 3 * plane + (size_t)ty * map.spacing + tx;
    out = {at[0], at[plane], (float)at[2 * plane]};
  }
  return out;
}

// The edges of a quadrilateral between two heights.
struct Edges {
  double low[4], high[4];  // x
  double height[4];        // signed
  double steep[4];         // half the height per width; 0: upright

  HD Edges(const double (&xs)[4], const double (&ys)[4], double from_y, double to_y) {
    UNROLL for (int k = 0; k < 4; ++k) {
      const double dx = xs[(k + 1) % 4] - xs[k], dy = ys[(k + 1) % 4] - ys[k];
      const double a = minimum(maximum(ys[k], from_y), to_y), b = minimum(maximum(ys[k] + dy, from_y), to_y);
      low[k] = high[k] = steep[k] = 0.0;
      height[k] = b - a;
      if (height[k] == 0.0) continue;
      const double per = 1.0 / dy, from = xs[k] + dx * ((a - ys[k]) * per), to = xs[k] + dx * ((b - ys[k]) * per);
      low[k] = minimum(from, to);
      high[k] = maximum(from, to);
      steep[k] = fabs(dx) > UPRIGHT ? 0.5 * fabs(dy / dx) : 0.0;
    }
  }

  // Integral of min(x, c) dy along them.
  HD double below(double c) const {
    double total = 0.0;
    UNROLL for (int k = 0; k < 4; ++k) {
      double x = 0.5 * (low[k] + high[k]);
      if (low[k] >= c || (steep[k] == 0.0 && x > c)) x = c;
      total += height[k] * x;
      if (low[k] < c && high[k] > c) {
        const double beyond = (high[k] - c) * (high[k] - c) * steep[k];
        total -= height[k] > 0.0 ? beyond : -beyond;
      }
    }
    return total;
  }
};

// One target pixel from its corners, in turn around it, where source pixel i covers i to i + 1. With DROPS source pixels
// are shrunk to pixfrac of their side, filled ones have no drop, and values are means.
template <bool DROPS>
HD Pixel gather(const Source& in, double (&xs)[4], double (&ys)[4], float limit, bool flux, double pixfrac = 1.0) {
  const double side = DROPS ? pixfrac : 1.0, margin = 0.5 * (1.0 - side);
  const double area2 = (xs[2] - xs[0]) * (ys[3] - ys[1]) - (xs[3] - xs[1]) * (ys[2] - ys[0]);
  const double area = 0.5 * fabs(area2);
  Pixel out{quiet_nan(), quiet_nan(), in.no_data, 0.0f};
  if (!(area > 0.0 && area <= limit)) return out;
  const double left = minimum(minimum(xs[0], xs[1]), minimum(xs[2], xs[3]));
  const double right = maximum(maximum(xs[0], xs[1]), maximum(xs[2], xs[3]));
  const double bottom = minimum(minimum(ys[0], ys[1]), minimum(ys[2], ys[3]));
  const double top = maximum(maximum(ys[0], ys[1]), maximum(ys[2], ys[3]));
  if (right <= 0.0 || left >= in.w || top <= 0.0 || bottom >= in.h) return out;
  const double x0 = floor(left), y0 = floor(bottom);  // positions are counted from here
  const int first = (int)maximum(x0, 0.0), last = (int)minimum(ceil(right), (double)in.w);
  const int lowest = (int)maximum(y0, 0.0), highest = (int)minimum(ceil(top), (double)in.h);
  UNROLL for (int k = 0; k < 4; ++k) {
    xs[k] -= x0 + margin;
    ys[k] -= y0 + margin;
  }
  const double touches = TOUCHES * minimum(side * side, area);
  double total = 0.0, seen = 0.0, lost = 0.0, v = 0.0, kept2 = 0.0, total2 = 0.0;
  int m = 0, spoiled = 0;
  KEEP_LOOP for (int y = lowest; y < highest; ++y) {
    const Edges edges(xs, ys, y - y0, y - y0 + side);
    double before = DROPS ? 0.0 : edges.below(first - x0);
    KEEP_LOOP for (int x = first; x < last; ++x) {
      if constexpr (DROPS) before = edges.below(x - x0);
      const double after = edges.below(x - x0 + side), a = area2 > 0.0 ? after - before : before - after;
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
      if constexpr (!DROPS) total2 += a * a;
      if (flags < 0) {
        lost += a;
      } else {
        kept2 += a * a;
        if (in.variance) v += a * a * in.variance[p];
      }
      if (a > touches) m |= flags | (flags < 0 ? in.interp : 0);
    }
  }
  m &= 0x7fffffff;
  if (DROPS) total2 = kept2;
  const double cover = side * side * area;  // of the drops under a pixel, where they are all there
  if (seen <= (DROPS ? TRACE : SLIVER) * cover) {
    out.mask |= spoiled & 0x7fffffff;
    return out;
  }
  const bool cut = DROPS ? minimum(left, bottom) < -TOUCHES || right > in.w + TOUCHES || top > in.h + TOUCHES
                         : seen < (1.0 - TOUCHES) * area;
  if (cut) m |= in.edge;
  const bool gone = lost > 0.5 * seen || kept2 == 0.0;
  out.mask = gone ? m | in.no_data : m;
  out.weight = (float)minimum(1.0 / (side * side), (seen - lost) / cover);
  if (gone) return out;
  // exact sums, so that pixels cut by the border hold what they cover
  const double scale = !flux ? 1.0 / seen : DROPS ? area / seen : 1.0;
  out.image = (float)(total * scale);
  out.variance = (float)(v * total2 / kept2 * scale * scale);
  return out;
}

// The same by the Gaussian of DeForest (2004): with J the derivatives of the map and U the eigenvectors of J J^T, r^2 is
// a quadratic form of the offset in the source with the same U and the eigenvalues 1 / max(1, those of J J^T).
HD Pixel smoothed(const Source& in, const double (&xs)[4], const double (&ys)[4], float limit, bool flux) {
  const double area = 0.5 * fabs((xs[2] - xs[0]) * (ys[3] - ys[1]) - (xs[3] - xs[1]) * (ys[2] - ys[0]));
  const double px = 0.25 * (xs[0] + xs[1] + xs[2] + xs[3]) - 0.5, py = 0.25 * (ys[0] + ys[1] + ys[2] + ys[3]) - 0.5;
  Pixel out{quiet_nan(), quiet_nan(), in.no_data, 0.0f};
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
