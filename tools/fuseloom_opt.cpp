// fuseloom-opt: runs graph passes on graph text.
//
//   fuseloom-opt --pass fold_constants,canonicalize file.fl      the graph after the passes, on standard output
//   fuseloom-opt --list                                          the names of the passes
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "graph/pass/pass.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "op/op.h"

namespace {

using namespace fuseloom;

std::string read_all(const std::string& path) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  std::ifstream file(path, std::ios::binary);
  FL_REQUIRE(file.good(), "{}: cannot be read", path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The graph of a golden test file: what stands above its line "// ----".
std::string before_separator(const std::string& text) { return text.substr(0, text.find("\n// ----\n")); }

std::vector<std::string> split(const std::string& names) {
  std::vector<std::string> parts;
  std::istringstream stream(names);
  for (std::string part; std::getline(stream, part, ',');)
    if (!part.empty()) parts.push_back(part);
  return parts;
}

graph::NamedPass find_pass(const std::string& name) {
  for (const graph::NamedPass& pass : graph::all_passes())
    if (pass.name == name) return pass;
  throw UserError(fmt::format("there is no pass '{}'; --list names them all", name));
}

int run(const std::string& path, const std::string& names, bool time) {
  const std::string text = before_separator(read_all(path));
  graph::Graph graph = graph::parse_graph(text, op::standard_ops(), path);
  graph::verify(graph);
  std::vector<graph::NamedPass> passes;
  for (const std::string& name : split(names)) passes.push_back(find_pass(name));
  for (const graph::PassReport& report : graph::run_passes(graph, passes))
    if (time) fmt::print(stderr, "{:<32} {:>9.3f} ms{}\n", report.name, report.seconds * 1e3, report.changed ? "" : "  (no change)");
  fmt::print("{}", graph::to_string(graph));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Runs graph passes on graph text", "fuseloom-opt");
  std::string path = "-", names;
  bool list = false, time = false;
  app.add_option("file", path, "graph text; - is standard input");
  app.add_option("--pass", names, "passes to run, in order, with commas between");
  app.add_flag("--list", list, "print the names of all passes");
  app.add_flag("--time", time, "print the time of each pass");
  CLI11_PARSE(app, argc, argv);
  try {
    if (list) {
      for (const graph::NamedPass& pass : graph::all_passes()) fmt::print("{}\n", pass.name);
      return 0;
    }
    return run(path, names, time);
  } catch (const Error& error) {
    fmt::print(stderr, "fuseloom-opt: {}\n", error.what());
    return 1;
  }
}
