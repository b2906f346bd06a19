/* @program@ as a C library, made by superopt @version@.

   Inputs and outputs are arrays whose elements lie one after the other, the last axis fastest, at addresses that are
   multiples of the size of an element.  Outputs overlap neither each other nor inputs.

@signature@ */
#ifndef @NAME@_H
#define @NAME@_H

#ifdef __cplusplus
extern "C" {
#endif

@constants@

enum {
  @NAME@_OK,
  @NAME@_NO_FILE,
  @NAME@_WRONG_WEIGHTS,
  @NAME@_NO_MEMORY,
  @NAME@_WRONG_ARGUMENT,
  @NAME@_NO_FEATURE = 100 /* and above: a feature of the processor, by number */
};

typedef struct @name@_context @name@_context;

/* Map the weights, read-only and shared with other processes, and check them.  The file may not change until close. */
int @name@_open(const char *weights_path, @name@_context **context);

/* Compute outputs from inputs.  Several threads may call at the same time, also with one context. */
int @name@_run(@name@_context *context, const void *const *inputs, void *const *outputs);

/* Set the most threads of a call, counting the caller; 0, and the default: all processors that the process may use. */
int @name@_threads(@name@_context *context, int threads);

/* Free a context that no thread is using. */
void @name@_close(@name@_context *context);

/* Return the meaning of a status. */
const char *@name@_error(int status);

#ifdef __cplusplus
}
#endif

#endif
