// Latencies and rates of one GPU that trine's GPU model needs (presets/gpu_models): nvcc -O3 -arch=sm_90 latencies.cu
// Prints CSV: quantity,parameter,value,unit. Times are read with clock64 on the SM, or with events around a graph.
#include <cstdio>
#include <cstdlib>
#include <vector>
#include <algorithm>
#include <numeric>
#include <random>
#include <cuda_runtime.h>
#define CHECK(x) do { cudaError_t e = (x); if (e != cudaSuccess) { printf("error,%s:%d,%s,\n", __FILE__, __LINE__, cudaGetErrorString(e)); exit(1); } } while (0)
typedef unsigned long long u64;

static float median_ms(std::vector<float> v) { std::sort(v.begin(), v.end()); return v[v.size() / 2]; }
__device__ u64 ns() { u64 t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t; }

// A chain of dependent loads; MODE 0: L2 (ld.cg), 1: relaxed at system scope, 2: acquire at system scope.
template <int MODE> __global__ void chase(const u64* p, int steps, u64* out, long long* cycles) {
  const u64* at = p;
  for (int i = 0; i < 8; i++) at = (const u64*)__ldcg(at);
  long long t0 = clock64();
  for (int i = 0; i < steps; i++) {
    u64 v;
    if (MODE == 0) asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
    else if (MODE == 1) asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
    else asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
    at = (const u64*)v;
  }
  *cycles = clock64() - t0; *out = (u64)at;
}
// Latency of one line at a time, seen from one SM: shows the near and the far half of the L2.
__global__ void each_line(const u64* p, int lines, int stride, int* took) {
  for (int i = 0; i < lines; i++) {
    u64 v; const u64* at = p + (size_t)i * stride;
    asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
    __syncwarp();
    long long best = 1 << 30;
    for (int k = 0; k < 4; k++) {
      long long t0 = clock64();
      asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
      asm volatile("add.u64 %0, %0, 0;" : "+l"(v));  // waits for the load
      long long t1 = clock64();
      if (t1 - t0 < best) best = t1 - t0;
    }
    took[i] = (int)best;
  }
}
// Cost of fences behind a store (KIND 0: none, 1: __threadfence, 2: __threadfence_system), lines stored before it.
template <int KIND> __global__ void fence(u64* p, int stores, int stride, int rounds, long long* cycles) {
  long long sum = 0;
  for (int r = 0; r < rounds; r++) {
    __syncthreads();
    long long t0 = clock64();
    for (int s = 0; s < stores; s++)
      asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p + ((size_t)(r * stores + s) * blockDim.x + threadIdx.x) * stride), "l"((u64)r) : "memory");
    if (KIND == 1) __threadfence();
    if (KIND == 2) __threadfence_system();
    sum += clock64() - t0;
  }
  if (threadIdx.x == 0) *cycles = sum / rounds;
}
__global__ void barrier(int rounds, long long* cycles) {
  __syncthreads();
  long long t0 = clock64();
  for (int i = 0; i < rounds; i++) __syncthreads();
  if (threadIdx.x == 0) *cycles = clock64() - t0;
}
// Two blocks on two SMs write each other's flag in turn; MODE 0: release/acquire gpu, 1: sys, 2: relaxed sys, 3: fence + relaxed.
template <int MODE> __global__ void ping_pong(u64* flags, int rounds, long long* cycles, u64* sms) {
  if (threadIdx.x) return;
  unsigned sm; asm volatile("mov.u32 %0, %smid;" : "=r"(sm)); sms[blockIdx.x] = sm;
  u64* mine = flags + blockIdx.x * 1024; u64* other = flags + (1 - blockIdx.x) * 1024;
  long long t0 = clock64();
  for (u64 i = 1; i <= rounds; i++) {
    u64 v;
    if (blockIdx.x == 0) {
      if (MODE == 0) asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(other), "l"(i) : "memory");
      else if (MODE == 1) asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(other), "l"(i) : "memory");
      else { if (MODE == 3) __threadfence_system(); asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(other), "l"(i) : "memory"); }
    }
    do {
      if (MODE == 0) asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(mine) : "memory");
      else if (MODE == 1) asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(mine) : "memory");
      else asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(mine) : "memory");
    } while (v < i);
    if (blockIdx.x == 1) {
      if (MODE == 0) asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(other), "l"(i) : "memory");
      else if (MODE == 1) asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(other), "l"(i) : "memory");
      else { if (MODE == 3) __threadfence_system(); asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(other), "l"(i) : "memory"); }
    }
  }
  if (blockIdx.x == 0) *cycles = clock64() - t0;
}
// Bytes through each block; UNROLL loads of 16 B a thread in flight. OP 0: read, 1: write, 2: copy, 3: read two, write sum.
template <int UNROLL, int OP> __global__ void __launch_bounds__(1024) stream(const uint4* in, uint4* out, size_t per_block, int rounds, size_t gap) {
  const uint4* a = in + blockIdx.x * per_block; uint4* b = out + blockIdx.x * per_block;
  uint4 acc = make_uint4(0, 0, 0, 0);
  for (int r = 0; r < rounds; r++)
    for (size_t i = threadIdx.x; i + (UNROLL - 1) * blockDim.x < per_block; i += (size_t)UNROLL * blockDim.x) {
      uint4 v[UNROLL];
      if (OP != 1)
#pragma unroll
        for (int u = 0; u < UNROLL; u++) v[u] = __ldcg(a + i + (size_t)u * blockDim.x);
      if (OP == 3)
#pragma unroll
        for (int u = 0; u < UNROLL; u++) { uint4 w = __ldcg(a + gap + i + (size_t)u * blockDim.x); v[u].x += w.x; v[u].y += w.y; v[u].z += w.z; v[u].w += w.w; }
      if (OP == 0)
#pragma unroll
        for (int u = 0; u < UNROLL; u++) { acc.x ^= v[u].x; acc.y ^= v[u].y; acc.z ^= v[u].z; acc.w ^= v[u].w; }
      else
#pragma unroll
        for (int u = 0; u < UNROLL; u++) __stcg(b + i + (size_t)u * blockDim.x, OP == 1 ? make_uint4(r, u, 1, 2) : v[u]);
    }
  if (OP == 0 && acc.x == 0x12345678 && acc.y == 1) out[0] = acc;
}
__global__ void empty() {}
__global__ void spin(long long cycles) { long long t0 = clock64(); while (clock64() - t0 < cycles) {} }
__global__ void small(const uint4* in, uint4* out, size_t n) { size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; if (i < n) out[i] = in[i]; }

template <typename T> T get(const T* p) { T v; CHECK(cudaMemcpy(&v, p, sizeof v, cudaMemcpyDeviceToHost)); return v; }
template <int UNROLL, int OP> void rate(const char* name, const uint4* in, uint4* out, size_t per_block_bytes, int blocks, int threads, int rounds, const char* where) {
  size_t per = per_block_bytes / 16;
  cudaEvent_t a, b; cudaEventCreate(&a); cudaEventCreate(&b);
  std::vector<float> times;
  for (int k = 0; k < 7; k++) {
    cudaEventRecord(a); stream<UNROLL, OP><<<blocks, threads>>>(in, out, per, rounds, (size_t)1 << 27); cudaEventRecord(b);
    CHECK(cudaEventSynchronize(b)); float ms; cudaEventElapsedTime(&ms, a, b); if (k > 1) times.push_back(ms);
  }
  double gb = (double)per_block_bytes * blocks * rounds / (median_ms(times) * 1e-3) / 1e9;
  printf("%s,%s blocks=%d threads=%d in_flight=%d B,%.2f,GB/s\n", name, where, blocks, threads, threads * UNROLL * 16, gb);
}
template <typename F> float graph_us(F launch, int count, int nodes) {
  cudaStream_t s; cudaStreamCreate(&s); cudaGraph_t g; cudaGraphExec_t x;
  CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < nodes; i++) launch(s);
  CHECK(cudaStreamEndCapture(s, &g)); CHECK(cudaGraphInstantiate(&x, g, 0));
  cudaEvent_t a, b; cudaEventCreate(&a); cudaEventCreate(&b); std::vector<float> t;
  for (int k = 0; k < count; k++) { cudaEventRecord(a, s); cudaGraphLaunch(x, s); cudaEventRecord(b, s); CHECK(cudaEventSynchronize(b)); float ms; cudaEventElapsedTime(&ms, a, b); t.push_back(ms); }
  cudaGraphExecDestroy(x); cudaGraphDestroy(g); cudaStreamDestroy(s);
  return median_ms(t) * 1e3 / nodes;
}
int main() {
  cudaDeviceProp prop; CHECK(cudaGetDeviceProperties(&prop, 0));
  int khz = 0; cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0); 
  printf("device,%s,%d,SMs\nclock,maximum,%.0f,MHz\nl2,capacity,%d,B\n", prop.name, prop.multiProcessorCount, khz / 1e3, prop.l2CacheSize);
  char* data; size_t total = (size_t)12 << 30; CHECK(cudaMalloc(&data, total)); CHECK(cudaMemset(data, 0, total));
  u64* out; long long* cycles; CHECK(cudaMalloc(&out, 4096)); CHECK(cudaMalloc(&cycles, 4096));
  spin<<<132, 32>>>(400000000); CHECK(cudaDeviceSynchronize());
  { // real clock: cycles per globaltimer over a spin
    cudaEvent_t a, b; cudaEventCreate(&a); cudaEventCreate(&b); cudaEventRecord(a); spin<<<1, 32>>>(200000000); cudaEventRecord(b); cudaEventSynchronize(b);
    float ms; cudaEventElapsedTime(&ms, a, b); printf("clock,one block busy,%.1f,MHz\n", 200000000 / (ms * 1e3));
  }
  std::mt19937_64 rng(1);
  for (size_t size : {(size_t)1 << 16, (size_t)1 << 20, (size_t)4 << 20, (size_t)16 << 20, (size_t)22 << 20, (size_t)32 << 20, (size_t)44 << 20, (size_t)64 << 20, (size_t)256 << 20, (size_t)1 << 30, (size_t)4 << 30}) {
    size_t stride = size >= ((size_t)256 << 20) ? 4096 + 128 : 128; size_t n = size / stride;
    std::vector<u64> order(n), host(size / 8); std::iota(order.begin(), order.end(), 0); std::shuffle(order.begin() + 1, order.end(), rng);
    for (size_t i = 0; i < n; i++) host[order[i] * stride / 8] = (u64)(data + order[(i + 1) % n] * stride);
    CHECK(cudaMemcpy(data, host.data(), size, cudaMemcpyHostToDevice));
    int steps = (int)std::min<size_t>(n, 20000);
    for (int mode = 0; mode < 3; mode++) {
      if (size <= ((size_t)64 << 20)) { chase<0><<<1, 1>>>((u64*)data, (int)n, out, cycles); CHECK(cudaDeviceSynchronize()); }
      if (mode == 0) chase<0><<<1, 1>>>((u64*)data, steps, out, cycles);
      if (mode == 1) chase<1><<<1, 1>>>((u64*)data, steps, out, cycles);
      if (mode == 2) chase<2><<<1, 1>>>((u64*)data, steps, out, cycles);
      CHECK(cudaDeviceSynchronize());
      printf("load latency,%s size=%zu B,%.1f,cycles\n", mode == 0 ? "cg" : mode == 1 ? "relaxed.sys" : "acquire.sys", size, (double)get(cycles) / steps);
    }
  }
  { int lines = 4000; int* took; CHECK(cudaMalloc(&took, lines * 4)); each_line<<<1, 1>>>((u64*)data, lines, 16, took); CHECK(cudaDeviceSynchronize());
    std::vector<int> v(lines); CHECK(cudaMemcpy(v.data(), took, lines * 4, cudaMemcpyDeviceToHost)); std::sort(v.begin(), v.end());
    for (int q : {1, 5, 25, 50, 75, 95, 99}) printf("L2 hit of each line,quantile %d,%d,cycles\n", q, v[lines * q / 100]); }
  for (int threads : {1, 32, 256, 1024}) for (int stores : {0, 1, 4}) for (int kind = 0; kind < 3; kind++) {
    if (kind == 0) fence<0><<<1, threads>>>((u64*)data, stores, 16, 50, cycles);
    if (kind == 1) fence<1><<<1, threads>>>((u64*)data, stores, 16, 50, cycles);
    if (kind == 2) fence<2><<<1, threads>>>((u64*)data, stores, 16, 50, cycles);
    CHECK(cudaDeviceSynchronize());
    printf("fence,%s threads=%d stores=%d,%lld,cycles\n", kind == 0 ? "none" : kind == 1 ? "gpu" : "system", threads, stores, get(cycles));
  }
  for (int threads : {32, 128, 256, 512, 1024}) { barrier<<<1, threads>>>(1000, cycles); CHECK(cudaDeviceSynchronize()); printf("barrier,threads=%d,%.2f,cycles\n", threads, get(cycles) / 1000.0); }
  for (int mode = 0; mode < 4; mode++) {
    CHECK(cudaMemset(data, 0, 1 << 20)); int rounds = 2000;
    if (mode == 0) ping_pong<0><<<2, 32>>>((u64*)data, rounds, cycles, out);
    if (mode == 1) ping_pong<1><<<2, 32>>>((u64*)data, rounds, cycles, out);
    if (mode == 2) ping_pong<2><<<2, 32>>>((u64*)data, rounds, cycles, out);
    if (mode == 3) ping_pong<3><<<2, 32>>>((u64*)data, rounds, cycles, out);
    CHECK(cudaDeviceSynchronize());
    const char* names[] = {"release-acquire gpu", "release-acquire sys", "relaxed sys", "fence.sys relaxed"};
    printf("signal round trip,%s SM %llu and %llu,%.1f,cycles\n", names[mode], get(out), get(out + 1), (double)get(cycles) / rounds);
  }
  const uint4* in = (const uint4*)data; uint4* to = (uint4*)(data + ((size_t)6 << 30));
  rate<8, 0>("read", in, to, (size_t)16 << 20, 132, 1024, 4, "HBM");
  for (int threads : {32, 64, 128, 256, 512, 1024}) { // one SM: what is in flight decides
    rate<1, 0>("read", in, to, 1 << 20, 1, threads, 40, "L2"); rate<4, 0>("read", in, to, 1 << 20, 1, threads, 40, "L2"); rate<8, 0>("read", in, to, 1 << 20, 1, threads, 40, "L2");
    rate<1, 0>("read", in, to, (size_t)256 << 20, 1, threads, 1, "HBM"); rate<4, 0>("read", in, to, (size_t)256 << 20, 1, threads, 1, "HBM"); rate<8, 0>("read", in, to, (size_t)256 << 20, 1, threads, 1, "HBM");
    rate<4, 1>("write", in, to, 1 << 20, 1, threads, 40, "L2"); rate<4, 1>("write", in, to, (size_t)256 << 20, 1, threads, 1, "HBM");
    rate<4, 2>("copy", in, to, 1 << 20, 1, threads, 40, "L2"); rate<4, 2>("copy", in, to, (size_t)256 << 20, 1, threads, 1, "HBM");
  }
  for (int blocks : {2, 4, 8, 16, 24, 32, 48, 66, 96, 132, 264}) for (int op = 0; op < 4; op++) {
    size_t per = (size_t)(blocks > 66 ? 12 : 24) << 20;
    if (op == 0) rate<8, 0>("read", in, to, per, blocks, 512, 1, "HBM");
    if (op == 1) rate<8, 1>("write", in, to, per, blocks, 512, 1, "HBM");
    if (op == 2) rate<8, 2>("copy", in, to, per, blocks, 512, 1, "HBM");
    if (op == 3) rate<4, 3>("reduce", in, to, std::min<size_t>(per, ((size_t)2 << 30) / blocks), blocks, 512, 1, "HBM");
    if (op == 0) { rate<8, 0>("read", in, to, 128 << 10, blocks, 512, 60, "L2"); rate<8, 0>("read", in, to, 384 << 10, blocks, 1024, 30, "L2"); }
    if (op == 1) rate<8, 1>("write", in, to, 128 << 10, blocks, 512, 60, "L2");
  }
  for (int blocks : {1, 132, 264, 528, 1056, 2112, 4224, 8448, 16896, 67584})
    printf("empty kernel in a graph,blocks=%d threads=32,%.3f,us\n", blocks, graph_us([&](cudaStream_t s) { empty<<<blocks, 32, 0, s>>>(); }, 9, 500));
  for (size_t bytes : {(size_t)1 << 10, (size_t)1 << 14, (size_t)1 << 16, (size_t)1 << 18, (size_t)1 << 20, (size_t)1 << 22})
    printf("copy kernel in a graph,bytes=%zu,%.3f,us\n", bytes, graph_us([&](cudaStream_t s) { small<<<(unsigned)((bytes / 16 + 255) / 256), 256, 0, s>>>(in, to, bytes / 16); }, 9, 500));
  for (size_t bytes : {(size_t)1 << 10, (size_t)1 << 20, (size_t)1 << 24, (size_t)1 << 28})
    printf("cudaMemcpy on the GPU in a graph,bytes=%zu,%.3f,us\n", bytes, graph_us([&](cudaStream_t s) { cudaMemcpyAsync(to, in, bytes, cudaMemcpyDeviceToDevice, s); }, 5, 20));
  char* pinned; CHECK(cudaMallocHost(&pinned, (size_t)256 << 20));
  for (size_t bytes : {(size_t)8, (size_t)1 << 12, (size_t)1 << 16, (size_t)1 << 20, (size_t)1 << 24, (size_t)1 << 28}) {
    printf("host to GPU in a graph,bytes=%zu,%.3f,us\n", bytes, graph_us([&](cudaStream_t s) { cudaMemcpyAsync(to, pinned, bytes, cudaMemcpyHostToDevice, s); }, 5, 8));
    printf("GPU to host in a graph,bytes=%zu,%.3f,us\n", bytes, graph_us([&](cudaStream_t s) { cudaMemcpyAsync(pinned, in, bytes, cudaMemcpyDeviceToHost, s); }, 5, 8));
  }
  { cudaEvent_t a, b; cudaEventCreate(&a); cudaEventCreate(&b); std::vector<float> t;
    for (int k = 0; k < 5; k++) { cudaEventRecord(a); for (int i = 0; i < 5000; i++) empty<<<1, 32>>>(); cudaEventRecord(b); cudaEventSynchronize(b); float ms; cudaEventElapsedTime(&ms, a, b); t.push_back(ms); }
    printf("empty kernels on a stream,5000 in a row,%.3f,us\n", median_ms(t) * 1e3 / 5000); }
  return 0;
}
