// Every file of test/golden/schedule is a test:
//
//   // stage: groups                  or kernels, or program; several with commas
//   // pass: decompose                optional: passes before
//   graph ... { ... }
//   // ----
//   the text of the stages
//
// With FUSELOOM_UPDATE_GOLDEN=1 the part after the line is written anew, to be read before it is committed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "graph/pass/pass.h"
#include "graph/text.h"
#include "schedule/lower_program.h"

namespace fuseloom::schedule {
namespace {

constexpr std::string_view kSeparator = "// ----\n";

std::vector<std::filesystem::path> golden_files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(FUSELOOM_GOLDEN_DIR)) {
    if (entry.path().extension() == ".fl") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// The words of the line "// key: a, b".
std::vector<std::string> words_of(const std::string& text, const std::string& key) {
  std::vector<std::string> words;
  const size_t start = text.find("// " + key + ":");
  if (start == std::string::npos) return words;
  const size_t from = start + key.size() + 4;
  std::string line = text.substr(from, text.find('\n', from) - from);
  std::replace(line.begin(), line.end(), ',', ' ');
  std::istringstream stream(line);
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

class Golden : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(Golden, Stages) {
  std::ifstream file(GetParam(), std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t split = text.find(kSeparator);
  const std::string before = text.substr(0, split);
  graph::Graph graph = graph::parse_graph(before, op::standard_ops(), GetParam().filename());
  for (const std::string& name : words_of(before, "pass")) {
    const auto& passes = graph::all_passes();
    const auto found = std::find_if(passes.begin(), passes.end(), [&](const graph::NamedPass& pass) { return pass.name == name; });
    ASSERT_NE(found, passes.end()) << "no pass " << name;
    graph::run_passes(graph, {&*found, 1});
  }
  const LoweredProgram lowered = lower_program(graph, {});
  std::string out;
  const std::vector<std::string> stages = words_of(before, "stage");
  ASSERT_FALSE(stages.empty()) << "the file names no stage";
  for (const std::string& stage : stages) {
    ASSERT_TRUE(stage == "groups" || stage == "kernels" || stage == "program") << "no stage " << stage;
    if (stage == "groups") out += lowered.explanation;
    if (stage == "program") out += program::to_string(lowered.program);
    if (stage != "kernels") continue;
    for (const kernel::Kernel& kernel : lowered.kernels) out += kernel::to_string(kernel);
  }
  if (std::getenv("FUSELOOM_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(GetParam(), std::ios::binary) << before << kSeparator << out;
    return;
  }
  ASSERT_NE(split, std::string::npos) << "the file has no line '// ----'";
  EXPECT_EQ(out, text.substr(split + kSeparator.size()));
}

INSTANTIATE_TEST_SUITE_P(Files, Golden, testing::ValuesIn(golden_files()), [](const auto& info) { return info.param.stem().string(); });

}  // namespace
}  // namespace fuseloom::schedule
