// SPDX-License-Identifier: BSD-3-Clause
// Stamps convolved with separable basis functions: a block takes one stamp and one row filter, keeps the row-filtered
// stamp in shared memory and applies every column filter that goes with it.
#include "normal_equations.cuh"

__global__ void stamp_basis(const float* __restrict__ stamps, const double* __restrict__ rows,
                            const double* __restrict__ columns, const int* __restrict__ pairs,
                            const int* __restrict__ first, int side, int k, int n_basis, double* __restrict__ out)
{
    extern __shared__ double along_x[];
    const int m = side - k + 1, row = blockIdx.y;
    const float* stamp = stamps + (long long)blockIdx.x * side * side;
    for (int i = threadIdx.x; i < side * m; i += blockDim.x)
        along_x[i] = convolve_line(stamp + (i / m) * side + i % m, 1, rows + (long long)row * k, k);
    __syncthreads();
    for (int b = first[row]; b < first[row + 1]; ++b) {
        const double* column = columns + (long long)pairs[2 * b + 1] * k;
        double* plane = out + ((long long)blockIdx.x * n_basis + b) * m * m;
        for (int i = threadIdx.x; i < m * m; i += blockDim.x) plane[i] = convolve_line(along_x + i, m, column, k);
    }
}
