#include <gtest/gtest.h>

#include "fuseloom/error.h"
#include "program/plan/csv.h"
#include "program/plan_instances.h"

namespace fuseloom::program::plan {
namespace {

std::string error_of(std::string_view text) {
  try {
    parse_csv(text, "p.csv");
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(PlanCsv, ReadsColumnsByName) {
  const PlanFile file = parse_csv("size,id,upper,lower\r\n4,b1,3,0\r\n\r\n 7 , b2 ,9,3", "p.csv");
  ASSERT_EQ(file.problem.buffers.size(), 2u);
  EXPECT_EQ(file.problem.buffers[1].id, "b2");
  EXPECT_EQ(file.problem.buffers[1].lower, 3);
  EXPECT_EQ(file.problem.buffers[1].upper, 9);
  EXPECT_EQ(file.problem.buffers[1].size, 7);
  EXPECT_FALSE(file.solution);
}

TEST(PlanCsv, ReadsEveryOptionalColumn) {
  const PlanFile file = parse_csv(
      "\xef\xbb\xbfid,lower,upper,size,alignment,preferred_size,gaps,may_share_with,offset,in_place_of,granted_size\n"
      "b,3,9,4,,,,\"a\",8,a,\n"
      "\"a, \"\"first\"\"\",-5,9,4,16,,-3--1 2-4,,16,,\n"
      "a,0,4,4,,12,,,8,,6\n",
      "p.csv");
  const std::vector<Buffer>& buffers = file.problem.buffers;
  ASSERT_EQ(buffers.size(), 3u);
  EXPECT_EQ(buffers[0].may_share_with, std::vector<int32_t>{2});
  EXPECT_EQ(buffers[1].id, "a, \"first\"");
  EXPECT_EQ(buffers[1].alignment, 16);
  EXPECT_EQ(buffers[1].gaps, (std::vector<Interval>{{-3, -1}, {2, 4}}));
  EXPECT_EQ(buffers[2].preferred_size, 12);
  ASSERT_TRUE(file.solution);
  EXPECT_EQ(file.solution->offsets, (std::vector<int64_t>{8, 16, 8}));
  EXPECT_EQ(file.solution->in_place_of, (std::vector<int32_t>{2, -1, -1}));
  EXPECT_EQ(file.solution->sizes, (std::vector<int64_t>{4, 4, 6}));
  EXPECT_EQ(file.solution->height, 20);
}

TEST(PlanCsv, RoundTrip) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    Problem problem = small_problem(random, {.alignments = random.chance(50),
                                             .gaps = random.chance(50),
                                             .in_place = random.chance(50),
                                             .empty = true,
                                             .workspaces = random.chance(50)});
    for (Buffer& buffer : problem.buffers) {
      if (random.chance(20)) buffer.id = "\"" + buffer.id + ",\n";
      if (random.chance(20)) buffer.id += "\xc3\xa4";
    }
    Solution solution;
    for (const Buffer& buffer : problem.buffers) {
      solution.offsets.push_back(random.between(0, 99));
      if (buffer.size > 0) solution.height = std::max(solution.height, solution.offsets.back() + buffer.size);
    }
    const bool alignments = std::any_of(problem.buffers.begin(), problem.buffers.end(),
                                        [](const Buffer& buffer) { return buffer.alignment > 1; });
    Problem written = problem;
    for (Buffer& buffer : written.buffers) buffer.alignment = alignments ? std::max<int64_t>(buffer.alignment, 1) : 0;
    const std::string text = to_csv(problem, &solution);
    const PlanFile file = parse_csv(text, "p.csv");
    EXPECT_EQ(file.problem, written);
    ASSERT_TRUE(file.solution);
    EXPECT_EQ(*file.solution, solution);
    EXPECT_EQ(to_csv(file.problem, &*file.solution), text);
    EXPECT_FALSE(parse_csv(to_csv(problem), "p.csv").solution);
  }
}

TEST(PlanCsv, ErrorsNameFileLineExpectedAndGot) {
  const std::string header = "id,lower,upper,size\n";
  EXPECT_EQ(error_of(""), "p.csv:1: expected a line of column names (id,lower,upper,size,...), got an empty file");
  EXPECT_EQ(error_of("id,lower,upper\n"), "p.csv:1: expected a column 'size', got none");
  EXPECT_EQ(error_of("id,lower,upper,size,size\n"), "p.csv:1: expected column 'size' once, got it twice");
  EXPECT_EQ(error_of("id,lower,upper,size,in_place_of\n"),
            "p.csv:1: expected a column 'offset' beside 'in_place_of', got none");
  EXPECT_NE(error_of("id,lower,upper,bytes\n").find("p.csv:1: expected column names out of id, lower, upper, size"),
            std::string::npos);
  EXPECT_EQ(error_of(header + "a,0,1,4\nb,0,1\n"), "p.csv:3: expected 4 fields, got 3");
  EXPECT_EQ(error_of(header + "\n\na,0,x1,4\n"), "p.csv:4: column 'upper': expected an integer, got 'x1'");
  EXPECT_EQ(error_of(header + "a,0,1,4.5\n"), "p.csv:2: column 'size': expected an integer of at least 0, got '4.5'");
  EXPECT_EQ(error_of(header + "a,0,1,-4\n"), "p.csv:2: column 'size': expected an integer of at least 0, got '-4'");
  EXPECT_EQ(error_of(header + "a,0,1,99999999999999999999\n"),
            "p.csv:2: column 'size': expected an integer of at least 0, got '99999999999999999999'");
  EXPECT_EQ(error_of(header + "a,5,5,4\n"), "p.csv:2: column 'upper': expected more than lower = 5, got 5");
  EXPECT_EQ(error_of(header + ",0,1,4\n"), "p.csv:2: column 'id': expected a name, got an empty field");
  EXPECT_EQ(error_of(header + "a,0,1,4\na,0,1,4\n"),
            "p.csv:3: column 'id': expected a name not used before, got 'a', which is on line 2");
  EXPECT_EQ(error_of(header + "\"a,0,1,4\n"),
            "p.csv:2: expected a closing '\"' for the field 'a,0,1,4\\x0a', got the end of the file");
  EXPECT_EQ(error_of(header + "\"a\"b,0,1,4\n"), "p.csv:2: expected ',' or the end of the line after a field, got 'b'");
  EXPECT_EQ(error_of(header + "a\"b,0,1,4\n"), "p.csv:2: expected a field quoted as a whole or not at all, got 'a\"'");
  EXPECT_EQ(error_of("id,lower,upper,size,gaps\na,0,9,4,3-5 6\n"),
            "p.csv:2: column 'gaps': expected LOWER-UPPER, got '6'");
  EXPECT_EQ(error_of("id,lower,upper,size,may_share_with\na,0,9,4,z\n"),
            "p.csv:2: column 'may_share_with': expected the id of a buffer, got 'z'");
  EXPECT_EQ(error_of("id,lower,upper,size,alignment\na,0,9,4,0\n"),
            "p.csv:2: column 'alignment': expected an integer of at least 1, got '0'");
  EXPECT_EQ(error_of("id,lower,upper,size,offset\na,0,9,4,\n"),
            "p.csv:2: column 'offset': expected an integer of at least 0, got ''");
}

TEST(PlanCsv, HostileTextIsRefusedWithAUserError) {
  // Random damage to a good file: it parses, or it is the user's fault; nothing else happens.
  Random random(7);
  const std::string good =
      "id,lower,upper,size,alignment,gaps,may_share_with,offset\n\"b,1\",0,4,4,8,1-2,,0\nb2,3,9,4,,,,8\n";
  for (int i = 0; i < 3000; ++i) {
    std::string text = good;
    for (int64_t k = random.between(1, 4); k > 0; --k) {
      const size_t at = static_cast<size_t>(random.between(0, static_cast<int64_t>(text.size()) - 1));
      const char byte = "\",\n\r-9 \0\xff"[random.between(0, 8)];
      if (random.chance(40)) {
        text[at] = byte;
      } else if (random.chance(50)) {
        text.insert(at, static_cast<size_t>(random.between(1, 30)), byte);
      } else {
        text.erase(at, static_cast<size_t>(random.between(1, 8)));
        if (text.empty()) text = "x";
      }
    }
    try {
      parse_csv(text, "p.csv");
    } catch (const UserError&) {
    }
  }
  EXPECT_THROW(read_csv("/no/such/file.csv"), UserError);
}

}  // namespace
}  // namespace fuseloom::program::plan
