// SPDX-License-Identifier: BSD-3-Clause
#include "crc.cuh"

using namespace crc;

// CRC-32 of pieces of `data`, which begin at multiples of 4, `parts` blocks each; `out` is 0 before.
__global__ void __launch_bounds__(THREADS)
    crc32(const unsigned char* __restrict__ data, const long long* __restrict__ offset,
          const long long* __restrict__ length, int parts, const unsigned* __restrict__ tables,
          unsigned* __restrict__ out) {
  __shared__ unsigned steps[4 * 256];
  __shared__ unsigned sums[THREADS / 32];
  const int t = blockIdx.x / parts, part = blockIdx.x % parts;
  const long long size = length[t], begin = (long long)part * STRETCH;
  if (begin >= size && part) return;
  for (int i = threadIdx.x; i < 4 * 256; i += THREADS) steps[i] = tables[STEPS + i];
  __syncthreads();
  const int here = (int)minimum((long long)STRETCH, size - begin);
  // the register is full of ones at first, as if the first word were inverted
  const unsigned first = part == 0 ? 0xffffffffu : 0u;
  unsigned sum = share(data + offset[t] + begin, here, threadIdx.x, first, steps, tables + SHIFTS);
  for (int d = 16; d; d >>= 1) sum ^= __shfl_xor_sync(0xffffffffu, sum, d);
  if ((threadIdx.x & 31) == 0) sums[threadIdx.x >> 5] = sum;
  __syncthreads();
  if (threadIdx.x) return;
  for (int w = 1; w < THREADS / 32; ++w) sum ^= sums[w];
  sum = past(sum, (unsigned long long)(size - begin - here), tables + POWERS);
  if (part == 0) {
    if (size < 4) sum ^= past(0xffffffffu, (unsigned long long)size, tables + POWERS);
    sum = ~sum;
  }
  atomicXor(&out[t], sum);  // in any order
}
