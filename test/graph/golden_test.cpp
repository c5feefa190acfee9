// Every file of test/golden/graph is a test:
//
//   // pass: fold_constants, remove_dead_nodes
//   graph ... { ... }          the graph before
//   // ----
//   graph ... { ... }          the text after
//
// With FUSELOOM_UPDATE_GOLDEN=1 the part after the line is written anew, to be read before it is committed.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "graph/graph_testing.h"
#include "graph/pass/pass.h"

namespace fuseloom::graph {
namespace {

constexpr std::string_view kSeparator = "// ----\n";

std::vector<std::filesystem::path> golden_files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(FUSELOOM_GOLDEN_DIR))
    if (entry.path().extension() == ".fl") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<NamedPass> passes_of(const std::string& text) {
  std::vector<NamedPass> passes;
  const size_t start = text.find("// pass:"), end = text.find('\n', start);
  if (start == std::string::npos) return passes;
  std::string names = text.substr(start + 8, end - start - 8);
  std::replace(names.begin(), names.end(), ',', ' ');
  std::istringstream words(names);
  for (std::string name; words >> name;) {
    const auto found = std::find_if(all_passes().begin(), all_passes().end(), [&](const NamedPass& pass) { return pass.name == name; });
    EXPECT_NE(found, all_passes().end()) << "no pass " << name;
    if (found != all_passes().end()) passes.push_back(*found);
  }
  return passes;
}

class Golden : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(Golden, Passes) {
  const std::string text = read(GetParam());
  const size_t split = text.find(kSeparator);
  const std::string before = text.substr(0, split);
  const std::vector<NamedPass> passes = passes_of(text);
  ASSERT_FALSE(passes.empty()) << "the file names no pass";
  Graph graph = parse_graph(before, op::standard_ops(), GetParam().filename());
  verify(graph);
  run_passes(graph, passes);
  const std::string found = to_string(graph);
  if (std::getenv("FUSELOOM_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(GetParam(), std::ios::binary) << before << kSeparator << found;
    return;
  }
  ASSERT_NE(split, std::string::npos) << "the file has no line '// ----'";
  EXPECT_EQ(found, text.substr(split + kSeparator.size()));
  // Done is done: the passes find nothing more to do.
  for (const PassReport& report : run_passes(graph, passes)) EXPECT_FALSE(report.changed) << report.name << " is not idempotent";
}

INSTANTIATE_TEST_SUITE_P(Files, Golden, testing::ValuesIn(golden_files()), [](const auto& info) {
  std::string name = info.param.stem().string();
  std::replace_if(name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

}  // namespace
}  // namespace fuseloom::graph
