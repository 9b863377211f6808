// SPDX-License-Identifier: BSD-3-Clause
// Convolution with one kernel for each square tile: a block makes 32 x 32 pixels of one tile from a halo in shared
// memory; a thread makes COLUMN pixels one below the other.
#include "convolve.cuh"

constexpr int SIDE = 32;

__global__ void __launch_bounds__(SIDE* SIDE / COLUMN)
convolve_tiles(const float* __restrict__ plane, const float* __restrict__ kernels, int height, int width, int kh, int kw,
               int tile, int tiles_x, float* __restrict__ out)
{
    extern __shared__ float halo[];
    const int x0 = blockIdx.x * SIDE, y0 = blockIdx.y * SIDE, pitch = SIDE + kw - 1, rows = SIDE + kh - 1;
    for (int i = threadIdx.y * SIDE + threadIdx.x; i < rows * pitch; i += SIDE * SIDE / COLUMN) {
        const int y = y0 - kh / 2 + i / pitch, x = x0 - kw / 2 + i % pitch;
        halo[i] = y >= 0 && y < height && x >= 0 && x < width ? plane[(long long)y * width + x] : 0.0f;
    }
    __syncthreads();
    const float* taps = kernels + ((long long)(y0 / tile) * tiles_x + x0 / tile) * kh * kw;
    const int row = threadIdx.y * COLUMN;
    float sum[COLUMN] = {};
    for (int i = 0; i < kw; ++i)
        convolve_column(halo + row * pitch + threadIdx.x + kw - 1 - i, pitch, taps + i, kw, kh, sum);
    const int x = x0 + threadIdx.x;
    for (int r = 0; r < COLUMN; ++r)
        if (x < width && y0 + row + r < height) out[(long long)(y0 + row + r) * width + x] = sum[r];
}
