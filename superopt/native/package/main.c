/* Calls @name@ on inputs from raw files, zeros where none is given; prints times and a checksum of each output.

     @name@_main [-w WEIGHTS] [-n CALLS] [-t THREADS] [INPUT ...] */
#define _GNU_SOURCE
#include "@name@.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const size_t input_bytes[] = {@NAME@_INPUT_BYTES}, output_bytes[] = {@NAME@_OUTPUT_BYTES};

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return 1e3 * t.tv_sec + 1e-6 * t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static int fail(const char *what, const char *why) {
  fprintf(stderr, "%s: %s\n", what, why);
  return 1;
}

static uint64_t checksum(const unsigned char *data, size_t bytes) { /* FNV-1a */
  uint64_t sum = 0xcbf29ce484222325;
  for (size_t i = 0; i < bytes; i++) sum = (sum ^ data[i]) * 0x100000001b3;
  return sum;
}

static void *zeros(size_t bytes) {
  size_t room = (bytes / 64 + 1) * 64;
  void *memory = aligned_alloc(64, room);
  return memory ? memset(memory, 0, room) : NULL;
}

int main(int count, char **words) {
  const char *weights = "@name@.weights";
  int calls = 1, threads = 0, option, status;
  void *inputs[@NAME@_INPUTS + 1], *outputs[@NAME@_OUTPUTS + 1];
  @name@_context *context;
  double begin, *times;
  while ((option = getopt(count, words, "w:n:t:")) != -1) {
    if (option == 'w') weights = optarg;
    else if (option == 'n') calls = atoi(optarg);
    else if (option == 't') threads = atoi(optarg);
    else return 2;
  }
  if (calls < 1 || count - optind > @NAME@_INPUTS) return fail(words[0], "too many inputs, or no calls");
  for (int i = 0; i < @NAME@_OUTPUTS; i++)
    if (!(outputs[i] = zeros(output_bytes[i]))) return fail(words[0], "no memory");
  for (int i = 0; i < @NAME@_INPUTS; i++) {
    if (!(inputs[i] = zeros(input_bytes[i]))) return fail(words[0], "no memory");
    if (optind + i < count) {
      FILE *file = fopen(words[optind + i], "rb");
      if (!file) return fail(words[optind + i], "cannot be read");
      if (fread(inputs[i], 1, input_bytes[i], file) != input_bytes[i] || fgetc(file) != EOF)
        return fail(words[optind + i], "has not the bytes of the input");
      fclose(file);
    }
  }
  if (!(times = malloc(calls * sizeof *times))) return fail(words[0], "no memory");
  begin = now_ms();
  status = @name@_open(weights, &context);
  if (status != @NAME@_OK) return fail(weights, @name@_error(status));
  printf("open %.4f ms\n", now_ms() - begin);
  status = @name@_threads(context, threads);
  for (int i = 0; i < calls && status == @NAME@_OK; i++) {
    begin = now_ms();
    status = @name@_run(context, (const void *const *)inputs, outputs);
    times[i] = now_ms() - begin;
    if (i == 0) printf("first %.4f ms\n", times[0]);
  }
  if (status != @NAME@_OK) return fail(words[0], @name@_error(status));
  qsort(times, calls, sizeof *times, by_value);
  printf("median %.4f ms, least %.4f ms of %d\n", times[calls / 2], times[0], calls);
  for (int i = 0; i < @NAME@_OUTPUTS; i++)
    printf("output %d: %016llx\n", i, (unsigned long long)checksum(outputs[i], output_bytes[i]));
  @name@_close(context);
  return 0;
}
