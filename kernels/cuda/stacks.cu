// SPDX-License-Identifier: BSD-3-Clause
// An image as a stack of overlapping tiles, and back; blockIdx.y is the tile.
#include "stacks.cuh"

__global__ void cut_tiles(const float* __restrict__ difference, const float* __restrict__ fixed,
                          const float* __restrict__ moved, const bool* __restrict__ usable,
                          const bool* __restrict__ good_fixed, const bool* __restrict__ good_moved,
                          const int* __restrict__ rows, const int* __restrict__ columns, int height, int width,
                          int tiles_x, int size, float scale, float* __restrict__ out, bool* __restrict__ usable_out)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x, t = blockIdx.y;
    if (i >= size * size) return;
    const int y = rows[t / tiles_x] + i / size, x = columns[t % tiles_x] + i % size;
    const bool in = inside(y, x, height, width);
    const long long from = in ? (long long)y * width + x : 0, to = (long long)t * size * size + i,
                    stack = (long long)gridDim.y * size * size;
    const bool use = in && usable[from];
    usable_out[to] = use;
    out[to] = use ? difference[from] : 0.0f;
    out[stack + to] = in && good_fixed[from] ? fixed[from] * scale : 0.0f;
    out[2 * stack + to] = in && good_moved[from] ? moved[from] * scale : 0.0f;
}

__global__ void join_tiles(const float* __restrict__ whitened, const float* __restrict__ variance,
                           const float* __restrict__ exact, const float* __restrict__ weight,
                           const float* __restrict__ plain, const float* __restrict__ signal,
                           const bool* __restrict__ usable, const int* __restrict__ rows,
                           const int* __restrict__ columns, int tiles_x, int height, int width, int size, int side,
                           int pad, float* __restrict__ out)
{
    const int k = blockIdx.x * blockDim.x + threadIdx.x, t = blockIdx.y;
    const int *row = rows + t / tiles_x, *column = columns + t % tiles_x;
    const int j = k / side, i = k % side, y = row[0] + j, x = column[0] + i;
    if (y >= row[1] || x >= column[1]) return;
    const long long from = ((long long)t * size + pad + j) * size + pad + i, plane = (long long)height * width,
                    to = (long long)(y - rows[0]) * width + x - columns[0];
    const bool good = usable[from];
    const float a = weight[from], b = exact[from], c = plain[from];
    out[to] = good ? whitened[from] : quiet_nan();
    out[plane + to] = good ? variance[from] : quiet_nan();
    out[2 * plane + to] = good && a > 0.0f && b > 0.0f && c > 0.0f ? signal[from] / sqrtf(a * b / c) : quiet_nan();
}
