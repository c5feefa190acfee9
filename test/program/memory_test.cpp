#include <gtest/gtest.h>

#include <algorithm>

#include "program/program.h"

namespace fuseloom::program {
namespace {

using sym::Expr;

// A chain x -> t0 -> t1 -> ... -> y of n launches, each temporary of the given shape.
Program chain(const std::vector<op::Shape>& temporaries) {
  Program program;
  program.input_names = {"x"};
  program.input_types = {{DType::F32, {Expr::symbol("n")}}};
  program.kernels = {{"k"}};
  BufferId last = program.add_buffer({.name = "x", .kind = BufferKind::Input, .type = program.input_types[0], .index = 0});
  const auto launch = [&](BufferId to) {
    program.lines.push_back({.what = Launch{.kernel = 0, .buffers = {last, to}}});
    last = to;
  };
  for (const op::Shape& shape : temporaries) launch(program.add_buffer({.type = {DType::F32, shape}}));
  launch(program.add_buffer({.name = "y", .type = program.input_types[0]}));
  program.outputs.push_back({.name = "y", .buffer = last, .type = program.input_types[0]});
  return program;
}

TEST(Buffers, UnnamedOnesGetNumbersThatAreFree) {
  Program program;
  EXPECT_EQ(program.buffer(program.add_buffer({})).name, "0");
  program.add_buffer({.name = "2"});
  EXPECT_EQ(program.buffer(program.add_buffer({})).name, "3");
}

TEST(Liveness, SpansFirstWriteToLastReadThroughViews) {
  Program program = chain({{Expr::symbol("n")}, {Expr::symbol("n")}});
  const BufferId view = program.add_buffer({.kind = BufferKind::View, .type = {DType::F32, {1, Expr::symbol("n")}}, .base = BufferId{1}});
  const BufferId twice = program.add_buffer({.kind = BufferKind::View, .type = {DType::F32, {1}}, .base = view});
  std::get<Launch>(program.lines[2].what).buffers.push_back(twice);
  EXPECT_EQ(storage_of(program, twice), BufferId{1});
  const std::vector<LiveRange> ranges = live_ranges(program);
  const auto range = [&](size_t i) { return std::pair(ranges[i].first, ranges[i].last); };
  EXPECT_EQ(range(0), std::pair(-1, 0));   // x: nobody writes it
  EXPECT_EQ(range(1), std::pair(0, 2));
  EXPECT_EQ(range(2), std::pair(1, 2));
  EXPECT_EQ(range(3), std::pair(2, 3));    // y lives to the end
  EXPECT_EQ(range(4), std::pair(-1, -1));  // a view has no storage
}

TEST(Liveness, SizesThatALineDefinesAreNotPlanned) {
  Program program = chain({{Expr::symbol("n")}, {Expr::symbol("m") + 1}});
  program.lines.insert(program.lines.begin(), {.what = ReadSymbols{.from = BufferId{0}, .defines = {"m"}}});
  EXPECT_EQ(planned_buffers(program), (std::vector<char>{0, 1, 0, 1}));
}

TEST(PlanMemory, OrdersPlannedTemporariesOnce) {
  Program program = chain({{Expr::symbol("n")}, {Expr::symbol("m")}, {8}});
  plan_memory(program, {{"n", 1000}});
  std::vector<int32_t> order = program.placement_order;
  std::sort(order.begin(), order.end());
  EXPECT_EQ(order, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(program.placement_order[0], 1);  // the largest under the hint
}

TEST(PlanMemory, TakesProgramsWithoutTemporariesAndAbsurdHints) {
  Program none = chain({});
  plan_memory(none, {});
  EXPECT_TRUE(none.placement_order.empty());
  Program absurd = chain({{Expr::symbol("n"), Expr::symbol("n")}, {Expr::symbol("n") - 5}, {Expr::symbol("z")}});
  plan_memory(absurd, {{"n", INT64_MAX / 2}, {"z", -3}});
  EXPECT_EQ(absurd.placement_order.size(), 3u);
}

}  // namespace
}  // namespace fuseloom::program
