// Test support: emitted text → a loaded library, by the compilers of this machine. The emit layer knows no compiler, so
// its tests bring their own.
#pragma once
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "emit/cpp.h"

namespace fuseloom::emit {

struct Toolchain {
  std::string compiler;   // g++ or clang++
  std::string march;
  CppTarget target;
  std::string name() const { return compiler + " " + march; }
};

inline bool has_program(const std::string& program) {
  return std::system(("command -v " + program + " > /dev/null 2>&1").c_str()) == 0;
}

// Every compiler found × every instruction set this CPU has.
inline std::vector<Toolchain> toolchains() {
  std::vector<Toolchain> result;
  for (const char* compiler : {"g++", "clang++"}) {
    if (!has_program(compiler)) continue;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v4"))
      result.push_back({compiler, "x86-64-v4", {.vector_bytes = 64, .fma = true, .avx512 = true}});
    if (__builtin_cpu_supports("x86-64-v3"))
      result.push_back({compiler, "x86-64-v3", {.vector_bytes = 32, .fma = true, .avx512 = false}});
    result.push_back({compiler, "x86-64", {.vector_bytes = 16, .fma = false, .avx512 = false}});
#else
    result.push_back({compiler, "native", {.vector_bytes = 16, .fma = false, .avx512 = false}});
#endif
  }
  return result;
}

class Library {
 public:
  // `optimize`: "-O1" or "-O2". Warnings are errors.
  Library(const std::string& source, const Toolchain& toolchain, const std::string& optimize = "-O1") {
    const std::string base = (std::filesystem::temp_directory_path() / "fuseloom_emit_XXXXXX").string();
    std::string directory = base;
    if (mkdtemp(directory.data()) == nullptr) return;
    const std::string path = directory + "/k.cpp", library = directory + "/k.so", log = directory + "/log";
    std::ofstream(path) << source;
    const std::string command = toolchain.compiler + " -std=c++17 -Wall -Wextra -Werror -fPIC -shared -ffp-contract=off -fwrapv "
        "-fno-strict-aliasing -fno-math-errno -fno-trapping-math -fno-exceptions " + optimize + " -march=" + toolchain.march + " " +
        path + " -o " + library + " -lm > " + log + " 2>&1";
    if (std::system(command.c_str()) != 0) {
      std::ifstream in(log);
      std::string text((std::istreambuf_iterator<char>(in)), {});
      ADD_FAILURE() << toolchain.name() << " refuses " << path << "\n" << text.substr(0, 6000);
      return;
    }
    handle_ = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(handle_, nullptr) << dlerror();
    std::filesystem::remove_all(directory);
  }
  ~Library() {
    if (handle_ != nullptr) dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  bool loaded() const { return handle_ != nullptr; }
  CpuKernelFunction function(const std::string& name) const {
    return reinterpret_cast<CpuKernelFunction>(dlsym(handle_, name.c_str()));
  }

 private:
  void* handle_ = nullptr;
};

inline std::string to_cpp(const std::vector<kernel::Kernel>& kernels, const CppTarget& target) {
  std::vector<const kernel::Kernel*> pointers;
  for (const kernel::Kernel& kernel : kernels) pointers.push_back(&kernel);
  return to_cpp(std::span<const kernel::Kernel* const>(pointers), target);
}

// `bytes` of memory whose end (or begin) touches a page that faults.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(size_t bytes, bool at_end = true) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    size_ = (bytes + page - 1) / page * page + 2 * page;
    base_ = static_cast<char*>(mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_, page, PROT_NONE);
    mprotect(base_ + size_ - page, page, PROT_NONE);
    data_ = at_end ? base_ + size_ - page - bytes : base_ + page;
  }
  ~GuardedBuffer() { munmap(base_, size_); }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;
  void* data() const { return data_; }

 private:
  size_t size_ = 0;
  char* base_ = nullptr;
  char* data_ = nullptr;
};

}  // namespace fuseloom::emit
