// SPDX-License-Identifier: BSD-3-Clause
#include "overlap.cuh"
#include "resample.cuh"

// Sum over the lanes of a warp, the same in all of them.
static __device__ __forceinline__ double warp_sum(double v) {
  for (int bits = 16; bits; bits /= 2) v += __shfl_xor_sync(0xffffffffu, v, bits);
  return v;
}

// Preparation: classify every pixel and fill those that are unusable. One thread a pixel; the lanes of a warp share
// the window around each pixel that has to be filled.
__global__ void __launch_bounds__(256) resample_prepare(const float* __restrict__ image,
                                                        const float* __restrict__ variance,
                                                        const int* __restrict__ mask, int h, int w, int fill, int bad,
                                                        int no_data, float* __restrict__ values,
                                                        int* __restrict__ work) {
  const resample::Plane in{image, variance, mask, h, w, fill, bad, no_data};
  const size_t p = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  const int lane = threadIdx.x % 32;
  int flags = 0;
  if (p < (size_t)h * w) {
    flags = in.classify(p);
    work[p] = flags;
    if (flags >= 0) values[p] = image[p];
  }
  const unsigned holes = __ballot_sync(0xffffffffu, flags < 0);
  if (holes == 0) return;  // the whole warp
  for (unsigned left = holes; left; left &= left - 1) {
    const int i = __ffs(left) - 1;
    const size_t hole = p - lane + i;
    const int y = (int)(hole / w), x = (int)(hole % w);
    double total = 0.0, weight = 0.0;
    in.near(y, x, lane, total, weight);
    in.near(y, x, lane + 32, total, weight);
    total = warp_sum(total);
    weight = warp_sum(weight);
    for (int d = resample::FILL_RADIUS + 1; weight == 0.0 && in.within(d); d *= 2) {
      in.far(y, x, lane, d, total, weight);
      total = warp_sum(total);
      weight = warp_sum(weight);
    }
    if (lane == i) values[p] = weight > 0.0 ? (float)(total / weight) : 0.0f;
  }
}

// B-spline coefficients of one tile of 64 x 32 px, both axes in one launch. The tile and its halo are filtered along x
// by one thread per 16 px of a row, then along y by one thread per 8 px of a column; row strides are odd so that
// neighbouring rows fall on different banks.
template <int DEGREE>
__global__ void __launch_bounds__(256, DEGREE == 5 ? 3 : 4) resample_filter(const float* __restrict__ filled, int h, int w,
                                                       float* __restrict__ values) {
  constexpr int TX = 64, TY = 32, ACROSS = 16, DOWN = 8, HALO = resample::HALO<DEGREE>;
  constexpr int LX = TX + 2 * HALO, LY = TY + 2 * HALO;
  __shared__ float raw[LY][LX + 1];
  __shared__ float rows[LY][TX + 1];
  const int x0 = blockIdx.x * TX, y0 = blockIdx.y * TY, thread = threadIdx.x;
  for (int i = thread; i < LX * LY; i += blockDim.x) {
    const int y = i / LX, x = i % LX;
    raw[y][x] = filled[(size_t)resample::mirror(y0 - HALO + y, h) * w + resample::mirror(x0 - HALO + x, w)];
  }
  __syncthreads();
  for (int i = thread; i < LY * (TX / ACROSS); i += blockDim.x) {
    const int y = i % LY, x = i / LY * ACROSS;
    float v[ACROSS + 2 * HALO];
#pragma unroll
    for (int k = 0; k < ACROSS + 2 * HALO; ++k) v[k] = raw[y][x + k];
    resample::filter_window<DEGREE>(v);
#pragma unroll
    for (int k = 0; k < ACROSS; ++k) rows[y][x + k] = v[HALO + k];
  }
  __syncthreads();
  for (int i = thread; i < TX * (TY / DOWN); i += blockDim.x) {
    const int x = i % TX, y = i / TX * DOWN;
    float v[DOWN + 2 * HALO];
#pragma unroll
    for (int k = 0; k < DOWN + 2 * HALO; ++k) v[k] = rows[y + k][x];
    resample::filter_window<DEGREE>(v);
#pragma unroll
    for (int k = 0; k < DOWN; ++k)
      if (x0 + x < w && y0 + y + k < h) values[(size_t)(y0 + y + k) * w + x0 + x] = v[HALO + k];
  }
}

// Whether any of the N x N pixels from a pixel on has a bit: most footprints have none, and one byte tells.
template <int N>
__global__ void __launch_bounds__(256) resample_touched(const int* __restrict__ work, int h, int w,
                                                        unsigned char* __restrict__ touched) {
  constexpr int TX = 64, TY = 32, LX = TX + N - 1, LY = TY + N - 1;
  __shared__ unsigned char marked[LY][LX];
  __shared__ unsigned char rows[LY][TX];
  const int x0 = blockIdx.x * TX, y0 = blockIdx.y * TY, thread = threadIdx.x;
  for (int i = thread; i < LX * LY; i += blockDim.x) {
    const int y = y0 + i / LX, x = x0 + i % LX;
    marked[i / LX][i % LX] = y < h && x < w && work[(size_t)y * w + x] != 0;
  }
  __syncthreads();
  for (int i = thread; i < TX * LY; i += blockDim.x) {
    unsigned char any = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) any |= marked[i / TX][i % TX + k];
    rows[i / TX][i % TX] = any;
  }
  __syncthreads();
  for (int i = thread; i < TX * TY; i += blockDim.x) {
    const int y = i / TX, x = i % TX;
    unsigned char any = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) any |= rows[y + k][x];
    if (y0 + y < h && x0 + x < w) touched[(size_t)(y0 + y) * w + x0 + x] = any;
  }
}

// Gather: one thread a target pixel, blocks of 32 x 8 px. Cell sides are multiples of 8, so a block lies in one row of
// cells and spans at most 4 of them; their nodes are interpolated along y once per row and shared.
template <int METHOD>
__global__ void __launch_bounds__(256, resample::SIZE<METHOD> > 6 ? 2 : 4) resample_gather(
    const float* __restrict__ values, const float* __restrict__ variance, const int* __restrict__ work,
    const unsigned char* __restrict__ touched, int h, int w,
    const double* __restrict__ nodes, const int* __restrict__ cells, const double* __restrict__ exact, int ny, int nx,
    int spacing, double inverse, int flux, int grow, int no_data, int edge, int interp, int height, int width,
    float* __restrict__ image_out, float* __restrict__ variance_out, int* __restrict__ mask_out,
    float* __restrict__ weight_out) {
  constexpr int TX = 32, TY = 8, CELLS = 4;
  __shared__ double rows[TY][CELLS][4][4];
  const resample::Map map{nodes, cells, exact, ny, nx, spacing, inverse, flux != 0};
  const int x0 = blockIdx.x * TX, y0 = blockIdx.y * TY, i = y0 / spacing, j0 = x0 / spacing;
  const int across = spacing >= TX ? 1 : TX / spacing, terms = map.flux ? 4 : 2;

  for (int task = threadIdx.y * TX + threadIdx.x; task < TY * across * 4 * terms; task += TX * TY) {
    const int term = task % terms, k = task / terms % 4, c = task / (4 * terms) % across;
    const int ty = task / (4 * terms * across);
    if (j0 + c < nx) rows[ty][c][k][term] = resample::collapse(map, i, j0 + c, y0 + ty - i * spacing, k, term);
  }
  __syncthreads();

  const int x = x0 + threadIdx.x, y = y0 + threadIdx.y;
  if (x >= width || y >= height) return;
  const int j = x / spacing, tx = x - j * spacing, ty = y - i * spacing;
  const int cell = cells[(size_t)i * nx + j];
  resample::Position at{0.0, 0.0, quiet_nan()};
  if (cell == resample::CELL_INTERPOLATED)
    at = resample::interpolate(map, rows[threadIdx.y][j - j0], tx);
  else if (cell >= 0)
    at = resample::exact_position(map, cell, ty, tx);
  const resample::Source in{values, variance, work, touched, h, w, grow, no_data, edge, interp};
  const resample::Pixel out = resample::gather<METHOD>(in, at);
  const size_t p = (size_t)y * width + x;
  image_out[p] = out.image;
  if (variance_out) variance_out[p] = out.variance;
  mask_out[p] = out.mask;
  weight_out[p] = out.weight;
}

enum Corners { EXACT, DRIZZLE, ADAPTIVE };

// Methods that need corners: one thread a target pixel, blocks of 32 x 8 px, whose 33 x 9 corners are mapped once and shared.
template <Corners KIND>
static __device__ __forceinline__ void by_corners(
    const float* __restrict__ values, const float* __restrict__ variance, const int* __restrict__ work, int h, int w,
    const double* __restrict__ nodes, const int* __restrict__ cells, const double* __restrict__ exact, int ny, int nx,
    int spacing, double inverse, int flux, int grow, int no_data, int edge, int interp, int height, int width,
    float* __restrict__ image_out, float* __restrict__ variance_out, int* __restrict__ mask_out,
    float* __restrict__ weight_out, double pixfrac = 1.0) {
  constexpr int TX = 32, TY = 8;
  __shared__ double xs[TY + 1][TX + 1];
  __shared__ double ys[TY + 1][TX + 1];
  __shared__ float areas[TY + 1][TX + 1];
  const resample::Map map{nodes, cells, exact, ny, nx, spacing, inverse, flux != 0};
  const int x0 = blockIdx.x * TX, y0 = blockIdx.y * TY;
  for (int i = threadIdx.y * TX + threadIdx.x; i < (TX + 1) * (TY + 1); i += TX * TY) {
    const int cy = i / (TX + 1), cx = i % (TX + 1);
    if (y0 + cy <= height && x0 + cx <= width) {
      const overlap::Corner at = overlap::corner(map, y0 + cy, x0 + cx);
      xs[cy][cx] = at.x + 0.5;
      ys[cy][cx] = at.y + 0.5;
      areas[cy][cx] = at.area;
    }
  }
  __syncthreads();

  const int tx = threadIdx.x, ty = threadIdx.y, x = x0 + tx, y = y0 + ty;
  if (x >= width || y >= height) return;
  double qx[4] = {xs[ty][tx], xs[ty][tx + 1], xs[ty + 1][tx + 1], xs[ty + 1][tx]};
  double qy[4] = {ys[ty][tx], ys[ty][tx + 1], ys[ty + 1][tx + 1], ys[ty + 1][tx]};
  const float limit = overlap::SEAM * fmaxf(fmaxf(areas[ty][tx], areas[ty][tx + 1]),
                                            fmaxf(areas[ty + 1][tx], areas[ty + 1][tx + 1]));
  const resample::Source in{values, variance, work, nullptr, h, w, grow, no_data, edge, interp};
  resample::Pixel out;
  if constexpr (KIND == ADAPTIVE)
    out = overlap::smoothed(in, qx, qy, limit, flux != 0);
  else
    out = overlap::gather<KIND == DRIZZLE>(in, qx, qy, limit, flux != 0, pixfrac);
  const size_t p = (size_t)y * width + x;
  image_out[p] = out.image;
  if (variance_out) variance_out[p] = out.variance;
  mask_out[p] = out.mask;
  weight_out[p] = out.weight;
}

__global__ void __launch_bounds__(256, 2) resample_exact(
    const float* __restrict__ values, const float* __restrict__ variance, const int* __restrict__ work, int h, int w,
    const double* __restrict__ nodes, const int* __restrict__ cells, const double* __restrict__ exact, int ny, int nx,
    int spacing, double inverse, int flux, int grow, int no_data, int edge, int interp, int height, int width,
    float* __restrict__ image_out, float* __restrict__ variance_out, int* __restrict__ mask_out,
    float* __restrict__ weight_out) {
  by_corners<EXACT>(values, variance, work, h, w, nodes, cells, exact, ny, nx, spacing, inverse, flux, grow, no_data,
                    edge, interp, height, width, image_out, variance_out, mask_out, weight_out);
}

__global__ void __launch_bounds__(256, 2) resample_drizzle(
    const float* __restrict__ values, const float* __restrict__ variance, const int* __restrict__ work, int h, int w,
    const double* __restrict__ nodes, const int* __restrict__ cells, const double* __restrict__ exact, int ny, int nx,
    int spacing, double inverse, int flux, int grow, int no_data, int edge, int interp, int height, int width,
    float* __restrict__ image_out, float* __restrict__ variance_out, int* __restrict__ mask_out,
    float* __restrict__ weight_out, double pixfrac) {
  by_corners<DRIZZLE>(values, variance, work, h, w, nodes, cells, exact, ny, nx, spacing, inverse, flux, grow, no_data,
                      edge, interp, height, width, image_out, variance_out, mask_out, weight_out, pixfrac);
}

__global__ void __launch_bounds__(256, 2) resample_adaptive(
    const float* __restrict__ values, const float* __restrict__ variance, const int* __restrict__ work, int h, int w,
    const double* __restrict__ nodes, const int* __restrict__ cells, const double* __restrict__ exact, int ny, int nx,
    int spacing, double inverse, int flux, int grow, int no_data, int edge, int interp, int height, int width,
    float* __restrict__ image_out, float* __restrict__ variance_out, int* __restrict__ mask_out,
    float* __restrict__ weight_out) {
  by_corners<ADAPTIVE>(values, variance, work, h, w, nodes, cells, exact, ny, nx, spacing, inverse, flux, grow, no_data,
                       edge, interp, height, width, image_out, variance_out, mask_out, weight_out);
}
