#include "front/onnx/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/check.h"

namespace fuseloom::front::onnx {

namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  void reset(int fd) {
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
  }

 private:
  int fd_;
};

MappedFile map_descriptor(int fd, const struct stat& status, const std::string& where) {
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) return {};
  void* const data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  FL_REQUIRE(data != MAP_FAILED, "{}: cannot be mapped: {}", where, std::strerror(errno));
  return {.owner = std::shared_ptr<void>(data, [size](void* p) { munmap(p, size); }),
          .bytes = std::string_view(static_cast<const char*>(data), size)};
}

std::vector<std::string> components_of(const std::string& path) {
  std::vector<std::string> components;
  size_t begin = 0;
  while (begin <= path.size()) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string component = path.substr(begin, end - begin);
    if (!component.empty() && component != ".") components.push_back(component);
    begin = end + 1;
  }
  return components;
}

}  // namespace

MappedFile map_file(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  FL_REQUIRE(file.get() >= 0, "{}: cannot be opened: {}", path, std::strerror(errno));
  struct stat status = {};
  FL_REQUIRE(fstat(file.get(), &status) == 0, "{}: {}", path, std::strerror(errno));
  FL_REQUIRE(S_ISREG(status.st_mode), "{}: is not a regular file", path);
  return map_descriptor(file.get(), status, path);
}

MappedFile map_contained_file(const std::string& folder, const std::string& location, const std::string& where) {
  const std::string what = fmt::format("{}: external data '{}'", where, location);
  FL_REQUIRE(!location.empty() && location.find('\0') == std::string::npos, "{}: is not a path", what);
  FL_REQUIRE(location.front() != '/' && location.find('\\') == std::string::npos,
             "{}: the path must be relative to the model's folder", what);
  const std::vector<std::string> components = components_of(location);
  FL_REQUIRE(!components.empty(), "{}: names no file", what);
  for (const std::string& component : components)
    FL_REQUIRE(component != "..", "{}: the path must not contain '..'", what);

  // Opened one component at a time without following links, so that nothing can be swapped between check and use.
  Descriptor at(open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  FL_REQUIRE(at.get() >= 0, "{}: the model's folder '{}' cannot be opened: {}", what, folder, std::strerror(errno));
  for (size_t i = 0; i < components.size(); ++i) {
    const int kind = i + 1 < components.size() ? O_DIRECTORY : O_NONBLOCK;  // a FIFO must not block
    const int next = openat(at.get(), components[i].c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | kind);
    FL_REQUIRE(next >= 0 || (errno != ELOOP && errno != ENOTDIR),
               "{}: '{}' is a symbolic link or not a folder, and links are not followed", what, components[i]);
    FL_REQUIRE(next >= 0, "{}: cannot be opened: {}", what, std::strerror(errno));
    at.reset(next);
  }
  struct stat status = {};
  FL_REQUIRE(fstat(at.get(), &status) == 0, "{}: {}", what, std::strerror(errno));
  FL_REQUIRE(S_ISREG(status.st_mode), "{}: is not a regular file", what);
  FL_REQUIRE(status.st_nlink == 1, "{}: has {} hard links, and may belong to another folder; copy it", what,
             status.st_nlink);
  return map_descriptor(at.get(), status, what);
}

}  // namespace fuseloom::front::onnx
