// SPDX-License-Identifier: BSD-3-Clause
#include "background.cuh"

namespace {

constexpr int THREADS = 512;

// Bits that are set in the masks of all threads of the block.
__device__ int count_bits(unsigned mask, int* total) {
  if (threadIdx.x == 0) *total = 0;
  __syncthreads();
  atomicAdd(total, __popc(mask));
  __syncthreads();
  const int sum = *total;
  __syncthreads();
  return sum;
}

// The rank-th smallest (from 0) of the values of this block that are alive, or of their distances to `middle`: 4
// counting passes over registers, integer atomics in shared memory only, so the same bits on every run.
template <int ITEMS>
__device__ __forceinline__ float select(const float (&values)[ITEMS], unsigned alive, bool distance, float middle,
                                     int rank, int* bins, unsigned* found) {
  unsigned prefix = 0;
  KEEP_LOOP
  for (int pass = 0; pass < background::DIGITS; ++pass) {
    // seen as new in every pass, or the compiler computes all keys and tests ahead of the loop and spills them
    asm volatile("" : "+r"(alive), "+f"(middle));
    if (threadIdx.x < background::BINS) bins[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
      const unsigned key = background::key_of(distance ? fabsf(values[k] - middle) : values[k]);
      if ((alive >> k & 1) && background::agrees(key, prefix, pass)) atomicAdd(&bins[background::digit(key, pass)], 1);
    }
    __syncthreads();
    if (threadIdx.x < 32) {  // one warp finds the bin: 8 bins a lane
      const int first = threadIdx.x * 8;
      int sum = 0;
      KEEP_LOOP
      for (int b = 0; b < 8; ++b) sum += bins[first + b];
      int below = sum;
      KEEP_LOOP
      for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, below, d);
        if (threadIdx.x >= d) below += other;
      }
      below -= sum;
      if (rank >= below && rank < below + sum) {
        int b = first;
        while (rank >= below + bins[b]) below += bins[b++];
        found[0] = prefix << 8 | (unsigned)b;
        found[1] = (unsigned)(rank - below);
      }
    }
    __syncthreads();
    prefix = found[0];
    rank = (int)found[1];
    __syncthreads();
  }
  return background::value_of(prefix);
}

}  // namespace

// One block a cell of at most ITEMS * THREADS pixels, which stay in registers through all rounds of clipping.
template <int ITEMS>
__global__ void __launch_bounds__(THREADS)
    cell_statistics(const float* __restrict__ image, const bool* __restrict__ good, int h, int w, int ny, int nx,
                    int rounds, int share, float clip, float to_sigma, float* __restrict__ median,
                    float* __restrict__ sigma, int* __restrict__ count) {
  __shared__ int bins[background::BINS];
  __shared__ unsigned found[2];
  __shared__ int total;
  const int y0 = background::edge(blockIdx.y, h, ny), height = background::edge(blockIdx.y + 1, h, ny) - y0;
  const int x0 = background::edge(blockIdx.x, w, nx), width = background::edge(blockIdx.x + 1, w, nx) - x0;
  const int pixels = height * width, cell = blockIdx.y * nx + blockIdx.x;

  float values[ITEMS];
  unsigned alive = 0;
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) {
    const int i = k * THREADS + threadIdx.x;
    values[k] = 0.0f;
    bool use = false;
    if (i < pixels) {
      const size_t p = (size_t)(y0 + i / width) * w + x0 + i % width;
      values[k] = image[p];
      use = good[p] && is_finite(values[k]);
    }
    alive |= (unsigned)use << k;
  }
  int left = count_bits(alive, &total);
  if (left < maximum(1, pixels / share)) {
    if (threadIdx.x == 0) {
      median[cell] = sigma[cell] = quiet_nan();
      count[cell] = 0;
    }
    return;
  }
  float middle = 0.0f, deviation = 0.0f;
  KEEP_LOOP
  for (int round = 0; round < rounds; ++round) {
    middle = select<ITEMS>(values, alive, false, 0.0f, (left - 1) / 2, bins, found);
    deviation = select<ITEMS>(values, alive, true, middle, (left - 1) / 2, bins, found);
    if (deviation == 0.0f) break;
    const float limit = clip * deviation;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k)
      if (fabsf(values[k] - middle) > limit) alive &= ~(1u << k);
    const int kept = count_bits(alive, &total);
    if (kept == left) break;
    left = kept;
  }
  if (threadIdx.x == 0) {
    median[cell] = middle;
    sigma[cell] = to_sigma * deviation;
    count[cell] = left;
  }
}
