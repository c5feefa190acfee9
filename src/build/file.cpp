#include "build/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/check.h"

namespace fuseloom::build {

std::optional<Bytes> read_file(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  struct stat status;
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(file);
    errno = EINVAL;
    return std::nullopt;
  }
  Bytes bytes(static_cast<size_t>(status.st_size));
  size_t done = 0;
  int error = 0;
  while (done < bytes.size()) {
    const ssize_t count = read(file, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) error = errno;
    if (count <= 0) break;
    done += static_cast<size_t>(count);
  }
  close(file);
  errno = error;
  if (error != 0) return std::nullopt;
  bytes.resize(done);  // the file may have been cut short since fstat
  return bytes;
}

bool write_all(int file, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(file, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      if (count == 0) errno = ENOSPC;
      return false;
    }
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return true;
}

void write_file(const std::string& path, std::span<const std::byte> bytes) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  FL_REQUIRE(file >= 0, "cannot create {}: {}", path, std::strerror(errno));
  const bool written = write_all(file, bytes);
  const int write_error = errno;
  const bool closed = close(file) == 0;
  FL_REQUIRE(written && closed, "cannot write {} bytes to {}: {}", bytes.size(), path,
             std::strerror(written ? errno : write_error));
}

TemporaryDirectory::TemporaryDirectory() {
  const char* parent = std::getenv("TMPDIR");
  path_ = fmt::format("{}/fuseloom-XXXXXX", parent && *parent ? parent : "/tmp");
  FL_REQUIRE(mkdtemp(path_.data()), "cannot make a temporary directory {}: {}; set TMPDIR to a writable directory",
             path_, std::strerror(errno));
}

TemporaryDirectory::~TemporaryDirectory() {
  if (keep_) return;
  std::error_code ignored;  // nothing depends on it being gone
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace fuseloom::build
