#include "build/disk_cache.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>

#include "build/child_process.h"

namespace fuseloom::build {
namespace {

Bytes random_bytes(size_t size, uint32_t seed) {
  std::mt19937 generator(seed);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(generator());
  return bytes;
}

// Puts other bytes in the place of a file. Removed first: truncating a file makes some file systems write it out at
// once.
void replace_file(const std::string& path, std::span<const std::byte> bytes) {
  std::filesystem::remove(path);
  write_file(path, bytes);
}

class DiskCacheTest : public testing::Test {
 protected:
  DiskCache make_cache(DiskCacheOptions options = {}) {
    if (!options.warn) options.warn = [this](const std::string& message) { warnings_.push_back(message); };
    return DiskCache(directory_.path() + "/cache", options);
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& item : std::filesystem::directory_iterator(directory_.path() + "/cache")) {
      names.push_back(item.path().filename());
    }
    return names;
  }
  const TemporaryDirectory directory_;
  std::vector<std::string> warnings_;
  const base::Hash128 key_ = base::hash_text("key");
};

TEST_F(DiskCacheTest, GivesBackWhatWasPut) {
  const DiskCache cache = make_cache();
  EXPECT_EQ(cache.get(key_), std::nullopt);
  for (const size_t size : {0u, 1u, 63u, 100000u}) {
    const Bytes bytes = random_bytes(size, 1);
    EXPECT_TRUE(cache.put(key_, bytes));  // the second and later replace
    EXPECT_EQ(cache.get(key_), bytes);
    EXPECT_EQ(make_cache().get(key_), bytes);
  }
  EXPECT_EQ(files().size(), 1u);
  EXPECT_TRUE(warnings_.empty());
  const DiskCacheCounts counts = cache.counts();
  EXPECT_EQ(counts.hits, 4);
  EXPECT_EQ(counts.misses, 1);
  EXPECT_EQ(counts.puts, 4);
}

TEST_F(DiskCacheTest, DirectoryIsPrivate) {
  const DiskCache cache = make_cache();
  ASSERT_TRUE(cache.put(key_, random_bytes(10, 1)));
  struct stat status;
  ASSERT_EQ(stat(cache.directory().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 077, 0u);
}

TEST_F(DiskCacheTest, NamedValues) {
  const DiskCache cache = make_cache();
  EXPECT_EQ(cache.get_named("tuning a"), std::nullopt);
  EXPECT_TRUE(cache.put_named("tuning a", "block 256"));
  EXPECT_TRUE(cache.put_named("tuning b", ""));
  EXPECT_EQ(cache.get_named("tuning a"), "block 256");
  EXPECT_EQ(cache.get_named("tuning b"), "");
  EXPECT_EQ(cache.get_named("tuning"), std::nullopt);
}

TEST_F(DiskCacheTest, EmptyDirectoryNameMeansNoCache) {
  const DiskCache cache("");
  EXPECT_FALSE(cache.enabled());
  EXPECT_FALSE(cache.put(key_, random_bytes(10, 1)));
  EXPECT_EQ(cache.get(key_), std::nullopt);
}

TEST_F(DiskCacheTest, DefaultDirectory) {
  const auto with = [](const char* own, const char* xdg, const char* home) {
    const auto set = [](const char* name, const char* value) { value ? setenv(name, value, 1) : unsetenv(name); };
    return run_child([&] {
      set("FUSELOOM_CACHE_DIR", own);
      set("XDG_CACHE_HOME", xdg);
      set("HOME", home);
      const std::string expected = own           ? own
                                   : xdg && *xdg ? std::string(xdg) + "/fuseloom"
                                   : home        ? std::string(home) + "/.cache/fuseloom"
                                                 : "";
      return default_cache_dir() == expected ? 0 : 1;
    });
  };
  EXPECT_EQ(with("/own", "/xdg", "/home/a"), 0);
  EXPECT_EQ(with("", "/xdg", "/home/a"), 0);
  EXPECT_EQ(with(nullptr, "/xdg", "/home/a"), 0);
  EXPECT_EQ(with(nullptr, "", "/home/a"), 0);
  EXPECT_EQ(with(nullptr, nullptr, nullptr), 0);
}

TEST_F(DiskCacheTest, EntryCutAnywhereIsAMiss) {
  const DiskCache cache = make_cache();
  const Bytes payload = random_bytes(3000, 7);
  ASSERT_TRUE(cache.put(key_, payload));
  const std::string path = cache.entry_path(key_);
  const Bytes whole = *read_file(path);
  for (size_t size = 0; size < whole.size(); size += size < 128 ? 1 : 64) {
    replace_file(path, std::span(whole).first(size));
    ASSERT_EQ(cache.get(key_), std::nullopt) << "cut to " << size << " bytes";
  }
  Bytes longer = whole;
  longer.push_back(std::byte{0});
  replace_file(path, longer);
  EXPECT_EQ(cache.get(key_), std::nullopt);
  EXPECT_EQ(warnings_.size(), 1u) << "one warning for any number of damaged entries";
  EXPECT_TRUE(cache.put(key_, payload));
  EXPECT_EQ(cache.get(key_), payload);
}

TEST_F(DiskCacheTest, EveryFlippedBitIsAMiss) {
  const DiskCache cache = make_cache();
  const Bytes payload = random_bytes(3000, 8);
  ASSERT_TRUE(cache.put(key_, payload));
  const std::string path = cache.entry_path(key_);
  const Bytes whole = *read_file(path);
  const size_t header = whole.size() - payload.size();
  for (size_t at = 0; at < whole.size(); at += at < header ? 1 : 64) {
    for (int bit = 0; bit < 8; bit += at < header ? 1 : 3) {
      Bytes damaged = whole;
      damaged[at] ^= static_cast<std::byte>(1 << bit);
      replace_file(path, damaged);
      ASSERT_EQ(cache.get(key_), std::nullopt) << "bit " << bit << " of byte " << at;
    }
  }
  EXPECT_TRUE(cache.put(key_, payload));
  EXPECT_EQ(cache.get(key_), payload);
}

TEST_F(DiskCacheTest, EntryOfAnotherKeyIsAMiss) {
  const DiskCache cache = make_cache();
  const base::Hash128 other = base::hash_text("other");
  ASSERT_TRUE(cache.put(other, random_bytes(10, 1)));
  std::filesystem::copy_file(cache.entry_path(other), cache.entry_path(key_));
  EXPECT_EQ(cache.get(key_), std::nullopt);
}

TEST_F(DiskCacheTest, EntryThatIsNoFileIsAMiss) {
  const DiskCache cache = make_cache();
  std::filesystem::create_directories(cache.entry_path(key_));
  EXPECT_EQ(cache.get(key_), std::nullopt);
  EXPECT_FALSE(cache.put(key_, random_bytes(10, 1)));
  EXPECT_EQ(cache.get(key_), std::nullopt);
  EXPECT_EQ(files().size(), 1u) << "the temporary file stayed";
}

TEST_F(DiskCacheTest, DirectoryThatCannotBeMadeCostsAWarning) {
  write_file(directory_.path() + "/file", as_bytes("in the way"));
  for (const char* name : {"/file", "/file/below"}) {
    warnings_.clear();
    const DiskCache cache(directory_.path() + name,
                          {.warn = [this](const std::string& message) { warnings_.push_back(message); }});
    EXPECT_FALSE(cache.put(key_, random_bytes(10, 1)));
    EXPECT_FALSE(cache.put(key_, random_bytes(10, 1)));
    EXPECT_EQ(cache.counts().failed_puts, 2);
    ASSERT_EQ(warnings_.size(), 1u);
    EXPECT_NE(warnings_[0].find(directory_.path()), std::string::npos) << warnings_[0];
  }
}

TEST_F(DiskCacheTest, ReadOnlyDirectoryIsStillRead) {
  const DiskCache cache = make_cache();
  const Bytes payload = random_bytes(100, 2);
  ASSERT_TRUE(cache.put(key_, payload));
  std::filesystem::permissions(directory_.path(), std::filesystem::perms(0755));
  std::filesystem::permissions(cache.directory(), std::filesystem::perms(0555));
  std::filesystem::permissions(cache.entry_path(key_), std::filesystem::perms(0444));
  const int code = run_child([&] {
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) return 10;  // permissions do not stop root
    int warnings = 0;
    const DiskCache other(cache.directory(), {.warn = [&](const std::string&) { ++warnings; }});
    if (other.get(key_) != payload) return 1;
    if (other.put(key_, payload) || other.put(base::hash_text("new"), payload)) return 2;
    if (other.get(key_) != payload) return 3;
    return warnings == 1 ? 0 : 4;
  });
  std::filesystem::permissions(cache.directory(), std::filesystem::perms(0755));
  EXPECT_EQ(code, 0);
}

TEST_F(DiskCacheTest, FullDiskCostsAWarning) {
  const DiskCache cache = make_cache();
  const Bytes old_payload = random_bytes(1000, 3);
  ASSERT_TRUE(cache.put(key_, old_payload));
  const int code = run_child([&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {.rlim_cur = 4096, .rlim_max = 4096};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 10;
    int warnings = 0;
    const DiskCache full(cache.directory(), {.warn = [&](const std::string&) { ++warnings; }});
    if (full.put(key_, random_bytes(100000, 4))) return 1;
    if (full.get(key_) != old_payload) return 2;  // a put that fails leaves what there was
    return warnings == 1 ? 0 : 3;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(files().size(), 1u) << "the temporary file stayed";
}

TEST_F(DiskCacheTest, KilledWriterLeavesNoHalfEntry) {
  const DiskCache cache = make_cache();
  const Bytes a = random_bytes(2 << 20, 5), b = random_bytes(3 << 20, 6);
  for (int round = 0; round < 5; ++round) {
    const pid_t writer = start_child([&]() -> int {
      for (;;) {
        cache.put(key_, a);
        cache.put(key_, b);
      }
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(7 + 3 * round));
    kill(writer, SIGKILL);
    EXPECT_EQ(wait_for(writer), 128 + SIGKILL);
    const std::optional<Bytes> found = cache.get(key_);
    EXPECT_TRUE(!found || *found == a || *found == b);
  }
  EXPECT_EQ(cache.counts().damaged, 0);
  EXPECT_TRUE(cache.put(key_, a));
  EXPECT_EQ(cache.get(key_), a);
}

TEST_F(DiskCacheTest, OldTemporaryFilesAreSwept) {
  std::filesystem::create_directories(directory_.path() + "/cache");
  const std::string dead = directory_.path() + "/cache/writing.dead00",
                    busy = directory_.path() + "/cache/writing.busy00",
                    foreign = directory_.path() + "/cache/notes.txt";
  for (const std::string& path : {dead, busy, foreign}) write_file(path, as_bytes("half an entry"));
  const auto old = std::filesystem::file_time_type::clock::now() - std::chrono::hours(2);
  std::filesystem::last_write_time(dead, old);
  std::filesystem::last_write_time(foreign, old);
  ASSERT_TRUE(make_cache().put(key_, random_bytes(10, 1)));
  EXPECT_FALSE(std::filesystem::exists(dead));
  EXPECT_TRUE(std::filesystem::exists(busy));
  EXPECT_TRUE(std::filesystem::exists(foreign));
}

TEST_F(DiskCacheTest, LeastRecentlyUsedGoesFirst) {
  const DiskCache cache = make_cache({.max_bytes = 10 * 1100});
  std::vector<base::Hash128> keys;
  for (int i = 0; i < 9; ++i) {
    keys.push_back(base::hash_text(std::to_string(i)));
    ASSERT_TRUE(cache.put(keys.back(), random_bytes(1000, 1)));
    // Nine hours ago, eight, ...
    std::filesystem::last_write_time(cache.entry_path(keys.back()),
                                     std::filesystem::file_time_type::clock::now() - std::chrono::hours(9 - i));
  }
  EXPECT_TRUE(cache.get(keys[0]));  // renews the oldest
  ASSERT_TRUE(cache.put(base::hash_text("large"), random_bytes(2500, 2)));
  EXPECT_GT(cache.counts().evictions, 0);
  EXPECT_TRUE(cache.get(keys[0]));
  EXPECT_FALSE(cache.get(keys[1]));
  EXPECT_TRUE(cache.get(keys[8]));
  int64_t total = 0;
  for (const std::string& name : files()) total += std::filesystem::file_size(cache.directory() + "/" + name);
  EXPECT_LE(total, 10 * 1100);
}

TEST_F(DiskCacheTest, ManyThreadsSeeWholeEntries) {
  const DiskCache cache = make_cache({.max_bytes = 300000});
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t i = 0; i < 50; ++i) {
        const uint32_t which = (i + t) % 5;
        const base::Hash128 key = base::hash_text(std::to_string(which));
        const Bytes expected = random_bytes(20000 + which, which);
        if (i % 3 == t % 3) cache.put(key, expected);
        const std::optional<Bytes> found = cache.get(key);
        if (found && *found != expected) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(cache.counts().damaged, 0);
}

}  // namespace
}  // namespace fuseloom::build
