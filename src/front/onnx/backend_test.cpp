#include "front/onnx/backend_test.h"

#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/check.h"
#include "front/onnx/mapped_file.h"
#include "front/onnx/tensor_proto.h"
#include "graph/evaluate.h"

namespace fuseloom::front::onnx {

namespace {

namespace fs = std::filesystem;

// The tensors of one input or output of the model.
struct Datum {
  ElementType element = ElementType::Undefined;
  bool present = true;
  std::vector<Tensor> tensors;
};

Datum load_tensor(const MappedFile& file, std::string_view bytes, const std::string& path) {
  const TensorProto proto = parse_tensor(bytes, path);
  return {.element = proto.type, .present = true, .tensors = {TensorSource(path, file.owner, false, "").load(proto)}};
}

Datum load_sequence(const MappedFile& file, std::string_view bytes, const std::string& path) {
  TensorSource source(path, file.owner, false, "");
  Datum datum;
  for (const TensorProto& proto : parse_sequence(bytes, path)) {
    datum.element = proto.type;
    datum.tensors.push_back(source.load(proto));
  }
  return datum;
}

Datum load_value(const std::string& path, const TypeProto& type) {
  const MappedFile file = map_file(path);
  if (type.kind == TypeProto::Kind::Optional) {
    const OptionalBytes optional = parse_optional(file.bytes, path);
    if (!optional.present) return {.element = ElementType::Undefined, .present = false, .tensors = {}};
    return optional.sequence ? load_sequence(file, optional.value, path) : load_tensor(file, optional.value, path);
  }
  return type.kind == TypeProto::Kind::Sequence ? load_sequence(file, file.bytes, path)
                                                : load_tensor(file, file.bytes, path);
}

std::string data_path(const std::string& folder, std::string_view kind, size_t index) {
  return fmt::format("{}/{}_{}.pb", folder, kind, index);
}

std::vector<std::string> data_sets(const std::string& folder) {
  std::vector<std::string> sets;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.is_directory() && entry.path().filename().string().starts_with("test_data_set_"))
      sets.push_back(entry.path().string());
  std::sort(sets.begin(), sets.end());
  return sets;
}

// The difference of one data set, or "".
std::string run_data_set(const std::string& model_path, const std::string& folder, const BackendTestOptions& options) {
  const MappedFile file = map_file(model_path);
  const ModelProto proto = parse_model(file.bytes, model_path);
  // The inputs come first: the length of a sequence and the presence of an optional shape the graph.
  ImportOptions import_options;
  std::vector<Datum> data;
  size_t index = 0;
  for (const ValueInfoProto& input : proto.graph.inputs) {
    const bool initialized = std::any_of(proto.graph.initializers.begin(), proto.graph.initializers.end(),
                                         [&](const TensorProto& tensor) { return tensor.name == input.name; });
    if (initialized) continue;
    data.push_back(load_value(data_path(folder, "input", index++), input.type));
    if (!data.back().present) continue;
    import_options.present_optionals.emplace_back(input.name);
    const std::vector<Tensor>& tensors = data.back().tensors;
    import_options.sequence_lengths[std::string(input.name)] = static_cast<int64_t>(tensors.size());
    if (!tensors.empty()) import_options.ranks[std::string(input.name)] = tensors[0].rank();
    for (size_t i = 0; i < tensors.size(); ++i)
      import_options.ranks[fmt::format("{}_{}", input.name, i)] = tensors[i].rank();
  }
  const ImportedModel model = import_onnx(model_path, import_options);
  std::vector<Tensor> inputs;
  for (const Datum& datum : data) inputs.insert(inputs.end(), datum.tensors.begin(), datum.tensors.end());
  const std::vector<Tensor> outputs =
      options.executor ? options.executor(model.graph, inputs) : graph::evaluate(model.graph, inputs);
  FL_CHECK(outputs.size() == model.graph.outputs().size(), "the executor gives {} outputs of {}", outputs.size(),
           model.graph.outputs().size());
  for (size_t i = 0; i < model.outputs.size(); ++i) {
    const ImportedValue& value = model.outputs[i];
    const Datum expected = load_value(data_path(folder, "output", i), proto.graph.outputs[i].type);
    if (value.count != expected.tensors.size())
      return fmt::format("output '{}': {} tensors instead of {}", value.name, value.count, expected.tensors.size());
    for (size_t k = 0; k < value.count; ++k) {
      if (value.element != expected.element)
        return fmt::format("output '{}': is {}, expected {}", value.name, element_type_name(value.element),
                           element_type_name(expected.element));
      if (std::string words = compare_tensors(outputs[value.first + k], expected.tensors[k], options); !words.empty())
        return fmt::format("output '{}': {}", value.name, words);
    }
  }
  return "";
}

BackendTestResult run_here(const std::string& folder, const BackendTestOptions& options) {
  BackendTestResult result{
      .name = fs::path(folder).filename().string(), .status = BackendTestStatus::Passed, .reason = ""};
  try {
    const std::vector<std::string> sets = data_sets(folder);
    FL_REQUIRE(!sets.empty(), "{}: has no test_data_set_*", folder);
    for (const std::string& set : sets) {
      result.reason = run_data_set(folder + "/model.onnx", set, options);
      if (!result.reason.empty()) {
        result.status = BackendTestStatus::Failed;
        if (sets.size() > 1) result.reason = fs::path(set).filename().string() + ": " + result.reason;
        break;
      }
    }
  } catch (const Unsupported& error) {
    result.status = BackendTestStatus::Unsupported;
    result.reason = error.what();
  } catch (const std::exception& error) {
    result.status = BackendTestStatus::Failed;
    result.reason = error.what();
  }
  return result;
}

void limit_resources(const BackendTestOptions& options) {
  const auto seconds = static_cast<rlim_t>(std::ceil(options.timeout_seconds));
  const rlimit cpu{.rlim_cur = seconds + 1, .rlim_max = seconds + 2};
  setrlimit(RLIMIT_CPU, &cpu);
  const rlimit core{.rlim_cur = 0, .rlim_max = 0};
  setrlimit(RLIMIT_CORE, &core);
  if (options.memory_bytes > 0) {
    const rlimit memory{.rlim_cur = static_cast<rlim_t>(options.memory_bytes),
                        .rlim_max = static_cast<rlim_t>(options.memory_bytes)};
    setrlimit(RLIMIT_AS, &memory);
  }
}

}  // namespace

std::string_view to_string(BackendTestStatus status) {
  switch (status) {
    case BackendTestStatus::Passed:
      return "passed";
    case BackendTestStatus::Failed:
      return "failed";
    case BackendTestStatus::Unsupported:
      return "unsupported";
    case BackendTestStatus::Crashed:
      return "crashed";
  }
  return "?";
}

std::vector<std::string> find_backend_tests(const std::string& path) {
  std::vector<std::string> tests;
  const auto is_test = [](const fs::path& folder) {
    return fs::exists(folder / "model.onnx") && !data_sets(folder.string()).empty();
  };
  const auto search = [&](const auto& self, const fs::path& folder, int depth) -> void {
    if (is_test(folder)) {
      tests.push_back(folder.string());
      return;
    }
    if (depth == 0) return;
    for (const auto& entry : fs::directory_iterator(folder))
      if (entry.is_directory()) self(self, entry.path(), depth - 1);
  };
  FL_REQUIRE(fs::is_directory(path), "{}: is not a folder", path);
  search(search, path, 2);
  FL_REQUIRE(!tests.empty(), "{}: has no folders with a model.onnx and a test_data_set_0", path);
  std::sort(tests.begin(), tests.end());
  return tests;
}

std::string compare_tensors(const Tensor& got, const Tensor& expected, const BackendTestOptions& options) {
  if (got.dtype() != expected.dtype() || got.dims() != expected.dims())
    return fmt::format("is {}, expected {}", got.type_string(), expected.type_string());
  const int64_t count = expected.count();
  double absolute = options.absolute_tolerance;
  if (options.absolute_of_largest > 0) {
    double largest = 0;
    for (int64_t i = 0; i < count; ++i)
      if (std::isfinite(expected.at(i))) largest = std::max(largest, std::abs(expected.at(i)));
    absolute = std::max(absolute, options.absolute_of_largest * largest);
  }
  const auto close = [&](double a, double b) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
    if (std::isinf(a) || std::isinf(b)) return a == b;
    return std::abs(a - b) <= absolute + options.relative_tolerance * std::abs(b);
  };
  const bool whole = is_int(expected.dtype());
  int64_t differ = 0, first = -1;
  for (int64_t i = 0; i < count; ++i) {
    bool same = false;
    if (whole) {  // i64 values above 2^53 are compared exactly first
      same = got.int_at(i) == expected.int_at(i) || close(got.at(i), expected.at(i));
    } else {
      same = close(got.at(i), expected.at(i)) &&
             (!is_complex(expected.dtype()) || close(got.imag_at(i), expected.imag_at(i)));
    }
    if (same) continue;
    if (differ++ == 0) first = i;
  }
  if (differ == 0) return "";
  return fmt::format("{} of {} elements differ, first at {}: {} instead of {}", differ, count, first, got.at(first),
                     expected.at(first));
}

// The child writes its status byte and reason into a pipe; whatever else ends it is a crash.
BackendTestResult run_backend_test(const std::string& folder, const BackendTestOptions& options) {
  if (!options.fork) return run_here(folder, options);
  const std::string name = fs::path(folder).filename().string();
  const auto crashed = [&](std::string reason) {
    return BackendTestResult{.name = name, .status = BackendTestStatus::Crashed, .reason = std::move(reason)};
  };
  int pipe_ends[2];
  FL_REQUIRE(pipe(pipe_ends) == 0, "cannot make a pipe: {}", std::strerror(errno));
  const pid_t child = fork();
  FL_REQUIRE(child >= 0, "cannot fork: {}", std::strerror(errno));
  if (child == 0) {
    close(pipe_ends[0]);
    limit_resources(options);
    const BackendTestResult result = run_here(folder, options);
    std::string message(1, static_cast<char>('0' + static_cast<int>(result.status)));
    message += result.reason;
    for (size_t sent = 0; sent < message.size();) {
      const ssize_t n = write(pipe_ends[1], message.data() + sent, message.size() - sent);
      if (n <= 0) break;
      sent += static_cast<size_t>(n);
    }
    _exit(0);
  }
  close(pipe_ends[1]);
  std::string message;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(options.timeout_seconds);
  bool timed_out = false;
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    pollfd readable{.fd = pipe_ends[0], .events = POLLIN, .revents = 0};
    const int ready = poll(&readable, 1, static_cast<int>(std::max<int64_t>(left, 0)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      timed_out = true;
      kill(child, SIGKILL);
      break;
    }
    char buffer[4096];
    const ssize_t n = read(pipe_ends[0], buffer, sizeof buffer);
    if (n <= 0) break;
    message.append(buffer, static_cast<size_t>(n));
  }
  close(pipe_ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (timed_out) return crashed(fmt::format("took longer than {} s", options.timeout_seconds));
  if (WIFSIGNALED(status))
    return crashed(fmt::format("ended by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status))));
  if (message.empty()) return crashed(fmt::format("ended with status {}", WEXITSTATUS(status)));
  return {.name = name, .status = static_cast<BackendTestStatus>(message[0] - '0'), .reason = message.substr(1)};
}

}  // namespace fuseloom::front::onnx
