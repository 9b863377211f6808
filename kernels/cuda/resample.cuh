// SPDX-License-Identifier: BSD-3-Clause
// Per-pixel maths of resampling: map evaluation, interpolation weights, filling, and the gather of all planes.
#pragma once
#include "common.cuh"

namespace resample {

enum Method { NEAREST, BILINEAR, BSPLINE3, LANCZOS3, BSPLINE5, LANCZOS4, LANCZOS5 };

// Poles of the B-spline prefilters (Unser 1999), and impulse responses of the prefilters at distance n:
// ROOT3 POLE^|n| and A Z^|n| + B Y^|n|.
constexpr float POLE = -0.26794919243112270647f;
constexpr float ROOT3 = 1.73205080756887729353f;
constexpr float TAIL = -0.27811916365f;           // POLE / sqrt(1 - POLE^2)
constexpr float Z = -0.43057534709997430f, Y = -0.04309628820326465f;
constexpr float A = 3.09498649695217f, B = -0.25281557923697f;
// Sums over n >= 1 of the squares and of the double product of the two terms.
constexpr float AA = A * A * Z * Z / (1.0f - Z * Z);
constexpr float AB = 2.0f * A * B * Z * Y / (1.0f - Z * Y);
constexpr float BB = B * B * Y * Y / (1.0f - Y * Y);
constexpr double SIXTH = 1.0 / 6.0;
constexpr float AT_PIXEL = 1e-3f;                 // fractions closer to a pixel centre touch no other pixel
constexpr int FILL_RADIUS = 3;
constexpr int FILLED = -2147483647 - 1;           // bit 31 of the working mask
constexpr int CELL_INTERPOLATED = -1, CELL_OUTSIDE = -2;

// Pixels after which the recursions of a spline of this degree have forgotten their start to float32.
template <int DEGREE>
constexpr int HALO = DEGREE == 5 ? 20 : 12;

// Side of the footprint on pixels, and on coefficients where there are any.
template <int METHOD>
constexpr int SIZE = METHOD == NEAREST                          ? 1
                     : METHOD == BILINEAR                       ? 2
                     : METHOD == LANCZOS5                       ? 10
                     : METHOD == LANCZOS4 || METHOD == BSPLINE5 ? 8
                                                                : 6;
template <int METHOD>
constexpr int COEFFICIENTS = METHOD == BSPLINE3 ? 4 : METHOD == BSPLINE5 ? 6 : 0;

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
  HD int classify(size_t p) const {
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

  HD bool usable(int y, int x) const { return y >= 0 && y < h && x >= 0 && x < w && classify((size_t)y * w + x) >= 0; }

  // What tap `number` of the window around a pixel adds to the Gaussian mean of usable neighbours and to its weight.
  HD void near(int y, int x, int number, double& total, double& weight) const {
    constexpr int SIDE = 2 * FILL_RADIUS + 1;
    const int dy = number / SIDE - FILL_RADIUS, dx = number % SIDE - FILL_RADIUS;
    if (number >= SIDE * SIDE || !usable(y + dy, x + dx)) return;
    const double g = expf(-0.5f * (float)(dx * dx + dy * dy));
    total += g * image[(size_t)(y + dy) * w + x + dx];
    weight += g;
  }

  // The same for direction `number` of the 8 (4 is none) at distance d, where the window has no usable pixel.
  HD void far(int y, int x, int number, int d, double& total, double& weight) const {
    const int yy = y + (number / 3 - 1) * d, xx = x + (number % 3 - 1) * d;
    if (number >= 9 || !usable(yy, xx)) return;
    total += image[(size_t)yy * w + xx];
    weight += 1.0;
  }

  HD bool within(int d) const { return d < (h > w ? h : w); }
};

// One pole over N samples, causal and anti-causal, each started in the steady state of a constant.
template <int N>
HD void recursion(float (&v)[N], float pole) {
  v[0] *= 1.0f / (1.0f - pole);
  UNROLL for (int i = 1; i < N; ++i) v[i] += pole * v[i - 1];
  v[N - 1] *= -pole / (1.0f - pole);
  UNROLL for (int i = N - 2; i >= 0; --i) v[i] = pole * (v[i + 1] - v[i]);
}

// B-spline coefficients of N samples; right to float32 at least HALO samples from either end.
template <int DEGREE, int N>
HD void filter_window(float (&v)[N]) {
  if constexpr (DEGREE == 5) {
    recursion(v, Z);
    recursion(v, Y);
  } else {
    recursion(v, POLE);
  }
  UNROLL for (int i = 0; i < N; ++i) v[i] *= DEGREE == 5 ? 120.0f : 6.0f;
}

// ---- map ----

struct Map {
  const double* nodes;  // (2, ny + 3, nx + 3)
  const int* cells;     // (ny, nx)
  const double* exact;  // (n, 3, spacing, spacing)
  int ny, nx, spacing;
  double inverse;  // 1 / spacing

  // Row or column of cells that holds pixel v; faster than a division, and exact.
  HD int cell(int v) const { return (int)((v + 0.5) * inverse); }
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

// What all positions of a target column share; TERMS is 4 where the area is asked for.
template <int TERMS>
struct Column {
  int cell, tx;
  double w[4], d[4];

  HD Column(const Map& map, int x) : cell(map.cell(x)), tx(x - cell * map.spacing) {
    lagrange(tx * map.inverse, w);
    if (TERMS == 4) lagrange_slope(tx * map.inverse, d);
  }
};

// Position in row y of the target from the collapsed nodes row[k][term] of its cell; with CORNERS the area is endless
// where the map is smooth, and always known elsewhere.
template <bool CORNERS = false, int TERMS>
HD Position position(const Map& map, int cell, const double (&row)[4][TERMS], int y, const Column<TERMS>& column) {
  Position p{0.0, 0.0, CORNERS ? 3.0e38f : 1.0f};
  if (cell == CELL_INTERPOLATED) {
    UNROLL for (int k = 0; k < 4; ++k) {
      p.x += column.w[k] * row[k][0];
      p.y += column.w[k] * row[k][1];
    }
    if constexpr (TERMS == 4) {
      double xx = 0.0, yx = 0.0, xy = 0.0, yy = 0.0;
      UNROLL for (int k = 0; k < 4; ++k) {
        xx += column.d[k] * row[k][0];
        yx += column.d[k] * row[k][1];
        xy += column.w[k] * row[k][2];
        yy += column.w[k] * row[k][3];
      }
      p.area = (float)(fabs(xx * yy - xy * yx) * map.inverse * map.inverse);
    }
    return p;
  }
  if (cell < 0) return {quiet_nan(), quiet_nan(), quiet_nan()};
  const size_t plane = (size_t)map.spacing * map.spacing;
  const double* at =
      map.exact + (size_t)cell * 3 * plane + (size_t)(y - map.cell(y) * map.spacing) * map.spacing + column.tx;
  return {at[0], at[plane], CORNERS || TERMS == 4 ? (float)at[2 * plane] : 1.0f};
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

// Series of sin(pi t) for |t| <= 1/2 and of cos(pi t) for |t| <= 1/3, to the last bit of a float32 or so.
HD float sine_pi(float t) {
  constexpr double P = 3.14159265358979323846, PP = P * P;
  constexpr float A1 = P, A3 = -P * PP / 6, A5 = P * PP * PP / 120, A7 = -P * PP * PP * PP / 5040,
                  A9 = P * PP * PP * PP * PP / 362880, A11 = -P * PP * PP * PP * PP * PP / 39916800;
  const float s = t * t;
  return t * (A1 + s * (A3 + s * (A5 + s * (A7 + s * (A9 + s * A11)))));
}

HD float cosine_pi(float t) {
  constexpr double PP = 3.14159265358979323846 * 3.14159265358979323846;
  constexpr float A2 = -PP / 2, A4 = PP * PP / 24, A6 = -PP * PP * PP / 720, A8 = PP * PP * PP * PP / 40320,
                  A10 = -PP * PP * PP * PP * PP / 3628800;
  const float s = t * t;
  return 1.0f + s * (A2 + s * (A4 + s * (A6 + s * (A8 + s * A10))));
}

// Quintic B-spline at distances 1 to 2.
HD float outer5(float x) {
  return 0.425f + x * (0.625f - x * (1.75f - x * (1.25f - x * (0.375f - x * (1.0f / 24.0f)))));
}

HD void bspline5(float f, float (&b)[6]) {
  const float g = 1.0f - f, f2 = f * f, g2 = g * g;
  b[0] = g2 * g2 * g * (1.0f / 120.0f);
  b[1] = outer5(1.0f + f);
  b[2] = 0.55f - f2 * (0.5f - f2 * (0.25f - f * (1.0f / 12.0f)));
  b[3] = 0.55f - g2 * (0.5f - g2 * (0.25f - g * (1.0f / 12.0f)));
  b[4] = outer5(1.0f + g);
  b[5] = f2 * f2 * f * (1.0f / 120.0f);
}

// As `cardinal`, of degree 5: pixels -3 ... 4 from coefficients -2 ... 3.
HD void cardinal5(const float (&b)[6], float (&w)[8]) {
  float z = 0.0f, y = 0.0f;
  UNROLL for (int k = 0; k < 6; ++k) {
    z = b[k] + Z * z;
    y = b[k] + Y * y;
    w[k + 1] = A * z + B * y;
  }
  w[7] = sqrtf(AA * z * z + AB * z * y + BB * y * y);
  z = y = 0.0f;
  UNROLL for (int k = 5; k >= 0; --k) {
    w[k + 1] += A * Z * z + B * Y * y;
    z = b[k] + Z * z;
    y = b[k] + Y * y;
  }
  w[0] = sqrtf(AA * z * z + AB * z * y + BB * y * y);
}

// cos(pi m / a) for the orders a of Lanczos and m = 0 ... a - 1.
template <int ORDER>
HD float cosine(int m) {
  if constexpr (ORDER == 3) return m == 0 ? 1.0f : m == 1 ? 0.5f : -0.5f;
  if constexpr (ORDER == 4)
    return m == 0 ? 1.0f : m == 1 ? 0.70710678118654752f : m == 2 ? 0.0f : -0.70710678118654752f;
  return m == 0   ? 1.0f
         : m == 1 ? 0.80901699437494742f
         : m == 2 ? 0.30901699437494742f
         : m == 3 ? -0.30901699437494742f
                  : -0.80901699437494742f;
}

template <int ORDER>
HD float sine(int m) {
  if constexpr (ORDER == 3) return m == 0 ? 0.0f : 0.5f * ROOT3;
  if constexpr (ORDER == 4) return m == 0 ? 0.0f : m == 2 ? 1.0f : 0.70710678118654752f;
  return m == 0 ? 0.0f : m == 1 || m == 4 ? 0.58778525229247313f : 0.95105651629515357f;
}

// Lanczos of order a normalised to sum 1. sin(pi (f + m)) is +-sin(pi f), and sin(pi (f + m) / a) a rotation of
// (sin, cos)(pi f / a); pixels above are taken from g = 1 - f, so that no rotation cancels at the nearest pixels.
template <int ORDER>
HD void lanczos(float f, float (&w)[2 * ORDER]) {
  const float g = 1.0f - f;
  if (f < 1e-6f || g < 1e-6f) {
    UNROLL for (int k = 0; k < 2 * ORDER; ++k) w[k] = k == (f < 0.5f ? ORDER - 1 : ORDER) ? 1.0f : 0.0f;
    return;
  }
  const float s = sine_pi(minimum(f, g)), sf = sine_pi(f * (1.0f / ORDER)), cf = cosine_pi(f * (1.0f / ORDER));
  const float sg = sine_pi(g * (1.0f / ORDER)), cg = cosine_pi(g * (1.0f / ORDER));
  float total = 0.0f;
  UNROLL for (int m = 0; m < ORDER; ++m) {
    const float c = m % 2 ? -cosine<ORDER>(m) : cosine<ORDER>(m), d = m % 2 ? -sine<ORDER>(m) : sine<ORDER>(m);
    w[ORDER - 1 - m] = divided(s * (sf * c + cf * d), (f + m) * (f + m));
    w[ORDER + m] = divided(s * (sg * c + cg * d), (g + m) * (g + m));
    total += w[ORDER - 1 - m] + w[ORDER + m];
  }
  const float scale = divided(1.0f, total);
  UNROLL for (int k = 0; k < 2 * ORDER; ++k) w[k] *= scale;
}

// Weights of coefficients (b, splines alone) and of pixels (w).
template <int METHOD, int C, int N>
HD void weights(float f, float (&b)[C], float (&w)[N]) {
  if constexpr (METHOD == NEAREST) {
    w[0] = 1.0f;
  } else if constexpr (METHOD == BILINEAR) {
    w[0] = 1.0f - f;
    w[1] = f;
  } else if constexpr (METHOD == BSPLINE3) {
    bspline(f, b);
    cardinal(b, w);
  } else if constexpr (METHOD == BSPLINE5) {
    bspline5(f, b);
    cardinal5(b, w);
  } else {
    lanczos<N / 2>(f, w);
  }
}

// ---- gather ----

struct Source {
  const float* values;
  const float* variance;  // or null
  const int* work;
  const unsigned* touched;  // a bit a pixel, 32 in a word: whether any pixel of the footprint that begins here has a bit
  int h, w;
  int grow, no_data, edge, interp;

  HD bool clean(int y, int x) const { return !(touched[(size_t)y * ((w + 31) >> 5) + (x >> 5)] >> (x & 31) & 1u); }
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

// As `interior_sum`, with the squares of the weights.
template <int N>
HD float interior_squares(const float* corner, int stride, const float (&wy)[N], const float (&wx)[N]) {
  float vx[N], total = 0.0f;
  UNROLL for (int k = 0; k < N; ++k) vx[k] = wx[k] * wx[k];
  UNROLL for (int n = 0; n < N; ++n) {
    float s = 0.0f;
    UNROLL for (int k = 0; k < N; ++k) s += vx[k] * corner[(size_t)n * stride + k];
    total += wy[n] * wy[n] * s;
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

// Where a position lies among the pixels.
struct Spot {
  int y, x;      // of the pixel below it along either axis
  float fy, fx;  // from there
};

// False without a map and outside the source.
template <int METHOD>
HD bool locate(const Source& in, const Position& at, Spot& spot) {
  double qx = at.x, qy = at.y;
  if (at.area != at.area || !(qx >= -0.5 && qx <= in.w - 0.5 && qy >= -0.5 && qy <= in.h - 0.5)) return false;
  if constexpr (METHOD == NEAREST) {
    qx = fmin(floor(qx + 0.5), in.w - 1.0);
    qy = fmin(floor(qy + 0.5), in.h - 1.0);
  }
  const double x = floor(qx), y = floor(qy);
  spot = {(int)y, (int)x, (float)(qy - y), (float)(qx - x)};
  return true;
}

HD Pixel nothing(const Source& in) { return {quiet_nan(), quiet_nan(), in.no_data, 0.0f}; }

// Whether the footprint lies inside the source and no pixel of it has a bit.
template <int METHOD>
HD bool plain(const Source& in, const Spot& at) {
  constexpr int N = SIZE<METHOD>;
  const int top = at.y - (N - 1) / 2, left = at.x - (N - 1) / 2;
  return left >= 0 && top >= 0 && left + N <= in.w && top + N <= in.h && in.clean(top, left);
}

// Where the footprint is plain.
template <int METHOD>
HD Pixel plain_pixel(const Source& in, const Spot& at, float area) {
  constexpr int N = SIZE<METHOD>, C = COEFFICIENTS<METHOD>;
  float bx[C ? C : 1], by[C ? C : 1], wx[N], wy[N];
  weights<METHOD>(at.fx, bx, wx);
  weights<METHOD>(at.fy, by, wy);
  const size_t corner = (size_t)(at.y - (N - 1) / 2) * in.w + (at.x - (N - 1) / 2);
  Pixel out{0.0f, 0.0f, 0, 1.0f};
  if constexpr (C > 0)  // as many coefficients as pixels less one at either end
    out.image = area * interior_sum<C>(in.values + corner + in.w + 1, in.w, by, bx);
  else
    out.image = area * interior_sum<N>(in.values + corner, in.w, wy, wx);
  if (in.variance) out.variance = area * area * interior_squares<N>(in.variance + corner, in.w, wy, wx);
  return out;
}

// Near unusable pixels, flags or the border: NaN when too much weight is lost.
template <int METHOD>
HD Pixel impaired_pixel(const Source& in, const Spot& at, float area) {
  constexpr int N = SIZE<METHOD>, C = COEFFICIENTS<METHOD>, INNER = (N - 1) / 2;
  float bx[C ? C : 1], by[C ? C : 1], wx[N], wy[N];
  weights<METHOD>(at.fx, bx, wx);
  weights<METHOD>(at.fy, by, wy);
  Pixel out = nothing(in);
  float image, lost = 0.0f, lost2 = 0.0f, v = 0.0f, across = 0.0f, across2 = 0.0f, along = 0.0f, along2 = 0.0f;
  if constexpr (C > 0) {
    image = mirrored_sum<C>(in, at.y, at.x, by, bx);
  } else {
    float rows[N];
    UNROLL for (int n = 0; n < N; ++n) rows[n] = wy[n];
    image = mirrored_sum<N>(in, at.y, at.x, rows, wx);
  }
  int m = 0;
  UNROLL for (int k = 0; k < N; ++k) {
    across += fabsf(wx[k]);
    across2 += wx[k] * wx[k];
  }
  KEEP_LOOP for (int n = -INNER; n < N - INNER; ++n) {
    const int yy = mirror(at.y + n, in.h);
    const size_t row = (size_t)yy * in.w;
    const float weight = shift_out<N>(wy);
    const bool live_row = live(n, at.fy), inner_row = n >= 0 && n <= 1;
    along += fabsf(weight);
    along2 += weight * weight;
    UNROLL for (int k = -INNER; k < N - INNER; ++k) {
      const int xx = mirror(at.x + k, in.w), flags = in.work[row + xx];
      const bool outside = yy != at.y + n || xx != at.x + k;
      const float a = fabsf(wx[k + INNER] * weight);
      if (flags < 0 || outside) lost += a;
      if (flags < 0)
        lost2 += a * a;
      else if (in.variance)
        v += a * a * in.variance[row + xx];
      if (live_row && live(k, at.fx))
        m |= outside ? in.edge
                     : (inner_row && k >= 0 && k <= 1 ? flags : flags & in.grow) | (flags < 0 ? in.interp : 0);
    }
  }
  m &= 0x7fffffff;
  const float total = across * along, total2 = across2 * along2;
  const bool gone = lost > 0.5f * total;
  out.mask = gone ? m | in.no_data : m;
  out.weight = 1.0f - lost / total;
  if (gone) return out;
  out.image = area * image;
  out.variance = area * area * (v * total2 / (total2 - lost2));
  return out;
}

template <int METHOD>
HD Pixel gather(const Source& in, const Position& at) {
  Spot spot;
  if (!locate<METHOD>(in, at, spot)) return nothing(in);
  return plain<METHOD>(in, spot) ? plain_pixel<METHOD>(in, spot, at.area) : impaired_pixel<METHOD>(in, spot, at.area);
}

}  // namespace resample
