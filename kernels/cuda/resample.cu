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

// Whether any of the N x N pixels from a pixel on has a bit: most footprints have none. A block answers for 256 x 32 px,
// with a bit a pixel from the first step on.
template <int N>
__global__ void __launch_bounds__(256) resample_touched(const int* __restrict__ work, int h, int w,
                                                        unsigned* __restrict__ touched) {
  constexpr int WORDS = 8, TY = 32, LY = TY + N - 1;
  __shared__ unsigned marked[LY][WORDS + 1];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int x0 = blockIdx.x * WORDS, y0 = blockIdx.y * TY, across = (w + 31) / 32;
  const int own = (x0 + warp) * 32 + lane, beyond = (x0 + WORDS) * 32 + lane;
  const int rows = own < w ? h - y0 : 0, rows_beyond = lane < N && beyond < w ? h - y0 : 0;
  const int* from = work + (size_t)y0 * w;
#pragma unroll 4
  for (int row = 0; row < LY; ++row) {
    const unsigned word = __ballot_sync(0xffffffffu, row < rows && from[(size_t)row * w + own] != 0);
    if (lane == 0) marked[row][warp] = word;
  }
  for (int row = warp; row < LY; row += WORDS) {
    const unsigned word = __ballot_sync(0xffffffffu, row < rows_beyond && from[(size_t)row * w + beyond] != 0);
    if (lane == 0) marked[row][WORDS] = word;
  }
  __syncthreads();
  const int row = thread / WORDS, word = thread % WORDS;
  unsigned low = 0, high = 0;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    low |= marked[row + n][word];
    high |= marked[row + n][word + 1];
  }
  unsigned any = low;
#pragma unroll
  for (int k = 1; k < N; ++k) any |= __funnelshift_l(low, high, 32 - k);
  if (y0 + row < h && x0 + word < across) touched[(size_t)(y0 + row) * across + x0 + word] = any;
}

// The map under TX x TY px from (y0, x0) on, x0 a multiple of 32: the cells of each row, and their nodes interpolated
// along y. Cell sides are multiples of 8.
template <int TX, int TY, int TERMS>
struct Lines {
  static constexpr int CELLS = (TX + 7) / 8;
  double rows[TY][CELLS][4][TERMS];
  int cells[TY][CELLS];

  __device__ void fill(const resample::Map& map, int y0, int x0, int thread, int threads) {
    const int j0 = map.cell(x0), j1 = minimum(map.cell(x0 + TX - 1), map.nx - 1);
    for (int task = thread; task < TY * 4 * TERMS; task += threads) {
      const int term = task % TERMS, k = task / TERMS % 4, ty = task / (4 * TERMS), i = map.cell(y0 + ty);
      if (i >= map.ny) continue;
      for (int j = j0; j <= j1; ++j) {
        if (task % (4 * TERMS) == 0) cells[ty][j - j0] = map.cells[(size_t)i * map.nx + j];
        rows[ty][j - j0][k][term] = resample::collapse(map, i, j, y0 + ty - i * map.spacing, k, term);
      }
    }
  }

  template <bool CORNERS = false>
  __device__ resample::Position at(const resample::Map& map, int y, int ty, int c,
                                   const resample::Column<TERMS>& column) const {
    return resample::position<CORNERS>(map, cells[ty][c], rows[ty][c], y, column);
  }
};

// Where planes of the target go.
struct Target {
  int height, width;
  float *image, *variance;  // the latter or null
  int* mask;
  float* weight;

  __device__ void put(int y, int x, const resample::Pixel& pixel) const {
    const size_t p = (size_t)y * width + x;
    image[p] = pixel.image;
    if (variance) variance[p] = pixel.variance;
    mask[p] = pixel.mask;
    weight[p] = pixel.weight;
  }
};

// Gather: blocks of 32 x 8 threads for 32 x 32 px. Pixels whose footprint is not plain are few and take long: they wait
// until the others are done, so that they fill whole warps.
template <int METHOD, bool FLUX>
__global__ void __launch_bounds__(256, resample::SIZE<METHOD> > 6 ? 2 : FLUX ? 3 : 4) resample_gather(
    const float* __restrict__ values, const float* __restrict__ variance, const int* __restrict__ work,
    const unsigned* __restrict__ touched, int h, int w, const double* __restrict__ nodes, const int* __restrict__ cells,
    const double* __restrict__ exact, int ny, int nx, int spacing, double inverse, int grow, int no_data, int edge,
    int interp, int height, int width, float* __restrict__ image_out, float* __restrict__ variance_out,
    int* __restrict__ mask_out, float* __restrict__ weight_out) {
  constexpr int TX = 32, TY = 32, THREADS = 256, TERMS = FLUX ? 4 : 2;
  __shared__ Lines<TX, TY, TERMS> lines;
  __shared__ unsigned short waiting[TX * TY];
  __shared__ int count;
  const resample::Map map{nodes, cells, exact, ny, nx, spacing, inverse};
  const resample::Source in{values, variance, work, touched, h, w, grow, no_data, edge, interp};
  const Target out{height, width, image_out, variance_out, mask_out, weight_out};
  const int x0 = blockIdx.x * TX, y0 = blockIdx.y * TY, x = x0 + threadIdx.x, thread = threadIdx.y * TX + threadIdx.x;
  const int j0 = map.cell(x0);
  if (thread == 0) count = 0;
  lines.fill(map, y0, x0, thread, THREADS);
  __syncthreads();

  if (x < width) {
    const resample::Column<TERMS> column(map, x);
    const int rows = minimum(TY, height - y0);
    KEEP_LOOP for (int ty = threadIdx.y; ty < rows; ty += THREADS / TX) {
      const resample::Position at = lines.at(map, y0 + ty, ty, column.cell - j0, column);
      resample::Spot spot;
      resample::Pixel pixel = resample::nothing(in);
      if (resample::locate<METHOD>(in, at, spot)) {
        if (!resample::plain<METHOD>(in, spot)) {
          waiting[atomicAdd(&count, 1)] = (unsigned short)(ty * TX + threadIdx.x);
          continue;
        }
        pixel = resample::plain_pixel<METHOD>(in, spot, at.area);
      }
      out.put(y0 + ty, x, pixel);
    }
  }
  __syncthreads();

  KEEP_LOOP for (int n = thread; n < count; n += THREADS) {
    const int ty = waiting[n] / TX, late = x0 + waiting[n] % TX;
    const resample::Column<TERMS> column(map, late);
    const resample::Position at = lines.at(map, y0 + ty, ty, column.cell - j0, column);
    resample::Spot spot;
    resample::locate<METHOD>(in, at, spot);
    out.put(y0 + ty, late, resample::impaired_pixel<METHOD>(in, spot, at.area));
  }
}

enum Corners { EXACT, ADAPTIVE, DRIZZLE };

// Methods that need corners: blocks of 32 x 4 threads for 32 x 16 px, whose 33 x 17 corners are mapped once and shared.
template <int KIND, bool FLUX>
__global__ void __launch_bounds__(128, KIND == DRIZZLE ? 5 : 7) resample_by_corners(
    const float* __restrict__ values, const float* __restrict__ variance, const int* __restrict__ work, int h, int w,
    const double* __restrict__ nodes, const int* __restrict__ cells, const double* __restrict__ exact, int ny, int nx,
    int spacing, double inverse, int grow, int no_data, int edge, int interp, int height, int width,
    float* __restrict__ image_out, float* __restrict__ variance_out, int* __restrict__ mask_out,
    float* __restrict__ weight_out, double pixfrac) {
  constexpr int TX = 32, TY = 16, DOWN = 4;
  __shared__ union {
    Lines<TX + 1, TY + 1, 2> lines;                               // until corners are known,
    overlap::Edge edges[4][KIND == ADAPTIVE ? 1 : TX * DOWN];     // then those of the threads' pixels
  } memory;
  __shared__ double xs[TY + 1][TX + 1];
  __shared__ double ys[TY + 1][TX + 1];
  __shared__ float areas[TY + 1][TX + 1];
  const resample::Map map{nodes, cells, exact, ny, nx, spacing, inverse};
  const resample::Source in{values, variance, work, nullptr, h, w, grow, no_data, edge, interp};
  const Target out{height, width, image_out, variance_out, mask_out, weight_out};
  const int x0 = blockIdx.x * TX, y0 = blockIdx.y * TY, tx = threadIdx.x, thread = threadIdx.y * TX + tx;
  memory.lines.fill(map, y0, x0, thread, TX * DOWN);
  __syncthreads();
  const int j0 = map.cell(x0), rows = minimum(TY, height - y0);
  const auto know = [&](int cy, int cx, const resample::Column<2>& column) {
    const resample::Position at = memory.lines.template at<true>(map, y0 + cy, cy, column.cell - j0, column);
    xs[cy][cx] = at.x + 0.5;
    ys[cy][cx] = at.y + 0.5;
    areas[cy][cx] = at.area;
  };
  if (x0 + tx <= width) {
    const resample::Column<2> column(map, x0 + tx);
    KEEP_LOOP for (int cy = threadIdx.y; cy <= rows; cy += DOWN) know(cy, tx, column);
  }
  if (thread <= rows && x0 + TX <= width) know(thread, TX, resample::Column<2>(map, x0 + TX));
  __syncthreads();

  if (x0 + tx >= width) return;
  KEEP_LOOP for (int ty = threadIdx.y; ty < rows; ty += DOWN) {
    const double qx[4] = {xs[ty][tx], xs[ty][tx + 1], xs[ty + 1][tx + 1], xs[ty + 1][tx]};
    const double qy[4] = {ys[ty][tx], ys[ty][tx + 1], ys[ty + 1][tx + 1], ys[ty + 1][tx]};
    const float limit = overlap::SEAM * fmaxf(fmaxf(areas[ty][tx], areas[ty][tx + 1]),
                                              fmaxf(areas[ty + 1][tx], areas[ty + 1][tx + 1]));
    if constexpr (KIND == ADAPTIVE)
      out.put(y0 + ty, x0 + tx, overlap::smoothed(in, qx, qy, limit, FLUX));
    else
      out.put(y0 + ty, x0 + tx, overlap::gather<KIND == DRIZZLE>(in, qx, qy, {&memory.edges[0][thread], TX * DOWN}, limit, FLUX, pixfrac));
  }
}
