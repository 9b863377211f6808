// SPDX-License-Identifier: BSD-3-Clause
// Peaks and 8-connected components. The root of a component is its first pixel in raster order, whatever the order of
// the atomic updates: the labels are deterministic.
#include "detect.cuh"

__global__ void peak_flags(const float* __restrict__ image, int height, int width, float threshold,
                           signed char* __restrict__ out)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height) out[(long long)y * width + x] = peak_sign(image, height, width, y, x, threshold);
}

__global__ void label_start(const float* __restrict__ image, int n, float threshold, int* __restrict__ parent)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) parent[i] = fabsf(image[i]) > threshold ? i : -1;
}

// The root of pixel i; the pixels on the way are hung two steps higher, which keeps the trees of huge components flat.
// A store may undo another thread's atomicMin on a pixel that is a root no more: that thread goes on to unite both trees.
__device__ int climb(int* parent, int i)
{
    for (int up = parent[i]; up != i;) {
        const int next = parent[up];
        if (next != up) parent[i] = next;
        i = up;
        up = next;
    }
    return i;
}

// Hang the larger root under the smaller one; whoever loses a race goes on from what it found.
__device__ void unite(int* parent, int a, int b)
{
    while (true) {
        a = climb(parent, a);
        b = climb(parent, b);
        if (a == b) return;
        const int low = minimum(a, b), high = maximum(a, b);
        const int seen = atomicMin(&parent[high], low);
        if (seen == high) return;
        a = seen;
        b = low;
    }
}

__global__ void label_merge(const float* __restrict__ image, int height, int width, float threshold, int* parent)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    const int i = y * width + x;
    const float v = image[i];
    if (!(fabsf(v) > threshold)) return;
    if (x > 0 && joined(v, image[i - 1], threshold)) unite(parent, i, i - 1);
    if (y > 0) {
        const int up = i - width;
        if (joined(v, image[up], threshold)) unite(parent, i, up);
        else {
            if (x > 0 && joined(v, image[up - 1], threshold)) unite(parent, i, up - 1);
            if (x + 1 < width && joined(v, image[up + 1], threshold)) unite(parent, i, up + 1);
        }
    }
}

// Point every pixel at its root, and mark the roots.
__global__ void label_flatten(const int* __restrict__ parent, int n, int* __restrict__ root, int* __restrict__ is_root)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    root[i] = parent[i] < 0 ? -1 : find_root(parent, i);
    is_root[i] = parent[i] == i;
}

// number[r] counts the roots up to and including pixel r: the component's number.
__global__ void label_number(const int* __restrict__ root, const int* __restrict__ number, int n, int* __restrict__ labels)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) labels[i] = root[i] < 0 ? 0 : number[root[i]];
}
