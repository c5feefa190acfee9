// A content-addressed cache on disk, shared by any number of processes and machines without locks.
//
// One entry is one file, <directory>/<32 hex digits of the key>.entry: a 64-byte header (magic, format version, key,
// payload size, payload hash, header hash) and the payload. An entry is written to a temporary file of the same
// directory and renamed, so that a reader sees all of it or nothing. A reader believes nothing: an entry that is short,
// long, damaged in any bit or of another version is a miss, and is replaced by the next put. Nothing here ever throws:
// a cache that cannot be read or written (read-only, full, missing) costs a warning and the time to do the work again.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "build/file.h"

namespace fuseloom::build {

// $FUSELOOM_CACHE_DIR if set (empty: no cache), else $XDG_CACHE_HOME/fuseloom, else ~/.cache/fuseloom; empty without a
// home.
std::string default_cache_dir();

struct DiskCacheOptions {
  // The entries used least recently (by modification time; a hit renews it) are removed when all together pass this. 0:
  // no limit.
  int64_t max_bytes = int64_t{2} << 30;
  // Receives one sentence per kind of trouble and cache object. Empty: "fuseloom: warning: ..." on stderr.
  std::function<void(const std::string&)> warn;
};

struct DiskCacheCounts {
  int64_t hits = 0;
  int64_t misses = 0;  // nothing there, or damaged
  int64_t damaged = 0;
  int64_t puts = 0;
  int64_t failed_puts = 0;
  int64_t evictions = 0;
};

// Thread-safe.
class DiskCache {
 public:
  // Touches nothing; the directory is made, for this user only, by the first put. An empty directory name: every get is
  // a miss and every put does nothing.
  explicit DiskCache(std::string directory, DiskCacheOptions options = {});
  ~DiskCache();

  bool enabled() const { return !directory_.empty(); }
  const std::string& directory() const { return directory_; }

  std::optional<Bytes> get(const base::Hash128& key) const;
  // Makes the entry or replaces it. False when it could not be stored.
  bool put(const base::Hash128& key, std::span<const std::byte> payload) const;
  // Small things under a name of their own, e.g. "tuning sm_90 softmax ...": text in, text out.
  std::optional<std::string> get_named(std::string_view name) const;
  bool put_named(std::string_view name, std::string_view value) const;

  DiskCacheCounts counts() const;
  // The file that holds, or would hold, the entry.
  std::string entry_path(const base::Hash128& key) const;

 private:
  struct State;
  void warn(int kind, const std::string& message) const;
  bool prepare_directory() const;
  void make_room(int64_t bytes) const;
  std::string directory_;
  DiskCacheOptions options_;
  std::unique_ptr<State> state_;
};

}  // namespace fuseloom::build
