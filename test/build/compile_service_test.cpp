#include "build/compile_service.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "build/child_process.h"

namespace fuseloom::build {
namespace {

const std::string kTriple = "extern \"C\" long triple(long x) { return 3 * x; }\n";

long triple_of(const Binary& binary, long x) { return binary.library.function<long (*)(long)>("triple")(x); }

class CompileServiceTest : public testing::Test {
 protected:
  DiskCache make_cache(std::vector<std::string>* warnings = nullptr) const {
    return DiskCache(directory_.path() + "/cache", {.warn = [warnings](const std::string& message) {
                       if (warnings) warnings->push_back(message);
                     }});
  }
  const TemporaryDirectory directory_;
};

TEST_F(CompileServiceTest, SecondTimeComesFromTheCache) {
  const DiskCache cache = make_cache();
  const Binary cold = build_host_library({kTriple}, {}, &cache);
  EXPECT_EQ(cold.statistics.hits, 0);
  EXPECT_EQ(cold.statistics.misses, 1);
  EXPECT_GT(cold.statistics.compile_seconds, 0);
  EXPECT_EQ(triple_of(cold, 5), 15);
  const DiskCache later = make_cache();
  const Binary warm = build_host_library({kTriple}, {}, &later);
  EXPECT_EQ(warm.statistics.hits, 1);
  EXPECT_EQ(warm.statistics.misses, 0);
  EXPECT_EQ(warm.statistics.compile_seconds, 0);
  EXPECT_EQ(triple_of(warm, 5), 15);
  EXPECT_EQ(warm.key, cold.key);
  EXPECT_EQ(warm.bytes, cold.bytes);
  // The library and the compiler's version were found: no process was started.
  EXPECT_EQ(later.counts().hits, 2);
  EXPECT_EQ(later.counts().misses, 0);
}

TEST_F(CompileServiceTest, WorksWithoutACache) {
  EXPECT_EQ(triple_of(build_host_library({kTriple}, {}, nullptr), 2), 6);
}

TEST_F(CompileServiceTest, KeyKnowsEverythingThatMatters) {
  const DiskCache cache = make_cache();
  std::vector<base::Hash128> keys;
  const auto add = [&](const std::vector<std::string>& sources, const CompileOptions& options) {
    keys.push_back(build_host_library_bytes(sources, options, &cache).key);
  };
  const std::string twice = "extern \"C\" long twice(long x) { return 2 * x; }\n";
  add({kTriple}, {.isa = Isa::Baseline});
  add({kTriple + "\n"}, {.isa = Isa::Baseline});
  add({kTriple}, {.isa = Isa::Native});
  add({kTriple}, {.isa = Isa::Baseline, .optimization = Optimization::Full});
  add({kTriple}, {.isa = Isa::Baseline, .fast_math = true});
  add({kTriple}, {.isa = Isa::Baseline, .extra_flags = {"-DX"}});
  add({kTriple, twice}, {.isa = Isa::Baseline});
  add({twice, kTriple}, {.isa = Isa::Baseline});
  add({twice + kTriple}, {.isa = Isa::Baseline});
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(std::adjacent_find(keys.begin(), keys.end()), keys.end());
  EXPECT_EQ(cache.counts().misses, static_cast<int64_t>(keys.size()) + 1);  // and the compiler's version
}

TEST_F(CompileServiceTest, AnyDamageIsRepaired) {
  std::vector<std::string> warnings;
  const DiskCache cache = make_cache(&warnings);
  const Binary cold = build_host_library({kTriple}, {}, &cache);
  const std::string path = cache.entry_path(cold.key);
  const Bytes whole = *read_file(path);
  const auto expect_repair = [&](std::span<const std::byte> damaged, const std::string& what) {
    SCOPED_TRACE(what);
    write_file(path, damaged);
    const Binary again = build_host_library({kTriple}, {}, &cache);
    EXPECT_EQ(again.statistics.misses, 1);
    EXPECT_EQ(triple_of(again, 7), 21);
    EXPECT_EQ(read_file(path), whole) << "the entry was not replaced";
  };
  for (const size_t size : {size_t{0}, size_t{64}, whole.size() / 2, whole.size() - 1}) {
    expect_repair(std::span(whole).first(size), fmt::format("cut to {} bytes", size));
  }
  for (const size_t at : {size_t{8}, size_t{70}, whole.size() / 2, whole.size() - 1}) {
    Bytes damaged = whole;
    damaged[at] ^= std::byte{0x10};
    expect_repair(damaged, fmt::format("flipped a bit of byte {}", at));
  }
  EXPECT_EQ(warnings.size(), 1u);
  // Every 64th byte of a real library's entry: refused before anything is loaded.
  for (size_t at = 0; at < whole.size(); at += 64) {
    Bytes damaged = whole;
    damaged[at] ^= std::byte{1};
    std::filesystem::remove(path);
    write_file(path, damaged);
    ASSERT_EQ(cache.get(cold.key), std::nullopt) << "byte " << at;
    std::filesystem::remove(path);
    write_file(path, std::span(whole).first(at));
    ASSERT_EQ(cache.get(cold.key), std::nullopt) << "cut to " << at;
  }
}

TEST_F(CompileServiceTest, LibraryTheLoaderRefusesIsAMiss) {
  const DiskCache cache = make_cache();
  const Binary cold = build_host_library({kTriple}, {}, &cache);
  ASSERT_TRUE(cache.put(cold.key, as_bytes("a whole entry that is no library")));
  const Binary again = build_host_library({kTriple}, {}, &cache);
  EXPECT_EQ(again.statistics.refused, 1);
  EXPECT_EQ(again.statistics.misses, 1);
  EXPECT_EQ(triple_of(again, 3), 9);
  EXPECT_EQ(build_host_library({kTriple}, {}, &cache).statistics.hits, 1);
}

// Two processes build one key at once; then one of two is killed in the middle.
TEST_F(CompileServiceTest, TwoProcessesOneKilled) {
  setenv("TMPDIR", directory_.path().c_str(), 1);  // what the killed one leaves goes with the test
  const auto build = [&] {
    const DiskCache cache = make_cache();
    return triple_of(build_host_library({kTriple}, {}, &cache), 11) == 33 ? 0 : 1;
  };
  for (const int delay_ms : {-1, 2, 12, 25}) {
    std::filesystem::remove_all(directory_.path() + "/cache");
    const pid_t first = start_child(build), second = start_child(build);
    if (delay_ms >= 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
      kill(first, SIGKILL);
    }
    const int first_code = wait_for(first);
    EXPECT_TRUE(first_code == 0 || (delay_ms >= 0 && first_code == 128 + SIGKILL)) << first_code;
    EXPECT_EQ(wait_for(second), 0);
    const DiskCache cache = make_cache();
    const Binary after = build_host_library({kTriple}, {}, &cache);
    EXPECT_EQ(after.statistics.hits, 1) << "killed after " << delay_ms << " ms";
    EXPECT_EQ(triple_of(after, 4), 12);
    EXPECT_EQ(cache.counts().damaged, 0);
  }
  unsetenv("TMPDIR");
}

TEST_F(CompileServiceTest, ReadOnlyCache) {
  const std::string cache_path = directory_.path() + "/cache";
  std::filesystem::create_directory(cache_path);
  std::filesystem::permissions(directory_.path(), std::filesystem::perms(0755));
  std::filesystem::permissions(cache_path, std::filesystem::perms(0555));
  const int code = run_child([&] {
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) return 10;
    std::vector<std::string> warnings;
    const DiskCache cache = make_cache(&warnings);
    for (int i = 0; i < 2; ++i) {
      if (triple_of(build_host_library({kTriple}, {}, &cache), 11) != 33) return 1;
    }
    return warnings.size() == 1 ? 0 : 2;
  });
  EXPECT_EQ(code, 0);
}

TEST_F(CompileServiceTest, FullDisk) {
  const std::string cache_path = directory_.path() + "/cache";
  std::filesystem::create_directory(cache_path);
  constexpr int kMayNotMount = 77;
  const int code = run_child([&] {
    // A file system of one page, seen by this child alone.
    if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", cache_path.c_str(), "tmpfs", 0, "size=4k") != 0) {
      return kMayNotMount;
    }
    std::vector<std::string> warnings;
    const DiskCache cache = make_cache(&warnings);
    for (int i = 0; i < 2; ++i) {
      if (triple_of(build_host_library({kTriple}, {}, &cache), 11) != 33) return 1;
    }
    if (cache.counts().failed_puts == 0) return 2;
    return warnings.size() == 1 && warnings[0].find("No space left") != std::string::npos ? 0 : 3;
  });
  if (code == kMayNotMount)
    GTEST_SKIP() << "may not mount a file system; DiskCacheTest.FullDiskCostsAWarning covers the cache";
  EXPECT_EQ(code, 0);
}

TEST_F(CompileServiceTest, InstructionSetThisMachineLacks) {
  if (runs_here(Isa::Avx512)) {
    EXPECT_EQ(triple_of(build_host_library({kTriple}, {.isa = Isa::Avx512}, nullptr), 1), 3);
    return;
  }
  EXPECT_THROW(build_host_library({kTriple}, {.isa = Isa::Avx512}, nullptr), Unsupported);
}

TEST_F(CompileServiceTest, WarmStartOfALargeLibraryIsFast) {
  const DiskCache cache = make_cache();
  const std::string large = kTriple + "asm(\".section .rodata\\n.globl blob\\nblob: .fill 200000,1,7\\n.text\");\n";
  const Binary cold = build_host_library({large}, {}, &cache);
  ASSERT_GT(cold.bytes.size(), 200000u);
  double best = 1e9;
  for (int i = 0; i < 20; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const Binary warm = build_host_library({large}, {}, &cache);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    ASSERT_EQ(warm.statistics.hits, 1);
  }
  RecordProperty("warm_microseconds", static_cast<int>(best * 1e6));
  EXPECT_LT(best, 2e-3);
}

TEST_F(CompileServiceTest, StatisticsAdd) {
  BuildStatistics sum{.hits = 1, .load_seconds = 0.5};
  sum += {.hits = 2,
          .misses = 3,
          .refused = 1,
          .lookup_seconds = 1,
          .compile_seconds = 2,
          .store_seconds = 3,
          .load_seconds = 4};
  EXPECT_EQ(sum.hits, 3);
  EXPECT_EQ(sum.misses, 3);
  EXPECT_EQ(sum.refused, 1);
  EXPECT_EQ(sum.compile_seconds, 2);
  EXPECT_EQ(sum.load_seconds, 4.5);
}

TEST(SuggestedSourceCount, GrowsWithKernelsUpToTheCores) {
  EXPECT_EQ(suggested_source_count(0, 8), 1);
  EXPECT_EQ(suggested_source_count(1, 8), 1);
  EXPECT_EQ(suggested_source_count(4, 8), 2);
  EXPECT_EQ(suggested_source_count(100, 8), 8);
  EXPECT_GE(suggested_source_count(10), 1);
}

}  // namespace
}  // namespace fuseloom::build
