// SPDX-License-Identifier: BSD-3-Clause
// Peaks and 8-connected components. Few pixels of a signal-to-noise plane are beyond the threshold: one pass over the
// plane lists them, all that follows goes through the list. Its order depends on which block comes first, the results do
// not: peaks are sorted by pixel, and the root of a component is its first pixel in raster order.
#include "detect.cuh"

namespace {

constexpr int THREADS = 256, QUADS = 4;        // quads of pixels a thread
constexpr int SPAN = THREADS * QUADS * 4;      // pixels of a block

// First pixel of quad q of this thread; the last block may begin less than a span before 2^31.
__device__ long long begin(int q) { return (long long)blockIdx.x * SPAN + (q * THREADS + threadIdx.x) * 4; }

// The pixel of bit b: bits 4 q to 4 q + 3 are those of quad q.
__device__ int pixel(int b) { return (int)begin(b / 4) + b % 4; }

// 4 pixels, 0 beyond the end of the plane.
__device__ float4 quad(const float* __restrict__ image, int n, int q)
{
    const long long p = begin(q);
    if (p + 4 <= n) return __ldg(reinterpret_cast<const float4*>(image + p));
    float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
    if (p < n) v.x = image[p];
    if (p + 1 < n) v.y = image[p + 1];
    if (p + 2 < n) v.z = image[p + 2];
    return v;
}

// Bits of the pixels of a quad that are beyond the threshold.
__device__ unsigned beyond(const float4& v, float t)
{
    return (fabsf(v.x) > t) | (fabsf(v.y) > t) << 1 | (fabsf(v.z) > t) << 2 | (fabsf(v.w) > t) << 3;
}

// Place in a list for `own` entries of this thread: one addition to the list's length a block.
__device__ int reserve(int own, int* length, int* shared)
{
    if (threadIdx.x == 0) *shared = 0;
    __syncthreads();
    const int before = own ? atomicAdd(shared, own) : 0;
    __syncthreads();
    if (threadIdx.x == 0) *shared = atomicAdd(length, *shared);
    __syncthreads();
    return *shared + before;
}

}  // namespace

// List the peaks: `found` (capacity) after their number.
__global__ void __launch_bounds__(THREADS)
    find_peaks(const float* __restrict__ image, int height, int width, float threshold, int* __restrict__ length,
               unsigned long long* __restrict__ found)
{
    __shared__ int shared;
    float4 v[QUADS];
    unsigned high = 0;
#pragma unroll
    for (int q = 0; q < QUADS; ++q) v[q] = quad(image, height * width, q);
#pragma unroll
    for (int q = 0; q < QUADS; ++q) high |= beyond(v[q], threshold) << (4 * q);
    if (!__syncthreads_or(high)) return;
    unsigned peaks = 0;
    KEEP_LOOP
    for (unsigned left = high; left; left &= left - 1) {
        const int b = __ffs(left) - 1, p = pixel(b);
        if (peak_sign(image, height, width, p / width, p % width, threshold)) peaks |= 1u << b;
    }
    if (!__syncthreads_or(peaks)) return;
    int at = reserve(__popc(peaks), length, &shared);
    KEEP_LOOP
    for (unsigned left = peaks; left; left &= left - 1) {
        const int p = pixel(__ffs(left) - 1);
        found[at++] = packed(p, image[p]);
    }
}

// Every pixel beyond the threshold is its own parent and is listed; all others belong to nothing.
__global__ void __launch_bounds__(THREADS)
    label_start(const float* __restrict__ image, int n, float threshold, int* __restrict__ parent,
                int* __restrict__ length, int* __restrict__ list)
{
    __shared__ int shared;
    float4 v[QUADS];
    unsigned high = 0;
#pragma unroll
    for (int q = 0; q < QUADS; ++q) v[q] = quad(image, n, q);
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
        const unsigned own = beyond(v[q], threshold);
        const long long p = begin(q);
        high |= own << (4 * q);
        const int number = (int)p + 1;
        const int4 up = {own & 1 ? number : 0, own & 2 ? number + 1 : 0, own & 4 ? number + 2 : 0,
                         own & 8 ? number + 3 : 0};
        if (p + 4 <= n) {
            *reinterpret_cast<int4*>(parent + p) = up;
        } else {
            if (p < n) parent[p] = up.x;
            if (p + 1 < n) parent[p + 1] = up.y;
            if (p + 2 < n) parent[p + 2] = up.z;
        }
    }
    if (!__syncthreads_or(high)) return;
    int at = reserve(__popc(high), length, &shared);
    KEEP_LOOP
    for (unsigned left = high; left; left &= left - 1) list[at++] = pixel(__ffs(left) - 1);
}

// The root of pixel i; the pixels on the way are hung two steps higher, which keeps the trees of huge components flat.
// A store may undo another thread's atomicMin on a pixel that is a root no more: that thread goes on to unite both trees.
__device__ int climb(int* parent, int i)
{
    for (int up = parent[i] - 1; up != i;) {
        const int next = parent[up] - 1;
        if (next != up) parent[i] = next + 1;
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
        const int seen = atomicMin(&parent[high], low + 1) - 1;
        if (seen == high) return;
        a = seen;
        b = low;
    }
}

__global__ void label_merge(const float* __restrict__ image, int width, float threshold, const int* __restrict__ list,
                            const int* __restrict__ length, int* parent)
{
    const int n = *length;
    for (int k = blockIdx.x * blockDim.x + threadIdx.x; k < n; k += gridDim.x * blockDim.x) {
        const int i = list[k], x = i % width;
        const float v = image[i];
        if (x > 0 && joined(v, image[i - 1], threshold)) unite(parent, i, i - 1);
        if (i >= width) {
            const int up = i - width;
            if (joined(v, image[up], threshold)) unite(parent, i, up);
            else {
                if (x > 0 && joined(v, image[up - 1], threshold)) unite(parent, i, up - 1);
                if (x + 1 < width && joined(v, image[up + 1], threshold)) unite(parent, i, up + 1);
            }
        }
    }
}

// The root of every listed pixel, and the list of roots.
__global__ void label_roots(const int* __restrict__ parent, const int* __restrict__ list,
                            const int* __restrict__ length, int* __restrict__ root, int* __restrict__ count,
                            int* __restrict__ roots)
{
    const int n = *length;
    for (int k = blockIdx.x * blockDim.x + threadIdx.x; k < n; k += gridDim.x * blockDim.x) {
        const int i = list[k], r = find_root(parent, i);
        root[k] = r;
        if (r == i) roots[atomicAdd(count, 1)] = i;
    }
}

// Number components in the order of their roots, at the roots.
__global__ void label_number(const int* __restrict__ roots, int count, int* __restrict__ labels)
{
    const int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k < count) labels[roots[k]] = k + 1;
}

// Hand the number of a root to all its pixels, and count them: one addition a component and warp.
__global__ void label_spread(const int* __restrict__ list, const int* __restrict__ root, int n, int* labels,
                             int* __restrict__ area)
{
    const int k = blockIdx.x * blockDim.x + threadIdx.x;
    const int number = k < n ? labels[root[k]] : 0;
    const unsigned same = __match_any_sync(0xffffffffu, number);
    if (k >= n) return;
    labels[list[k]] = number;
    if ((int)(threadIdx.x & 31) == __ffs(same) - 1) atomicAdd(&area[number - 1], __popc(same));
}
