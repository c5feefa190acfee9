#include "build/shared_object.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "base/check.h"
#include "build/file.h"

namespace fuseloom::build {
namespace {

constexpr int kDlopenFlags = RTLD_NOW | RTLD_LOCAL;

std::string loader_message() {
  const char* message = dlerror();
  return message ? message : "unknown reason";
}

// Where anonymous files are refused (vm.memfd_noexec, no /proc): through a named file, removed as soon as it is mapped.
// Bytes that are no library are refused here, with the loader's words.
void* load_through_temporary_file(std::span<const std::byte> bytes, const std::string& name) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/library.so";
  write_file(path, bytes);
  void* handle = dlopen(path.c_str(), kDlopenFlags);
  FL_CHECK(handle, "cannot load {} ({} bytes): {}", name, bytes.size(), loader_message());
  return handle;
}

}  // namespace

SharedObject SharedObject::load(std::span<const std::byte> bytes, std::string name) {
  SharedObject object;
  object.name_ = std::move(name);
  // The loader knows libraries by the path they were opened with. The path is "/proc/self/fd/N", so N must not be used
  // for another library as long as this one is loaded: dlopen would give back this one. Hence the file stays open.
  object.file_ = memfd_create("fuseloom", MFD_CLOEXEC);
  if (object.file_ >= 0) {
    if (write_all(object.file_, bytes)) {
      object.handle_ = dlopen(fmt::format("/proc/self/fd/{}", object.file_).c_str(), kDlopenFlags);
    }
    if (object.handle_) return object;
    ::close(std::exchange(object.file_, -1));
  }
  object.handle_ = load_through_temporary_file(bytes, object.name_);
  return object;
}

SharedObject::SharedObject(SharedObject&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)),
      file_(std::exchange(other.file_, -1)),
      name_(std::move(other.name_)) {}

SharedObject& SharedObject::operator=(SharedObject&& other) noexcept {
  if (this != &other) {
    close();
    handle_ = std::exchange(other.handle_, nullptr);
    file_ = std::exchange(other.file_, -1);
    name_ = std::move(other.name_);
  }
  return *this;
}

SharedObject::~SharedObject() { close(); }

void SharedObject::close() noexcept {
  if (handle_) dlclose(std::exchange(handle_, nullptr));
  if (file_ >= 0) ::close(std::exchange(file_, -1));
}

void* SharedObject::find(const std::string& symbol) const { return handle_ ? dlsym(handle_, symbol.c_str()) : nullptr; }

void* SharedObject::symbol(const std::string& symbol) const {
  FL_CHECK(handle_, "symbol '{}' asked of a library that is not loaded", symbol);
  void* address = find(symbol);
  FL_CHECK(address, "library {} has no symbol '{}'", name_, symbol);
  return address;
}

}  // namespace fuseloom::build
