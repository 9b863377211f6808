// SPDX-License-Identifier: BSD-3-Clause
// Convolutions with kernels that vary over the field. Each block takes its pixels and their halo into shared memory once.
#include "convolve.cuh"

constexpr int SIDE = 32;                                  // of the square of pixels that a block makes
constexpr int RUNS = SIDE / RUN, THREADS = SIDE * RUNS;   // a thread makes one run of a row
constexpr int BANDS = 4;                                  // warps of `convolve_field`, one below the other

// Rows of shared memory: whole runs, and an odd number of quadruples so that two rows lie in different banks.
__device__ int run_pitch(int kw)
{
    return SIDE + (kw / RUN + 1) * RUN + 4;
}

// The kernel of a tile, turned round, rows filled up to whole runs.
template <bool ABSOLUTE>
__device__ void load_taps(const float* kernel, int kh, int kw, float* taps)
{
    const int stride = (kw + RUN - 1) / RUN * RUN;
    for (int i = threadIdx.x; i < kh * stride; i += THREADS) {
        const int y = i / stride, x = i % stride;
        const float k = x < kw ? kernel[(kh - 1 - y) * kw + kw - 1 - x] : 0.0f;
        taps[i] = ABSOLUTE ? fabsf(k) : k;
    }
}

// One run of outputs from the halo and the taps in shared memory.
template <int TAIL>
__device__ void convolve_here(const float* halo, int pitch, const float* taps, int kh, int kw, float (&sum)[RUN])
{
    const int row = threadIdx.x / RUNS, column = threadIdx.x % RUNS * RUN, stride = (kw + RUN - 1) / RUN * RUN;
    for (int j = 0; j < kh; ++j)
        convolve_run<TAIL>(halo + (row + j) * pitch + column, taps + j * stride, kw, sum);
}

__device__ void store_run(const float (&sum)[RUN], float scale, int y0, int x0, int height, int width, float* out)
{
    const int y = y0 + threadIdx.x / RUNS, x = x0 + threadIdx.x % RUNS * RUN;
    if (y >= height) return;
    for (int r = 0; r < RUN; ++r)
        if (x + r < width) out[(long long)y * width + x + r] = sum[r] * scale;
}

template <int TAIL>
__global__ void __launch_bounds__(THREADS)
convolve_tiles(const float* __restrict__ plane, const float* __restrict__ kernels, int height, int width, int kh, int kw,
               int tile, int tiles_x, float* __restrict__ out)
{
    extern __shared__ __align__(16) float shared[];
    const int x0 = blockIdx.x * SIDE, y0 = blockIdx.y * SIDE, pitch = run_pitch(kw), rows = SIDE + kh - 1;
    float *halo = shared, *taps = shared + rows * pitch;
    for (int i = threadIdx.x; i < rows * pitch; i += THREADS) {
        const int y = y0 - kh / 2 + i / pitch, x = x0 - kw / 2 + i % pitch;
        halo[i] = y >= 0 && y < height && x >= 0 && x < width ? plane[(long long)y * width + x] : 0.0f;
    }
    load_taps<false>(kernels + ((long long)(y0 / tile) * tiles_x + x0 / tile) * kh * kw, kh, kw, taps);
    __syncthreads();
    float sum[RUN] = {};
    convolve_here<TAIL>(halo, pitch, taps, kh, kw, sum);
    store_run(sum, 1.0f, y0, x0, height, width, out);
}

// What bad pixels do through the absolute kernel; a block that reaches none writes zeros.
template <int TAIL>
__global__ void __launch_bounds__(THREADS)
bad_reach(const float* __restrict__ doubt, const unsigned char* __restrict__ good, const float* __restrict__ kernels,
          int height, int width, int kh, int kw, int tile, int tiles_x, float* __restrict__ leak,
          float* __restrict__ lost)
{
    extern __shared__ __align__(16) float shared[];
    const int x0 = blockIdx.x * SIDE, y0 = blockIdx.y * SIDE, pitch = run_pitch(kw), rows = SIDE + kh - 1;
    float *halo = shared, *taps = shared + rows * pitch;
    int any = 0;
    for (int i = threadIdx.x; i < rows * pitch; i += THREADS) {
        const int y = y0 - kh / 2 + i / pitch, x = x0 - kw / 2 + i % pitch;
        const bool inside = y >= 0 && y < height && x >= 0 && x < width;
        const bool bad = i % pitch < SIDE + kw - 1 && (!inside || !good[(long long)y * width + x]);
        halo[i] = bad;
        any |= bad;
    }
    load_taps<true>(kernels + ((long long)(y0 / tile) * tiles_x + x0 / tile) * kh * kw, kh, kw, taps);
    any = __syncthreads_or(any);
    float sum[RUN] = {}, total = 0.0f;
    if (any) {
        convolve_here<TAIL>(halo, pitch, taps, kh, kw, sum);
        const int stride = (kw + RUN - 1) / RUN * RUN;
        for (int i = 0; i < kh * stride; ++i) total += taps[i];
    }
    store_run(sum, any ? 1.0f / total : 0.0f, y0, x0, height, width, lost);
    if (any) {
        __syncthreads();
        for (int i = threadIdx.x; i < rows * pitch; i += THREADS) {
            if (halo[i] == 0.0f) continue;
            const int y = y0 - kh / 2 + i / pitch, x = x0 - kw / 2 + i % pitch;
            halo[i] = y >= 0 && y < height && x >= 0 && x < width ? doubt[(long long)y * width + x] : 0.0f;
        }
        __syncthreads();
        for (int r = 0; r < RUN; ++r) sum[r] = 0.0f;
        convolve_here<TAIL>(halo, pitch, taps, kh, kw, sum);
    }
    store_run(sum, 1.0f, y0, x0, height, width, leak);
}

// A warp makes 32 columns of ROWS pixels; the taps are taken column by column, the next one while this one is used.
template <int ORDER, int ROWS>
__global__ void __launch_bounds__(SIDE* BANDS)
convolve_field(const float* __restrict__ plane, const float* __restrict__ terms, const float* __restrict__ along_x,
               const float* __restrict__ along_y, int height, int width, int kh, int kw, float* __restrict__ out)
{
    extern __shared__ __align__(16) float shared[];
    const int column = kh * Tap<ORDER>::SIZE, pitch = SIDE + kw - 1, rows = BANDS * ROWS + kh - 1;
    const int x0 = blockIdx.x * SIDE, y0 = blockIdx.y * BANDS * ROWS, x = x0 + threadIdx.x;
    const int index = threadIdx.y * SIDE + threadIdx.x;
    float *taps = shared, *halo = shared + 2 * column;
    for (int i = index; i < rows * pitch; i += SIDE * BANDS) {
        const int yy = y0 - kh / 2 + i / pitch, xx = x0 - kw / 2 + i % pitch;
        halo[i] = yy >= 0 && yy < height && xx >= 0 && xx < width ? plane[(long long)yy * width + xx] : 0.0f;
    }
    for (int i = index; i < column; i += SIDE * BANDS) taps[i] = terms[i];
    float at_x[ORDER + 1], sum[ORDER + 1][ROWS];
    UNROLL for (int j = 0; j <= ORDER; ++j) {
        at_x[j] = x < width ? along_x[j * width + x] : 0.0f;
        UNROLL for (int r = 0; r < ROWS; ++r) sum[j][r] = 0.0f;
    }
    __syncthreads();
    KEEP_LOOP for (int i = 0; i < kw; ++i) {
        if (i + 1 < kw)
            for (int k = index; k < column; k += SIDE * BANDS)
                taps[(i + 1) % 2 * column + k] = terms[(i + 1) * column + k];
        convolve_varying<ORDER, ROWS>(halo + threadIdx.y * ROWS * pitch + threadIdx.x + i, pitch,
                                      taps + i % 2 * column, kh, at_x, sum);
        __syncthreads();
    }
    if (x >= width) return;
    UNROLL for (int r = 0; r < ROWS; ++r) {
        const int y = y0 + threadIdx.y * ROWS + r;
        if (y >= height) return;
        float total = sum[0][r];
        UNROLL for (int j = 1; j <= ORDER; ++j) total += along_y[j * height + y] * sum[j][r];
        out[(long long)y * width + x] = total;
    }
}

// Good pixels are copied; a block with a bad one smooths its weight and its planes, columns first, edges repeated. A
// thread makes one pixel.
__global__ void __launch_bounds__(SIDE* SIDE)
fill_masked(const float* __restrict__ first, const float* __restrict__ second, const unsigned char* __restrict__ good,
            const float* __restrict__ taps, int height, int width, int radius, float* __restrict__ first_out,
            float* __restrict__ second_out)
{
    extern __shared__ __align__(16) float shared[];
    const int x0 = blockIdx.x * SIDE - radius, y0 = blockIdx.y * SIDE - radius, side = SIDE + 2 * radius;
    const int row = threadIdx.x / SIDE, column = threadIdx.x % SIDE, y = y0 + radius + row, x = x0 + radius + column;
    const bool inside = y < height && x < width;
    const long long here = (long long)y * width + x;
    const bool keep = inside && good[here];
    float *halo = shared, *down = shared + side * side, weight = 0.0f;
    if (keep) {
        first_out[here] = first[here];
        second_out[here] = second[here];
    }
    if (!__syncthreads_or(inside && !keep)) return;
    KEEP_LOOP for (int q = 0; q < 3; ++q) {
        const float* plane = q == 1 ? first : second;
        for (int i = threadIdx.x; i < side * side; i += SIDE * SIDE) {
            const int j = clampi(y0 + i / side, 0, height - 1), k = clampi(x0 + i % side, 0, width - 1);
            const long long at = (long long)j * width + k;
            halo[i] = !good[at] ? 0.0f : q == 0 ? 1.0f : plane[at];
        }
        __syncthreads();
        for (int i = threadIdx.x; i < SIDE * side; i += SIDE * SIDE)
            down[i] = weighted_sum(halo + i, side, taps, 2 * radius + 1);
        __syncthreads();
        const float sum = weighted_sum(down + row * side + column, 1, taps, 2 * radius + 1);
        if (q == 0) weight = sum;
        else if (inside && !keep) (q == 1 ? first_out : second_out)[here] = filling(sum, weight);
    }
}
