// SPDX-License-Identifier: BSD-3-Clause
// Mask bits of two images in one; a thread makes one pixel.
#include "masks.cuh"

__global__ void merge_masks(const int* __restrict__ moved, const int* __restrict__ fixed,
                            const int* __restrict__ moved_bits, const int* __restrict__ fixed_bits, int spreading,
                            const bool* __restrict__ reached, const bool* __restrict__ usable, int height, int width,
                            int reach, int invalid, int edge, int no_data, int* __restrict__ out)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    const long long at = (long long)y * width + x;
    int bits = translate_bits(moved[at], moved_bits) | translate_bits(fixed[at], fixed_bits);
    if (reached[at]) {
        bits |= translate_bits(bits_around(moved, height, width, y, x, reach, spreading), moved_bits);
        if (!flagged(bits, invalid)) bits |= edge;
    }
    if (!usable[at] && !flagged(bits, invalid)) bits |= no_data;
    out[at] = bits;
}
