// SPDX-License-Identifier: BSD-3-Clause
// A CUDA device in one thread of the host, for tests: the threads of a block are coroutines, which change at barriers
// and at exchanges of a warp only. Buffers and shared memory are heap blocks of the exact size, under the sanitizers.
#pragma once
#include <sanitizer/common_interface_defs.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#define __CUDACC__
#define __CUDA_ARCH__ 900
#define __host__
#define __device__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __global__ [[maybe_unused]] static
#define __shared__ static
#define __launch_bounds__(...)

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
static Index blockIdx, blockDim, threadIdx, gridDim;
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) int4 {
  int x, y, z, w;
};

namespace host {

[[noreturn]] inline void fail(const char* why) {
  std::fprintf(stderr, "%s: block (%u, %u), thread %u\n", why, blockIdx.x, blockIdx.y, threadIdx.x);
  std::abort();
}

enum Kind { NONE, WARP, BLOCK, EXCHANGE, VOTE };

// Threads that wait for each other.
struct Group {
  int arrived = 0, generation = 0;
  Kind kind = NONE;

  void open() {
    arrived = 0;
    kind = NONE;
    ++generation;
  }
};

constexpr std::size_t STACK = 256 << 10;

struct Thread {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(STACK);
  void* fake = nullptr;
  Index index;
  bool done;
  Group* waits;
  int generation;
};

inline std::vector<Thread> threads;
inline std::vector<Group> warps;
inline std::vector<unsigned long long> lanes;  // what a thread shows to its warp
inline Group block;
inline ucontext_t scheduler;
inline const void* scheduler_stack;
inline std::size_t scheduler_size;
inline std::size_t current;
inline int live, votes;
inline char* dynamic;  // shared memory
inline std::function<void()> work;

inline void leave(bool for_good) {
  Thread& own = threads[current];
  __sanitizer_start_switch_fiber(for_good ? nullptr : &own.fake, scheduler_stack, scheduler_size);
  swapcontext(&own.context, &scheduler);
  __sanitizer_finish_switch_fiber(own.fake, &scheduler_stack, &scheduler_size);
}

// Wait until `wanted` threads came here.
inline void wait(Group& group, int wanted, Kind kind) {
  if (group.kind != NONE && group.kind != kind) fail("threads meet at different places");
  group.kind = kind;
  if (++group.arrived == wanted) return group.open();
  Thread& own = threads[current];
  own.waits = &group;
  own.generation = group.generation;
  leave(false);
}

__attribute__((no_sanitize("address"))) inline void enter() {
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_size);
  work();
  threads[current].done = true;
  --live;
  // a thread that has ended is not waited for at the barriers of its block
  if (live && block.arrived == live) block.open();
  leave(true);
}

// One block; threads take turns from the first to the last, or the other way round.
inline void run_block(bool backwards) {
  const std::size_t n = threads.size();
  live = (int)n;
  votes = 0;
  block = Group();
  warps.assign((n + 31) / 32, Group());
  for (std::size_t i = 0; i < n; ++i) {
    Thread& t = threads[i];
    t.done = false;
    t.waits = nullptr;
    t.fake = nullptr;
    t.index = {unsigned(i) % blockDim.x, unsigned(i) / blockDim.x, 0};
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = t.stack.data();
    t.context.uc_stack.ss_size = STACK;
    t.context.uc_link = nullptr;
    makecontext(&t.context, enter, 0);
  }
  while (live) {
    bool any = false;
    for (std::size_t k = 0; k < n; ++k) {
      current = backwards ? n - 1 - k : k;
      Thread& t = threads[current];
      if (t.done || (t.waits && t.waits->generation == t.generation)) continue;
      any = true;
      t.waits = nullptr;
      threadIdx = t.index;
      void* fake = nullptr;
      __sanitizer_start_switch_fiber(&fake, t.stack.data(), STACK);
      swapcontext(&scheduler, &t.context);
      __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
    }
    if (!any) fail("threads wait for others that never come");
  }
}

inline void sync_warp(Kind kind) { wait(warps[current / 32], 32, kind); }

// What all lanes of the warp show, handed to `use`.
template <typename T, typename Use>
auto exchange(unsigned mask, T value, Use use) {
  static_assert(sizeof(T) <= 8, "a register pair at most");
  if (mask != 0xffffffffu) fail("only whole warps exchange");
  lanes[current] = 0;
  std::memcpy(&lanes[current], &value, sizeof(T));
  sync_warp(EXCHANGE);
  const auto of = [first = current / 32 * 32](int lane) {
    T v;
    std::memcpy(&v, &lanes[first + lane], sizeof(T));
    return v;
  };
  const auto result = use(of, (int)(current % 32));
  sync_warp(EXCHANGE);
  return result;
}

// How many threads of the block say yes, and how many there are.
inline std::pair<int, int> vote(bool yes) {
  votes += yes;
  wait(block, live, VOTE);
  const std::pair<int, int> result(votes, live);
  wait(block, live, VOTE);
  votes -= yes;
  return result;
}

template <typename T, typename Change>
T atomic(T* at, Change change) {
  const T old = *at;
  *at = change(old);
  return old;
}

}  // namespace host

inline void __syncthreads() { host::wait(host::block, host::live, host::BLOCK); }
inline int __syncthreads_or(int yes) { return host::vote(yes != 0).first > 0; }
inline int __syncthreads_and(int yes) {
  const auto [votes, all] = host::vote(yes != 0);
  return votes == all;
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  if (mask != 0xffffffffu) host::fail("only whole warps wait");
  host::sync_warp(host::WARP);
}

template <typename T>
T __shfl_sync(unsigned mask, T v, int from) {
  return host::exchange(mask, v, [=](auto of, int) { return of(from & 31); });
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T v, int bits) {
  return host::exchange(mask, v, [=](auto of, int lane) { return of(lane ^ bits); });
}
template <typename T>
T __shfl_up_sync(unsigned mask, T v, unsigned by) {
  return host::exchange(mask, v, [=](auto of, int lane) { return of(lane < (int)by ? lane : lane - (int)by); });
}
template <typename T>
unsigned __match_any_sync(unsigned mask, T v) {
  return host::exchange(mask, v, [=](auto of, int) {
    unsigned same = 0;
    for (int i = 0; i < 32; ++i) same |= unsigned(of(i) == v) << i;
    return same;
  });
}
inline unsigned __ballot_sync(unsigned mask, int yes) {
  return host::exchange(mask, yes != 0, [](auto of, int) {
    unsigned all = 0;
    for (int i = 0; i < 32; ++i) all |= unsigned(of(i)) << i;
    return all;
  });
}
inline int __any_sync(unsigned mask, int yes) { return __ballot_sync(mask, yes) != 0; }
inline int __all_sync(unsigned mask, int yes) { return __ballot_sync(mask, yes) == 0xffffffffu; }
inline unsigned __reduce_add_sync(unsigned mask, unsigned v) {
  return host::exchange(mask, v, [](auto of, int) {
    unsigned sum = 0;
    for (int i = 0; i < 32; ++i) sum += of(i);
    return sum;
  });
}

template <typename T>
T atomicAdd(T* at, std::common_type_t<T> v) {
  return host::atomic(at, [=](T old) { return T(old + v); });
}
template <typename T>
T atomicMin(T* at, std::common_type_t<T> v) {
  return host::atomic(at, [=](T old) { return std::min(old, v); });
}
template <typename T>
T atomicOr(T* at, std::common_type_t<T> v) {
  return host::atomic(at, [=](T old) { return T(old | v); });
}
template <typename T>
T atomicXor(T* at, std::common_type_t<T> v) {
  return host::atomic(at, [=](T old) { return T(old ^ v); });
}

template <typename To, typename From>
To bits_as(From v) {
  static_assert(sizeof(To) == sizeof(From), "bits are copied");
  To to;
  std::memcpy(&to, &v, sizeof(To));
  return to;
}
inline float __int_as_float(int v) { return bits_as<float>(v); }
inline float __uint_as_float(unsigned v) { return bits_as<float>(v); }
inline unsigned __float_as_uint(float v) { return bits_as<unsigned>(v); }
inline double __longlong_as_double(long long v) { return bits_as<double>(v); }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return (unsigned)(((unsigned long long)high << 32 | low) << (by & 31) >> 32);
}
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const unsigned long long both = (unsigned long long)high << 32 | low;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) out |= unsigned(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return out;
}
inline double sinpi(double v) { return std::sin(3.14159265358979323846 * v); }
inline float __fdividef(float a, float b) { return a / b; }
inline int __double2int_rd(double v) {
  if (v != v) return -2147483647 - 1;
  return (int)std::floor(std::clamp(v, -2147483648.0, 2147483647.0));
}
template <typename T>
T __ldg(const T* at) {
  return *at;
}

namespace host {

// Launch with arguments as bytes, as a driver does.
template <typename... P, std::size_t... I>
void call(void (*kernel)(P...), const std::vector<std::vector<char>>& arguments, std::index_sequence<I...>) {
  if (arguments.size() != sizeof...(P)) fail("another number of arguments");
  if (!((arguments[I].size() == sizeof(P)) && ...)) fail("an argument of another size");
  std::tuple<P...> values;
  (std::memcpy(&std::get<I>(values), arguments[I].data(), sizeof(P)), ...);
  work = [=] { std::apply(kernel, values); };
  for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) run_block((blockIdx.x + blockIdx.y) % 2);
}

inline char* allocate(std::size_t size) {
  void* at = nullptr;
  if (posix_memalign(&at, 256, size)) fail("no memory");
  return (char*)at;
}

// Read a launch from `launch.txt` and buffers from `buffers.in`, write the buffers to `buffers.out`.
template <typename... P>
int launch(void (*kernel)(P...)) {
  std::ifstream text("launch.txt"), in("buffers.in", std::ios::binary);
  std::size_t shared, buffers, count;
  text >> gridDim.x >> gridDim.y >> blockDim.x >> blockDim.y >> shared >> buffers;
  std::vector<std::pair<char*, std::size_t>> memory(buffers);
  for (auto& [at, size] : memory) {
    text >> size;
    at = allocate(size);
    in.read(at, (std::streamsize)size);
  }
  text >> count;
  std::vector<std::vector<char>> arguments(count);
  for (auto& bytes : arguments) {
    std::string kind;
    std::size_t number, value;
    text >> kind >> number;
    if (kind == "buffer") {
      text >> value;
      char* pointer = memory[number].first + value;
      bytes.assign((char*)&pointer, (char*)(&pointer + 1));
    } else {
      bytes.resize(number);
      for (char& byte : bytes) {
        text >> value;
        byte = (char)value;
      }
    }
  }
  if (!text || !in) fail("no launch to read");
  threads = std::vector<Thread>(blockDim.x * blockDim.y);
  lanes.resize(threads.size());
  dynamic = allocate(shared);
  std::memset(dynamic, 0xa5, shared);
  call(kernel, arguments, std::index_sequence_for<P...>());
  std::ofstream out("buffers.out", std::ios::binary);
  for (const auto& [at, size] : memory) out.write(at, (std::streamsize)size);
  return out.flush() ? 0 : 1;
}

}  // namespace host
