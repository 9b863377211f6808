// SPDX-License-Identifier: BSD-3-Clause
// A thread for each point of a lattice; a block for each row of cells of a control grid.
#include "maps.cuh"

__global__ void __launch_bounds__(128)
tangent_points(const double* __restrict__ chain, const double* __restrict__ origin, double step, int lattices, int ny,
               int nx, double* __restrict__ out)
{
    const long long n = (long long)lattices * ny * nx, p = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (p >= n) return;
    const int j = (int)(p % nx), i = (int)(p / nx % ny);
    const double* first = origin + 2 * (p / nx / ny);
    const maps::Point q = maps::position(chain, {first[0] + step * j, first[1] + step * i});
    out[p] = q.x;
    out[n + p] = q.y;
}

// A block measures the cells of its row, tile by tile, and those around them; and copies a share of the nodes.
__global__ void __launch_bounds__(256)
check_cells(const double* __restrict__ points, int ny, int nx, int spacing, double height, double width, double tolerance,
            double goal, int smooth, double* __restrict__ nodes, int* __restrict__ cells, double* __restrict__ rows)
{
    constexpr int TILE = 64, ACROSS = TILE + 2, THREADS = 256;
    static_assert(3 * ACROSS <= THREADS, "a thread for each cell");
    __shared__ maps::Cell measured[3][ACROSS];
    __shared__ maps::Found merged[THREADS];
    const int thread = threadIdx.x, i = blockIdx.x;
    const maps::Fine fine{points, ny, nx};

    const long long side = (long long)(ny + 3) * (nx + 3);
    for (long long p = (long long)i * THREADS + thread; p < 2 * side; p += (long long)gridDim.x * THREADS) {
        const int axis = (int)(p / side), at = (int)(p % side);
        nodes[p] = fine.at(axis, 2 * (at / (nx + 3)), 2 * (at % (nx + 3)));
    }

    const maps::Point shift{rint(fine.at(0, 2, 2)), rint(fine.at(1, 2, 2))};
    maps::Found found = maps::nothing();
    for (int j0 = 0; j0 < nx; j0 += TILE) {
        const int row = i - 1 + thread / ACROSS, column = j0 - 1 + thread % ACROSS;
        if (thread < 3 * ACROSS) {
            maps::Cell cell{0.0, 0.0, 0.0, false, true};  // none there: the neighbours decide
            if (row >= 0 && row < ny && column >= 0 && column < nx)
                cell = maps::measured(fine, row, column, height, width, 0.5 * spacing, shift);
            measured[thread / ACROSS][thread % ACROSS] = cell;
        }
        __syncthreads();
        const int j = j0 + thread;
        if (thread < TILE && j < nx) {
            double error = 0.0;
            bool lost = true;
            for (int k = 0; k < 9; ++k) {
                const maps::Cell& near = measured[k / 3][thread + k % 3];
                error = maximum(error, near.error);
                lost = lost && near.lost;
            }
            const maps::Cell& cell = measured[1][thread + 1];
            cells[(long long)i * nx + j] = maps::judged(cell, error, lost || cell.misses, (double)spacing * spacing,
                                                        tolerance, goal, smooth != 0, found);
        }
        __syncthreads();
    }

    merged[thread] = found;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (thread < half) merged[thread] = maps::merged(merged[thread], merged[thread + half]);
    }
    if (thread == 0)
        for (int k = 0; k < maps::FOUND; ++k) rows[(long long)i * maps::FOUND + k] = merged[0].v[k];
}
