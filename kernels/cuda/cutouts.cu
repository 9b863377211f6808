// SPDX-License-Identifier: BSD-3-Clause
#include "cutouts.cuh"

// Blocks of x share one window, y counts windows. T is any type of the size of the plane's: bits are copied.
template <typename T>
__global__ void cutouts(const T* __restrict__ plane, int height, int width, const int* __restrict__ middle, int count,
                        int half, T outside, T* __restrict__ out) {
  const int size = (2 * half + 1) * (2 * half + 1), i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= size) return;
  for (int k = blockIdx.y; k < count; k += gridDim.y)
    out[(size_t)k * size + i] = window_pixel(plane, height, width, middle[k], middle[count + k], half, i, outside);
}
