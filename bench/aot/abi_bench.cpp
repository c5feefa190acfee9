// What a compiled model costs its caller, measured through the C interface alone. `./dev bench aot` compiles this and runs it:
//
//   abi_bench first LIBRARY WEIGHTS DIM...    from dlopen to the first answer, step by step
//   abi_bench call LIBRARY                    a call of a model with one kernel of no work, and the kernel alone
//   abi_bench threads LIBRARY WEIGHTS DIM...  1 and several threads on one instance: calls a second, the same bits
//   abi_bench load LIBRARY WEIGHTS COUNT DIM...   load, create, run, destroy, unload; resident memory along the way
//   abi_bench shapes LIBRARY WEIGHTS LOW HIGH STEP   60 random sizes of every symbol; resident memory along the way
//
// WEIGHTS "-": they are in the library. DIM: NAME=N. Integers of inputs are 16000, which is a sample rate to those that want one.
#include <malloc.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "fuseloom/model.hpp"

namespace {

using fuseloom::Argument;
using fuseloom::Instance;
using fuseloom::Model;

double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

long resident_kib() {
  long pages = 0, resident = 0;
  if (FILE* file = fopen("/proc/self/statm", "r")) {
    if (fscanf(file, "%ld %ld", &pages, &resident) != 2) resident = 0;
    fclose(file);
  }
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

std::map<std::string, int64_t> dims_of(char** begin, char** end) {
  std::map<std::string, int64_t> dims;
  for (; begin != end; ++begin) {
    const char* const equals = strchr(*begin, '=');
    if (equals != nullptr) dims[std::string(*begin, static_cast<size_t>(equals - *begin))] = atoll(equals + 1);
  }
  return dims;
}

// "3", "n", and sums and products of both: what the inputs of real models have.
int64_t size_of(const std::string& text, const std::map<std::string, int64_t>& dims) {
  const size_t plus = text.find(" + "), times = text.find('*');
  if (plus != std::string::npos) return size_of(text.substr(0, plus), dims) + size_of(text.substr(plus + 3), dims);
  if (times != std::string::npos) return size_of(text.substr(0, times), dims) * size_of(text.substr(times + 1), dims);
  const auto found = dims.find(text);
  return found != dims.end() ? found->second : atoll(text.c_str());
}

struct Inputs {
  std::vector<std::vector<char>> memory;
  std::vector<Argument> arguments;
};
Inputs inputs_of(const fuseloom_model_info& info, std::map<std::string, int64_t> dims) {
  for (int64_t s = 0; s < info.symbol_count; ++s) dims.insert({info.symbols[s].name, info.symbols[s].typical});
  Inputs inputs;
  static const int64_t kBytes[] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 8, 16};
  for (int64_t i = 0; i < info.input_count; ++i) {
    const fuseloom_value_info& value = info.inputs[i];
    std::vector<int64_t> sizes;
    int64_t count = 1;
    for (int32_t d = 0; d < value.rank; ++d) {
      sizes.push_back(size_of(value.sizes[d], dims));
      count *= sizes.back();
    }
    std::vector<char>& data = inputs.memory.emplace_back(static_cast<size_t>(count * kBytes[value.dtype]) + 1);
    for (int64_t e = 0; e < count; ++e) {
      const float number = static_cast<float>((e * 2654435761u >> 7) % 1000) / 1000.0f - 0.5f;
      if (value.dtype == FUSELOOM_F32) memcpy(&data[static_cast<size_t>(e) * 4], &number, 4);
      const int64_t integer = value.rank == 0 ? 16000 : e % 200;
      if (value.dtype == FUSELOOM_I64) memcpy(&data[static_cast<size_t>(e) * 8], &integer, 8);
      const int32_t narrow = static_cast<int32_t>(e % 200);
      if (value.dtype == FUSELOOM_I32) memcpy(&data[static_cast<size_t>(e) * 4], &narrow, 4);
    }
    inputs.arguments.emplace_back(value.name, value.dtype, data.data(), sizes);
  }
  return inputs;
}

fuseloom::InstanceOptions options_of(const char* weights, int32_t threads = 1) {
  fuseloom::InstanceOptions options;
  options.threads = threads;
  if (strcmp(weights, "-") != 0) options.weights_path = weights;
  return options;
}

int first(const char* library, const char* weights, const std::map<std::string, int64_t>& dims) {
  const double start = now();
  const Model model(library);
  const double loaded = now();
  const Instance instance = model.instance(options_of(weights));
  const double created = now();
  const Inputs inputs = inputs_of(model.info(), dims);
  const double before = now();
  instance.run(inputs.arguments);
  const double end = now();
  instance.run(inputs.arguments);
  printf("{\"load_ms\": %.3f, \"create_ms\": %.3f, \"first_run_ms\": %.3f, \"second_run_ms\": %.3f, \"resident_kib\": %ld}\n", (loaded - start) * 1e3, (created - loaded) * 1e3,
         (end - before) * 1e3, (now() - end) * 1e3, resident_kib());
  return 0;
}

// The median of the means of many short series: a series that was interrupted does not count.
template <class Function>
double nanoseconds(const Function& function) {
  std::vector<double> means;
  for (int series = 0; series < 301; ++series) {
    const double start = now();
    for (int i = 0; i < 2000; ++i) function();
    means.push_back((now() - start) / 2000 * 1e9);
  }
  std::nth_element(means.begin(), means.begin() + 150, means.end());
  return means[150];
}

int call(const char* library) {
  const Model model(library);
  const Instance instance = model.instance(options_of("-"));
  const fuseloom_api* const api = model.api();
  const int64_t count = model.info().input_count;
  alignas(64) float data[64] = {};
  alignas(64) float result[64];
  int64_t sizes[1] = {1};
  std::vector<fuseloom_input> inputs;
  for (int64_t i = 0; i < count; ++i) inputs.push_back({sizeof(fuseloom_input), nullptr, data, FUSELOOM_F32, 1, sizes, nullptr});
  fuseloom_output output = {};
  output.struct_size = sizeof output;
  output.data = result;
  output.capacity = sizeof result;
  fuseloom_arguments arguments = {};
  arguments.struct_size = sizeof arguments;
  arguments.input_count = count;
  arguments.inputs = inputs.data();
  arguments.output_count = 1;
  arguments.outputs = &output;
  fuseloom_error error = {};
  error.struct_size = sizeof error;
  if (api->run(instance.get(), &arguments, &error) != FUSELOOM_OK) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  const double whole = nanoseconds([&] { api->run(instance.get(), &arguments, &error); });
  // The checks of inputs and sizes: the same without a run.
  size_t bytes = 0;
  const double checks = nanoseconds([&] { api->arena_bytes(instance.get(), inputs.data(), count, &bytes, &error); });
  printf("{\"inputs\": %" PRId64 ", \"call_ns\": %.1f, \"checks_ns\": %.1f}\n", count, whole, checks);
  return 0;
}

int threads(const char* library, const char* weights, const std::map<std::string, int64_t>& dims) {
  const Model model(library);
  const Instance instance = model.instance(options_of(weights));
  const Inputs inputs = inputs_of(model.info(), dims);
  const std::vector<fuseloom::Result> expected = instance.run(inputs.arguments);
  const auto measure = [&](int count, bool& same) {
    std::vector<std::thread> workers;
    std::vector<long> calls(static_cast<size_t>(count) * 16);
    std::vector<char> differs(static_cast<size_t>(count));
    const double start = now(), end = start + 1.0;
    for (int t = 0; t < count; ++t) {
      workers.emplace_back([&, t] {
        while (now() < end) {
          const std::vector<fuseloom::Result> results = instance.run(inputs.arguments);
          for (size_t i = 0; i < results.size(); ++i) {
            if (results[i].bytes != expected[i].bytes || memcmp(results[i].data(), expected[i].data(), results[i].bytes) != 0) differs[static_cast<size_t>(t)] = 1;
          }
          ++calls[static_cast<size_t>(t) * 16];
        }
      });
    }
    for (std::thread& worker : workers) worker.join();
    long total = 0;
    for (const long each : calls) total += each;
    for (const char each : differs) same = same && each == 0;
    return static_cast<double>(total) / (now() - start);
  };
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  bool same = true;
  std::vector<double> scaled, scaled_many;
  double one = 0, many = 0;
  for (int round = 0; round < 5; ++round) {   // in turns: the machine is not always equally fast
    one = measure(1, same);
    const double all = measure(cores, same);
    many = measure(16, same);
    scaled.push_back(all / one / cores);
    scaled_many.push_back(many / one / cores);
  }
  std::sort(scaled.begin(), scaled.end());
  std::sort(scaled_many.begin(), scaled_many.end());
  printf("{\"cores\": %d, \"calls_per_second_1\": %.0f, \"calls_per_second_16\": %.0f, \"of_linear_cores\": %.3f, \"of_linear_16\": %.3f, \"same_bits\": %s}\n", cores, one, many, scaled[2],
         scaled_many[2], same ? "true" : "false");
  return same ? 0 : 1;
}

int load(const char* library, const char* weights, int count, const std::map<std::string, int64_t>& dims) {
  long at_tenth = 0;
  for (int i = 0; i < count; ++i) {
    const Model model(library);
    const Instance instance = model.instance(options_of(weights));
    const Inputs inputs = inputs_of(model.info(), dims);
    instance.run(inputs.arguments);
    if (i == count / 10) at_tenth = resident_kib();
  }
  printf("{\"cycles\": %d, \"resident_kib_at_a_tenth\": %ld, \"resident_kib_at_end\": %ld}\n", count, at_tenth, resident_kib());
  return 0;
}

int shapes(const char* library, const char* weights, int64_t low, int64_t high, int64_t step) {
  mallopt(M_MMAP_THRESHOLD, 1 << 16);   // what this program itself frees goes back to the system at once
  const Model model(library);
  const Instance instance = model.instance(options_of(weights));
  unsigned long long seed = 20261207;
  printf("seed %llu\n", seed);
  const auto random = [&] {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return low + static_cast<int64_t>((seed >> 33) % static_cast<unsigned long long>((high - low) / step + 1)) * step;
  };
  const auto run = [&](const std::map<std::string, int64_t>& dims) {
    const Inputs inputs = inputs_of(model.info(), dims);
    instance.run(inputs.arguments);
  };
  std::map<std::string, int64_t> largest;
  for (int64_t s = 0; s < model.info().symbol_count; ++s) largest[model.info().symbols[s].name] = s == 0 && model.info().symbol_count > 2 ? 1 : high;
  run(largest);
  run(largest);
  const long after_largest = resident_kib();
  long most = 0;
  for (int i = 0; i < 60; ++i) {
    std::map<std::string, int64_t> dims = largest;
    for (auto& [name, size] : dims) size = size == 1 ? 1 : random();
    run(dims);
    most = std::max(most, resident_kib());
  }
  printf("{\"shapes\": 60, \"resident_kib_after_largest\": %ld, \"most_resident_kib\": %ld, \"resident_kib_at_end\": %ld}\n", after_largest, most, resident_kib());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string what = argc > 1 ? argv[1] : "";
    if (what == "first" && argc >= 4) return first(argv[2], argv[3], dims_of(argv + 4, argv + argc));
    if (what == "call" && argc == 3) return call(argv[2]);
    if (what == "threads" && argc >= 4) return threads(argv[2], argv[3], dims_of(argv + 4, argv + argc));
    if (what == "load" && argc >= 5) return load(argv[2], argv[3], atoi(argv[4]), dims_of(argv + 5, argv + argc));
    if (what == "shapes" && argc == 7) return shapes(argv[2], argv[3], atoll(argv[4]), atoll(argv[5]), atoll(argv[6]));
    fprintf(stderr, "usage: see the head of abi_bench.cpp\n");
    return 2;
  } catch (const fuseloom::ModelError& error) {
    fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
