#include "build/disk_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <vector>

namespace fuseloom::build {
namespace {

constexpr uint32_t kFormatVersion = 1;
constexpr char kMagic[8] = {'F', 'L', 'C', 'A', 'C', 'H', 'E', '\n'};
constexpr std::string_view kEntrySuffix = ".entry";
constexpr std::string_view kTemporaryPrefix = "writing.";
// A writer takes milliseconds; a temporary file this old was left by one that was killed.
constexpr time_t kStaleSeconds = 3600;

// Little-endian, without padding. `header_hash` covers all bytes before it.
struct Header {
  char magic[8];
  uint32_t version;
  uint32_t header_size;
  base::Hash128 key;
  uint64_t payload_size;
  base::Hash128 payload_hash;
  uint64_t header_hash;
};
static_assert(sizeof(Header) == 64);
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "entries are read as they lie in memory");

uint64_t hash_of_header(const Header& header) { return base::hash_bytes(&header, offsetof(Header, header_hash)).low; }

Header make_header(const base::Hash128& key, std::span<const std::byte> payload) {
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kFormatVersion;
  header.header_size = sizeof(Header);
  header.key = key;
  header.payload_size = payload.size();
  header.payload_hash = base::hash_bytes(payload.data(), payload.size());
  header.header_hash = hash_of_header(header);
  return header;
}

// Empty when the file is a whole entry for the key; else what is wrong with it.
std::string_view defect_of(const Bytes& file, const base::Hash128& key) {
  if (file.size() < sizeof(Header)) return "is cut short";
  Header header;
  std::memcpy(&header, file.data(), sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) return "does not begin like a cache entry";
  if (header.version != kFormatVersion) return "has another format version";
  if (header.header_hash != hash_of_header(header)) return "has a damaged header";
  if (header.key != key) return "belongs to another key";
  if (header.payload_size != file.size() - sizeof(Header)) return "has the wrong size";
  if (header.payload_hash != base::hash_bytes(file.data() + sizeof(Header), file.size() - sizeof(Header))) {
    return "has a damaged payload";
  }
  return {};
}

base::Hash128 key_of_name(std::string_view name) {
  std::string text = "named\n";
  text += name;
  return base::hash_text(text);
}

enum WarningKind { kDamagedEntry, kUnwritableDirectory, kFailedWrite };

struct Entry {
  std::string path;
  int64_t bytes = 0;
  timespec modified{};
};

}  // namespace

struct DiskCache::State {
  std::atomic<int64_t> hits{0}, misses{0}, damaged{0}, puts{0}, failed_puts{0}, evictions{0};
  std::atomic<uint32_t> warned{0};  // bit per WarningKind
  std::mutex mutex;                 // guards `known_bytes`
  // What the entries take together: counted by a scan, then kept up to date with our own puts. Other processes write
  // too, so it is an estimate, corrected by the next scan. -1 before the first one.
  int64_t known_bytes = -1;
};

std::string default_cache_dir() {
  if (const char* own = std::getenv("FUSELOOM_CACHE_DIR")) return own;
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg && *xdg) return std::string(xdg) + "/fuseloom";
  if (const char* home = std::getenv("HOME"); home && *home) return std::string(home) + "/.cache/fuseloom";
  return {};
}

DiskCache::DiskCache(std::string directory, DiskCacheOptions options)
    : directory_(std::move(directory)), options_(std::move(options)), state_(std::make_unique<State>()) {}

DiskCache::~DiskCache() = default;

void DiskCache::warn(int kind, const std::string& message) const {
  if (state_->warned.fetch_or(1u << kind) & (1u << kind)) return;
  if (options_.warn) {
    options_.warn(message);
  } else {
    std::fprintf(stderr, "fuseloom: warning: %s\n", message.c_str());
  }
}

std::string DiskCache::entry_path(const base::Hash128& key) const {
  return fmt::format("{}/{}{}", directory_, key.hex(), kEntrySuffix);
}

std::optional<Bytes> DiskCache::get(const base::Hash128& key) const {
  if (!enabled()) return std::nullopt;
  const std::string path = entry_path(key);
  std::optional<Bytes> file = read_file(path);
  if (!file) {
    if (errno != ENOENT) {
      ++state_->damaged;
      warn(kDamagedEntry,
           fmt::format("cache entry {} cannot be read ({}); its work is done again", path, std::strerror(errno)));
    }
    ++state_->misses;
    return std::nullopt;
  }
  if (const std::string_view defect = defect_of(*file, key); !defect.empty()) {
    ++state_->damaged;
    ++state_->misses;
    warn(kDamagedEntry, fmt::format("cache entry {} {}; its work is done again", path, defect));
    return std::nullopt;
  }
  // Marks it as used. Fails where the cache is read-only; then nothing is ever evicted there either.
  utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
  ++state_->hits;
  file->erase(file->begin(), file->begin() + sizeof(Header));
  return file;
}

bool DiskCache::prepare_directory() const {
  struct stat status;
  if (stat(directory_.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) return true;
  // Parents with the usual mode, the cache itself for this user only: what lies in it is executed.
  std::error_code error;
  const std::filesystem::path path(directory_);
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  if (!error && mkdir(directory_.c_str(), 0700) != 0 && errno != EEXIST) {
    error = std::error_code(errno, std::generic_category());
  }
  if (!error) return true;
  warn(kUnwritableDirectory,
       fmt::format("cannot make the cache directory {}: {}; nothing is cached", directory_, error.message()));
  return false;
}

bool DiskCache::put(const base::Hash128& key, std::span<const std::byte> payload) const {
  if (!enabled()) return false;
  const int64_t size = static_cast<int64_t>(sizeof(Header) + payload.size());
  if (!prepare_directory()) {
    ++state_->failed_puts;
    return false;
  }
  make_room(size);
  // 1. Write a file that no other writer, on this machine or another, has.
  std::string temporary = fmt::format("{}/{}XXXXXX", directory_, kTemporaryPrefix);
  const int file = mkostemp(temporary.data(), O_CLOEXEC);
  if (file < 0) {
    ++state_->failed_puts;
    warn(kUnwritableDirectory, fmt::format("cannot write to the cache directory {}: {}; nothing is cached", directory_,
                                           std::strerror(errno)));
    return false;
  }
  const Header header = make_header(key, payload);
  bool written = write_all(file, std::as_bytes(std::span(&header, 1))) && write_all(file, payload);
  int error = errno;
  if (close(file) != 0 && written) {
    written = false;
    error = errno;
  }
  // 2. Publish it: rename replaces an older entry in one step. No fsync: after a crash of the machine the entry may be
  //    short or empty, which get() finds out.
  if (written && rename(temporary.c_str(), entry_path(key).c_str()) != 0) {
    written = false;
    error = errno;
  }
  if (!written) {
    unlink(temporary.c_str());
    ++state_->failed_puts;
    warn(kFailedWrite, fmt::format("cannot write {} bytes to the cache directory {}: {}; the result is not cached",
                                   size, directory_, std::strerror(error)));
    return false;
  }
  ++state_->puts;
  return true;
}

// Counts `bytes` more, sweeps what killed writers left, and evicts the oldest entries where the limit is passed. The
// first call of a process scans the directory, later ones only when the limit seems to be reached.
void DiskCache::make_room(int64_t bytes) const {
  const std::lock_guard lock(state_->mutex);
  const bool limited = options_.max_bytes > 0;
  if (state_->known_bytes >= 0 && (!limited || state_->known_bytes + bytes <= options_.max_bytes)) {
    state_->known_bytes += bytes;
    return;
  }
  std::vector<Entry> entries;
  int64_t total = 0;
  const time_t now = std::time(nullptr);
  if (DIR* directory = opendir(directory_.c_str())) {
    while (const dirent* item = readdir(directory)) {
      const std::string_view name(item->d_name);
      const bool temporary = name.starts_with(kTemporaryPrefix);
      if (!temporary && !name.ends_with(kEntrySuffix)) continue;
      const std::string path = fmt::format("{}/{}", directory_, name);
      struct stat status;
      if (stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
      if (temporary) {
        if (now - status.st_mtime > kStaleSeconds) unlink(path.c_str());
        continue;
      }
      entries.push_back({.path = path, .bytes = status.st_size, .modified = status.st_mtim});
      total += status.st_size;
    }
    closedir(directory);
  }
  if (limited && total + bytes > options_.max_bytes) {
    // Down to nine tenths, so that a full cache is not scanned at every put.
    const int64_t goal = std::max<int64_t>(0, options_.max_bytes / 10 * 9 - bytes);
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      if (a.modified.tv_sec != b.modified.tv_sec) return a.modified.tv_sec < b.modified.tv_sec;
      if (a.modified.tv_nsec != b.modified.tv_nsec) return a.modified.tv_nsec < b.modified.tv_nsec;
      return a.path < b.path;
    });
    for (const Entry& entry : entries) {
      if (total <= goal) break;
      // A reader that has it open keeps it; one that comes later does the work again.
      if (unlink(entry.path.c_str()) != 0) continue;
      total -= entry.bytes;
      ++state_->evictions;
    }
  }
  state_->known_bytes = total + bytes;
}

std::optional<std::string> DiskCache::get_named(std::string_view name) const {
  // The name is stored with the value: two names of one hash must not answer for each other.
  const std::optional<Bytes> bytes = get(key_of_name(name));
  if (!bytes) return std::nullopt;
  const std::string_view text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  if (text.size() <= name.size() || !text.starts_with(name) || text[name.size()] != '\0') return std::nullopt;
  return std::string(text.substr(name.size() + 1));
}

bool DiskCache::put_named(std::string_view name, std::string_view value) const {
  std::string text(name);
  text += '\0';
  text += value;
  return put(key_of_name(name), as_bytes(text));
}

DiskCacheCounts DiskCache::counts() const {
  return {.hits = state_->hits,
          .misses = state_->misses,
          .damaged = state_->damaged,
          .puts = state_->puts,
          .failed_puts = state_->failed_puts,
          .evictions = state_->evictions};
}

}  // namespace fuseloom::build
