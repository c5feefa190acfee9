#include <cmath>
#include <filesystem>
#include <limits>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "front/npy.h"
#include "progress.h"
#include "verbs.h"

namespace fuseloom::tool {

namespace {

// A file name for a value: anything that a file system could stumble over becomes '_'.
std::string file_name(const std::string& name) {
  std::string out;
  for (const char c : name) out += std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.' ? c : '_';
  return out.empty() || out[0] == '.' ? "_" + out : out;
}

std::string describe(const Tensor& tensor) {
  double low = std::numeric_limits<double>::infinity(), high = -low, sum = 0;
  int64_t unordered = 0;
  std::string first;
  for (int64_t i = 0; i < tensor.count(); ++i) {
    const double value = tensor.at(i);
    if (i < 6) first += fmt::format("{}{:.6g}", i == 0 ? "" : " ", value);
    if (std::isnan(value)) {
      ++unordered;
      continue;
    }
    low = std::min(low, value);
    high = std::max(high, value);
    sum += value;
  }
  if (tensor.count() > 6) first += " ...";
  if (tensor.count() <= 6) return first;
  std::string text = fmt::format("min {:.6g} max {:.6g} mean {:.6g}: {}", low, high, sum / static_cast<double>(tensor.count() - unordered), first);
  if (unordered > 0) text += fmt::format(" ({} NaN)", unordered);
  return text;
}

}  // namespace

int run(const RunArguments& arguments) {
  Progress progress;
  progress.show("loading " + arguments.model.path);
  const Model model = load_model(arguments.model);
  const std::vector<Tensor> inputs = make_inputs(model, arguments.model);
  progress.show("compiling");
  const compile::Compiled compiled = make_executable(model, arguments.model, inputs);
  progress.show("running");
  std::vector<Tensor> outputs;
  for (int64_t i = 0; i < std::max<int64_t>(1, arguments.repeat); ++i) outputs = compiled.executable->run(inputs);
  progress.clear();

  nlohmann::ordered_json json = {{"model", arguments.model.path}, {"kernels", compiled.report.kernels}, {"outputs", nlohmann::ordered_json::array()}};
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string& name = model.output_names[i];
    nlohmann::ordered_json entry = {{"name", name}, {"dtype", dtype_name(outputs[i].dtype())}, {"shape", outputs[i].dims()}};
    if (!arguments.output_dir.empty()) {
      std::filesystem::create_directories(arguments.output_dir);
      const std::string path = (std::filesystem::path(arguments.output_dir) / (file_name(name) + ".npy")).string();
      front::write_npy(path, outputs[i]);
      entry["file"] = path;
    }
    if (!arguments.model.json) fmt::print("{}: {}  {}\n", name, outputs[i].type_string(), describe(outputs[i]));
    json["outputs"].push_back(std::move(entry));
  }
  if (arguments.model.json) fmt::print("{}\n", json.dump());
  return kOk;
}

}  // namespace fuseloom::tool
