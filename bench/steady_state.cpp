// How a process that uses a program behaves over time. Through the public API, as a user would.
//
//   steady_state sizes MODEL                       the largest size first, then 60 random ones: the resident memory
//   after each steady_state calls MODEL [NAME=N ...]          33 calls a second: CPU time beyond what the same calls
//   take back to back
//
// NAME=N is the size of a symbolic dimension (1 where none is given), or the value of an integer input.
#include <fuseloom/fuseloom.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <thread>

namespace {

using namespace fuseloom;
using Clock = std::chrono::steady_clock;

// Resident memory without the pages of mapped files.
double resident_mib() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0, shared = 0;
  statm >> size >> resident >> shared;
  return static_cast<double>((resident - shared) * sysconf(_SC_PAGESIZE)) / (1 << 20);
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Tensor random_tensor(DType dtype, Dims dims, std::mt19937& random) {
  Tensor tensor(dtype, std::move(dims));
  std::uniform_real_distribution<double> uniform(-1, 1);
  for (int64_t i = 0; i < tensor.count(); ++i) tensor.set(i, uniform(random));
  return tensor;
}

int sizes(const std::string& model) {
  constexpr int64_t kLargest = 960;
  const Graph graph = load_onnx(model);
  const Program program = compile(graph);
  std::mt19937 random(1);
  // The caller's buffers are kept, so that what grows is the program's.
  std::vector<float> image(3 * kLargest * kLargest), map(kLargest * kLargest);
  for (float& value : image) value = static_cast<float>(random() % 1000) / 1000;
  const auto run = [&](int64_t height, int64_t width) {
    const Tensor x = Tensor::borrow(DType::F32, {1, 3, height, width}, image.data());
    Tensor y = Tensor::borrow(DType::F32, {1, 1, height, width}, map.data());
    program.run_into({&x, 1}, {&y, 1});
  };
  run(kLargest, kLargest);
  const double first = resident_mib();
  double most = first, last = first;
  for (int i = 0; i < 60; ++i) {
    run(32 * (1 + static_cast<int64_t>(random() % (kLargest / 32))),
        32 * (1 + static_cast<int64_t>(random() % (kLargest / 32))));
    last = resident_mib();
    most = std::max(most, last);
  }
  const std::vector<Dims> largest = {{1, 3, kLargest, kLargest}};
  std::printf(
      "resident after %lld x %lld: %.1f MiB; over 60 random sizes: at most %.1f MiB, at the end %.1f MiB (planned for "
      "temporaries: %.1f MiB)\n",
      static_cast<long long>(kLargest), static_cast<long long>(kLargest), first, most, last,
      static_cast<double>(program.arena_bytes(largest)) / (1 << 20));
  // The result and the input of a run, and rounding of the allocator.
  const bool flat = most <= first * 1.02 + 1;
  std::printf("%s\n", flat ? "flat" : "NOT flat");
  return flat ? 0 : 1;
}

int calls(const std::string& model, const std::map<std::string, int64_t>& given) {
  const Graph graph = load_onnx(model);
  const Program program = compile(graph);
  std::mt19937 random(1);
  std::vector<Tensor> inputs;
  for (const ValueInfo& input : program.inputs()) {
    Dims dims;
    for (const Size& size : input.sizes) {
      const std::string& text = size.text();
      const auto known = given.find(text);
      const bool constant = text.find_first_not_of("0123456789") == std::string::npos;
      dims.push_back(constant ? std::stoll(text) : known == given.end() ? 1 : known->second);
    }
    inputs.push_back(random_tensor(input.dtype, dims, random));
    const auto value = given.find(input.name);
    for (int64_t i = 0; value != given.end() && i < inputs.back().count(); ++i)
      inputs.back().set(i, static_cast<double>(value->second));
  }
  constexpr int kCalls = 330;
  constexpr auto kPeriod = std::chrono::microseconds(1000000 / 33);
  for (int i = 0; i < 20; ++i) program.run(inputs);
  const double before = cpu_seconds();
  for (int i = 0; i < kCalls; ++i) program.run(inputs);
  const double work = cpu_seconds() - before;
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const double idle_before = cpu_seconds();
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < kCalls; ++i) {
    std::this_thread::sleep_until(start + i * kPeriod);
    program.run(inputs);
  }
  const double elapsed = std::chrono::duration<double>(Clock::now() - start).count(),
               used = cpu_seconds() - idle_before;
  const double share = 100 * (used - work) / elapsed;
  std::printf("%d calls in %.1f s: %.1f %% of one core, of which back to back %.1f %%; beyond its work %.1f %%\n",
              kCalls, elapsed, 100 * used / elapsed, 100 * work / elapsed, share);
  return share < 5 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 3 && std::string_view(argv[1]) == "sizes") return sizes(argv[2]);
    if (argc >= 3 && std::string_view(argv[1]) == "calls") {
      std::map<std::string, int64_t> given;
      for (int i = 3; i < argc; ++i) {
        const std::string text = argv[i];
        const size_t equals = text.find('=');
        if (equals == std::string::npos) throw UserError(text + ": expected NAME=N");
        given[text.substr(0, equals)] = std::stoll(text.substr(equals + 1));
      }
      return calls(argv[2], given);
    }
    std::fprintf(stderr, "usage: steady_state sizes MODEL | calls MODEL [NAME=N ...]\n");
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "steady_state: %s\n", error.what());
    return 2;
  }
}
