// Sizes, branches and loops that depend on data.
#include "run/run_testing.h"

namespace fuseloom::run {
namespace {

constexpr std::string_view kSized = R"(program sized(%x: f32[n], %k: i64[1]) symbols {n in 0 .. inf, m in 0 .. inf} {
  view %tail: f32[m] of %x offset n - m
  temporary %t: f32[m*2]
  view %half: f32[m] of %t offset m
  temporary %u: f32[m]
  temporary %y: f32[m]
  read %k defines {m}
  assert le(m, n) "take more than there is"
  launch count(%t) extent m*2
  launch add_one(%tail, %u) sizes (m) extent m
  launch add(%u, %half, %y) sizes (m) extent m from "Sum_7"
  return "y" = %y: f32[m], "again" = %y: f32[m], "part" = %half: f32[m], "tail" = %x: f32[m] strides [1] offset n - m
})";

TEST(DataDependent, SizesThatAreRead) {
  for (const bool poison : {false, true}) {
    const Executable e = load(kSized, {.poison = poison});
    for (const int64_t m : {3, 0, 1, 4, 3}) {
      const std::vector<Tensor> results = run(e, {counting(4), i64({1}, {m})});
      ASSERT_EQ(results[0].dims(), Dims{m});
      ASSERT_EQ(results[3].dims(), Dims{m});
      for (int64_t i = 0; i < m; ++i) {
        EXPECT_EQ(results[0].at(i), static_cast<double>(4 - m + i + 1 + m + i));
        EXPECT_EQ(results[1].at(i), results[0].at(i));
        EXPECT_EQ(results[2].at(i), static_cast<double>(m + i));
        EXPECT_EQ(results[3].at(i), static_cast<double>(4 - m + i));
      }
    }
    EXPECT_EQ(e.entry_count(), 1u);
    EXPECT_HAS(error_of<UserError>([&] { run(e, {counting(4), i64({1}, {5})}); }), "take more than there is (m = 5, n = 4)");
    EXPECT_HAS(error_of<UserError>([&] { run(e, {counting(4), i64({1}, {-1})}); }), "%k: m = -1, expected 0 .. inf");
    const Dims dims[] = {{4}, {1}};
    EXPECT_HAS(error_of<Unsupported>([&] { e.output_dims(dims); }), "output 'y'");
    // A given tensor must fit what the data asks for.
    const Tensor inputs[] = {counting(4), i64({1}, {2})};
    std::vector<Tensor> given(4);
    given[0] = Tensor(DType::F32, {2});
    const void* const memory = given[0].data();
    e.run_into(inputs, given);
    EXPECT_EQ(given[0].data(), memory);
    EXPECT_EQ(values(given[0]), values(given[1]));
    given = {Tensor(DType::F32, {3}), Tensor(), Tensor(), Tensor()};
    EXPECT_HAS(error_of<UserError>([&] { e.run_into(inputs, given); }), "output 'y'");
  }
}

TEST(DataDependent, CallsThatDefineSizes) {
  const Executable e = load(R"(program p(%x: f32[n], %c: bool[n]) {
    temporary %kept: f32[m]
    temporary %more: f32[m]
    temporary %sorted: f32[m]
    temporary %top: f32[2]
    %kept = call compress(%x, %c) {axis = 0, defines = <m>} defines {m} from "Compress_1"
    launch add_one(%kept, %more) sizes (m) extent m
    %sorted, _ = call sort(%more) {axis = 0, descending = 1}
    %top, _ = call top_k(%sorted) {axis = 0, k = <2>, largest = 0} from "TopK_2"
    return "kept" = %kept: f32[m], "sorted" = %sorted: f32[m], "top" = %top: f32[2]
  })");
  const Tensor c = Tensor::of(DType::Bool, {4}, {1, 0, 1, 1});
  const std::vector<Tensor> results = run(e, {counting(4), c});
  EXPECT_EQ(values(results[0]), (std::vector<double>{0, 2, 3}));
  EXPECT_EQ(values(results[1]), (std::vector<double>{4, 3, 1}));
  EXPECT_EQ(values(results[2]), (std::vector<double>{1, 3}));
  const Tensor one = Tensor::of(DType::Bool, {4}, {0, 0, 0, 1});
  EXPECT_HAS(error_of<UserError>([&] { run(e, {counting(4), one}); }), "[in TopK_2]");
}

// R3: the branches have arenas of their own.
constexpr std::string_view kBranch = R"(program branch(%c: bool[], %x: f32[n]) {
  temporary %r: f32[1]
  temporary %z: f32[n]
  %r = if %c(%x) then program then_branch(%x: f32[n]) {
    temporary %a: f32[n]
    temporary %r: f32[1]
    launch add_one(%x, %a) sizes (n) extent n
    launch sum(%a, %r) sizes (n)
    return "r" = %r: f32[1]
  } else program else_branch(%x: f32[n]) {
    temporary %b: f32[n]
    temporary %r: f32[1]
    launch twice(%x, %b) sizes (n) extent n
    launch sum(%b, %r) sizes (n)
    return "r" = %r: f32[1]
  } from "If_3"
  launch twice(%x, %z) sizes (n) extent n
  return "r" = %r: f32[1], "z" = %z: f32[n]
})";

TEST(DataDependent, Branches) {
  const Executable e = load(kBranch, {.poison = true});
  for (const int64_t n : {3, 0, 5}) {
    const double sum = static_cast<double>(n * (n - 1) / 2);
    EXPECT_EQ(run(e, {Tensor::scalar(DType::Bool, 1), counting(n)})[0].at(0), sum + static_cast<double>(n));
    const std::vector<Tensor> results = run(e, {Tensor::scalar(DType::Bool, 0), counting(n)});
    EXPECT_EQ(results[0].at(0), 2 * sum);
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(results[1].at(i), 2.0 * static_cast<double>(i));
  }
}

TEST(DataDependent, BranchesOfDifferentSizesAndBranchesThatGiveTheirInput) {
  const Executable e = load(R"(program p(%c: bool[], %x: f32[n, 2]) {
    temporary %y: f32[m, k]
    temporary %s: f32[m]
    temporary %z: f32[n, 2]
    %y = if %c(%x) defines {m, k} then program t(%x: f32[n, 2]) {
      return "y" = %x: f32[n, 2]
    } else program e(%x: f32[n, 2]) {
      return "y" = %x: f32[2, n] strides [1, 2]
    }
    launch count(%s) extent m
    %z = if %c(%x) then program t(%x: f32[a, b]) outer {n} {
      temporary %z: f32[a, b]
      launch add_one(%x, %z) sizes (a*b) extent n*2
      return "z" = %z: f32[a, b]
    } else program e(%x: f32[a, b]) {
      return "z" = %x: f32[a, b]
    }
    return "y" = %y: f32[m, k], "s" = %s: f32[m], "z" = %z: f32[n, 2]
  })",
                            {.poison = true});
  const Tensor x = f32({3, 2}, {1, 2, 3, 4, 5, 6});
  std::vector<Tensor> results = run(e, {Tensor::scalar(DType::Bool, 1), x});
  EXPECT_EQ(results[0].dims(), (Dims{3, 2}));
  EXPECT_NE(results[0].data(), x.data());
  EXPECT_EQ(values(results[0]), values(x));
  EXPECT_EQ(values(results[2]), (std::vector<double>{2, 3, 4, 5, 6, 7}));
  results = run(e, {Tensor::scalar(DType::Bool, 0), x});
  EXPECT_EQ(results[0].dims(), (Dims{2, 3}));
  EXPECT_EQ(values(results[0]), (std::vector<double>{1, 3, 5, 2, 4, 6}));
  EXPECT_EQ(values(results[1]), (std::vector<double>{0, 1}));
  EXPECT_EQ(values(results[2]), values(x));
}

// Carried: v += x, and w, which is v of before. Stacked: v.
constexpr std::string_view kLoop = R"(program loop(%trip: i64[], %c: bool[], %v: f32[n], %w: f32[n], %x: f32[n]) {
  temporary %last: f32[n]
  temporary %before: f32[n]
  temporary %all: f32[t, n]
  %last, %before, %all = while %trip, %c (%v, %w, %x) carried 2 scans 1 defines {t} body program body(%i: i64[], _: bool[] "go", %v: f32[n], _: f32[n] "w", %x: f32[n]) {
    temporary %next: f32[n]
    temporary %go: bool[]
    launch add(%v, %x, %next) sizes (n) extent n
    launch goes_on(%i, %go) sizes (10)
    return "go" = %go: bool[], "v" = %next: f32[n], "w" = %v: f32[n], "scan" = %next: f32[n]
  } from "Loop_5"
  return "last" = %last: f32[n], "before" = %before: f32[n], "all" = %all: f32[t, n]
})";

TEST(DataDependent, Loops) {
  for (const bool poison : {false, true}) {
    const Executable e = load(kLoop, {.poison = poison});
    const Tensor v = f32({2}, {1, 2}), w = f32({2}, {7, 8}), x = f32({2}, {10, 100});
    for (const int64_t trips : {0, 1, 2, 5, 100}) {
      const int64_t expected = std::min<int64_t>(trips, 10);
      const std::vector<Tensor> results = run(e, {i64({}, {trips}), Tensor::scalar(DType::Bool, 1), v, w, x});
      const double t = static_cast<double>(expected);
      EXPECT_EQ(values(results[0]), (std::vector<double>{1 + 10 * t, 2 + 100 * t}));
      if (trips > 0) {
        EXPECT_EQ(values(results[1]), (std::vector<double>{1 + 10 * (t - 1), 2 + 100 * (t - 1)}));
      } else {
        EXPECT_EQ(values(results[1]), values(w));
      }
      ASSERT_EQ(results[2].dims(), (Dims{expected, 2}));
      for (int64_t i = 0; i < expected; ++i) EXPECT_EQ(results[2].at(2 * i), 11 + 10 * static_cast<double>(i));
    }
    EXPECT_EQ(run(e, {i64({}, {3}), Tensor::scalar(DType::Bool, 0), v, w, x})[2].dims(), (Dims{0, 2}));
    EXPECT_EQ(values(v), (std::vector<double>{1, 2}));
  }
}

TEST(DataDependent, ALoopWithoutTripsGivesACopyOfItsInput) {  // R4
  const Executable e = load(kLoop);
  Tensor v = f32({2}, {1, 2});
  const std::vector<Tensor> results = run(e, {i64({}, {0}), Tensor::scalar(DType::Bool, 1), v, v, v});
  v.as<float>()[0] = 99;
  EXPECT_EQ(values(results[0]), (std::vector<double>{1, 2}));
}

TEST(DataDependent, ValuesThatGrowFromTripToTrip) {
  const Executable e = load(R"(program p(%trip: i64[], %v: f32[n]) {
    temporary %last: f32[m]
    temporary %y: f32[m + 1]
    %last = while %trip, _ (%v) carried 1 scans 0 defines {m} body program body(_: i64[] "i", %go: bool[], %v: f32[n]) {
      temporary %next: f32[n*2]
      launch count(%next) extent n*2
      return "go" = %go: bool[], "v" = %next: f32[n*2]
    }
    launch count(%y) extent m + 1
    return "last" = %last: f32[m], "y" = %y: f32[m + 1]
  })");
  for (const int64_t trips : {0, 1, 3}) {
    const std::vector<Tensor> results = run(e, {i64({}, {trips}), counting(3)});
    EXPECT_EQ(results[0].dims(), Dims{3 << trips});
    EXPECT_EQ(results[1].dims(), Dims{(3 << trips) + 1});
    EXPECT_EQ(values(results[0]), values(counting(3 << trips)));
  }
}

TEST(DataDependent, SixtyRandomSizes) {
  const Executable e = load(kSized);
  uint64_t state = 20261201;
  for (int repeat = 0; repeat < 60; ++repeat) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const int64_t n = static_cast<int64_t>(state >> 33) % 5000, m = n / 2;
    const Tensor y = run(e, {counting(n), i64({1}, {m})})[0];
    for (int64_t i = 0; i < m; i += 97) ASSERT_EQ(y.at(i), static_cast<double>(n - m + i + 1 + m + i)) << "n = " << n;
  }
  EXPECT_LE(e.entry_count(), 64u);
}

}  // namespace
}  // namespace fuseloom::run
