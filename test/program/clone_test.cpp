#include <gtest/gtest.h>

#include "program/program.h"

namespace fuseloom::program {
namespace {

TEST(Clone, CopiesNestedProgramsDeeply) {
  const std::string text =
      "program p(%b: bool[], %x: f32[n]) {\n"
      "  temporary %y: f32[n]\n"
      "  temporary %z: f32[n]\n"
      "  %y = if %b(%x) then program t(%x: f32[n]) {\n"
      "    temporary %y: f32[n]\n"
      "    copy %x to %y\n"
      "    return \"y\" = %y: f32[n]\n"
      "  } else program e(%x: f32[n]) {\n"
      "    return \"x\" = %x: f32[n]\n"
      "  } from \"If_0\"\n"
      "  %z = while _, %b (%y) carried 1 scans 0 body program l(%i: i64[], %c: bool[], %y: f32[n]) {\n"
      "    return \"c\" = %c: bool[], \"y\" = %y: f32[n]\n"
      "  } nodes [1]\n"
      "  return \"z\" = %z: f32[n]\n"
      "}\n";
  const Program program = parse_program(text, op::standard_ops());
  Program copy = clone(program);
  EXPECT_EQ(to_string(copy), text);
  std::get<If>(copy.lines[0].what).then->lines.clear();
  std::get<While>(copy.lines[1].what).body->outputs.clear();
  EXPECT_EQ(to_string(program), text);
}

}  // namespace
}  // namespace fuseloom::program
