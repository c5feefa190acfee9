#include <thread>

#include "run/run_testing.h"

namespace fuseloom::run {
namespace {

constexpr std::string_view kChain = R"(program chain(%x: f32[n]) symbols {n in 0 .. inf} {
  temporary %a: f32[n]
  temporary %b: f32[n]
  temporary %y: f32[n]
  launch add_one(%x, %a) sizes (n) extent n work n bytes n*8 from "first"
  launch twice(%a, %b) sizes (n) extent n work n bytes n*8 in_place (%b over %a) from "second"
  launch add(%b, %x, %y) sizes (n) extent n work n bytes n*12 from "third"
  return "y" = %y: f32[n]
})";

TEST(Executable, RunsLinesInOrderForAnySize) {
  const Executable chain = load(kChain, {.poison = true});
  for (const int64_t n : {0, 1, 2, 63, 64, 65, 1000}) {
    const Tensor y = run(chain, {counting(n)})[0];
    ASSERT_EQ(y.dims(), Dims{n});
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(y.at(i), 3.0 * static_cast<double>(i) + 2) << n;
  }
  EXPECT_EQ(chain.entry_count(), 7u);
}

TEST(Executable, RunsTheFirstVariantWhoseConditionHolds) {
  const Executable e = load(R"(program p(%x: f32[n], %k: i64[1]) {
    constant %c: f32[2] {value = f32[2] {1.0, 2.0}}
    prepared %p: f32[2]
    temporary %y: f32[n]
    temporary %z: f32[n]
    init {
      launch (%c, %p) sizes (2) variants {
        when 0: add_one extent 2
        twice extent 2
      }
    }
    launch (%x, %y) sizes (n) variants {
      when eq(mod(n, 4), 0): add_one extent n
      when le(n, 2): twice extent n
      through_scratch extent n scratch n*4
    }
    read %k defines {m}
    launch (%x, %z) sizes (n) variants {
      when le(m, 0): add_one extent n
      twice extent n
    }
    return "y" = %y: f32[n], "z" = %z: f32[n], "p" = %p: f32[2]
  })");
  const auto run_both = [&](std::initializer_list<double> x, int64_t k) {
    const Tensor inputs[] = {f32({static_cast<int64_t>(x.size())}, x), i64({1}, {k})};
    return e.run(inputs);
  };
  for (int repeat = 0; repeat < 2; ++repeat) {
    EXPECT_EQ(values(run_both({5, 6, 7, 8}, 0)[0]), (std::vector<double>{6, 7, 8, 9}));
    EXPECT_EQ(values(run_both({5, 6}, 0)[0]), (std::vector<double>{10, 12}));
    EXPECT_EQ(values(run_both({5, 6, 7}, 0)[0]), (std::vector<double>{5, 6, 7}));
    EXPECT_EQ(values(run_both({5, 6}, 0)[1]), (std::vector<double>{6, 7}));
    EXPECT_EQ(values(run_both({5, 6}, 1)[1]), (std::vector<double>{10, 12}));
    EXPECT_EQ(values(run_both({5, 6}, 1)[2]), (std::vector<double>{2, 4}));
  }
}

TEST(Executable, InPlaceBuffersShareTheArena) {
  const Executable chain = load(kChain);
  const Dims dims[] = {{1000}};
  EXPECT_EQ(chain.arena_bytes(dims), 4032);  // b over a; y is the caller's
  EXPECT_EQ(chain.arena_lower_bound(dims), 4032);
  EXPECT_EQ(chain.output_dims(dims), (std::vector<Dims>{{1000}}));
}

TEST(Executable, ResultsDoNotDependOnThreads) {
  constexpr std::string_view text = R"(program heavy(%x: f32[n]) {
    temporary %y: f32[n]
    launch through_scratch(%x, %y) sizes (n) extent n scratch n*4 work n*1000
    return "y" = %y: f32[n]
  })";
  const Tensor x = counting(777);
  for (const int32_t threads : {1, 2, 4, 64}) {
    const Executable heavy = load(text, {.poison = true}, threads);
    for (int repeat = 0; repeat < 3; ++repeat) EXPECT_EQ(values(run(heavy, {x})[0]), values(x));
  }
}

TEST(Executable, WritesIntoGivenTensors) {
  const Executable chain = load(kChain);
  const Tensor x = counting(5);
  std::vector<Tensor> y{Tensor(DType::F32, {5})};
  const void* const memory = y[0].data();
  chain.run_into({&x, 1}, y);
  EXPECT_EQ(y[0].data(), memory);
  EXPECT_EQ(values(y[0]), (std::vector<double>{2, 5, 8, 11, 14}));
  EXPECT_EQ(chain.run({&x, 1}, y)[0].data(), memory);

  std::vector<Tensor> wrong{Tensor(DType::F32, {6})};
  EXPECT_HAS(error_of<UserError>([&] { chain.run_into({&x, 1}, wrong); }), "output 'y': expected a contiguous f32[5], got f32[6]");
  wrong = {Tensor(DType::F64, {5})};
  EXPECT_HAS(error_of<UserError>([&] { chain.run_into({&x, 1}, wrong); }), "got f64[5]");
  float memory10[10];
  wrong = {Tensor::borrow(DType::F32, {5}, {2}, memory10)};
  EXPECT_HAS(error_of<UserError>([&] { chain.run_into({&x, 1}, wrong); }), "not contiguous");
  EXPECT_HAS(error_of<UserError>([&] { chain.run_into({&x, 1}, {}); }), "has 1 outputs, 0 are given");
}

TEST(Executable, UpdatesAnInputInPlace) {
  // y is written before x is read for the last time: computing it in x's memory would be wrong.
  const Executable e = load(R"(program p(%x: f32[n]) {
    temporary %y: f32[n]
    temporary %z: f32[n]
    launch add_one(%x, %y) sizes (n) extent n
    launch add(%x, %y, %z) sizes (n) extent n
    return "y" = %y: f32[n], "z" = %z: f32[n], "x" = %x: f32[n]
  })");
  const Tensor x = f32({2}, {1, 2});
  Tensor z(DType::F32, {2}), copy(DType::F32, {2});
  std::vector<Tensor> results{x, z, copy};
  e.run_into({&x, 1}, results);
  EXPECT_EQ(values(x), (std::vector<double>{2, 3}));
  EXPECT_EQ(values(z), (std::vector<double>{3, 5}));
  EXPECT_EQ(values(copy), (std::vector<double>{1, 2}));
  results = {z, z, copy};
  EXPECT_HAS(error_of<UserError>([&] { e.run_into({&x, 1}, results); }), "output 'z' is to be written over output 'y'");
}

TEST(Executable, SwapsInputsThatAreOutputs) {
  const Executable e = load(R"(program p(%a: f32[n], %b: f32[n]) {
    return "b" = %b: f32[n], "a" = %a: f32[n]
  })");
  const Tensor inputs[] = {f32({2}, {1, 2}), f32({2}, {3, 4})};
  std::vector<Tensor> results{inputs[0], inputs[1]};
  e.run_into(inputs, results);
  EXPECT_EQ(values(inputs[0]), (std::vector<double>{3, 4}));
  EXPECT_EQ(values(inputs[1]), (std::vector<double>{1, 2}));
}

TEST(Executable, OutputsThatAreInputsConstantsOrTheSameBuffer) {
  const Executable e = load(R"(program p(%x: f32[n, 3]) {
    constant %c: f32[2] {value = f32[2] {5.0, 6.0}}
    temporary %y: f32[n, 3]
    view %flat: f32[n*3] of %y
    launch add_one(%x, %y) sizes (n) extent n*3
    return "x" = %x: f32[n, 3], "c" = %c: f32[2], "y" = %y: f32[n, 3], "flat" = %flat: f32[n*3],
      "t" = %x: f32[3, n] strides [1, 3], "last" = %x: f32[3] strides [1] offset n*3 - 3, "same" = %x: f32[n, 3, 4] strides [3, 1, 0],
      "one" = %c: f32[2, 2] strides [0, 1]
  })");
  const Tensor x = f32({2, 3}, {1, 2, 3, 4, 5, 6});
  const std::vector<Tensor> results = run(e, {x});
  EXPECT_NE(results[0].data(), x.data());
  EXPECT_EQ(values(results[0]), values(x));
  EXPECT_EQ(values(results[1]), (std::vector<double>{5, 6}));
  EXPECT_NE(results[1].data(), e.program().constants[0].data());
  EXPECT_EQ(values(results[2]), (std::vector<double>{2, 3, 4, 5, 6, 7}));
  EXPECT_NE(results[2].data(), results[3].data());
  EXPECT_EQ(values(results[3]), values(results[2]));
  // Strided views of an input share its memory; of a constant, they are copies.
  EXPECT_EQ(results[4].data(), x.data());
  EXPECT_EQ(results[4].owner(), x.owner());
  EXPECT_EQ(values(results[4]), (std::vector<double>{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(values(results[5]), (std::vector<double>{4, 5, 6}));
  EXPECT_EQ(results[6].strides(), (Dims{3, 1, 0}));
  EXPECT_EQ(values(results[7]), (std::vector<double>{5, 6, 5, 6}));
  // Given tensors are filled instead.
  std::vector<Tensor> given(8);
  given[4] = Tensor(DType::F32, {3, 2});
  const void* const memory = given[4].data();
  e.run_into({&x, 1}, given);
  EXPECT_EQ(given[4].data(), memory);
  EXPECT_EQ(values(given[4]), (std::vector<double>{1, 4, 2, 5, 3, 6}));
}

TEST(Executable, CopiesInputsThatAreNotContiguous) {  // R52
  const Executable chain = load(kChain);
  float memory[] = {1, 2, 3, 4, 5, 6};
  EXPECT_EQ(values(run(chain, {Tensor::borrow(DType::F32, {3}, {-2}, memory + 5)})[0]), (std::vector<double>{20, 14, 8}));
  EXPECT_EQ(values(run(chain, {Tensor::borrow(DType::F32, {3}, {0}, memory)})[0]), (std::vector<double>{5, 5, 5}));
  // Strides of single and of no elements do not matter.
  EXPECT_EQ(values(run(chain, {Tensor::borrow(DType::F32, {1}, {7}, memory)})[0]), (std::vector<double>{5}));
  EXPECT_EQ(run(chain, {Tensor::borrow(DType::F32, {0}, {-3}, memory)})[0].count(), 0);
}

TEST(Executable, NamesInputsThatDoNotFit) {
  const Executable e = load(R"(program p(%x: f32[n, m], %w: f32[m, 4], %v: f32[n*2 + 1], %k: f32[r + n]) symbols {n in 2 .. 100 multiple 2, m in 0 .. inf} {
    return "x" = %x: f32[n, m]
  })");
  const auto fails = [&](Dims x, Dims w, Dims v) {
    return error_of<UserError>([&] { run(e, {Tensor(DType::F32, x), Tensor(DType::F32, w), Tensor(DType::F32, v), Tensor(DType::F32, {9})}); });
  };
  EXPECT_EQ(fails({2, 3}, {3, 4}, {5}), "no error");
  EXPECT_HAS(fails({2, 3}, {5, 4}, {5}), "input 'w', dimension 0 (m): expected 3, got 5");
  EXPECT_HAS(fails({2, 3}, {3, 5}, {5}), "input 'w', dimension 1 (4): expected 4, got 5");
  EXPECT_HAS(fails({2, 3}, {3, 4}, {6}), "input 'v', dimension 0 (");
  EXPECT_HAS(fails({2, 3}, {3, 4}, {6}), "expected 5, got 6");
  EXPECT_HAS(fails({3, 3}, {3, 4}, {7}), "n = 3, expected a multiple of 2");
  EXPECT_HAS(fails({200, 3}, {3, 4}, {401}), "input 'x', dimension 0: n = 200, expected 2 .. 100");
  EXPECT_HAS(fails({2, 3, 1}, {3, 4}, {5}), "input 'x': expected rank 2 (f32[n, m]), got f32[2,3,1]");
  const Tensor doubles(DType::F64, {2, 3});
  EXPECT_HAS(error_of<UserError>([&] { run(e, {doubles, Tensor(DType::F32, {3, 4}), Tensor(DType::F32, {5}), Tensor(DType::F32, {9})}); }),
             "input 'x': expected f32[n, m], got f64[2,3]");
  EXPECT_HAS(error_of<UserError>([&] { run(e, {Tensor(DType::F32, {2, 3})}); }), "takes 4 inputs (x, w, v, k), 1 are given");
}

TEST(Executable, ChecksForFiniteValues) {
  const Executable chain = load(kChain, {.check_finite = true});
  EXPECT_EQ(error_of<UserError>([&] { run(chain, {f32({2}, {1, 2})}); }), "no error");
  EXPECT_HAS(error_of<UserError>([&] { run(chain, {f32({3}, {1, 2, INFINITY})}); }), "input 'x': element 2 is inf");
  EXPECT_HAS(error_of<UserError>([&] { run(chain, {f32({3}, {1, NAN, 3})}); }), "input 'x': element 1 is nan");
}

TEST(Executable, RefusesNegativeSizes) {
  const Executable e = load(R"(program p(%x: f32[n]) {
    temporary %t: f32[n - 5]
    temporary %y: f32[1]
    launch count(%t) extent n - 5
    launch sum(%t, %y) sizes (n - 5)
    return "y" = %y: f32[1]
  })");
  EXPECT_EQ(values(run(e, {counting(8)})[0]), (std::vector<double>{3}));
  EXPECT_EQ(values(run(e, {counting(5)})[0]), (std::vector<double>{0}));
  EXPECT_HAS(error_of<UserError>([&] { run(e, {counting(3)}); }), "%t: f32[");
  EXPECT_HAS(error_of<UserError>([&] { run(e, {counting(3)}); }), "= -2");
}

TEST(Executable, PoisonsWhatNobodyHasWritten) {
  const Executable e = load(R"(program p(%x: f32[n]) {
    temporary %t: f32[n]
    temporary %u: f32[n]
    temporary %y: f32[n]
    temporary %idle: f32[n]
    temporary %s: f32[4]
    launch idle(%t) extent n
    launch add_one(%t, %y) sizes (n) extent n
    launch count(%u) extent n
    launch idle(%u, %idle) extent n
    launch show_scratch(%s) extent 4 scratch 16
    return "y" = %y: f32[n], "idle" = %idle: f32[n], "s" = %s: f32[4]
  })",
                            {.poison = true});
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (const Tensor& result : run(e, {counting(3)})) {
      for (const double value : values(result)) EXPECT_TRUE(std::isnan(value));
    }
  }
}

TEST(Executable, KeepsTheEntriesUsedLast) {
  const Executable chain = load(kChain, {.max_entries = 2});
  for (const int64_t n : {1, 2, 3, 1, 3, 3}) {
    EXPECT_EQ(run(chain, {counting(n)})[0].count(), n);
    EXPECT_LE(chain.entry_count(), 2u);
  }
  const Executable off = load(kChain, {.max_entries = 0});
  for (const int64_t n : {1, 2, 1}) EXPECT_EQ(run(off, {counting(n)})[0].count(), n);
  EXPECT_EQ(off.entry_count(), 0u);
}

TEST(Executable, ManyThreadsAndShapesAtOnce) {
  const Executable chain = load(kChain, {.max_entries = 8});
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&, t] {
      for (int repeat = 0; repeat < 30; ++repeat) {
        const int64_t n = 1 + 10 * t + repeat % 3;
        const Tensor y = run(chain, {counting(n)})[0];
        for (int64_t i = 0; i < n; ++i) ASSERT_EQ(y.as<float>()[i], 3 * static_cast<float>(i) + 2);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(chain.entry_count(), 8u);
}

TEST(Executable, ErrorsOfKernelsReachTheCaller) {
  for (const std::string_view work : {"1", "1000000"}) {
    const std::string text = fmt::format(
        "program p(%x: f32[n]) {{ temporary %y: f32[n] launch fail(%x, %y) extent n work {} return \"y\" = %y: f32[n] }}", work);
    const Executable e = load(text);
    for (int repeat = 0; repeat < 3; ++repeat) EXPECT_THROW(run(e, {counting(100)}), std::runtime_error);
  }
  constexpr std::string_view missing = "program p(%x: f32[n]) { temporary %y: f32[n] launch missing(%x, %y) return \"y\" = %y: f32[n] }";
  EXPECT_HAS(error_of<InternalError>([&] { load(missing); }), "no kernel missing");
}

TEST(Executable, PreparesBuffersOnce) {
  const Executable e = load(R"(program p(%x: f32[3]) {
    constant %c: f32[3] {value = f32[3] {1.0, 2.0, 3.0}}
    prepared %p: f32[4]
    view %tail: f32[3] of %p offset 1
    temporary %y: f32[3]
    init {
      launch twice(%c, %tail) sizes (3) extent 3
    }
    launch add(%x, %tail, %y) sizes (3) extent 3
    return "y" = %y: f32[3], "p" = %tail: f32[3]
  })");
  const std::vector<Tensor> results = run(e, {f32({3}, {10, 20, 30})});
  EXPECT_EQ(values(results[0]), (std::vector<double>{12, 24, 36}));
  EXPECT_EQ(values(results[1]), (std::vector<double>{2, 4, 6}));
}

TEST(Executable, ProfilesLines) {
  const Executable chain = load(kChain);
  run(chain, {counting(8)});
  EXPECT_EQ(chain.profile().kernels[0].calls, 0);
  chain.set_profiling(true);
  run(chain, {counting(8)});
  run(chain, {counting(16)});
  chain.set_profiling(false);
  run(chain, {counting(8)});
  const Profile profile = chain.profile();
  EXPECT_EQ(profile.runs, 2);
  ASSERT_EQ(profile.kernels.size(), 3u);
  EXPECT_EQ(profile.kernels[1].name, "twice");
  EXPECT_EQ(profile.kernels[1].origin, "second");
  EXPECT_EQ(profile.kernels[1].calls, 2);
  EXPECT_EQ(profile.kernels[2].bytes, 16 * 12);
  EXPECT_GT(profile.seconds, 0);
  const std::string trace = profile.chrome_trace();
  EXPECT_HAS(trace, R"("name":"add")");
  EXPECT_HAS(trace, R"("ph":"X")");
}

TEST(Executable, ShowsWhatLinesWrite) {
  const Executable chain = load(kChain);
  std::vector<std::vector<double>> seen;
  chain.set_line_hook([&](const program::Program& program, size_t line, std::span<const program::BufferId> buffers, std::span<const Tensor> written) {
    EXPECT_EQ(&program, &chain.program());
    EXPECT_EQ(line, seen.size());
    ASSERT_EQ(written.size(), 1u);
    ASSERT_EQ(buffers.size(), 1u);
    seen.push_back(values(written[0]));
  });
  run(chain, {f32({2}, {1, 2})});
  EXPECT_EQ(seen, (std::vector<std::vector<double>>{{2, 3}, {4, 6}, {5, 8}}));
  chain.set_line_hook(nullptr);
  run(chain, {f32({2}, {1, 2})});
  EXPECT_EQ(seen.size(), 3u);
}

TEST(Executable, IsMovable) {
  Executable first = load(kChain);
  const Executable second = std::move(first);
  EXPECT_EQ(run(second, {counting(2)})[0].count(), 2);
}

}  // namespace
}  // namespace fuseloom::run
