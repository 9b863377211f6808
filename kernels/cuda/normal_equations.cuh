// SPDX-License-Identifier: BSD-3-Clause
// One output of a one-dimensional convolution.
#pragma once
#include "common.cuh"

// sum over i of filter(i) * source((k - 1 - i) * stride): plain convolution where the filter lies inside the source.
template <typename T>
HD double convolve_line(const T* source, int stride, const double* filter, int k)
{
    double sum = 0;
    for (int i = 0; i < k; ++i) sum += filter[i] * (double)source[(k - 1 - i) * stride];
    return sum;
}
