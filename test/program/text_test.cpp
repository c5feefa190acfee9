// Every file of test/golden/program is a test. After its comments it either holds one program in canonical form, which
// verifies and prints as it stands, or names a pass and holds two, before and after:
//
//   // plan_memory n = 1000, m = 2
//   program ... { ... }
//   // ----
//   program ... { ... }
//
// With FUSELOOM_UPDATE_GOLDEN=1 the part after the line is written anew, to be read before it is committed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/lexer.h"
#include "fuseloom/error.h"
#include "program/program.h"

namespace fuseloom::program {
namespace {

constexpr std::string_view kPass = "// plan_memory", kSeparator = "// ----\n";

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

std::string without_comments(std::string text) {
  while (text.starts_with("//")) text.erase(0, text.find('\n') + 1);
  return text;
}

std::map<std::string, int64_t> hints_of(const std::string& text) {
  std::map<std::string, int64_t> hints;
  const std::string line = text.substr(kPass.size(), text.find('\n') - kPass.size());
  base::Lexer lexer(line);
  while (!lexer.at_end()) {
    const std::string symbol = lexer.expect_name();
    lexer.expect("=");
    hints[symbol] = lexer.expect_integer();
    if (!lexer.accept(",")) break;
  }
  return hints;
}

class Golden : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(Golden, Prints) {
  const std::string text = read(GetParam());
  const bool planned = text.starts_with(kPass);
  const size_t split = planned ? text.find(kSeparator) : text.size();
  const std::string before = text.substr(0, split);
  Program program = parse_program(before, op::standard_ops(), GetParam().filename());
  ASSERT_NO_THROW(verify(program));
  EXPECT_EQ(to_string(program), without_comments(before));
  if (!planned) return;
  plan_memory(program, hints_of(text));
  ASSERT_NO_THROW(verify(program));
  const std::string found = to_string(program);
  if (std::getenv("FUSELOOM_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(GetParam(), std::ios::binary) << before << kSeparator << found;
    return;
  }
  ASSERT_NE(split, std::string::npos) << "the file has no line '// ----'";
  EXPECT_EQ(found, text.substr(split + kSeparator.size()));
}

INSTANTIATE_TEST_SUITE_P(Files, Golden, testing::ValuesIn(golden_files()), [](const auto& info) { return info.param.stem().string(); });

TEST(ProgramText, TheExampleOfTheDocsIsCanonical) {
  const std::string docs = read(FUSELOOM_SOURCE_DIR "/docs/ir-program.md");
  const size_t begin = docs.find("```\n") + 4;
  const std::string text = docs.substr(begin, docs.find("```", begin) - begin);
  const Program program = parse_program(text, op::standard_ops(), "ir-program.md");
  EXPECT_NO_THROW(verify(program));
  EXPECT_EQ(to_string(program), text);
}

TEST(ProgramText, BuffersThatAreOutOfOrderPrintTheSame) {
  Program program;
  program.input_names = {"a", "b"};
  program.input_types = {{DType::F32, {2}}, {DType::F32, {3}}};
  program.add_buffer({.name = "t", .type = {DType::F32, {2}}});
  program.add_buffer({.name = "second", .kind = BufferKind::Input, .type = program.input_types[1], .index = 1});
  program.add_buffer({.name = "a", .kind = BufferKind::Input, .type = program.input_types[0], .index = 0});
  const std::string text = to_string(program);
  EXPECT_EQ(text, "program main(%a: f32[2], %second: f32[3] \"b\") {\n  temporary %t: f32[2]\n  return\n}\n");
  EXPECT_EQ(to_string(parse_program(text, op::standard_ops())), text);
}

TEST(ProgramText, LargeConstantsTravelInThePool) {
  Program program;
  Program nested;
  const auto add_constant = [](Program& to, Tensor value) {
    to.add_buffer({.kind = BufferKind::Constant, .type = {value.dtype(), op::shape_of(value.dims())}, .index = static_cast<int32_t>(to.constants.size())});
    to.constants.push_back(std::move(value));
  };
  add_constant(program, Tensor(DType::F32, {65}));
  add_constant(program, Tensor(DType::F32, {64}));
  add_constant(nested, Tensor(DType::I8, {100}));
  While loop;
  loop.body = std::make_unique<Program>(std::move(nested));
  program.lines.push_back({.what = std::move(loop)});
  const op::ConstantPool pool = constant_pool(program);
  EXPECT_EQ(pool.size(), 2u);
  const std::string text = to_string(program);
  EXPECT_EQ(to_string(parse_program(text, op::standard_ops(), "<text>", pool)), text);
  EXPECT_THROW(parse_program(text, op::standard_ops()), UserError);
}

TEST(ProgramText, ErrorsNameThePlace) {
  const auto message = [](std::string_view text) {
    try {
      parse_program(text, op::standard_ops(), "f.fl");
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message("program p() {\n  copy %a to %b\n  return\n}"), "f.fl:2:8: %a is not declared");
  EXPECT_EQ(message("program p(%a: f32[], %a: f32[]) {"), "f.fl:1:22: %a is declared twice");
  EXPECT_EQ(message("program p(%a: f32[]) { %a = call foo(%a)"), "f.fl:1:34: unknown op 'foo'");
  EXPECT_EQ(message("program p(%a: f32[]) { %a = launch foo(%a)"), "f.fl:1:29: expected call, if or while after '=', found 'launch'");
  EXPECT_EQ(message("program p() { jump"),
            "f.fl:1:15: expected a line (launch, call, copy, read, assert, if, while), place or return, found 'jump'");
  EXPECT_EQ(message("program p() { constant %c: f32[] {axis = 1} }"), "f.fl:1:34: constant %c needs {value = <tensor>}");
  EXPECT_EQ(message("program p() { return } x"), "f.fl:1:24: expected the end of the text after the program");
  std::string deep = "program p(%c: bool[]) { ";
  for (int i = 0; i < 100000; ++i) deep += "if %c() then program p(%c: bool[]) { ";
  EXPECT_NE(message(deep).find("programs nest deeper than 200"), std::string::npos);
}

// Every prefix of a valid text is an error, never a crash.
TEST(ProgramText, TruncatedTextIsAnError) {
  for (const auto& path : golden_files()) {
    SCOPED_TRACE(path.string());
    const std::string whole = read(path), text = without_comments(whole.substr(0, whole.find(kSeparator)));
    for (size_t size = 0; size + 2 < text.size(); size += 7) EXPECT_THROW(parse_program(text.substr(0, size), op::standard_ops()), UserError);
  }
}

}  // namespace
}  // namespace fuseloom::program
