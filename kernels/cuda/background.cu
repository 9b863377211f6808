// SPDX-License-Identifier: BSD-3-Clause
#include "background.cuh"

namespace {

constexpr int FEW = 24;      // keys that one thread sorts
constexpr int MANY = 1024;   // keys that are more than a warp should sort
constexpr int HUGE_MOST = 16;  // buckets of more than MANY keys in a cell of 128 x 128 px
constexpr unsigned ALL = 0xffffffffu;

struct WarpBarrier {
  __device__ void operator()() const { __syncwarp(); }
};

struct BlockBarrier {
  __device__ void operator()() const { __syncthreads(); }
};

struct Cell {
  const float* image;
  const unsigned char* good;
  int w, y0, x0, height, width;

  // The value of a pixel, NaN where it is not to be used.
  __device__ float operator()(int y, int x) const {
    const size_t p = (size_t)(y0 + y) * w + x0 + x;
    const float v = image[p];
    return good[p] && is_finite(v) ? v : quiet_nan();
  }
};

// Call use(value) for all usable pixels of the cell; each thread keeps to one column and has 4 loads in flight.
template <typename Use>
__device__ void for_each(const Cell& cell, Use use) {
  constexpr int AT_ONCE = 4;
  const int across = minimum((cell.width + 31) / 32 * 32, (int)blockDim.x), down = blockDim.x / across;
  const int row = threadIdx.x / across;
  if (row >= down) return;
  for (int x = threadIdx.x % across; x < cell.width; x += across)
    for (int y = row; y < cell.height; y += AT_ONCE * down) {
      float v[AT_ONCE];
#pragma unroll
      for (int k = 0; k < AT_ONCE; ++k) v[k] = y + k * down < cell.height ? cell(y + k * down, x) : quiet_nan();
#pragma unroll
      for (int k = 0; k < AT_ONCE; ++k)
        if (v[k] == v[k]) use(v[k]);
    }
}

// Centre and scale of the sky, roughly, from 32 pixels spread over the cell (a golden sequence); by one warp.
__device__ void look(const Cell& cell, unsigned* sample, float* centre, float* scale) {
  const int lane = threadIdx.x;
  const int p = (int)(((lane * 40503u + 20251u & 0xffffu) * (unsigned)(cell.height * cell.width)) >> 16);
  const float v = cell(p / cell.width, p % cell.width);
  const int n = __popc(__ballot_sync(ALL, v == v));
  const unsigned key = v == v ? background::key_of(v) : ALL;
  int rank = 0;
  KEEP_LOOP
  for (int d = 1; d < 32; ++d) {
    const int from = (lane + d) & 31;
    const unsigned other = __shfl_sync(ALL, key, from);
    rank += other < key || (other == key && from < lane);
  }
  sample[rank] = key;
  __syncwarp();
  if (lane) return;
  const auto at = [=](int i) { return n ? background::value_of(sample[i]) : 0.0f; };
  const float range = at(3 * n / 4) - at(n / 4), middle = at(n / 2);
  *centre = middle;
  *scale = range > 0.0f ? 2.5f * range : 1e-3f * fabsf(middle);  // 3.3 sigma of normal noise
}

// Counters of 16 bits, two to a word: a cell has no more pixels than 2^14.
__device__ int add_one(unsigned* counters, int i) {
  const int shift = 16 * (i & 1);
  return atomicAdd(&counters[i / 2], 1u << shift) >> shift & 0xffffu;
}

__device__ int counter(const unsigned* counters, int i) { return counters[i / 2] >> 16 * (i & 1) & 0xffffu; }

// Turn counts into the sums of those before; returns the sum of all. Every thread has `words` of them.
__device__ int running_sums(unsigned* counters, int words, unsigned* warps) {
  const int thread = threadIdx.x, lane = thread & 31, warp = thread / 32;
  unsigned* own = counters + thread * words;
  int sum = 0;
  for (int i = 0; i < words; ++i) sum += (own[i] & 0xffffu) + (own[i] >> 16);
  int upto = sum;
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(ALL, upto, d);
    if (lane >= d) upto += other;
  }
  if (lane == 31) warps[warp] = upto;
  __syncthreads();
  int before = upto - sum, total = 0;
  for (int i = 0; i < (int)blockDim.x / 32; ++i) {
    if (i < warp) before += warps[i];
    total += warps[i];
  }
  for (int i = 0; i < words; ++i) {
    const int low = own[i] & 0xffffu, high = own[i] >> 16;
    own[i] = (unsigned)before | (unsigned)(before + low) << 16;
    before += low + high;
  }
  __syncthreads();
  return total;
}

// Sort the keys inside every bucket. ends[b] is where bucket b ends, and b + 1 begins.
__device__ void sort_buckets(unsigned* keys, const unsigned* ends, int buckets, int* huge, int* huge_count) {
  const int thread = threadIdx.x, lane = thread & 31;
  for (int b0 = thread - lane; b0 < buckets; b0 += blockDim.x) {
    const int begin = b0 + lane ? counter(ends, b0 + lane - 1) : 0, n = counter(ends, b0 + lane) - begin;
    if (n <= FEW) background::insertion_sort(keys + begin, n);
    if (n > MANY) huge[atomicAdd(huge_count, 1)] = b0 + lane;
    __syncwarp();
    for (unsigned left = __ballot_sync(ALL, n > FEW && n <= MANY); left; left &= left - 1) {
      const int from = __shfl_sync(ALL, begin, __ffs(left) - 1), m = __shfl_sync(ALL, n, __ffs(left) - 1);
      bool sorted = true;  // equal values are
      for (int i = lane; i + 1 < m; i += 32) sorted &= keys[from + i] <= keys[from + i + 1];
      if (!__all_sync(ALL, sorted)) background::network_sort(keys + from, m, lane, 32, WarpBarrier());
    }
  }
  __syncthreads();
  for (int k = 0; k < *huge_count; ++k) {
    const int b = huge[k], from = b ? counter(ends, b - 1) : 0, m = counter(ends, b) - from;
    bool sorted = true;
    for (int i = thread; i + 1 < m; i += blockDim.x) sorted &= keys[from + i] <= keys[from + i + 1];
    if (!__syncthreads_and(sorted)) background::network_sort(keys + from, m, thread, blockDim.x, BlockBarrier());
  }
}

}  // namespace

// One block a cell: count pixels by bucket, put their keys in the order of the buckets, sort inside each, clip. The
// keys are in shared memory (SHARED), or in `scratch` (cells, capacity) on devices which have too little of it. Which
// thread wins an atomic decides where a key lies before the sort only.
template <bool SHARED>
__global__ void __launch_bounds__(1024, SHARED ? 2 : 1)
    cell_statistics(const float* __restrict__ image, const unsigned char* __restrict__ good, int h, int w, int ny,
                    int nx, int buckets, int capacity, int rounds, int share, float clip, float to_sigma,
                    unsigned* __restrict__ scratch, float* __restrict__ median, float* __restrict__ sigma,
                    int* __restrict__ count) {
  extern __shared__ unsigned memory[];
  __shared__ unsigned small[32];
  __shared__ float centre, scale;
  __shared__ int huge[HUGE_MOST], huge_count;
  const int number = blockIdx.y * nx + blockIdx.x;
  unsigned* ends = memory;
  unsigned* keys = SHARED ? memory + buckets / 2 : scratch + (size_t)number * capacity;
  const int y0 = background::edge(blockIdx.y, h, ny), x0 = background::edge(blockIdx.x, w, nx);
  const Cell cell{image, good, w, y0, x0, background::edge(blockIdx.y + 1, h, ny) - y0,
                  background::edge(blockIdx.x + 1, w, nx) - x0};

  if (threadIdx.x < 32) look(cell, small, &centre, &scale);
  if (threadIdx.x == 0) huge_count = 0;
  for (int i = threadIdx.x; i < buckets / 2; i += blockDim.x) ends[i] = 0;
  __syncthreads();
  const background::Buckets bucket(centre, scale, buckets);
  for_each(cell, [&](float v) { add_one(ends, bucket.of(v)); });
  __syncthreads();
  const int left = running_sums(ends, buckets / 2 / blockDim.x, small);
  if (left < maximum(1, cell.height * cell.width / share)) {
    if (threadIdx.x == 0) {
      median[number] = sigma[number] = quiet_nan();
      count[number] = 0;
    }
    return;
  }
  for_each(cell, [&](float v) { keys[add_one(ends, bucket.of(v))] = background::key_of(v); });
  __syncthreads();
  sort_buckets(keys, ends, buckets, huge, &huge_count);
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const background::Statistics s = background::clipped(keys, left, rounds, clip);
  if (threadIdx.x == 0) {
    median[number] = s.median;
    sigma[number] = to_sigma * s.deviation;
    count[number] = s.count;
  }
}

// One thread a block of 4 x 4 px.
__global__ void block_scores(const float* __restrict__ image, const unsigned char* __restrict__ good, int w, int rows,
                             int columns, const float* __restrict__ sigma, int ny, int nx, float* __restrict__ score) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= columns || y >= rows) return;
  score[(size_t)y * columns + x] =
      background::block_score(image, good, w, y, x, rows, columns, sigma, ny, nx);
}

// One thread a block of 4 x 4 px; the last ones may be cut by the border and belong to no block.
__global__ void blank_sky(const unsigned char* __restrict__ good, const float* __restrict__ score, int h, int w,
                          float limit, unsigned char* __restrict__ blank) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  const int rows = h / background::BLOCK, columns = w / background::BLOCK;
  const bool source = y < rows && x < columns && background::stands_out(score, rows, columns, y, x, limit);
#pragma unroll
  for (int j = 0; j < background::BLOCK; ++j)
#pragma unroll
    for (int i = 0; i < background::BLOCK; ++i) {
      const int row = y * background::BLOCK + j, column = x * background::BLOCK + i;
      if (row < h && column < w) {
        const size_t p = (size_t)row * w + column;
        blank[p] = good[p] && !source;
      }
    }
}
