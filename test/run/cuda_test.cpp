// Programs on a device whose driver is the host (host_driver.h): the code that runs on a GPU, on any machine.
#include <map>
#include <thread>

#include "run/cuda_device.h"
#include "run/host_driver.h"
#include "run/run_testing.h"

namespace fuseloom::run {
namespace {

template <class T>
T* at(const uint64_t* words, int i) {
  return reinterpret_cast<T*>(words[i]);
}
int64_t threads_of(const uint32_t* grid, const uint32_t* block) { return int64_t{grid[0]} * grid[1] * grid[2] * block[0] * block[1] * block[2]; }

// As the CPU's test kernels: the last word is the number of elements. Threads beyond it do nothing; elements that no thread
// has are not computed, so that a wrong grid shows.
std::map<std::string, HostKernel>& host_kernels() {
  static std::map<std::string, HostKernel> kernels = {
      {"add_one",
       {[](const uint64_t* w, const uint32_t* grid, const uint32_t* block, const uint32_t*, uint32_t) {
         for (int64_t i = 0; i < std::min(threads_of(grid, block), static_cast<int64_t>(w[2])); ++i) at<float>(w, 1)[i] = at<float>(w, 0)[i] + 1;
       }}},
      {"twice",
       {[](const uint64_t* w, const uint32_t* grid, const uint32_t* block, const uint32_t*, uint32_t) {
         for (int64_t i = 0; i < std::min(threads_of(grid, block), static_cast<int64_t>(w[2])); ++i) at<float>(w, 1)[i] = 2 * at<float>(w, 0)[i];
       }}},
      {"add",
       {[](const uint64_t* w, const uint32_t* grid, const uint32_t* block, const uint32_t*, uint32_t) {
         for (int64_t i = 0; i < std::min(threads_of(grid, block), static_cast<int64_t>(w[3])); ++i)
           at<float>(w, 2)[i] = at<float>(w, 0)[i] + at<float>(w, 1)[i];
       }}},
      // y[0] = shared bytes, y[1] = blocks of the cluster
      {"show_launch",
       {[](const uint64_t* w, const uint32_t*, const uint32_t*, const uint32_t* cluster, uint32_t shared_bytes) {
         at<float>(w, 0)[0] = static_cast<float>(shared_bytes);
         at<float>(w, 0)[1] = static_cast<float>(cluster[0] * cluster[1] * cluster[2]);
       }}},
      {"goes_on",
       {[](const uint64_t* w, const uint32_t*, const uint32_t*, const uint32_t*, uint32_t) {
         at<bool>(w, 1)[0] = at<int64_t>(w, 0)[0] + 1 < static_cast<int64_t>(w[2]);
       }}},
      // y[0] = 1 if both addresses are aligned for 16-byte accesses
      {"is_aligned",
       {[](const uint64_t* w, const uint32_t*, const uint32_t*, const uint32_t*, uint32_t) { at<float>(w, 1)[0] = w[0] % 16 == 0 && w[1] % 16 == 0 ? 1 : 0; }}},
  };
  return kernels;
}

std::shared_ptr<CudaDevice> device(int32_t index = 0) { return CudaDevice::open(host_driver(), index); }

Executable load_cuda(std::string_view text, std::shared_ptr<CudaDevice> on = device(), const RunOptions& options = {}) {
  program::Program program = program::parse_program(text, op::standard_ops());
  program::verify(program);
  const Kernels kernels{.device = std::move(on), .cuda = [](const std::string& name) { return host_function(host_kernels().at(name)); }};
  return Executable(std::move(program), kernels, nullptr, nullptr, options);
}

constexpr std::string_view kChain = R"(program chain on cuda (%x: f32[n]) symbols {n in 0 .. inf} {
  temporary %a: f32[n]
  temporary %b: f32[n]
  temporary %y: f32[n]
  launch add_one(%x, %a) sizes (n) grid (floor_div(n + 31, 32), 1, 1) block (32, 1, 1) bytes n*8 from "first"
  launch (%a, %b) sizes (n) bytes n*8 in_place (%b over %a) variants {
    when eq(mod(n, 2), 0): twice grid (floor_div(n + 63, 64), 1, 1) block (64, 1, 1)
    twice grid (n, 1, 1)
  } from "second"
  launch add(%b, %x, %y) sizes (n) grid (floor_div(n + 31, 32), 1, 1) block (8, 4, 1) bytes n*12 from "third"
  return "y" = %y: f32[n]
})";

TEST(Cuda, HostTensorsInAndOut) {
  for (const bool poison : {false, true}) {
    const Executable chain = load_cuda(kChain, device(), {.poison = poison});
    for (const int64_t n : {0, 1, 2, 63, 64, 65, 1000, 3000000}) {
      const Tensor y = run(chain, {counting(n)})[0];
      ASSERT_EQ(y.dims(), Dims{n});
      ASSERT_TRUE(y.on_host());
      for (int64_t i = 0; i < n; i += n > 10000 ? 997 : 1) ASSERT_EQ(y.at(i), 3.0 * static_cast<double>(i) + 2) << n;
    }
    EXPECT_EQ(chain.entry_count(), 8u);
  }
}

TEST(Cuda, DeviceTensorsStayOnTheDevice) {
  const std::shared_ptr<CudaDevice> on = device();
  const Executable chain = load_cuda(kChain, on);
  const Tensor x = on->to_device(counting(100), nullptr);
  const std::vector<Tensor> y = chain.run({&x, 1});
  EXPECT_EQ(y[0].device(), on->tag());
  EXPECT_EQ(values(on->to_host(y[0], nullptr))[99], 299);
  EXPECT_HAS(error_of<UserError>([&] { y[0].at(0); }), "f32[100] lies on a CUDA device");
  // Given results, on either side.
  std::vector<Tensor> given{on->empty(DType::F32, {100}, nullptr)};
  const void* const memory = given[0].data();
  chain.run_into({&x, 1}, given);
  EXPECT_EQ(given[0].data(), memory);
  EXPECT_EQ(values(on->to_host(given[0], nullptr))[2], 8);
  given = {Tensor(DType::F32, {100})};
  chain.run_into({&x, 1}, given);
  EXPECT_EQ(values(given[0])[3], 11);
  // By request.
  EXPECT_TRUE(chain.run({&x, 1}, {}, {.results = CallOptions::Results::Host})[0].on_host());
  const Tensor host = counting(100);
  EXPECT_FALSE(chain.run({&host, 1}, {}, {.results = CallOptions::Results::Device})[0].on_host());
  // In place: the result lies over the input.
  std::vector<Tensor> over{x};
  chain.run_into({&x, 1}, over);
  EXPECT_EQ(values(on->to_host(x, nullptr))[99], 299);
}

TEST(Cuda, CopiesWhatIsStridedOrMisaligned) {
  const std::shared_ptr<CudaDevice> on = device();
  const Executable aligned = load_cuda(R"(program p on cuda (%x: f32[n]) {
    temporary %y: f32[1]
    temporary %z: f32[n]
    launch is_aligned(%x, %y)
    launch add_one(%x, %z) sizes (n) grid (n, 1, 1)
    return "y" = %y: f32[1], "z" = %z: f32[n]
  })", on);
  const Tensor whole = on->to_device(counting(20), nullptr);
  const auto window = [&](Dims dims, Dims strides, int64_t offset) {
    return Tensor::on_device(on->tag(), DType::F32, std::move(dims), std::move(strides), static_cast<float*>(const_cast<void*>(whole.data())) + offset, nullptr);
  };
  const auto both = [&](const Tensor& x) {
    std::vector<Tensor> results = aligned.run({&x, 1});
    for (Tensor& each : results) each = on->to_host(each, nullptr);
    return results;
  };
  EXPECT_EQ(values(both(window({5}, {1}, 1))[0]), std::vector<double>{1});
  EXPECT_EQ(values(both(window({5}, {1}, 1))[1]), (std::vector<double>{2, 3, 4, 5, 6}));
  EXPECT_EQ(values(both(window({3}, {3}, 2))[1]), (std::vector<double>{3, 6, 9}));
  EXPECT_EQ(values(both(window({3}, {-1}, 8))[1]), (std::vector<double>{9, 8, 7}));
  EXPECT_EQ(values(both(window({3}, {0}, 8))[1]), (std::vector<double>{9, 9, 9}));
  // Results too: computed elsewhere and copied.
  const Tensor x = window({4}, {1}, 0);
  std::vector<Tensor> results{Tensor(), window({4}, {1}, 9)};
  aligned.run_into({&x, 1}, results);
  EXPECT_EQ(values(on->to_host(results[0], nullptr)), std::vector<double>{1});
  EXPECT_EQ(values(on->to_host(window({6}, {1}, 8), nullptr)), (std::vector<double>{8, 1, 2, 3, 4, 13}));
  // From the host, strided.
  const Tensor rows = counting(6);
  const Tensor column = Tensor::borrow(DType::F32, {3}, {2}, const_cast<void*>(rows.data()));
  EXPECT_EQ(values(aligned.run({&column, 1})[1]), (std::vector<double>{1, 3, 5}));
}

TEST(Cuda, ViewsConstantsAndPreparedBuffers) {
  const std::shared_ptr<CudaDevice> on = device();
  const Executable e = load_cuda(R"(program p on cuda (%x: f32[n, 3]) {
    constant %c: f32[2] {value = f32[2] {5.0, 6.0}}
    prepared %p: f32[2]
    temporary %y: f32[n, 3]
    view %flat: f32[n*3] of %y
    init { launch twice(%c, %p) sizes (2) grid (2, 1, 1) }
    launch add_one(%x, %y) sizes (n*3) grid (n, 3, 1)
    return "x" = %x: f32[n, 3], "p" = %p: f32[2], "y" = %y: f32[n, 3], "flat" = %flat: f32[n*3], "t" = %x: f32[3, n] strides [1, 3],
      "one" = %c: f32[2, 2] strides [0, 1]
  })", on);
  const Tensor host = f32({2, 3}, {1, 2, 3, 4, 5, 6});
  for (const Tensor& x : {host, on->to_device(host, nullptr)}) {
    std::vector<Tensor> results = e.run({&x, 1});
    if (!x.on_host()) { EXPECT_EQ(results[4].data(), x.data()); }  // a view costs nothing
    for (Tensor& each : results) each = on->to_host(each, nullptr).to_contiguous();
    EXPECT_EQ(values(results[0]), values(host));
    EXPECT_EQ(values(results[1]), (std::vector<double>{10, 12}));
    EXPECT_EQ(values(results[2]), (std::vector<double>{2, 3, 4, 5, 6, 7}));
    EXPECT_EQ(values(results[3]), values(results[2]));
    EXPECT_EQ(values(results[4]), (std::vector<double>{1, 4, 2, 5, 3, 6}));
    EXPECT_EQ(values(results[5]), (std::vector<double>{5, 6, 5, 6}));
  }
}

TEST(Cuda, TheHostDecides) {
  const std::shared_ptr<CudaDevice> on = device();
  for (const bool poison : {false, true}) {
    const Executable e = load_cuda(R"(program p on cuda (%x: f32[n], %k: i64[1], %b: bool[]) {
      temporary %t: i64[1, z]
      temporary %u: f32[m]
      temporary %v: f32[n]
      temporary %w: f32[n]
      temporary %s: f32[k, n]
      %t = call non_zero(%x) {defines = <z>} defines {z}
      read %k defines {m}
      assert le(m, n) "m is too large"
      launch add_one(%x, %u) sizes (m) grid (m, 1, 1)
      %v = if %b(%x) then program yes on cuda (%x: f32[n]) {
        temporary %y: f32[n]
        launch twice(%x, %y) sizes (n) grid (n, 1, 1)
        return "y" = %y: f32[n]
      } else program no on cuda (%x: f32[n]) {
        return "x" = %x: f32[n]
      }
      %w, %s = while %k, _ (%v) carried 1 scans 1 defines {k} body program body on cuda (%i: i64[], %c: bool[], %v: f32[n]) {
        temporary %on: bool[]
        temporary %next: f32[n]
        launch goes_on(%i, %on) sizes (100)
        launch add_one(%v, %next) sizes (n) grid (n, 1, 1)
        return "on" = %on: bool[], "next" = %next: f32[n], "seen" = %next: f32[n]
      }
      return "t" = %t: i64[1, z], "u" = %u: f32[m], "v" = %v: f32[n], "w" = %w: f32[n], "s" = %s: f32[k, n]
    })", on, {.poison = poison});
    const Tensor x = f32({4}, {0, 5, 0, 7}), k = i64({1}, {3});
    for (const bool take : {true, false}) {
      for (const bool on_device : {false, true}) {
        std::vector<Tensor> inputs{x, k, Tensor::of_ints(DType::Bool, {}, std::vector<int64_t>{take ? 1 : 0})};
        if (on_device) inputs[0] = on->to_device(inputs[0], nullptr);
        std::vector<Tensor> results = e.run(inputs);
        for (Tensor& each : results) each = on->to_host(each, nullptr);
        const double f = take ? 2 : 1;
        EXPECT_EQ(results[0].int_at(0), 1);
        EXPECT_EQ(results[0].int_at(1), 3);
        EXPECT_EQ(values(results[1]), (std::vector<double>{1, 6, 1}));
        EXPECT_EQ(values(results[2]), (std::vector<double>{0, 5 * f, 0, 7 * f}));
        EXPECT_EQ(values(results[3]), (std::vector<double>{3, 5 * f + 3, 3, 7 * f + 3}));
        EXPECT_EQ(results[4].dims(), (Dims{3, 4}));
        EXPECT_EQ(results[4].at(5), 5 * f + 2);
      }
    }
    std::vector<Tensor> wrong{x, i64({1}, {5}), Tensor::of_ints(DType::Bool, {}, std::vector<int64_t>{1})};
    EXPECT_HAS(error_of<UserError>([&] { e.run(wrong); }), "m is too large (m = 5, n = 4)");
  }
}

TEST(Cuda, ChecksLaunchesAgainstTheDevice) {
  const auto with = [](std::string_view how) {
    return load_cuda(fmt::format("program p on cuda (%x: f32[n]) {{ temporary %y: f32[2] launch show_launch(%y, %x) {} return \"y\" = %y: f32[2] }}", how));
  };
  const Tensor x = counting(70000);
  EXPECT_EQ(values(with("shared n").run({&x, 1})[0]), (std::vector<double>{70000, 1}));  // raised above 48 KB
  EXPECT_EQ(values(with("grid (32, 1, 1) cluster (16, 1, 1)").run({&x, 1})[0]), (std::vector<double>{0, 16}));
  EXPECT_EQ(values(with("grid (132, 1, 1) block (1024, 1, 1) cooperative").run({&x, 1})[0]), (std::vector<double>{0, 1}));
  const auto refusal = [&](std::string_view how) { return error_of<Unsupported>([&] { with(how).run({&x, 1}); }); };
  EXPECT_HAS(refusal("grid (1, n, 1)"), "kernel show_launch: a grid of 70000 blocks in dimension 1, the device takes at most 65535");
  EXPECT_HAS(refusal("shared n*4"), "kernel show_launch: 280000 bytes of dynamic shared memory, the device has 232448");
  EXPECT_HAS(refusal("grid (3, 1, 1) cluster (2, 1, 1)"), "a grid of 3 blocks in x does not divide into clusters of 2");
  EXPECT_HAS(refusal("grid (n, 1, 1) block (1024, 1, 1) cooperative"), "its 70000 blocks wait for each other, but at most 264 are resident at once");
}

TEST(Cuda, NamesTheTroubleWithTensors) {
  const Executable chain = load_cuda(kChain, device(1));
  const std::shared_ptr<CudaDevice> other = device(0);
  const Tensor there = other->to_device(counting(4), nullptr);
  EXPECT_HAS(error_of<UserError>([&] { chain.run({&there, 1}); }), "input 'x' lies on cuda:0, the program runs on cuda:1");
  const Tensor x = counting(4);
  std::vector<Tensor> given{there};
  EXPECT_HAS(error_of<UserError>([&] { chain.run_into({&x, 1}, given); }), "output 'y': the given tensor lies on cuda:0, the program runs on cuda:1");
  const Executable cpu = load("program p(%x: f32[n]) { temporary %y: f32[n] launch add_one(%x, %y) sizes (n) extent n return \"y\" = %y: f32[n] }");
  EXPECT_HAS(error_of<UserError>([&] { cpu.run({&there, 1}); }), "input 'x' lies on cuda:0, the program runs on the cpu");
  given = {there};
  EXPECT_HAS(error_of<UserError>([&] { cpu.run_into({&x, 1}, given); }), "output 'y': the given tensor lies on cuda:0");
  EXPECT_HAS(error_of<UserError>([] { device(2); }), "there is no device cuda:2; the driver has 2");
  EXPECT_HAS(error_of<InternalError>([] { load(kChain); }), "program chain is for cuda, its kernels are for cpu");
}

TEST(Cuda, RecordsGraphs) {
  const std::shared_ptr<CudaDevice> on = device();
  const Executable chain = load_cuda(kChain, on, {.graphs = true});
  const Tensor x = on->to_device(counting(100), nullptr), z = on->to_device(counting(50), nullptr);
  Tensor y = on->empty(DType::F32, {100}, nullptr);
  for (int repeat = 0; repeat < 5; ++repeat) {
    on->fill(y.data(), 0, y.bytes(), nullptr);
    std::vector<Tensor> given{y};
    chain.run_into({&x, 1}, given);
    EXPECT_EQ(values(on->to_host(y, nullptr))[99], 299);
    // Another shape and other pointers in between.
    EXPECT_EQ(values(on->to_host(chain.run({&z, 1})[0], nullptr))[49], 149);
  }
}

TEST(Cuda, GivesMemoryBack) {
  const int64_t before = host_driver_bytes_in_use();
  {
    const std::shared_ptr<CudaDevice> on = device();
    Tensor kept;
    {
      const Executable chain = load_cuda(kChain, on);
      const Tensor x = on->to_device(counting(1000), nullptr);
      int64_t in_use = 0;
      for (int repeat = 0; repeat < 10; ++repeat) {
        kept = chain.run({&x, 1})[0];
        if (repeat == 1) in_use = on->bytes_in_use();
      }
      EXPECT_EQ(on->bytes_in_use(), in_use);
    }
    EXPECT_EQ(on->bytes_in_use(), 4096);  // the result
    EXPECT_EQ(values(on->to_host(kept, nullptr))[1], 5);
    on->release_cached();
  }
  EXPECT_EQ(host_driver_bytes_in_use(), before);
}

TEST(Cuda, ManyThreadsAndStreams) {
  const std::shared_ptr<CudaDevice> on = device();
  const Executable chain = load_cuda(kChain, on);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      CudaStream stream = nullptr;
      on->driver().create_stream(&stream, 0);
      for (int64_t n = 1; n < 200; ++n) {
        const Tensor x = counting(n + t);
        const Tensor y = chain.run({&x, 1}, {}, {.stream = n % 2 == 0 ? stream : nullptr})[0];
        if (y.at(n - 1) != 3.0 * static_cast<double>(n - 1) + 2) ++wrong;
      }
      on->driver().destroy_stream(stream);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Cuda, AHookSeesWhatTheLaunchThatRunsHasWritten) {
  // Two ways to compute one node, each with a grid of 0 where the other runs.
  const Executable e = load_cuda(R"(program p on cuda (%x: f32[n]) {
    temporary %y: f32[n]
    launch twice(%x, %y) sizes (n) grid (n*le(n, 4), 1, 1) nodes [0]
    launch add_one(%x, %y) sizes (n) grid (n*lt(4, n), 1, 1) nodes [0]
    return "y" = %y: f32[n]
  })", device(), {.poison = true});
  std::vector<double> seen;
  e.set_line_hook([&](const program::Program&, size_t, std::span<const program::BufferId>, std::span<const Tensor> written) {
    for (const Tensor& tensor : written) seen.push_back(tensor.at(1));
  });
  run(e, {counting(3)});
  run(e, {counting(6)});
  EXPECT_EQ(seen, (std::vector<double>{2, 2}));
}

TEST(Cuda, ProfilesLaunches) {
  const Executable chain = load_cuda(kChain);
  chain.set_profiling(true);
  for (int repeat = 0; repeat < 3; ++repeat) run(chain, {counting(64)});
  const Profile profile = chain.profile();
  ASSERT_EQ(profile.kernels.size(), 3u);
  EXPECT_EQ(profile.kernels[1].calls, 3);
  EXPECT_EQ(profile.kernels[1].bytes, 64 * 8);
  EXPECT_EQ(profile.kernels[1].origin, "second");
  EXPECT_EQ(profile.kernels[1].occupancy, 1);
  EXPECT_GT(profile.kernels[1].host_seconds, 0);
}

}  // namespace
}  // namespace fuseloom::run
