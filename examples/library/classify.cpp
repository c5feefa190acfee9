// Classifies rows of 16 numbers with a compiled model, in C++17 through the wrapper fuseloom/model.hpp:
//
//   classify_cpp tiny.so rows.txt    a library, loaded by its path
//   classify_linked rows.txt         the generated C++ text, a part of this program (CLASSIFY_LINKED)
//
// One line for each row: its class, and the probability of each class.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "fuseloom/model.hpp"

#ifdef CLASSIFY_LINKED
extern "C" const fuseloom_api* tiny_model(uint32_t abi_version);
#endif

namespace {

constexpr int64_t kFeatures = 16;

std::vector<float> read_rows(const std::string& path) {
  std::ifstream file(path);
  std::vector<float> numbers;
  for (float number; file >> number;) numbers.push_back(number);
  if (!file.eof() || static_cast<int64_t>(numbers.size()) % kFeatures != 0) throw std::runtime_error(path + ": expected rows of 16 numbers");
  return numbers;
}

// A batch of all rows at once: the program serves every number of them.
void classify(const fuseloom::Instance& instance, const std::vector<float>& numbers) {
  const int64_t rows = static_cast<int64_t>(numbers.size()) / kFeatures;
  const std::vector<fuseloom::Result> results = instance.run({{"x", numbers.data(), {rows, kFeatures}}});
  const float* probabilities = results[0].as<float>();
  const int64_t classes = results[0].sizes[1];
  for (int64_t row = 0; row < rows; ++row, probabilities += classes) {
    std::printf("%lld:", static_cast<long long>(std::max_element(probabilities, probabilities + classes) - probabilities));
    for (int64_t c = 0; c < classes; ++c) std::printf(" %.9g", static_cast<double>(probabilities[c]));
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
#ifdef CLASSIFY_LINKED
  const int expected = 2;
#else
  const int expected = 3;
#endif
  if (argc != expected) {
    std::fprintf(stderr, "usage: %s %sROWS\n", argv[0], expected == 3 ? "LIBRARY " : "");
    return 2;
  }
  try {
    fuseloom::InstanceOptions options;
#ifdef CLASSIFY_LINKED
    const fuseloom::Model model(tiny_model(FUSELOOM_ABI_VERSION));   // its weights are in this program
#else
    const std::string library = argv[1];
    const fuseloom::Model model(library);
    options.weights_path = library.substr(0, library.rfind('.')) + ".weights";
#endif
    classify(model.instance(options), read_rows(argv[expected - 1]));
    return 0;
  } catch (const std::exception& error) {   // fuseloom::ModelError is one, with a fuseloom_status
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return 1;
  }
}
