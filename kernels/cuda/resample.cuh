// SPDX-License-Identifier: BSD-3-Clause
// Per-pixel maths of resampling: map evaluation, interpolation weights, filling, and the gather of all planes.
#pragma once
#include "common.cuh"

namespace resample {

enum Method { NEAREST, BILINEAR, BSPLINE3, LANCZOS3 };

constexpr float POLE = -0.26794919243112270647f;  // sqrt(3) - 2, pole of the cubic B-spline prefilter (Unser 1999)
constexpr float ROOT3 = 1.73205080756887729353f;
constexpr float TAIL = -0.27811916365f;             // pole / sqrt(1 - pole^2)
constexpr double SIXTH = 1.0 / 6.0;
constexpr float AT_PIXEL = 1e-3f;                 // fractions closer to a pixel centre touch no other pixel
constexpr int FILL_RADIUS = 3;
constexpr int FILLED = -2147483647 - 1;           // bit 31 of the working mask
constexpr int CELL_INTERPOLATED = -1, CELL_OUTSIDE = -2;
constexpr int HALO = 12;                          // pixels after which a recursion has forgotten its start to float32

template <int METHOD>
constexpr int SIZE = METHOD == NEAREST ? 1 : METHOD == BILINEAR ? 2 : 6;

// Index of a line of n pixels mirrored about its end pixels.
HD int mirror(int i, int n) {
  if (i >= 0 && i < n) return i;
  if (n == 1) return 0;
  const int period = 2 * (n - 1);
  i = (i < 0 ? -i : i) % period;
  return i >= n ? period - i : i;
}

// ---- preparation ----

struct Plane {
  const float* image;
  const float* variance;  // or null
  const int* mask;        // or null
  int h, w;
  int fill, bad, no_data;

  // The mask with what the pixel's own values add; negative (bit 31) when the pixel is unusable.
  HD int classify(int y, int x) const {
    const size_t p = (size_t)y * w + x;
    int m = mask ? mask[p] : 0;
    bool unusable = (m & fill) != 0;
    if (!is_finite(image[p])) {
      m |= no_data;
      unusable = true;
    }
    if (variance && !(variance[p] > 0.0f && is_finite(variance[p]))) {
      m |= bad;
      unusable = true;
    }
    return unusable ? m | FILLED : m;
  }

  HD bool usable(int y, int x) const { return y >= 0 && y < h && x >= 0 && x < w && classify(y, x) >= 0; }

  // Gaussian mean of usable neighbours; in large holes the mean of the nearest usable pixels in 8 directions.
  HD float replacement(int y, int x) const {
    double total = 0.0, weight = 0.0;
    for (int dy = -FILL_RADIUS; dy <= FILL_RADIUS; ++dy)
      for (int dx = -FILL_RADIUS; dx <= FILL_RADIUS; ++dx)
        if (usable(y + dy, x + dx)) {
          const double g = expf(-0.5f * (float)(dx * dx + dy * dy));
          total += g * image[(size_t)(y + dy) * w + x + dx];
          weight += g;
        }
    for (int d = FILL_RADIUS + 1; weight == 0.0 && d < (h > w ? h : w); d *= 2)
      for (int sy = -1; sy <= 1; ++sy)
        for (int sx = -1; sx <= 1; ++sx)
          if (usable(y + sy * d, x + sx * d)) {
            total += image[(size_t)(y + sy * d) * w + x + sx * d];
            weight += 1.0;
          }
    return weight > 0.0 ? (float)(total / weight) : 0.0f;
  }

  HD float value(int y, int x) const {
    return classify(y, x) >= 0 ? image[(size_t)y * w + x] : replacement(y, x);
  }
};

// B-spline coefficients of N samples by the causal and anti-causal recursion, each started in the steady state of a
// constant; right to float32 at least HALO samples from either end.
template <int N>
HD void filter_window(float (&v)[N]) {
  v[0] *= 1.0f / (1.0f - POLE);
  UNROLL for (int i = 1; i < N; ++i) v[i] += POLE * v[i - 1];
  v[N - 1] *= -POLE / (1.0f - POLE);
  UNROLL for (int i = N - 2; i >= 0; --i) v[i] = POLE * (v[i + 1] - v[i]);
  UNROLL for (int i = 0; i < N; ++i) v[i] *= 6.0f;
}

// ---- map ----

struct Map {
  const double* nodes;  // (2, ny + 3, nx + 3)
  const int* cells;     // (ny, nx)
  const double* exact;  // (n, 3, spacing, spacing)
  int ny, nx, spacing;
  double inverse;  // 1 / spacing
  bool flux;
};

// Cubic Lagrange weights of nodes at -1, 0, 1, 2 for position t.
HD void lagrange(double t, double (&w)[4]) {
  const double a = t + 1.0, c = t - 1.0, e = t - 2.0;
  w[0] = -t * c * e * SIXTH;
  w[1] = a * c * e * 0.5;
  w[2] = -a * t * e * 0.5;
  w[3] = a * t * c * SIXTH;
}

HD void lagrange_slope(double t, double (&w)[4]) {
  const double a = t + 1.0, c = t - 1.0, e = t - 2.0;
  w[0] = -(t * c + t * e + c * e) * SIXTH;
  w[1] = (a * c + a * e + c * e) * 0.5;
  w[2] = -(a * t + a * e + t * e) * 0.5;
  w[3] = (a * t + a * c + t * c) * SIXTH;
}

// Column k of the nodes around cell (i, j) interpolated along y; term 0, 1: x, y; term 2, 3: their slopes.
HD double collapse(const Map& map, int i, int j, int ty, int k, int term) {
  double w[4], value = 0.0;
  const double t = ty * map.inverse;
  if (term < 2)
    lagrange(t, w);
  else
    lagrange_slope(t, w);
  const double* node = map.nodes + ((size_t)(term % 2) * (map.ny + 3) + i) * (map.nx + 3) + j + k;
  for (int n = 0; n < 4; ++n) value += w[n] * node[(size_t)n * (map.nx + 3)];
  return value;
}

struct Position {
  double x, y;
  float area;  // NaN: no map
};

// Position of target column tx of a cell from its collapsed nodes row[k][term].
HD Position interpolate(const Map& map, const double (&row)[4][4], int tx) {
  double w[4];
  const double t = tx * map.inverse;
  lagrange(t, w);
  Position p{0.0, 0.0, 1.0f};
  for (int k = 0; k < 4; ++k) {
    p.x += w[k] * row[k][0];
    p.y += w[k] * row[k][1];
  }
  if (map.flux) {
    double d[4], xx = 0.0, yx = 0.0, xy = 0.0, yy = 0.0;
    lagrange_slope(t, d);
    for (int k = 0; k < 4; ++k) {
      xx += d[k] * row[k][0];
      yx += d[k] * row[k][1];
      xy += w[k] * row[k][2];
      yy += w[k] * row[k][3];
    }
    p.area = (float)(fabs(xx * yy - xy * yx) * map.inverse * map.inverse);
  }
  return p;
}

HD Position exact_position(const Map& map, int block, int ty, int tx) {
  const size_t plane = (size_t)map.spacing * map.spacing;
  const double* at = map.exact + (size_t)block * 3 * plane + (size_t)ty * map.spacing + tx;
  return {at[0], at[plane], map.flux ? (float)at[2 * plane] : 1.0f};
}

// ---- weights along one axis for fraction f; lowest pixel first ----

HD void bspline(float f, float (&b)[4]) {
  const float g = 1.0f - f;
  b[0] = g * g * g * (1.0f / 6.0f);
  b[1] = 2.0f / 3.0f - 0.5f * f * f * (2.0f - f);
  b[2] = 2.0f / 3.0f - 0.5f * g * g * (2.0f - g);
  b[3] = f * f * f * (1.0f / 6.0f);
}

// Cardinal spline: weights of pixels. The outer two stand for all further out: squares summed as geometric series.
HD void cardinal(const float (&b)[4], float (&w)[6]) {
  w[1] = ROOT3 * (b[0] + POLE * (b[1] + POLE * (b[2] + POLE * b[3])));
  w[2] = ROOT3 * (b[1] + POLE * (b[0] + b[2] + POLE * b[3]));
  w[3] = ROOT3 * (b[2] + POLE * (b[1] + b[3] + POLE * b[0]));
  w[4] = ROOT3 * (b[3] + POLE * (b[2] + POLE * (b[1] + POLE * b[0])));
  w[0] = TAIL * w[1];
  w[5] = TAIL * w[4];
}

// sin and cos of pi t for |t| <= 1; exact reduction where the device has it.
HD void sincos_pi(float t, float& s, float& c) {
#ifdef __CUDA_ARCH__
  sincospif(t, &s, &c);
#else
  s = sinf(3.14159265358979323846f * t);
  c = cosf(3.14159265358979323846f * t);
#endif
}

// Lanczos3 normalised to sum 1. sin(pi (f + k)) is +-sin(pi f); sin(pi (f + k) / 3) is a rotation of the pair at f / 3,
// except for the two nearest pixels, where the rotation would cancel.
HD void lanczos(float f, float (&w)[6]) {
  const float g = 1.0f - f, half = 0.5f * ROOT3;
  if (f < 1e-6f || g < 1e-6f) {
    for (int k = 0; k < 6; ++k) w[k] = k == (f < 0.5f ? 2 : 3) ? 1.0f : 0.0f;
    return;
  }
  float s, sf, cf, sg, unused;
  sincos_pi(f < 0.5f ? f : g, s, unused);
  sincos_pi(f * (1.0f / 3.0f), sf, cf);
  sincos_pi(g * (1.0f / 3.0f), sg, unused);
  w[0] = s * (half * cf - 0.5f * sf) / ((f + 2.0f) * (f + 2.0f));
  w[1] = -s * (half * cf + 0.5f * sf) / ((f + 1.0f) * (f + 1.0f));
  w[2] = s * sf / (f * f);
  w[3] = s * sg / (g * g);
  w[4] = s * (-0.5f * sf - half * cf) / ((g + 1.0f) * (g + 1.0f));
  w[5] = s * sf / ((g + 2.0f) * (g + 2.0f));
  float total = 0.0f;
  for (int k = 0; k < 6; ++k) total += w[k];
  for (int k = 0; k < 6; ++k) w[k] /= total;
}

template <int METHOD>
HD void weights(float f, float (&b)[4], float (&w)[6]) {
  if constexpr (METHOD == NEAREST) {
    w[0] = 1.0f;
  } else if constexpr (METHOD == BILINEAR) {
    w[0] = 1.0f - f;
    w[1] = f;
  } else if constexpr (METHOD == BSPLINE3) {
    bspline(f, b);
    cardinal(b, w);
  } else {
    lanczos(f, w);
  }
}

// ---- gather ----

struct Source {
  const float* values;
  const float* variance;  // or null
  const int* work;
  int h, w;
  int grow, no_data, edge, interp;
};

struct Pixel {
  float image, variance;
  int mask;
  float weight;
};

// Whether the pixel k px from the one below the position has weight at fraction f.
HD bool live(int k, float f) {
  if (f <= AT_PIXEL) return k == 0;
  if (f >= 1.0f - AT_PIXEL) return k == 1;
  return true;
}

template <int N>
HD float interior_sum(const float* corner, int stride, const float* wy, const float* wx) {
  float total = 0.0f;
  UNROLL for (int n = 0; n < N; ++n) {
    float s = 0.0f;
    UNROLL for (int k = 0; k < N; ++k) s += wx[k] * corner[(size_t)n * stride + k];
    total += wy[n] * s;
  }
  return total;
}

// The first of N values; the others move up. Loops over rows stay rolled without indexing registers.
template <int N, int M>
HD float shift_out(float (&v)[M]) {
  const float first = v[0];
  UNROLL for (int k = 1; k < N; ++k) v[k - 1] = v[k];
  return first;
}

template <int N, int M>
HD float mirrored_sum(const Source& in, int iy, int ix, float (&wy)[M], const float (&wx)[M]) {
  float total = 0.0f;
  KEEP_LOOP for (int n = 0; n < N; ++n) {
    const float* line = in.values + (size_t)mirror(iy - (N - 1) / 2 + n, in.h) * in.w;
    float s = 0.0f;
    UNROLL for (int k = 0; k < N; ++k) s += wx[k] * line[mirror(ix - (N - 1) / 2 + k, in.w)];
    total += shift_out<N>(wy) * s;
  }
  return total;
}

// Variance, mask and weight near unusable pixels, flags or the border; NaN variance when too much weight is lost.
// Uses up wy.
template <int N>
HD void impaired(const Source& in, float (&wy)[6], const float (&wx)[6], float fy, float fx, int top, int left,
                 Pixel& out) {
  constexpr int INNER = (N - 1) / 2;
  float lost = 0.0f, total = 0.0f, v = 0.0f, kept2 = 0.0f, total2 = 0.0f;
  int m = 0;
  KEEP_LOOP for (int n = 0; n < N; ++n) {
    const int yy = mirror(top + n, in.h);
    const float weight = shift_out<N>(wy);
    UNROLL for (int k = 0; k < N; ++k) {
      const int xx = mirror(left + k, in.w);
      const size_t p = (size_t)yy * in.w + xx;
      const int flags = in.work[p];
      const bool outside = yy != top + n || xx != left + k;
      const float a = fabsf(wx[k] * weight);
      total += a;
      total2 += a * a;
      if (flags >= 0) {
        kept2 += a * a;
        if (in.variance) v += a * a * in.variance[p];
      }
      if (flags < 0 || outside) lost += a;
      if (live(n - INNER, fy) && live(k - INNER, fx)) {
        const bool inner = n >= INNER && n <= INNER + 1 && k >= INNER && k <= INNER + 1;
        m |= outside ? in.edge : (inner ? flags : flags & in.grow) | (flags < 0 ? in.interp : 0);
      }
    }
  }
  m &= 0x7fffffff;
  const bool gone = lost > 0.5f * total || kept2 == 0.0f;
  out.variance = gone ? quiet_nan() : v * total2 / kept2;
  out.mask = gone ? m | in.no_data : m;
  out.weight = 1.0f - lost / total;
  if (gone) out.image = quiet_nan();
}

template <int METHOD>
HD Pixel gather(const Source& in, const Position& at) {
  constexpr int N = SIZE<METHOD>;
  double qx = at.x, qy = at.y;
  if (at.area != at.area || !(qx >= -0.5 && qx <= in.w - 0.5 && qy >= -0.5 && qy <= in.h - 0.5))
    return {quiet_nan(), quiet_nan(), in.no_data, 0.0f};
  if constexpr (METHOD == NEAREST) {
    qx = fmin(floor(qx + 0.5), in.w - 1.0);
    qy = fmin(floor(qy + 0.5), in.h - 1.0);
  }
  const int ix = (int)floor(qx), iy = (int)floor(qy);
  const float fx = (float)(qx - ix), fy = (float)(qy - iy);
  float bx[4], by[4], wx[6], wy[6];
  weights<METHOD>(fx, bx, wx);
  weights<METHOD>(fy, by, wy);
  const int left = ix - (N - 1) / 2, top = iy - (N - 1) / 2;
  const bool inside = left >= 0 && top >= 0 && left + N <= in.w && top + N <= in.h;
  Pixel out{0.0f, 0.0f, 0, 1.0f};
  if (inside) {
    const size_t corner = (size_t)top * in.w + left;
    if constexpr (METHOD == BSPLINE3)
      out.image = interior_sum<4>(in.values + corner + in.w + 1, in.w, by, bx);
    else
      out.image = interior_sum<N>(in.values + corner, in.w, wy, wx);
    UNROLL for (int n = 0; n < N; ++n)
      UNROLL for (int k = 0; k < N; ++k) out.mask |= in.work[corner + (size_t)n * in.w + k];
    if (in.variance && out.mask == 0) {
      float vx[6], vy[6];
      UNROLL for (int k = 0; k < N; ++k) {
        vx[k] = wx[k] * wx[k];
        vy[k] = wy[k] * wy[k];
      }
      out.variance = interior_sum<N>(in.variance + corner, in.w, vy, vx);
    }
  } else if constexpr (METHOD == BSPLINE3) {
    out.image = mirrored_sum<4>(in, iy, ix, by, bx);
  } else {
    float rows[6];
    UNROLL for (int n = 0; n < N; ++n) rows[n] = wy[n];
    out.image = mirrored_sum<N>(in, iy, ix, rows, wx);
  }
  if (!inside || out.mask != 0) impaired<N>(in, wy, wx, fy, fx, top, left, out);
  out.image *= at.area;
  out.variance *= at.area * at.area;
  return out;
}

}  // namespace resample
