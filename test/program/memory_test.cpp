#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "program/plan/solve.h"
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
    program.lines.push_back({.what = Launch{.variants = {{.kernel = 0}}, .buffers = {last, to}}});
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

std::vector<std::vector<int32_t>> slots_of(const Program& program) {
  std::vector<std::vector<int32_t>> slots;
  for (const ArenaSlot& slot : arena_slots(program)) {
    slots.emplace_back();
    for (const BufferId id : slot.buffers) slots.back().push_back(id.index);
  }
  return slots;
}

// Lets every launch of a chain work in place.
Program in_place_chain(int length) {
  Program program = chain(std::vector<op::Shape>(static_cast<size_t>(length), {Expr::symbol("n")}));
  for (size_t i = 1; i < program.lines.size(); ++i) {
    Launch& launch = std::get<Launch>(program.lines[i].what);
    launch.in_place = {{launch.buffers[1], launch.buffers[0]}};
  }
  return program;
}

TEST(ArenaSlots, ChainsOfTakeoversShareOne) {
  const Program program = in_place_chain(3);
  EXPECT_EQ(slots_of(program), (std::vector<std::vector<int32_t>>{{1, 2, 3}}));  // y is the caller's
  const LiveRange range = arena_slots(program)[0].range;
  EXPECT_EQ(std::pair(range.first, range.last), std::pair(0, 3));
}

TEST(ArenaSlots, NoTakeoverOfWhatIsReadLaterOrThroughAView) {
  Program later = in_place_chain(2);
  std::get<Launch>(later.lines[2].what).buffers.push_back(BufferId{1});
  EXPECT_EQ(slots_of(later), (std::vector<std::vector<int32_t>>{{1}, {2}}));
  Program viewed = in_place_chain(2);
  const BufferId view = viewed.add_buffer({.kind = BufferKind::View, .type = {DType::F32, {Expr::symbol("n"), 1}}, .base = BufferId{1}});
  std::get<Launch>(viewed.lines[1].what).buffers.push_back(view);
  EXPECT_EQ(slots_of(viewed), (std::vector<std::vector<int32_t>>{{1}, {2}}));
}

TEST(ArenaSlots, OneTakerForEachSlot) {
  Program program = in_place_chain(2);
  const BufferId twin = program.add_buffer({.type = program.input_types[0]});
  Launch& launch = std::get<Launch>(program.lines[1].what);
  launch.buffers.push_back(twin);
  launch.in_place.emplace_back(twin, launch.buffers[0]);
  EXPECT_EQ(slots_of(program), (std::vector<std::vector<int32_t>>{{1, 2}, {twin.index}}));
}

TEST(ArenaSlots, WholeResultsHaveNone) {
  Program program = chain({{Expr::symbol("n")}, {Expr::symbol("n")}});
  const op::TensorType row{DType::F32, {1, Expr::symbol("n")}}, first{DType::F32, {1}};
  program.outputs.push_back({.name = "row", .buffer = program.add_buffer({.kind = BufferKind::View, .type = row, .base = BufferId{1}}), .type = row});
  program.outputs.push_back({.name = "first", .buffer = program.add_buffer({.kind = BufferKind::View, .type = first, .base = BufferId{2}}), .type = first});
  EXPECT_EQ(slots_of(program), (std::vector<std::vector<int32_t>>{{2}}));
}

TEST(PlanMemory, OrdersPlannedTemporariesOnce) {
  Program program = chain({{Expr::symbol("n")}, {Expr::symbol("m")}, {8}});
  plan_memory(program, {{"n", 1000}});
  std::vector<int32_t> order = program.placement_order;
  std::sort(order.begin(), order.end());
  EXPECT_EQ(order, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(program.placement_order[0], 1);  // the largest under the hint
}

TEST(PlanMemory, PlacesASlotByItsFirstBuffer) {
  Program program = in_place_chain(3);
  plan_memory(program, {});
  EXPECT_EQ(program.placement_order, (std::vector<int32_t>{1}));
  EXPECT_NO_THROW(verify(program));
}

// First fit in the chosen order, written anew: offsets by slot.
int64_t first_fit_height(const Program& program) {
  struct Placed {
    int64_t begin, end;
    LiveRange range;
  };
  std::vector<Placed> placed;
  int64_t height = 0;
  for (const int32_t buffer : program.placement_order) {
    const std::vector<ArenaSlot> slots = arena_slots(program);
    const auto slot = std::find_if(slots.begin(), slots.end(), [&](const ArenaSlot& each) { return each.buffers[0].index == buffer; });
    const int64_t bytes = plan::align_up(4 * *program.buffers[static_cast<size_t>(buffer)].type.shape[0].as_const(), 64);
    int64_t begin = 0;
    const auto collides = [&](const Placed& other) {
      return begin < other.end && other.begin < begin + bytes && slot->range.first <= other.range.last && other.range.first <= slot->range.last;
    };
    for (auto other = placed.begin(); (other = std::find_if(placed.begin(), placed.end(), collides)) != placed.end();) begin = other->end;
    placed.push_back({begin, begin + bytes, slot->range});
    height = std::max(height, begin + bytes);
  }
  return height;
}

TEST(PlanMemory, IsAsLowAsTheQuickPlanner) {
  std::mt19937 random(20240607);
  for (int trial = 0; trial < 60; ++trial) {
    SCOPED_TRACE(testing::Message() << "trial " << trial);
    // A straight line of launches with skip connections of random length.
    Program program = chain({});
    program.lines.clear();
    plan::Problem problem{.alignment = 64};
    const int32_t count = 4 + static_cast<int32_t>(random() % 30);
    for (int32_t i = 0; i < count; ++i) {
      const int64_t size = 1 + static_cast<int64_t>(random() % 5000);
      const BufferId made = program.add_buffer({.type = {DType::F32, {size}}});
      program.lines.push_back({.what = Launch{.variants = {{.kernel = 0}}, .buffers = {made}}});
      problem.buffers.push_back({.id = std::to_string(made.index), .lower = i, .upper = i + 1, .size = plan::align_up(4 * size, 64)});
      for (int reads = 0; reads < 2 && i > 0; ++reads) {
        const int32_t from = std::max<int32_t>(0, i - 1 - static_cast<int32_t>(random() % 8));
        std::get<Launch>(program.lines.back().what).buffers.push_back(BufferId{made.index - i + from});
        problem.buffers[static_cast<size_t>(from)].upper = i + 1;
      }
    }
    plan_memory(program, {});
    EXPECT_LE(first_fit_height(program), plan::solve(problem, {.mode = plan::Options::Mode::Quick}).height);
  }
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
