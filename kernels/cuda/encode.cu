// SPDX-License-Identifier: BSD-3-Clause
#include "encode.cuh"

using namespace encode;

namespace {

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr unsigned ALL = 0xffffffffu;

// Sum over the lanes of a warp, in every lane.
__device__ __forceinline__ unsigned warp_sum(unsigned v) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(ALL, v);
#else
  for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(ALL, v, d);
  return v;
#endif
}

// The same of 64 bits.
__device__ __forceinline__ unsigned long long warp_sum_long(unsigned long long v) {
  for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(ALL, v, d);
  return v;
}

// Sum of the lanes before this one.
__device__ __forceinline__ int warp_before(int v) {
  int sum = v;
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(ALL, sum, d);
    if ((threadIdx.x & 31) >= d) sum += other;
  }
  return sum - v;
}

// Key of the distance at pixel j of a tile, or false.
template <typename T>
__device__ __forceinline__ bool distance_at(const T* image, const Box& box, int j, int w, unsigned* key) {
  const int x = box.column(j);
  if (x < 2 || x >= box.width - 2) return false;
  const size_t p = box.pixel(j, w);
  const T a = image[p - 2], b = image[p], c = image[p + 2];
  *key = distance_key(a, b, c);
  return usable(a) && usable(b) && usable(c);
}

}  // namespace

__global__ void __launch_bounds__(THREADS)
    big_endian(const unsigned* __restrict__ words, long long n, int size, unsigned top, unsigned* __restrict__ out,
               unsigned long long* __restrict__ total) {
  unsigned long long sum = 0;
  const long long stride = (long long)gridDim.x * THREADS;
  for (long long i = (long long)blockIdx.x * THREADS + threadIdx.x; i < n; i += stride) {
    const unsigned word = stored(words, i, size, top);
    out[i] = word;
    sum += reversed(word);
  }
  sum = warp_sum_long(sum);
  if ((threadIdx.x & 31) == 0) atomicAdd(total, sum);
}

// One block a tile: the median distance by counting its digits, the extent of the values, then the steps.
template <typename T>
__global__ void __launch_bounds__(THREADS)
    quantise_tiles(const T* __restrict__ image, int h, int w, int th, int tw, int nx, double to_noise, double level,
                   int seed, int least, double levels, int lowest, int null, int zero_value,
                   const float* __restrict__ table, int* __restrict__ pixels, double* __restrict__ step,
                   double* __restrict__ zero, bool* __restrict__ good) {
  __shared__ int bins[BINS], warps[WARPS];
  __shared__ double lows[WARPS], highs[WARPS];
  __shared__ unsigned found;
  __shared__ int left, reserved, infinite;
  const long long t = blockIdx.x;
  const Box box(t, h, w, th, tw, nx);
  const int count = box.count(), lane = threadIdx.x & 31, warp = threadIdx.x >> 5;

  if (threadIdx.x == 0) reserved = infinite = 0;
  __syncthreads();
  const double inf = __longlong_as_double(0x7ff0000000000000LL);
  double low = inf, high = -inf;
  KEEP_LOOP
  for (int j = threadIdx.x; j < count; j += THREADS) {
    const T v = image[box.pixel(j, w)];
    if (usable(v)) {
      low = minimum(low, (double)v);
      high = maximum(high, (double)v);
    } else if (v == (T)0 || v != v) {
      reserved = 1;
    } else {
      infinite = 1;
    }
  }
  for (int d = 16; d; d >>= 1) {
    low = minimum(low, __shfl_xor_sync(ALL, low, d));
    high = maximum(high, __shfl_xor_sync(ALL, high, d));
  }
  if (lane == 0) {
    lows[warp] = low;
    highs[warp] = high;
  }
  __syncthreads();
  for (int i = 0; i < WARPS; ++i) {
    low = minimum(low, lows[i]);
    high = maximum(high, highs[i]);
  }

  unsigned prefix = 0;
  int rank = 0;
  bool enough = true;
  KEEP_LOOP
  for (int pass = 0; pass < DIGITS && enough; ++pass) {
    for (int b = threadIdx.x; b < BINS; b += THREADS) bins[b] = 0;
    __syncthreads();
    KEEP_LOOP
    for (int j = threadIdx.x; j < count; j += THREADS) {
      unsigned key;
      if (distance_at(image, box, j, w, &key) && agrees(key, prefix, pass)) atomicAdd(&bins[digit(key, pass)], 1);
    }
    __syncthreads();
    constexpr int EACH = BINS / THREADS;
    int sum = 0;
    for (int b = 0; b < EACH; ++b) sum += bins[threadIdx.x * EACH + b];
    int below = warp_before(sum);
    if (lane == 31) warps[warp] = below + sum;
    __syncthreads();
    int all = 0;
    for (int i = 0; i < WARPS; ++i) {
      if (i < warp) below += warps[i];
      all += warps[i];
    }
    if (pass == 0) {
      enough = all >= least;
      rank = (all - 1) / 2;
    }
    if (enough && rank >= below && rank < below + sum) {
      int b = threadIdx.x * EACH;
      while (rank >= below + bins[b]) below += bins[b++];
      found = prefix << digit_bits(pass) | (unsigned)b;
      left = rank - below;
    }
    __syncthreads();
    if (enough) {
      prefix = found;
      rank = left;
    }
    __syncthreads();
  }
  const double delta = enough && !infinite ? product(to_noise, (double)__uint_as_float(prefix)) / level : 0.0;
  const bool can = quantisable(delta, low, high, levels);
  const int base = reserved ? lowest : 0;
  if (threadIdx.x == 0) {
    good[t] = can;
    step[t] = can ? delta : 0.0;
    zero[t] = can ? low - product((double)base, delta) : 0.0;
  }
  const double rate = 1.0 / delta;
  Dither dither;
  dither.begin(table, t, seed);
  KEEP_LOOP
  for (int start = 0; start < count; start += THREADS) {
    const int j = start + threadIdx.x;
    if (j < count) {
      const size_t p = box.pixel(j, w);
      int q = 0;
      if (can) {
        const T v = image[p];
        if (v != v) {
          q = null;
        } else if (v == (T)0) {
          q = zero_value;
        } else {
          q = step_of((double)v, low, rate, (double)table[dither.index(table, threadIdx.x)], base);
        }
      }
      pixels[p] = q;
    }
    dither.advance(table, THREADS);
  }
}

namespace {

// What a warp knows of one block of a tile: the mapped difference of its lane, selector and size.
template <typename T>
struct WarpBlock {
  unsigned v;
  T first;  // the pixel that the tile begins with, in lane 0 of its first block
  int n, selector, bits;

  __device__ WarpBlock(const T* __restrict__ pixels, const Box& box, int start, int w) {
    const int lane = threadIdx.x & 31, j = start + lane;
    n = minimum(32, box.count() - start);
    const T pixel = lane < n ? pixels[box.pixel(j, w)] : (T)0;
    T before = (T)__shfl_up_sync(ALL, (unsigned)pixel, 1);
    if (lane == 0) before = start ? pixels[box.pixel(j - 1, w)] : pixel;
    first = pixel;
    v = lane < n ? mapped<T>(pixel, before) : 0u;
    unsigned long long sum = warp_sum(v & 0xffffu);
    if (Coder<T>::width == 32) sum += (unsigned long long)warp_sum(v >> 16) << 16;
    const int split = split_of(sum, n);
    const unsigned high = warp_sum(v >> split);  // fewer than 64: the mean is below two to the split + 1
    selector = selector_of<T>(sum, high, split, n);
    bits = block_bits<T>(selector, high, n);
  }
};

}  // namespace

// Bits of every block of every tile; `blocks` places a tile, `all` of them, those that a tile does not fill have no bits.
template <typename T>
__global__ void __launch_bounds__(THREADS)
    rice_sizes(const T* __restrict__ pixels, int h, int w, int th, int tw, int nx, unsigned all, int blocks,
               const bool* __restrict__ use, int* __restrict__ bits) {
  const unsigned b = blockIdx.x * WARPS + (threadIdx.x >> 5);
  if (b >= all) return;
  const unsigned t = b / (unsigned)blocks;
  const int k = (int)(b - t * blocks);
  const Box box(t, h, w, th, tw, nx);
  int size = 0;
  if (use[t] && k * 32 < box.count()) {
    const WarpBlock<T> block(pixels, box, k * 32, w);
    size = block.bits + (k == 0 ? Coder<T>::width : 0);
  }
  if ((threadIdx.x & 31) == 0) bits[b] = size;
}

// The codes of every block into its place. `ends`: bits of all blocks up to and with this one; `offsets`: first byte of
// each tile. Words that blocks share are joined by an atomic or of different bits; `out` is 0 before.
template <typename T>
__global__ void __launch_bounds__(THREADS)
    rice_emit(const T* __restrict__ pixels, int h, int w, int th, int tw, int nx, unsigned all, int blocks,
              const bool* __restrict__ use, const long long* __restrict__ ends, const long long* __restrict__ offsets,
              unsigned* __restrict__ out) {
  constexpr int WORDS = 35;  // a first pixel, a selector and 32 verbatim pixels, begun in the last bit of a word
  __shared__ unsigned staged[WARPS][WORDS];
  const int lane = threadIdx.x & 31;
  unsigned* stage = staged[threadIdx.x >> 5];
  const unsigned b = blockIdx.x * WARPS + (threadIdx.x >> 5);
  if (b >= all) return;
  const unsigned t = b / (unsigned)blocks;
  const int k = (int)(b - t * blocks);
  const Box box(t, h, w, th, tw, nx);
  if (!use[t] || k * 32 >= box.count()) return;
  const WarpBlock<T> block(pixels, box, k * 32, w);

  const long long tile_start = t ? ends[t * blocks - 1] : 0, start = b ? ends[b - 1] : 0;
  const long long position = 8 * offsets[t] + start - tile_start;
  int at = (int)(position & 31);
  for (int i = lane; i < WORDS; i += 32) stage[i] = 0u;
  __syncwarp();
  const auto or_word = [stage](int i, unsigned bits) { atomicOr(&stage[i], bits); };
  if (k == 0) {
    if (lane == 0) place(or_word, at, (unsigned)block.first, Coder<T>::width);
    at += Coder<T>::width;
  }
  if (lane == 0) place(or_word, at, (unsigned)block.selector, Coder<T>::selector);
  at += Coder<T>::selector;
  Code code = code_of<T>(block.v, block.selector);
  if (lane >= block.n) code = {0u, 0, 0};
  const int mine = at + warp_before(code.zeros + code.width) + code.zeros;
  if (code.width) place(or_word, mine, code.value, code.width);
  __syncwarp();
  const int end = (int)(position & 31) + block.bits + (k == 0 ? Coder<T>::width : 0), words = (end + 31) >> 5;
  const long long word = position >> 5;
  for (int i = lane; i < words; i += 32) {
    const unsigned value = reversed(stage[i]);
    if (i == 0 || i == words - 1)
      atomicOr(&out[word + i], value);
    else
      out[word + i] = value;
  }
}
