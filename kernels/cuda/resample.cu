// SPDX-License-Identifier: BSD-3-Clause
#include "resample.cuh"

// Preparation: classify, fill and (SPLINE) filter one tile of 64 x 32 px, both axes in one launch. The tile and its
// halo are filtered along x by one thread per 8 px of a row, then along y by one thread per 8 px of a column; row
// strides are odd so that neighbouring rows fall on different banks.
template <bool SPLINE>
__global__ void __launch_bounds__(256) resample_prepare(const float* __restrict__ image,
                                                        const float* __restrict__ variance,
                                                        const int* __restrict__ mask, int h, int w, int fill, int bad,
                                                        int no_data, float* __restrict__ values,
                                                        int* __restrict__ work) {
  constexpr int TX = 64, TY = 32, RUN = 8, HALO = resample::HALO;
  constexpr int LX = TX + 2 * HALO, LY = TY + 2 * HALO;
  const resample::Plane in{image, variance, mask, h, w, fill, bad, no_data};
  const int x0 = blockIdx.x * TX, y0 = blockIdx.y * TY, thread = threadIdx.x;

  for (int i = thread; i < TX * TY; i += blockDim.x) {
    const int y = y0 + i / TX, x = x0 + i % TX;
    if (y < h && x < w) {
      work[(size_t)y * w + x] = in.classify(y, x);
      if constexpr (!SPLINE) values[(size_t)y * w + x] = in.value(y, x);
    }
  }
  if constexpr (SPLINE) {
    __shared__ float raw[LY][LX + 1];
    __shared__ float rows[LY][TX + 1];
    for (int i = thread; i < LX * LY; i += blockDim.x) {
      const int y = i / LX, x = i % LX;
      raw[y][x] = in.value(resample::mirror(y0 - HALO + y, h), resample::mirror(x0 - HALO + x, w));
    }
    __syncthreads();
    float v[RUN + 2 * HALO];
    for (int i = thread; i < LY * (TX / RUN); i += blockDim.x) {
      const int y = i % LY, x = i / LY * RUN;
#pragma unroll
      for (int k = 0; k < RUN + 2 * HALO; ++k) v[k] = raw[y][x + k];
      resample::filter_window(v);
#pragma unroll
      for (int k = 0; k < RUN; ++k) rows[y][x + k] = v[HALO + k];
    }
    __syncthreads();
    for (int i = thread; i < TX * (TY / RUN); i += blockDim.x) {
      const int x = i % TX, y = i / TX * RUN;
#pragma unroll
      for (int k = 0; k < RUN + 2 * HALO; ++k) v[k] = rows[y + k][x];
      resample::filter_window(v);
#pragma unroll
      for (int k = 0; k < RUN; ++k)
        if (x0 + x < w && y0 + y + k < h) values[(size_t)(y0 + y + k) * w + x0 + x] = v[HALO + k];
    }
  }
}

// Gather: one thread a target pixel, blocks of 32 x 8 px. Cell sides are multiples of 8, so a block lies in one row of
// cells and spans at most 4 of them; their nodes are interpolated along y once per row and shared.
template <int METHOD>
__global__ void __launch_bounds__(256, 4) resample_gather(
    const float* __restrict__ values, const float* __restrict__ variance, const int* __restrict__ work, int h, int w,
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
  const resample::Source in{values, variance, work, h, w, grow, no_data, edge, interp};
  const resample::Pixel out = resample::gather<METHOD>(in, at);
  const size_t p = (size_t)y * width + x;
  image_out[p] = out.image;
  if (variance_out) variance_out[p] = out.variance;
  mask_out[p] = out.mask;
  weight_out[p] = out.weight;
}
