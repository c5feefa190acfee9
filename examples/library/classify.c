/* Classifies rows of 16 numbers with a compiled model, in C99 through the plain interface:
 *
 *   classify_c tiny.so rows.txt     one line for each row: its class, and the probability of each class
 *
 * tiny.so and tiny.weights: `fuseloom compile tiny.onnx -o tiny.so --weights file`. Without CMake:
 *   cc -std=c99 -I include examples/library/classify.c -o classify_c -ldl
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuseloom/abi.h"

enum { kFeatures = 16 };

/* dlsym gives a pointer to an object; C has no conversion from that to a function, so its bytes are copied. */
static fuseloom_model_function entry_of(void* library) {
  void* const symbol = dlsym(library, "fuseloom_model");
  fuseloom_model_function entry;
  memcpy(&entry, &symbol, sizeof entry);
  return entry;
}

/* All numbers of a file, as whole rows. NULL: there is no such file, or something else is in it. */
static float* read_rows(const char* path, int64_t* rows) {
  FILE* const file = fopen(path, "r");
  if (file == NULL) return NULL;
  size_t count = 0, capacity = kFeatures;
  float* numbers = malloc(capacity * sizeof *numbers);
  while (numbers != NULL && fscanf(file, "%f", &numbers[count]) == 1) {
    if (++count < capacity) continue;
    capacity *= 2;
    float* const larger = realloc(numbers, capacity * sizeof *numbers);
    if (larger == NULL) free(numbers);
    numbers = larger;
  }
  const int whole = feof(file) && count % kFeatures == 0;
  fclose(file);
  *rows = (int64_t)(count / kFeatures);
  if (whole) return numbers;
  free(numbers);
  return NULL;
}

static int classify(const fuseloom_api* api, fuseloom_instance* model, const float* numbers, int64_t rows) {
  fuseloom_error error = {sizeof error, 0, ""};
  const int64_t sizes[] = {rows, kFeatures};
  fuseloom_input input = {sizeof input, "x", NULL, FUSELOOM_F32, 2, NULL, NULL};
  input.data = numbers;
  input.sizes = sizes;

  /* 1. What the run will give, and the memory that it needs, before it runs. */
  fuseloom_output output;
  memset(&output, 0, sizeof output);
  output.struct_size = sizeof output;
  output.name = "probability";
  size_t arena_bytes = 0;
  if (api->output_sizes(model, &input, 1, &output, 1, &error) != FUSELOOM_OK || api->arena_bytes(model, &input, 1, &arena_bytes, &error) != FUSELOOM_OK) {
    fprintf(stderr, "classify_c: %s\n", error.message);
    return 1;
  }

  /* 2. Run in memory of our own. (Without an arena, the instance keeps one.) */
  const size_t arena_room = (arena_bytes + 127) / 64 * 64;
  char* const arena = malloc(arena_room + 64);
  float* const probabilities = malloc(output.bytes + 1);
  if (arena == NULL || probabilities == NULL) {
    free(arena);
    free(probabilities);
    fprintf(stderr, "classify_c: no memory\n");
    return 1;
  }
  output.data = probabilities;
  output.capacity = output.bytes;
  fuseloom_arguments arguments;
  memset(&arguments, 0, sizeof arguments);
  arguments.struct_size = sizeof arguments;
  arguments.inputs = &input;
  arguments.input_count = 1;
  arguments.outputs = &output;
  arguments.output_count = 1;
  arguments.arena = arena + (64 - (uintptr_t)arena % 64);
  arguments.arena_bytes = arena_room;
  const int32_t status = api->run(model, &arguments, &error);

  /* 3. The answers. */
  if (status == FUSELOOM_OK) {
    const int64_t classes = output.sizes[1];
    for (int64_t row = 0; row < rows; ++row) {
      const float* const of_row = probabilities + row * classes;
      int64_t best = 0;
      for (int64_t c = 1; c < classes; ++c) best = of_row[c] > of_row[best] ? c : best;
      printf("%lld:", (long long)best);
      for (int64_t c = 0; c < classes; ++c) printf(" %.9g", of_row[c]);
      printf("\n");
    }
  } else {
    fprintf(stderr, "classify_c: %s\n", error.message);
  }
  free(arena);
  free(probabilities);
  return status == FUSELOOM_OK ? 0 : 1;
}

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: %s LIBRARY ROWS\n", argv[0]);
    return 2;
  }
  /* 1. Load the library; NULL from its entry: it is older than this program's header. */
  void* const library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "classify_c: %s\n", dlerror());
    return 1;
  }
  const fuseloom_model_function entry = entry_of(library);
  const fuseloom_api* const api = entry != NULL ? entry(FUSELOOM_ABI_VERSION) : NULL;
  if (api == NULL) {
    fprintf(stderr, "classify_c: %s is no compiled model, or one for an older interface\n", argv[1]);
    return 1;
  }

  /* 2. What it is can be asked before anything is made. */
  const fuseloom_model_info* const info = api->info;
  fprintf(stderr, "%s, by %s, for %s; input %s: %s x %s\n", info->name, info->compiler, info->isas, info->inputs[0].name, info->inputs[0].sizes[0], info->inputs[0].sizes[1]);

  /* 3. Its weights lie beside it: NAME.weights for NAME.so. */
  char weights[4096];
  const size_t stem = strlen(argv[1]) > 3 ? strlen(argv[1]) - 3 : 0;
  snprintf(weights, sizeof weights, "%.*s.weights", (int)stem, argv[1]);
  fuseloom_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.weights_path = weights;
  fuseloom_error error = {sizeof error, 0, ""};
  fuseloom_instance* model = NULL;
  if (api->create(&options, &model, &error) != FUSELOOM_OK) {
    fprintf(stderr, "classify_c: %s\n", error.message);
    return 1;
  }

  int64_t rows = 0;
  float* const numbers = read_rows(argv[2], &rows);
  if (numbers == NULL) fprintf(stderr, "classify_c: %s: expected rows of %d numbers\n", argv[2], kFeatures);
  const int code = numbers != NULL ? classify(api, model, numbers, rows) : 1;
  free(numbers);
  api->destroy(model);
  dlclose(library);
  return code;
}
