#include <fmt/format.h>
#include <gtest/gtest.h>

#include "fuseloom/error.h"
#include "program/program.h"

namespace fuseloom::program {
namespace {

// The words a program is refused with; "" when it is not.
std::string refusal(const Program& program) {
  try {
    verify(program);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "";
}

// A wrong program and the words it is refused with. The text stands inside
//   program p(%x: f32[n], %k: i64[1], %b: bool[]) { ... }
struct Bad {
  const char* body;
  const char* words;
};

TEST(ProgramVerify, NamesTheBrokenInvariant) {
  const Bad cases[] = {
      // Buffers.
      {"view %v: f32[n + 1] of %x return", "program p: the view %v: f32[n + 1] at 0 reaches beyond %x: f32[n]"},
      {"view %v: f32[n] of %x offset 1 return", "reaches beyond"},
      {"view %v: f64[1] of %x return", "the view %v: f64[1] has elements of another width than %x: f32[n]"},
      {"constant %c: f32[3] {value = f32[2] {1.0, 2.0}} return", "%c is f32[3], its constant is f32[2]"},
      {"prepared %p: f32[4] return", "no init line writes %p"},
      {"prepared %p: f32[n] return", "%p is prepared before any run, but its size depends on n"},
      // Init lines.
      {"prepared %p: f32[4] init { copy %x to %p } return", "p > init line 0 (copy): only launches prepare buffers"},
      {"prepared %p: f32[4] init { launch k(%x, %p) } return", "p > init line 0 (launch k): %x is neither constant nor prepared"},
      {"prepared %p: f32[4] init { launch k(%p) extent n } return", "the extent uses the symbol n, which is not bound yet"},
      {"constant %c: f32[] {value = f32[] {1.0}} init { launch k(%c) } return", "prepares no buffer"},
      // Reads and writes.
      {"temporary %t: f32[n] temporary %u: f32[n] copy %t to %u return", "p > line 0 (copy): %t is read before it is written"},
      {"temporary %t: f32[n] view %v: f32[n] of %t return \"r\" = %v: f32[n]", "p > result \"r\": %v is read before it is written"},
      {"temporary %t: f32[n] copy %x to %t copy %x to %t return", "p > line 1 (copy): %t is written a second time"},
      {"temporary %t: f32[n] launch k(%x, %t) copy %x to %t return", "%t is written a second time"},
      {"temporary %t: f32[n] copy %t to %x return", "%t is read before"},
      {"copy %x to %x return", "%x is written, but it is no temporary"},
      {"launch k(%x) return", "names no temporary, so it writes nothing"},
      {"temporary %t: f32[n] launch k(%x, _, %t) return", "a buffer is missing"},
      {"temporary %t: f32[n*2] launch k(%x, %t) in_place (%t over %x) return",
       "%t: f32[n*2] cannot take the memory of %x: f32[n]: their sizes may differ"},
      {"temporary %t: f32[n] launch k(%t) in_place (%t over %x) return", "the in-place buffer %x is none of its buffers"},
      {"temporary %t: f32[n] copy %x to %t launch k(%x, %t) in_place (%t over %x) return", "%t is written a second time"},
      // Variants.
      {"temporary %t: f32[n] launch (%x, %t) variants { when le(n, 4): k } return", "the last variant has the condition le(n, 4): nothing runs"},
      {"temporary %t: f32[n] launch (%x, %t) variants { when le(m, 4): k l } return", "p > line 0 (launch l): the condition uses the symbol m"},
      {"temporary %t: f32[n] launch k(%x, %t) grid (n, 1, 1) return", "k has a grid, which kernels of the cpu do not have"},
      // Symbols.
      {"temporary %t: f32[m] launch k(%x, %t) return", "%t: f32[m] uses the symbol m, which is not bound yet"},
      {"temporary %t: f32[n] launch k(%x, %t) sizes (m) return", "a size uses the symbol m"},
      {"assert eq(m, 1) \"words\" read %k defines {m} return", "p > line 0 (assert): the condition uses the symbol m"},
      {"assert eq(n, 1) \"\" return", "a check without words"},
      {"read %k defines {n} return", "defines n, which is already bound"},
      {"read %k defines {i, j} return", "defines 2 symbols from %k: i64[1]"},
      {"read %x defines {i} return", "symbols are integers, %x: f32[n] is not"},
      {"temporary %t: i64[1, z] %t = call non_zero(%x) {defines = <z>} return", "%t: i64[1, z] uses the symbol z"},
      {"temporary %t: i64[1, 4] %t = call non_zero(%x) {defines = <z>} defines {z} return", "defines z, which is no size of a result"},
      {"temporary %t: f32[n] %t = call iota() {shape = <m>, dtype = :f32, axis = 0} return", "attribute shape uses the symbol m"},
      // Calls and copies.
      {"temporary %t: f64[n] copy %x to %t return", "copies %x: f32[n] to %t: f64[n]"},
      {"temporary %t: f32[n + 1] copy %x to %t return", "copies %x: f32[n] to %t: f32[n + 1]"},
      {"temporary %t: f64[n] %t = call neg(%x) return", "result 0 is f64[n], expected f32[n]"},
      {"temporary %t: f32[n] %t = call neg(%x, %x) return", "neg"},
      {"temporary %t: f32[n] %t = call if(%x) return", "p > line 0 (call if): if has no native function"},
      // Control flow.
      {"if %x() then program t() { return } else program e() { return } return", "the condition %x: f32[n] is not one bool"},
      {"if %b(%x) then program t() { return } else program e() { return } return", "then takes 0 inputs, not 1"},
      {"if %b() then program t() { return } else program e() { launch k() return } return",
       "p > line 0 (if) > else > line 0 (launch k): names no temporary"},
      {"if %b() then program t() outer {m} { return } else program e() { return } return",
       "p > line 0 (if) > then: the enclosing program has not bound the outer symbol m"},
      {"temporary %t: f32[n] %t = if %b(%x) then program t(%x: f32[n]) { return \"x\" = %x: f32[n] } else program e(%x: f32[n]) { return } return",
       "else has 0 results, not 1"},
      {"temporary %t: i32[n] %t = if %b(%x) then program t(%x: f32[n]) { return \"x\" = %x: f32[n] } else program e(%x: f32[n]) { return \"x\" = %x: f32[n] } return",
       "result 0 of then is f32[n], expected i32[n]"},
      {"while %b, _ () carried 0 scans 0 body program l(%i: i64[], %c: bool[]) { return \"c\" = %c: bool[] } return",
       "the trip count %b: bool[] is not one i64"},
      {"while _, %b () carried 0 scans 0 body program l(%i: i64[]) { return } return", "the body takes 1 inputs, expected 2"},
      {"while _, %b () carried 1 scans 0 body program l(%i: i64[]) { return } return", "0 inputs are too few for 1 carried values"},
      {"temporary %t: f32[n] %t = while _, %b (%x) carried 0 scans 1 body program l(%i: i64[], %c: bool[], %x: f32[n]) { return \"c\" = %c: bool[], \"x\" = %x: f32[n] } return",
       "stacked result 0 is f32[n], expected f32[0, n]"},
      // Results.
      {"return \"r\" = %x: f32[n + 1]", "p > result \"r\": f32[n + 1] is not the whole of %x: f32[n]"},
      {"return \"r\" = %x: f32[n] offset 1", "is not the whole of"},
      {"return \"r\" = %x: f32[n, 1] strides [1]", "f32[n, 1] with 1 strides"},
      {"temporary %t: f32[n] copy %x to %t return \"r\" = %t: f32[n] strides [1]", "a strided view of %t, which is neither input nor constant"},
      {"return \"r\" = %x: f64[n]", "f64[n] has elements of another width than %x: f32[n]"},
      // The placement order.
      {"temporary %t: f32[n] copy %x to %t place %x return", "places %x, which has no slot of its own in the arena or is placed already"},
      {"temporary %t: f32[n] copy %x to %t place %t, %t return", "places %t, which has no slot of its own in the arena or is placed already"},
      {"temporary %t: f32[n] temporary %u: f32[n] copy %x to %t copy %x to %u place %t return", "places no %u"},
      {"temporary %t: f32[n] copy %x to %t place %t return \"t\" = %t: f32[n]", "places %t, which has no slot"},
  };
  for (const Bad& bad : cases) {
    SCOPED_TRACE(bad.body);
    const Program program = parse_program(std::string("program p(%x: f32[n], %k: i64[1], %b: bool[]) { ") + bad.body + " }", op::standard_ops());
    const std::string words = refusal(program);
    EXPECT_TRUE(words.starts_with("program p")) << words;
    EXPECT_NE(words.find(bad.words), std::string::npos) << words;
  }
}

TEST(ProgramVerify, ChecksLaunchesOnCuda) {
  const auto with_line = [](std::string_view line) {
    return refusal(parse_program(fmt::format("program p on cuda (%x: f32[n], %b: bool[]) {{ temporary %t: f32[n] {} return }}", line), op::standard_ops()));
  };
  EXPECT_EQ(with_line("launch k(%x, %t) grid (n, 1, 1) block (1024, 1, 1) cluster (8, 1, 1) shared n*4 cooperative"), "");
  EXPECT_NE(with_line("launch k(%x, %t) extent n").find("k has an extent or scratch, which kernels of cuda do not have"), std::string::npos);
  EXPECT_NE(with_line("launch k(%x, %t) block (512, 4, 1)").find("k has a block of 2048 threads, expected at most 1024"), std::string::npos);
  EXPECT_NE(with_line("launch k(%x, %t) block (1, 1, 65)").find("k has a block of (1, 1, 65)"), std::string::npos);
  EXPECT_NE(with_line("launch k(%x, %t) cluster (0, 1, 1)").find("k has a cluster of (0, 1, 1)"), std::string::npos);
  EXPECT_NE(with_line("launch k(%x, %t) if %b() then program t() { return } else program e on cuda () { return }").find("then runs on cpu, not on cuda"),
            std::string::npos);
}

TEST(ProgramVerify, InputsBindTheirSymbols) {
  const auto with_input = [](std::string_view inputs) { return refusal(parse_program(fmt::format("program p({}) {{ return }}", inputs), op::standard_ops())); };
  EXPECT_EQ(with_input("%x: f32[n, n + 1, m], %y: f32[2*k + n]"), "");
  EXPECT_EQ(with_input("%x: f32[a + b], %y: f32[b]"), "");
  EXPECT_EQ(with_input("%x: f32[a + b], %y: f32[mod(b, 4)]"), "program p: the sizes of the inputs do not determine the symbol a");
}

// What no text can say.
TEST(ProgramVerify, RefusesMalformedBuffers) {
  Program program;
  program.input_names = {"x"};
  program.input_types = {{DType::F32, {4}}};
  program.add_buffer({.name = "x", .kind = BufferKind::Input, .type = program.input_types[0], .index = 0});
  EXPECT_EQ(refusal(program), "");
  const auto with = [&](Buffer buffer) {
    Program changed;
    changed.input_names = program.input_names;
    changed.input_types = program.input_types;
    changed.buffers = program.buffers;
    changed.add_buffer(std::move(buffer));
    return refusal(changed);
  };
  EXPECT_EQ(with({.name = "x"}), "program main: two buffers are called %x");
  EXPECT_EQ(with({.name = "a/b"}), "program main: the name 'a/b' of buffer 1 is not made of letters, digits, '_' and '.'");
  EXPECT_EQ(with({.name = "y", .kind = BufferKind::Input, .type = {DType::F32, {4}}, .index = 0}), "program main: %y is another buffer for input 0");
  EXPECT_EQ(with({.name = "y", .kind = BufferKind::Input, .type = {DType::F32, {4}}, .index = 1}), "program main: %y is input 1 of 1");
  EXPECT_EQ(with({.name = "y", .kind = BufferKind::Constant, .index = 0}), "program main: %y is constant 0 of 0");
  EXPECT_EQ(with({.name = "y", .kind = BufferKind::View, .base = BufferId{1}}), "program main: the view %y does not come after its base");
  program.buffers[0].type.shape = {5};
  EXPECT_EQ(refusal(program), "program main: %x is f32[5], its input is f32[4]");
}

}  // namespace
}  // namespace fuseloom::program
