// What a compiled model costs its caller, measured through the C interface alone. `./dev bench aot` compiles this and runs it:
//
//   abi_bench first LIBRARY WEIGHTS DIM...    from dlopen to the first answer, step by step
//   abi_bench call LIBRARY                    a call of a model with one kernel of no work, and the kernel alone
//   abi_bench threads LIBRARY WEIGHTS DIM...  1 and several threads on one instance: calls a second and a CPU second, the same bits
//   abi_bench load LIBRARY WEIGHTS COUNT DIM...   load, create, run, destroy, unload; resident memory along the way
//   abi_bench shapes LIBRARY WEIGHTS LOW HIGH STEP   60 random sizes of every symbol; resident memory along the way
//   abi_bench memory LIBRARY WEIGHTS FILE     the most that was resident while the library was loaded and run on the inputs
//                                             that FILE names, one a line: NAME PATH SIZE..., the elements at PATH
//
// WEIGHTS "-": they are in the library. DIM: NAME=N. Integers of inputs are 16000, which is a sample rate to those that want one.
#include <malloc.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
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

// The most that was ever resident, the inputs of this program included.
long most_resident_kib() {
  long kib = 0;
  if (FILE* file = fopen("/proc/self/status", "r")) {
    char line[256];
    while (fgets(line, sizeof line, file) != nullptr) {
      if (sscanf(line, "VmHWM: %ld", &kib) == 1) break;
    }
    fclose(file);
  }
  return kib;
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

// What `count` threads did on one instance in a second.
struct Throughput {
  double calls = 0, wall = 0, cpu = 0;        // cpu: seconds that the threads ran, all of them together
  long waited = 0, interrupted = 0;           // times that a thread gave up its core by itself, and had to
  double calls_per_second() const { return calls / wall; }
  double calls_per_cpu_second() const { return calls / cpu; }
};

// Two figures of scaling. In wall time: what the threads got done, which other programs on the machine take from. Per second of
// CPU time: what a call costs while it has a core; a lock that is waited for costs none, but shows as threads that waited.
int threads(const char* library, const char* weights, const std::map<std::string, int64_t>& dims) {
  const Model model(library);
  const Instance instance = model.instance(options_of(weights));
  const Inputs inputs = inputs_of(model.info(), dims);
  const std::vector<fuseloom::Result> expected = instance.run(inputs.arguments);
  bool same = true;
  const auto measure = [&](int count) {
    std::vector<std::thread> workers;
    std::vector<Throughput> of_threads(static_cast<size_t>(count));
    std::vector<char> differs(static_cast<size_t>(count));
    const double start = now(), end = start + 1.0;
    for (int t = 0; t < count; ++t) {
      workers.emplace_back([&, t] {
        Throughput mine;
        for (; now() < end; ++mine.calls) {
          const std::vector<fuseloom::Result> results = instance.run(inputs.arguments);
          for (size_t i = 0; i < results.size(); ++i) {
            if (results[i].bytes != expected[i].bytes || memcmp(results[i].data(), expected[i].data(), results[i].bytes) != 0) differs[static_cast<size_t>(t)] = 1;
          }
        }
        timespec cpu;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
        mine.cpu = static_cast<double>(cpu.tv_sec) + static_cast<double>(cpu.tv_nsec) * 1e-9;
        rusage usage;
        getrusage(RUSAGE_THREAD, &usage);
        mine.waited = usage.ru_nvcsw;
        mine.interrupted = usage.ru_nivcsw;
        of_threads[static_cast<size_t>(t)] = mine;
      });
    }
    for (std::thread& worker : workers) worker.join();
    Throughput total;
    total.wall = now() - start;
    for (const Throughput& each : of_threads) {
      total.calls += each.calls;
      total.cpu += each.cpu;
      total.waited += each.waited;
      total.interrupted += each.interrupted;
    }
    for (const char each : differs) same = same && each == 0;
    return total;
  };
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const auto print = [&](const char* name, int count) {
    std::vector<double> wall, cpu, running, waited, interrupted;
    double calls = 0, one_calls = 0;
    for (int round = 0; round < 7; ++round) {   // in turns: the machine is not always equally fast
      const Throughput one = measure(1), all = measure(count);
      wall.push_back(all.calls_per_second() / one.calls_per_second() / cores);
      cpu.push_back(all.calls_per_cpu_second() / one.calls_per_cpu_second());
      running.push_back(all.cpu / (all.wall * std::min(count, cores)));
      waited.push_back(static_cast<double>(all.waited) / all.calls);
      interrupted.push_back(static_cast<double>(all.interrupted) / all.calls);
      calls = all.calls_per_second();
      one_calls = one.calls_per_second();
    }
    const auto median = [](std::vector<double>& values) {
      std::sort(values.begin(), values.end());
      return values[values.size() / 2];
    };
    printf("\"%s\": {\"threads\": %d, \"calls_per_second_1\": %.0f, \"calls_per_second\": %.0f, \"of_linear\": %.3f, \"of_linear_cpu\": %.3f, \"running\": %.3f, "
           "\"waits_per_call\": %.5f, \"interruptions_per_call\": %.5f}, ",
           name, count, one_calls, calls, median(wall), median(cpu), median(running), median(waited), median(interrupted));
  };
  printf("{\"cores\": %d, ", cores);
  print("cores_threads", cores);
  print("many_threads", 16);
  printf("\"same_bits\": %s}\n", same ? "true" : "false");
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
  mallopt(M_MMAP_THRESHOLD, 1 << 12);   // what this program itself frees goes back to the system at once, the small results of small inputs too
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

// NAME PATH SIZE... of every line.
Inputs inputs_of_file(const fuseloom_model_info& info, const char* path) {
  Inputs inputs;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, data;
    words >> name >> data;
    std::vector<int64_t> sizes;
    for (int64_t size; words >> size;) sizes.push_back(size);
    std::ifstream elements(data, std::ios::binary);
    inputs.memory.emplace_back(std::istreambuf_iterator<char>(elements), std::istreambuf_iterator<char>());
    inputs.memory.back().push_back(0);
    inputs.memory.back().shrink_to_fit();
    for (int64_t i = 0; i < info.input_count; ++i) {
      if (name == info.inputs[i].name) inputs.arguments.emplace_back(name, info.inputs[i].dtype, inputs.memory.back().data(), sizes);
    }
  }
  return inputs;
}

int memory(const char* library, const char* weights, const char* inputs_path) {
  const long before = resident_kib();
  const Model model(library);
  const Instance instance = model.instance(options_of(weights));
  const Inputs inputs = inputs_of_file(model.info(), inputs_path);
  for (int i = 0; i < 3; ++i) instance.run(inputs.arguments);
  printf("{\"before_kib\": %ld, \"most_resident_kib\": %ld, \"arena_bytes\": %zu, \"weights_bytes\": %" PRId64 "}\n", before, most_resident_kib(), instance.arena_bytes(inputs.arguments),
         model.info().weights_bytes);
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
    if (what == "memory" && argc == 5) return memory(argv[2], argv[3], argv[4]);
    fprintf(stderr, "usage: see the head of abi_bench.cpp\n");
    return 2;
  } catch (const fuseloom::ModelError& error) {
    fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
