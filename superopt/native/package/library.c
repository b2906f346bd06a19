/* The functions of @name@.h around the code of the program: weights, threads, memory. */
#define _GNU_SOURCE
#include "@name@.h"

#include <cpuid.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WEIGHTS = @weights@, TEAM_BYTES = @team_bytes@, BUFFERS = WEIGHTS + @NAME@_INPUTS + @NAME@_OUTPUTS };
static const uint64_t WEIGHTS_BYTES = @weights_bytes@ULL, RESERVE_BYTES = @reserve_bytes@ULL;
static const uint64_t offsets[] = {@offsets@0};
static const unsigned char weights_digest[32] = {@digest@};

struct feature {
  const char *name;
  unsigned leaf, part, word, bit, state; /* where cpuid tells it, and the registers that the system keeps for it */
};
static const struct feature features[] = {@features@{0}};

extern void native_run(const void *const *buffers, int64_t task) __asm__("native.run");
extern void *native_allocate(void) __asm__("native.allocate");
extern void native_give(void *arena) __asm__("native.give");
extern void native_drain(void) __asm__("native.drain");
extern void runtime_region(const void *kernel, const void *const *buffers, int64_t threads) __asm__("runtime.region");
extern void *runtime_members(void) __asm__("runtime.members");
extern void runtime_reserve(int64_t base, int64_t bytes) __asm__("runtime.reserve");
extern void runtime_forget(void) __asm__("runtime.reserve.forget");

struct @name@_context {
  void *weights;
  int64_t threads;
  const void *pointers[WEIGHTS + 1];
};

/* What the program calls for each step: its own number of threads is that of the processors where it was made. */
void package_region(const void *kernel, const void *const *buffers, int64_t threads) __asm__("package.region");
static __thread int64_t most_threads;

void package_region(const void *kernel, const void *const *buffers, int64_t threads) {
  (void)threads;
  runtime_region(kernel, buffers, most_threads);
}

/* ---- BLAKE2b of 32 bytes (RFC 7693) */

static const uint64_t blake_start[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};
static const unsigned char blake_order[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

static uint64_t rotated(uint64_t x, int bits) { return x >> bits | x << (64 - bits); }

static inline void mix(uint64_t *v, int a, int b, int c, int d, uint64_t x, uint64_t y) {
  v[a] += v[b] + x;
  v[d] = rotated(v[d] ^ v[a], 32);
  v[c] += v[d];
  v[b] = rotated(v[b] ^ v[c], 24);
  v[a] += v[b] + y;
  v[d] = rotated(v[d] ^ v[a], 16);
  v[c] += v[d];
  v[b] = rotated(v[b] ^ v[c], 63);
}

static void compress(uint64_t *h, const unsigned char *block, uint64_t bytes, int last) {
  uint64_t v[16], m[16];
  memcpy(m, block, sizeof m);
  memcpy(v, h, 64);
  memcpy(v + 8, blake_start, 64);
  v[12] ^= bytes;
  if (last) v[14] = ~v[14];
#pragma GCC unroll 12
  for (int i = 0; i < 12; i++) {
    const unsigned char *s = blake_order[i % 10];
    mix(v, 0, 4, 8, 12, m[s[0]], m[s[1]]);
    mix(v, 1, 5, 9, 13, m[s[2]], m[s[3]]);
    mix(v, 2, 6, 10, 14, m[s[4]], m[s[5]]);
    mix(v, 3, 7, 11, 15, m[s[6]], m[s[7]]);
    mix(v, 0, 5, 10, 15, m[s[8]], m[s[9]]);
    mix(v, 1, 6, 11, 12, m[s[10]], m[s[11]]);
    mix(v, 2, 7, 8, 13, m[s[12]], m[s[13]]);
    mix(v, 3, 4, 9, 14, m[s[14]], m[s[15]]);
  }
  for (int i = 0; i < 8; i++) h[i] ^= v[i] ^ v[i + 8];
}

static int has_digest(const unsigned char *data, uint64_t bytes) {
  uint64_t h[8], done = 0;
  unsigned char rest[128] = {0};
  memcpy(h, blake_start, sizeof h);
  h[0] ^= 0x01010020;
  for (; bytes - done > 128; done += 128) compress(h, data + done, done + 128, 0);
  memcpy(rest, data + done, bytes - done);
  compress(h, rest, bytes, 1);
  return memcmp(h, weights_digest, sizeof weights_digest) == 0;
}

/* ---- the process */

static int has(const struct feature *f, unsigned kept) {
  unsigned words[4];
  if (!__get_cpuid_count(f->leaf, f->part, words, words + 1, words + 2, words + 3)) return 0;
  return (words[f->word] >> f->bit & 1) && (f->state & kept) == f->state;
}

static int lacking(void) {
  unsigned a, b, c = 0, d, kept = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) && c >> 27 & 1) __asm__("xgetbv" : "=a"(kept), "=d"(d) : "c"(0));
  for (int number = 0; features[number].name; number++)
    if (!has(features + number, kept)) return number;
  return -1;
}

static int64_t processors(void) {
  cpu_set_t allowed;
  int64_t count = sched_getaffinity(0, sizeof allowed, &allowed) ? sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&allowed);
  FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
  if (file) {
    long long quota, period;
    if (fscanf(file, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0) {
      int64_t most = (quota + period - 1) / period;
      if (most < count) count = most;
    }
    fclose(file);
  }
  return count < 1 ? 1 : count;
}

static void in_child(void) {
  memset(runtime_members(), 0, TEAM_BYTES);
  runtime_forget();
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int ready = @NAME@_NO_MEMORY;
static int64_t opened;

static void prepare(void) {
  void *arena, *reserve;
  if (RESERVE_BYTES) {
    reserve = mmap(NULL, RESERVE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (reserve == MAP_FAILED) return;
    runtime_reserve((int64_t)reserve, (int64_t)RESERVE_BYTES);
  }
  arena = native_allocate();
  if (!arena) return;
  native_give(arena);
  if (pthread_atfork(NULL, NULL, in_child) == 0) ready = @NAME@_OK;
}

/* ---- the functions of the header */

static int mapped(const char *path, void **weights) {
  struct stat about;
  int status = @NAME@_NO_FILE, file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return status;
  if (fstat(file, &about) == 0) {
    status = @NAME@_WRONG_WEIGHTS;
    if (S_ISREG(about.st_mode) && (uint64_t)about.st_size == WEIGHTS_BYTES) {
      status = @NAME@_NO_MEMORY;
      *weights = mmap(NULL, WEIGHTS_BYTES, PROT_READ, MAP_SHARED, file, 0);
      if (*weights != MAP_FAILED) status = @NAME@_OK;
    }
  }
  close(file);
  if (status == @NAME@_OK && !has_digest(*weights, WEIGHTS_BYTES)) {
    munmap(*weights, WEIGHTS_BYTES);
    status = @NAME@_WRONG_WEIGHTS;
  }
  return status;
}

int @name@_open(const char *weights_path, @name@_context **context) {
  int status = lacking();
  @name@_context *made;
  if (!context) return @NAME@_WRONG_ARGUMENT;
  *context = NULL;
  if (!weights_path) return @NAME@_WRONG_ARGUMENT;
  if (status >= 0) return @NAME@_NO_FEATURE + status;
  pthread_once(&once, prepare);
  if (ready != @NAME@_OK) return ready;
  made = calloc(1, sizeof *made);
  if (!made) return @NAME@_NO_MEMORY;
  status = mapped(weights_path, &made->weights);
  if (status != @NAME@_OK) {
    free(made);
    return status;
  }
  for (int i = 0; i < WEIGHTS; i++) made->pointers[i] = (const char *)made->weights + offsets[i];
  made->threads = processors();
  __atomic_add_fetch(&opened, 1, __ATOMIC_ACQ_REL);
  *context = made;
  return @NAME@_OK;
}

int @name@_run(@name@_context *context, const void *const *inputs, void *const *outputs) {
  const void *pointers[BUFFERS + 1];
  if (!context || (@NAME@_INPUTS && !inputs) || (@NAME@_OUTPUTS && !outputs)) return @NAME@_WRONG_ARGUMENT;
  memcpy(pointers, context->pointers, WEIGHTS * sizeof *pointers);
  for (int i = 0; i < @NAME@_INPUTS; i++) pointers[WEIGHTS + i] = inputs[i];
  for (int i = 0; i < @NAME@_OUTPUTS; i++) pointers[WEIGHTS + @NAME@_INPUTS + i] = outputs[i];
  for (int i = WEIGHTS; i < BUFFERS; i++)
    if (!pointers[i]) return @NAME@_WRONG_ARGUMENT;
  most_threads = __atomic_load_n(&context->threads, __ATOMIC_RELAXED);
  native_run(pointers, 0);
  return @NAME@_OK;
}

int @name@_threads(@name@_context *context, int threads) {
  if (!context || threads < 0) return @NAME@_WRONG_ARGUMENT;
  __atomic_store_n(&context->threads, threads ? threads : processors(), __ATOMIC_RELAXED);
  return @NAME@_OK;
}

void @name@_close(@name@_context *context) {
  if (!context) return;
  munmap(context->weights, WEIGHTS_BYTES);
  free(context);
  if (__atomic_sub_fetch(&opened, 1, __ATOMIC_ACQ_REL) == 0) native_drain();
}

const char *@name@_error(int status) {
  static __thread char text[96];
  int feature = status - @NAME@_NO_FEATURE;
  switch (status) {
    case @NAME@_OK: return "no error";
    case @NAME@_NO_FILE: return "the file of the weights cannot be read";
    case @NAME@_WRONG_WEIGHTS: return "the file of the weights is damaged, or of another package";
    case @NAME@_NO_MEMORY: return "there is not enough memory";
    case @NAME@_WRONG_ARGUMENT: return "an argument is null or negative";
  }
  if (feature < 0 || feature + 1 >= (int)(sizeof features / sizeof *features)) return "no status of this library";
  snprintf(text, sizeof text, "the processor lacks %s, which the library was built for", features[feature].name);
  return text;
}
