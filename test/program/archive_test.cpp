// The archive format: every program comes back as it was, and no damage goes unseen.
#include "program/archive.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "fuseloom/error.h"
#include "../support/archive_damage.h"

namespace fuseloom::program {
namespace {

using test::AlignedBytes;
using test::written;

std::vector<Program> golden_programs() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(FUSELOOM_GOLDEN_DIR)) {
    if (entry.path().extension() == ".fl") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<Program> programs;
  for (const std::filesystem::path& path : files) {
    std::ifstream file(path, std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(file), {}};
    text = text.substr(0, text.find("\n// ----\n"));
    programs.push_back(parse_program(text, op::standard_ops(), path.string()));
  }
  return programs;
}

ArchiveContents contents_of(Program program) {
  ArchiveContents contents{.writer = "a test"};
  ArchiveModule module{.architecture = "x86-64", .isa = "avx2"};
  for (int i = 0; i < 100; ++i) module.bytes.push_back(static_cast<std::byte>(i));
  ArchiveTarget target{.program = std::move(program)};
  target.modules.push_back(module);
  contents.targets.push_back(std::move(target));
  contents.documents.push_back({"graph", "a text"});
  return contents;
}

Program small_program() {
  Program program = parse_program(R"(program p(%x: f32[n, 3]) symbols {n in 1 .. 64} {
    constant %w: f32[3] {value = f32[3] {1.0, -0.0, 2.5}}
    temporary %t: f32[n, 3]
    temporary %k: f32[1]
    launch scale(%x, %w, %t) sizes (n) extent n work n*3 bytes n*24 nodes [0] from "Mul_0"
    %k = call reduce_max(%w) {axes = [0], keepdims = 1}
    return "y" = %t: f32[n, 3]
  })",
                                  op::standard_ops());
  return program;
}

TEST(Archive, GivesBackEveryKindOfExpression) {
  const std::string text = R"(program p(%x: f32[a, b, c]) symbols {a in 0 .. inf, b in 1 .. 64, c in 0 .. inf multiple 4} nonzero {b} {
  temporary %y: f32[a + b + c*2, min(a, b, c), max(a, b, c, 5), floor_div(a + 3, b), mod(a, b)]
  launch k(%x, %y) sizes (a*b*c, select(lt(a, b), c, 7), eq(a, c), ne(a, c), le(a, c), -a) extent a
  return "y" = %y: f32[a + b + c*2, min(a, b, c), max(a, b, c, 5), floor_div(a + 3, b), mod(a, b)]
}
)";
  Program program = parse_program(text, op::standard_ops());
  const std::string printed = to_string(program);
  const AlignedBytes file = written(contents_of(std::move(program)));
  EXPECT_EQ(to_string(ArchiveReader(file.bytes, file.owner, "file").target(0, op::standard_ops()).program), printed);
}

ArchiveReader open(const AlignedBytes& file) { return ArchiveReader(file.bytes, file.owner, "file"); }

// Everything a loader reads.
void read_all(std::span<const std::byte> bytes, std::shared_ptr<void> owner) {
  const ArchiveReader reader(bytes, std::move(owner), "file");
  for (size_t t = 0; t < reader.targets().size(); ++t) {
    reader.target(t, op::standard_ops());
    for (size_t m = 0; m < reader.targets()[t].modules.size(); ++m) reader.module(t, m);
  }
  for (const std::string& name : reader.documents()) reader.document(name);
  reader.pool();
  reader.check_everything();
}

TEST(Archive, GivesBackEveryProgram) {
  for (Program& program : golden_programs()) {
    const std::string text = to_string(program);
    const op::ConstantPool pool = constant_pool(program);
    const AlignedBytes file = written(contents_of(std::move(program)));
    const ArchiveReader reader = open(file);
    ArchiveReader::LoadedTarget target;
    ASSERT_NO_THROW(target = reader.target(0, op::standard_ops())) << text;
    EXPECT_EQ(to_string(target.program), text);
    EXPECT_EQ(reader.writer(), "a test");
    EXPECT_EQ(reader.targets()[0].modules[0].isa, "avx2");
    EXPECT_EQ(reader.module(0, 0).size(), 100u);
    EXPECT_EQ(reader.document("graph"), "a text");
    EXPECT_EQ(reader.document("none"), std::nullopt);
  }
}

TEST(Archive, UsesTensorsInPlaceAndStoresEachOnce) {
  Program program = small_program();
  const Tensor large(DType::F32, {1000});
  program.constants.push_back(large.contiguous_copy());
  program.constants.push_back(large.contiguous_copy());
  for (const int32_t index : {1, 2})
    program.add_buffer({.name = "", .kind = BufferKind::Constant, .type = {DType::F32, {1000}}, .index = index});
  const AlignedBytes file = written(contents_of(std::move(program)));
  const ArchiveReader::LoadedTarget target = open(file).target(0, op::standard_ops());
  EXPECT_EQ(target.program.constants[1].data(), target.program.constants[2].data());
  for (const Tensor& constant : target.program.constants) {
    const std::byte* const data = static_cast<const std::byte*>(constant.data());
    EXPECT_TRUE(data >= file.bytes.data() && data < file.bytes.data() + file.bytes.size());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % kArchiveAlignment, 0u);
    EXPECT_EQ(constant.owner(), file.owner);
  }
}

TEST(Archive, IsDeterministic) {
  const AlignedBytes a = written(contents_of(small_program())), b = written(contents_of(small_program()));
  ASSERT_EQ(a.bytes.size(), b.bytes.size());
  EXPECT_TRUE(std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin()));
}

TEST(Archive, RefusesEveryCut) {
  const AlignedBytes whole = written(contents_of(small_program()));
  for (size_t size = 0; size < whole.bytes.size(); size += size < 128 ? 1 : 64) {
    const AlignedBytes cut(whole.bytes.first(size));
    EXPECT_THROW(open(cut), UserError) << size;
  }
  AlignedBytes longer(whole.bytes.size() + 64);
  std::copy(whole.bytes.begin(), whole.bytes.end(), longer.bytes.begin());
  EXPECT_THROW(open(longer), UserError);
}

TEST(Archive, SeesEveryFlippedBit) {
  const AlignedBytes whole = written(contents_of(small_program()));
  ASSERT_NO_THROW(read_all(whole.bytes, whole.owner));
  for (size_t at = 0; at < whole.bytes.size(); ++at) {
    const std::byte before = whole.bytes[at];
    whole.bytes[at] ^= static_cast<std::byte>(1 << (at % 8));
    EXPECT_THROW(read_all(whole.bytes, whole.owner), UserError) << "byte " << at;
    whole.bytes[at] = before;
  }
}

// Damage that the hashes do not show, as if made on purpose: whatever comes of it is a UserError or a program that verifies.
TEST(Archive, SurvivesDamageBehindItsHashes) {
  std::mt19937_64 random(20261201);
  for (Program& program : golden_programs()) {
    const AlignedBytes whole = written(contents_of(std::move(program)));
    const size_t size = whole.bytes.size();
    int refused = 0;
    for (int round = 0; round < 300; ++round) {
      const AlignedBytes damaged(whole.bytes);
      for (int flips = 1 + static_cast<int>(random() % 3); flips > 0; --flips)
        damaged.bytes[64 + random() % (size - 64)] ^= static_cast<std::byte>(1 << (random() % 8));
      test::reseal(damaged.bytes);
      try {
        read_all(damaged.bytes, damaged.owner);
      } catch (const UserError&) {
        ++refused;
      }
    }
    EXPECT_GT(refused, 0);
  }
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Archive, SaysWhatIsWrong) {
  const AlignedBytes text(std::as_bytes(std::span("graph main() {} and more than sixty-four bytes of text to look at here")));
  EXPECT_NE(message_of([&] { open(text); }).find("file: is no .floom archive"), std::string::npos);
  const AlignedBytes whole = written(contents_of(small_program()));
  const auto message = [&](size_t at, int value) {
    const AlignedBytes changed(whole.bytes);
    changed.bytes[at] = static_cast<std::byte>(value);
    return message_of([&] { read_all(changed.bytes, changed.owner); });
  };
  EXPECT_NE(message(8, kArchiveVersion + 1).find("is an archive of version 2, this fuseloom reads version 1; compile the model again"), std::string::npos);
  const AlignedBytes cut(whole.bytes.first(whole.bytes.size() - 64));
  EXPECT_NE(message_of([&] { open(cut); }).find("was cut short"), std::string::npos);
  EXPECT_NE(message(whole.bytes.size() - 1, 1).find("damaged"), std::string::npos);
}

TEST(Archive, RefusesUnknownOps) {
  op::OpTable table = op::make_standard_ops();
  table.add({.name = "mine", .summary = "x", .min_inputs = 1, .max_inputs = 1, .rule = "add(x0, 1)"});
  const AlignedBytes file = written(contents_of(parse_program(R"(program p(%x: f32[4]) {
    temporary %y: f32[4]
    %y = call mine(%x)
    return "y" = %y: f32[4]
  })",
                                                              table)));
  EXPECT_NO_THROW(open(file).target(0, table));
  EXPECT_NE(message_of([&] { open(file).target(0, op::standard_ops()); }).find("op 'mine' is not known here"), std::string::npos);
}

TEST(RemoveUnusedConstants, KeepsWhatIsUsedUnderNewIds) {
  Program program = parse_program(R"(program p(%x: f32[4]) {
    constant %unused: f32[1] {value = f32[1] {7.0}}
    constant %used: f32[4] {value = f32[4] {1.0, 2.0, 3.0, 4.0}}
    view %unused_view: f32[1] of %unused
    view %part: f32[2] of %used offset 2
    temporary %y: f32[4]
    launch add(%x, %part, %y) extent 4
    return "y" = %y: f32[4]
  })",
                                  op::standard_ops());
  remove_unused_constants(program);
  verify(program);
  EXPECT_EQ(to_string(program), R"(program p(%x: f32[4]) {
  constant %used: f32[4] {value = f32[4] {1.0, 2.0, 3.0, 4.0}}
  view %part: f32[2] of %used offset 2
  temporary %y: f32[4]
  launch add(%x, %part, %y) extent 4
  return "y" = %y: f32[4]
}
)");
}

}  // namespace
}  // namespace fuseloom::program
