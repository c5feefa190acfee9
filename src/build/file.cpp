#include "build/file.h"

#include <fcntl.h>
#include <sys/mman.h>
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

void replace_file(const std::string& path, const std::function<void(const AppendBytes&)>& fill) {
  std::string temporary = path + ".XXXXXX";
  const int file = mkostemp(temporary.data(), O_CLOEXEC);
  FL_REQUIRE(file >= 0, "cannot create {}: {}", path, std::strerror(errno));
  const auto give_up = [&] {
    close(file);
    unlink(temporary.c_str());
  };
  const auto require = [&](bool done) {
    if (done) return;
    const int error = errno;
    give_up();
    throw UserError(fmt::format("cannot write {}: {}", path, std::strerror(error)));
  };
  try {
    fill([&](std::span<const std::byte> bytes) { FL_REQUIRE(write_all(file, bytes), "cannot write {}: {}", path, std::strerror(errno)); });
  } catch (...) {
    give_up();
    throw;
  }
  // mkostemp makes files for this user only; the file that was there, or the process's mask, says who may read the new one.
  struct stat old;
  const mode_t mask = umask(0);
  umask(mask);
  require(fchmod(file, stat(path.c_str(), &old) == 0 ? old.st_mode & 07777 : 0666 & ~mask) == 0);
  require(fsync(file) == 0);  // the name must not outlive the bytes
  require(rename(temporary.c_str(), path.c_str()) == 0);
  close(file);
}

MappedFile map_file(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  FL_REQUIRE(file >= 0, "{}: cannot be opened: {}", path, std::strerror(errno));
  struct stat status;
  const bool regular = fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  const size_t size = regular ? static_cast<size_t>(status.st_size) : 0;
  void* const data = size > 0 ? mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0) : nullptr;
  const int error = errno;
  close(file);
  FL_REQUIRE(regular, "{}: is not a regular file", path);
  if (size == 0) return {};
  FL_REQUIRE(data != MAP_FAILED, "{}: cannot be mapped: {}", path, std::strerror(error));
  return {.owner = std::shared_ptr<void>(data, [size](void* mapped) { munmap(mapped, size); }),
          .bytes = {static_cast<const std::byte*>(data), size}};
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
