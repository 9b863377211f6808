// SPDX-License-Identifier: BSD-3-Clause
// Smoothing and peaks over planes; then one block or one warp a star. Lanes sum their pixels in order and a butterfly
// adds the lanes in a fixed order.
#include "stars.cuh"

constexpr int SIDE = 32, ROWS = 8, WARPS = 4;
constexpr unsigned ALL = 0xffffffffu;

// A block makes SIDE x SIDE pixels: down the columns of a halo in shared memory, then along the rows. RADIUS is the
// filter's where the compiler shall know it, 0 where it comes as `given`.
template <int RADIUS>
__global__ void __launch_bounds__(SIDE* ROWS)
smooth_masked(const float* __restrict__ image, const unsigned char* __restrict__ good, int height, int width,
              const double* __restrict__ taps, int given, float* __restrict__ out)
{
    extern __shared__ float halo[];
    const int radius = RADIUS ? RADIUS : given;
    const int pitch = SIDE + 2 * radius, x0 = blockIdx.x * SIDE, y0 = blockIdx.y * SIDE;
    const int thread = threadIdx.y * SIDE + threadIdx.x;
    const stars::Plane plane = {image, good, height, width};
    float* middle = halo + pitch * pitch;
    for (int i = thread; i < pitch * pitch; i += SIDE * ROWS)
        halo[i] = plane.at(y0 - radius + i / pitch, x0 - radius + i % pitch);
    __syncthreads();
    for (int i = thread; i < SIDE * pitch; i += SIDE * ROWS)
        middle[i] = stars::filtered(halo + radius * pitch + i, pitch, taps, radius);
    __syncthreads();
    for (int row = threadIdx.y; row < SIDE; row += ROWS) {
        const int y = y0 + row, x = x0 + threadIdx.x;
        if (y >= height || x >= width) continue;
        const long long p = (long long)y * width + x;
        out[p] = good[p] ? stars::filtered(middle + row * pitch + radius + threadIdx.x, 1, taps, radius) : 0.0f;
    }
}

// Peaks in any order; at most `capacity` are kept, all are counted.
__global__ void light_peaks(const float* __restrict__ light, const unsigned char* __restrict__ good,
                            const float* __restrict__ variance, int height, int width, float gain,
                            const float* __restrict__ limit, int radius, int capacity, int* __restrict__ count,
                            int* __restrict__ pixel, float* __restrict__ snr, float* __restrict__ tops)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    const int p = y * width + x;
    const float v = light[p], s = stars::light_snr(v, good[p], variance ? variance[p] * gain : gain);
    if (!(s > limit[0]) || !stars::is_peak(light, height, width, y, x, radius)) return;
    const int k = atomicAdd(count, 1);
    if (k >= capacity) return;
    pixel[k] = p;
    snr[k] = s;
    tops[k] = v;
}

// Every n-th pixel of every n-th row.
__global__ void sample_snr(const float* __restrict__ light, const unsigned char* __restrict__ good,
                           const float* __restrict__ variance, int width, float gain, int every, int rows, int columns,
                           float* __restrict__ out)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * columns) return;
    const long long p = (long long)(i / columns) * every * width + i % columns * every;
    out[i] = good[p] ? stars::light_snr(light[p], true, variance ? variance[p] * gain : gain) : quiet_nan();
}

// One thread: some hundred comparisons.
__global__ void robust_levels(const float* __restrict__ ascending, int size, float times, float least,
                              float* __restrict__ out)
{
    stars::robust_levels(ascending, size, times, least, out);
}

// One block a star; `member` lists dy, dx and the ring of all pixels, ring by ring.
__global__ void ring_medians(const float* __restrict__ image, const unsigned char* __restrict__ good, int height,
                             int width, const int* __restrict__ pixel, const int* __restrict__ member,
                             int total, int half, int core, double* __restrict__ table)
{
    extern __shared__ float values[];
    const stars::Plane plane = {image, good, height, width};
    const int k = blockIdx.x, y = pixel[k] / width, x = pixel[k] % width;
    float* low = values + total;
    float* high = low + half + 1;
    int* start = (int*)(high + half + 1);
    table += (long long)k * (half + 2);
    for (int i = threadIdx.x; i < total; i += blockDim.x) {
        values[i] = plane.at(y + member[3 * i], x + member[3 * i + 1]);
        if (i == 0 || member[3 * i + 2] != member[3 * i - 1]) start[member[3 * i + 2]] = i;
    }
    if (threadIdx.x == 0) {
        table[half + 1] = stars::clean(plane, y, x, core);
        start[half + 1] = total;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < total; i += blockDim.x) {
        const int r = member[3 * i + 2], n = start[r + 1] - start[r];
        const int rank = stars::rank_of(values + start[r], n, i - start[r]);
        if (rank == (n - 1) / 2) low[r] = values[i];
        if (rank == n / 2) high[r] = values[i];
    }
    __syncthreads();
    for (int r = threadIdx.x; r <= half; r += blockDim.x) table[r] = ((double)low[r] + (double)high[r]) / 2;
}

__device__ void sum_moments(stars::Moments& m, const stars::Plane& plane, int y, int x, int half, double variance,
                            double cx, double cy, double* wx, double* wy)
{
    const int lane = threadIdx.x % 32, side = 2 * half + 1;
    for (int i = lane; i < side; i += 32) {
        wx[i] = stars::window_weight(i - half - cx, variance);
        wy[i] = stars::window_weight(i - half - cy, variance);
    }
    __syncwarp();
    m.clear();
    int j = lane / side, i = lane % side;
    const int rows = 32 / side, columns = 32 % side;
    KEEP_LOOP
    while (j < side) {
        const float v = plane.at(y + j - half, x + i - half);
        if (v != 0) m.add(v, wx[i], i - half - cx, wy[j], j - half - cy);
        j += rows;
        i += columns;
        if (i >= side) {
            i -= side;
            ++j;
        }
    }
    for (int k = 0; k < 6; ++k)
        for (int offset = 16; offset > 0; offset /= 2) m.s[k] += __shfl_xor_sync(ALL, m.s[k], offset);
    __syncwarp();
}

__global__ void __launch_bounds__(32 * WARPS, 8)
star_shapes(const float* __restrict__ image, const unsigned char* __restrict__ good, int height, int width,
            const int* __restrict__ pixel, int n, int half, int core, double sigma, int iterations, double still,
            double infinity, double* __restrict__ measures)
{
    extern __shared__ double windows[];
    const int k = blockIdx.x * WARPS + threadIdx.x / 32, side = 2 * half + 1;
    if (k >= n) return;  // whole warps leave: the shuffles of the others are untouched
    double* wx = windows + threadIdx.x / 32 * 2 * side;
    double* wy = wx + side;
    const stars::Plane plane = {image, good, height, width};
    const int y = pixel[k] / width, x = pixel[k] % width;
    const double variance = sigma * sigma;
    double cx = 0, cy = 0;
    stars::Moments m;
    bool arrived = false;
    KEEP_LOOP
    for (int step = 0;; ++step) {
        sum_moments(m, plane, y, x, half, variance, cx, cy, wx, wy);
        if (arrived || step == iterations) break;
        arrived = stars::move_centre(m, half, still, &cx, &cy);
    }
    if (threadIdx.x % 32) return;
    double size, ellipticity;
    stars::freed_shape(m, variance, infinity, &size, &ellipticity);
    measures[k] = cx;
    measures[n + k] = cy;
    measures[2 * n + k] = size;
    measures[3 * n + k] = ellipticity;
    measures[4 * n + k] = stars::clean(plane, y, x, core);
}

__global__ void __launch_bounds__(32 * WARPS)
star_apertures(const float* __restrict__ image, const unsigned char* __restrict__ good, int height, int width,
               const int* __restrict__ pixel, const double* __restrict__ centre, int n, int half, double aperture,
               double core, double infinity, double* __restrict__ measures)
{
    const int k = blockIdx.x * WARPS + threadIdx.x / 32, side = 2 * half + 1, lane = threadIdx.x % 32;
    if (k >= n) return;
    const stars::Plane plane = {image, good, height, width};
    const int y = pixel[k] / width, x = pixel[k] % width;
    const double cx = centre[k], cy = centre[n + k];
    double flux = 0, peak = -infinity;
    bool bad = false;
    KEEP_LOOP
    for (int i = lane; i < side * side; i += 32) {
        const int dy = i / side - half, dx = i % side - half;
        const double r = sqrt((dx - cx) * (dx - cx) + (dy - cy) * (dy - cy)), weight = stars::soft_edge(aperture, r);
        if (weight == 0 && r > core) continue;
        const double v = plane.at(y + dy, x + dx);
        flux += v * weight;
        if (r <= core) {
            peak = maximum(peak, v);
            bad |= !plane.usable(y + dy, x + dx);
        }
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        flux += __shfl_xor_sync(ALL, flux, offset);
        peak = maximum(peak, __shfl_xor_sync(ALL, peak, offset));
    }
    bad = __any_sync(ALL, bad);
    if (lane) return;
    measures[k] = flux;
    measures[n + k] = peak;
    measures[2 * n + k] = bad;
}

__global__ void neighbours(const int* __restrict__ pixel, const float* __restrict__ height, int peaks,
                           const int* __restrict__ star, int n, int width, double radius, double share,
                           int* __restrict__ counts)
{
    const int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k < n) counts[k] = stars::count_neighbours(pixel, height, peaks, star[k], width, radius, share);
}
