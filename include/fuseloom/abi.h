/* The C interface of a compiled model: a shared library or a C++ source file that `fuseloom compile` wrote. It needs
 * nothing of fuseloom but this header, which is plain C99.
 *
 *   const fuseloom_api* api = fuseloom_model(FUSELOOM_ABI_VERSION);      or NAME_model(...), the model's own name for it
 *   fuseloom_instance* model;
 *   api->create(NULL, &model, &error);
 *   api->run(model, &arguments, &error);
 *   api->destroy(model);
 *
 * Rules
 *   - Every struct begins with its size: set it to sizeof. A library reads no more than the caller's struct has, and takes
 *     zero for what it lacks; so new fields come at the end, and both sides may be older or newer than the other.
 *     FUSELOOM_ABI_VERSION changes only when that is not enough.
 *   - Every function that can fail returns a fuseloom_status and, when `error` is not NULL, words about it. A call that
 *     is refused for its arguments has written nothing but the error.
 *   - An instance may be used by any number of threads at a time. Different instances share nothing, except for weights
 *     when they are asked to (`share_with`). After fork() the child may go on with the parent's instances.
 *   - A run whose sizes the instance has seen allocates nothing, unless the sizes of temporaries depend on data.
 */
#ifndef FUSELOOM_ABI_H
#define FUSELOOM_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FUSELOOM_ABI_VERSION 1u
#define FUSELOOM_MAX_RANK 16

typedef enum fuseloom_status {
  FUSELOOM_OK = 0,
  FUSELOOM_BAD_ARGUMENT = 1,     /* a null pointer, a struct of an unknown size, a number out of range */
  FUSELOOM_BAD_VERSION = 2,      /* the caller's header and the library do not go together */
  FUSELOOM_BAD_NAME = 3,         /* no input or output of that name, one given twice, one missing */
  FUSELOOM_BAD_DTYPE = 4,
  FUSELOOM_BAD_RANK = 5,
  FUSELOOM_BAD_SIZE = 6,         /* a size of an input does not fit the model */
  FUSELOOM_TOO_SMALL = 7,        /* the memory of an output, or the arena */
  FUSELOOM_NO_MEMORY = 8,
  FUSELOOM_BAD_WEIGHTS = 9,      /* missing, or not those of this model */
  FUSELOOM_NO_CPU = 10,          /* the library has no code for this processor */
  FUSELOOM_DATA_DEPENDENT = 11,  /* asked for a size that is known only when the model has run */
  FUSELOOM_CHECK_FAILED = 12     /* a check inside the model: the data does not fit it. Outputs may have been written */
} fuseloom_status;

typedef enum fuseloom_dtype {
  FUSELOOM_BOOL, FUSELOOM_I8, FUSELOOM_I16, FUSELOOM_I32, FUSELOOM_I64, FUSELOOM_U8, FUSELOOM_U16, FUSELOOM_U32,
  FUSELOOM_U64, FUSELOOM_F16, FUSELOOM_BF16, FUSELOOM_F32, FUSELOOM_F64,
  FUSELOOM_C64, FUSELOOM_C128    /* complex of two f32, of two f64 */
} fuseloom_dtype;

/* Instruction sets, each a superset of those before. */
typedef enum fuseloom_isa {
  FUSELOOM_ISA_BEST = 0,         /* the widest that the library has and the processor runs */
  FUSELOOM_ISA_BASELINE = 1,
  FUSELOOM_ISA_AVX2 = 2,         /* x86-64-v3 */
  FUSELOOM_ISA_AVX512 = 3        /* x86-64-v4 */
} fuseloom_isa;

typedef struct fuseloom_error {
  size_t struct_size;
  int32_t status;                /* what the function returned */
  char message[508];             /* ends with 0 */
} fuseloom_error;

/* ---- what a model is: constant data, there before anything is created ------------------------------------------ */
typedef struct fuseloom_value_info {
  const char* name;
  int32_t dtype;
  int32_t rank;
  const char* const* sizes;      /* rank expressions over the symbols: "3", "batch", "2*rows + 1" */
} fuseloom_value_info;

typedef struct fuseloom_symbol_info {
  const char* name;
  int64_t low, high;             /* allowed values, both included; high INT64_MAX: no limit */
  int64_t multiple;              /* ... that are multiples of this */
  int64_t typical;               /* the size the model was tuned for */
} fuseloom_symbol_info;

typedef struct fuseloom_model_info {
  size_t struct_size;
  size_t value_info_size, symbol_info_size;   /* from one element of an array to the next */
  const char* name;
  const char* compiler;          /* "fuseloom 0.1.0" */
  int64_t input_count, output_count, symbol_count;
  const fuseloom_value_info* inputs;
  const fuseloom_value_info* outputs;
  const fuseloom_symbol_info* symbols;        /* those that the sizes of inputs have */
  int64_t weights_bytes;         /* of the weights file; 0: the model has none */
  const char* weights_hash;      /* of its bytes: the first 16 bytes behind them, in hexadecimal */
  int32_t weights_embedded;      /* 1: part of the library, nothing has to be given */
  const char* isas;              /* "baseline avx2 avx512" */
} fuseloom_model_info;

/* ---- instances -------------------------------------------------------------------------------------------------- */
typedef struct fuseloom_instance fuseloom_instance;

/* Calls task(data, i) once for every i in [0, count), from any threads, in any order, at the same time or not; returns
 * when all calls have. Results do not depend on it. */
typedef void (*fuseloom_parallel_for)(void* user, int32_t count, void (*task)(void* data, int32_t index), void* data);

typedef struct fuseloom_options {
  size_t struct_size;
  int32_t threads;               /* for one run; 0: as many as there are cores */
  int32_t isa;                   /* a fuseloom_isa: at most this */
  const char* weights_path;      /* where they are not embedded: a file, mapped read-only ... */
  const void* weights;           /* ... or memory, aligned to 64 bytes, that outlives the instance */
  size_t weights_bytes;
  fuseloom_instance* share_with; /* an instance of the same model, whose weights are used; may be destroyed before this one */
  fuseloom_parallel_for parallel_for;         /* NULL: threads of the instance's own, which sleep while idle */
  void* parallel_user;
  void* (*allocate)(void* user, size_t bytes, size_t alignment);   /* NULL: the C library. Thread-safe */
  void (*release)(void* user, void* memory, size_t bytes);
  void* allocate_user;
} fuseloom_options;

/* ---- running ---------------------------------------------------------------------------------------------------- */
typedef struct fuseloom_input {
  size_t struct_size;
  const char* name;              /* NULL: by position */
  const void* data;              /* may be NULL where only sizes are asked for, or there are no elements */
  int32_t dtype;
  int32_t rank;
  const int64_t* sizes;
  const int64_t* strides;        /* in elements, may be negative or 0; NULL: row-major without gaps. Others are copied */
} fuseloom_input;

typedef struct fuseloom_output {
  size_t struct_size;
  const char* name;              /* NULL: by position */
  void* data;                    /* NULL: taken from `allocate_output` */
  size_t capacity;               /* bytes behind `data` */
  /* Set by the library: */
  int32_t dtype;
  int32_t rank;
  int64_t sizes[FUSELOOM_MAX_RANK];
  size_t bytes;
} fuseloom_output;

typedef struct fuseloom_arguments {
  size_t struct_size;
  int64_t input_count;
  const fuseloom_input* inputs;
  int64_t output_count;          /* outputs that nobody asks for are dropped */
  fuseloom_output* outputs;
  void* arena;                   /* NULL: the instance's. Aligned to 64 bytes, at least what `arena_bytes` says */
  size_t arena_bytes;
  void* (*allocate_output)(void* user, int64_t output, size_t bytes);   /* output: its position in the model */
  void* allocate_output_user;
  /* Called after each line of the program with each value it wrote, where the model was compiled to allow it. `origin`
   * names the nodes of the model. */
  void (*observe)(void* user, const char* value, const char* origin, int32_t dtype, int32_t rank, const int64_t* sizes, const void* data);
  void* observe_user;
} fuseloom_arguments;

typedef struct fuseloom_api {
  size_t struct_size;
  uint32_t abi_version;
  const fuseloom_model_info* info;
  int32_t (*create)(const fuseloom_options* options, fuseloom_instance** instance, fuseloom_error* error);
  void (*destroy)(fuseloom_instance* instance);   /* NULL is nothing. No run may be going on */
  /* What a run with inputs of these sizes (data is not looked at) needs as arena: exactly, before any run. Memory whose
   * size depends on data comes on top, from `allocate`. */
  int32_t (*arena_bytes)(fuseloom_instance* instance, const fuseloom_input* inputs, int64_t input_count, size_t* bytes, fuseloom_error* error);
  /* ... and what it gives: fills in dtype, rank, sizes and bytes. */
  int32_t (*output_sizes)(fuseloom_instance* instance, const fuseloom_input* inputs, int64_t input_count, fuseloom_output* outputs,
                          int64_t output_count, fuseloom_error* error);
  int32_t (*run)(fuseloom_instance* instance, const fuseloom_arguments* arguments, fuseloom_error* error);
  /* The instruction set in use: a fuseloom_isa. */
  int32_t (*isa)(const fuseloom_instance* instance);
} fuseloom_api;

/* What every library exports; NULL when it is too old for the caller. */
const fuseloom_api* fuseloom_model(uint32_t abi_version);
typedef const fuseloom_api* (*fuseloom_model_function)(uint32_t abi_version);

#ifdef __cplusplus
}
#endif

#endif
