// SPDX-License-Identifier: BSD-3-Clause
#include "usable.cuh"

template <typename T, int N>
struct alignas(N * sizeof(T)) Run {
  T v[N];
};

// One thread N pixels; a pointer may be null: no variance or no mask. With N > 1 all planes begin at multiples of N.
template <typename T, int N>
__global__ void usable_pixels(const T* __restrict__ image, const T* __restrict__ variance,
                              const int* __restrict__ mask, int invalid, long long size, bool* __restrict__ out) {
  const long long p = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * N;
  if (p + N <= size) {
    Run<T, N> v = *reinterpret_cast<const Run<T, N>*>(image + p), s;
    Run<int, N> m;
    Run<bool, N> ok;
    if (variance) s = *reinterpret_cast<const Run<T, N>*>(variance + p);
    if (mask) m = *reinterpret_cast<const Run<int, N>*>(mask + p);
#pragma unroll
    for (int k = 0; k < N; ++k) ok.v[k] = usable(v.v[k], variance ? s.v[k] : T(1), mask ? m.v[k] : 0, invalid);
    *reinterpret_cast<Run<bool, N>*>(out + p) = ok;
  } else {
    for (long long i = p; i < size; ++i)
      out[i] = usable(image[i], variance ? variance[i] : T(1), mask ? mask[i] : 0, invalid);
  }
}
