// A shared library loaded from its bytes.
#pragma once
#include <cstddef>
#include <span>
#include <string>

namespace fuseloom::build {

// Move-only; the library is unloaded with its last owner, and its functions must not be called after that.
class SharedObject {
 public:
  // `name` appears in messages only. The bytes are copied to an anonymous file first: what was verified is what runs,
  // whatever happens to the file they came from. Throws InternalError when the loader refuses them.
  static SharedObject load(std::span<const std::byte> bytes, std::string name);

  SharedObject() = default;
  SharedObject(SharedObject&& other) noexcept;
  SharedObject& operator=(SharedObject&& other) noexcept;
  ~SharedObject();

  bool loaded() const { return handle_ != nullptr; }
  const std::string& name() const { return name_; }
  // Null when the library does not export the symbol.
  void* find(const std::string& symbol) const;
  // Throws InternalError when the library does not export the symbol.
  void* symbol(const std::string& symbol) const;
  template <class Function>
  Function function(const std::string& symbol_name) const {
    return reinterpret_cast<Function>(symbol(symbol_name));
  }

 private:
  void close() noexcept;
  void* handle_ = nullptr;
  int file_ = -1;  // see shared_object.cpp: stays open as long as the library is loaded
  std::string name_;
};

}  // namespace fuseloom::build
