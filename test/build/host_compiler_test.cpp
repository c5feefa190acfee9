#include "build/host_compiler.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "build/process.h"
#include "build/shared_object.h"

namespace fuseloom::build {
namespace {

const char kScale[] = R"(
typedef float v8 __attribute__((vector_size(32), aligned(4), may_alias));
extern "C" void scale(void* const* buffers, const long* sizes, char*, long begin, long end) {
  const float* in = (const float*)buffers[0];
  float* out = (float*)buffers[1];
  long i = begin;
  for (; i + 8 <= end; i += 8) *(v8*)(out + i) = *(const v8*)(in + i) * 3.0f;
  for (; i < end; ++i) out[i] = in[i] * 3.0f;
}
)";
using KernelFunction = void (*)(void* const*, const long*, char*, long, long);

std::string read_text(const std::string& path) {
  std::ifstream stream(path);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

std::vector<std::vector<std::string>> installed_compilers() {
  std::vector<std::vector<std::string>> found;
  for (const char* name : {"g++", "clang++"}) {
    try {
      found.push_back(find_host_compiler({{name}}, DiskCache("")).command);
    } catch (const Unsupported&) {
    }
  }
  return found;
}

void expect_scales(const SharedObject& library) {
  std::vector<float> in(37), out(37, -1);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i) - 4;
  void* buffers[] = {in.data(), out.data()};
  library.function<KernelFunction>("scale")(buffers, nullptr, nullptr, 0, 37);
  for (size_t i = 0; i < in.size(); ++i) ASSERT_EQ(out[i], in[i] * 3) << i;
}

TEST(HostCompiler, CompilesForEveryLevelWithEveryCompiler) {
  const auto compilers = installed_compilers();
  if (compilers.empty()) GTEST_SKIP() << "neither g++ nor clang++ is installed";
  for (const auto& command : compilers) {
    const HostCompiler compiler = find_host_compiler({command}, DiskCache(""));
    for (const Isa isa : {Isa::Baseline, Isa::Avx2, Isa::Avx512, Isa::Native}) {
      if (!runs_here(isa)) continue;
      SCOPED_TRACE(compiler.version + " " + std::string(isa_name(isa)));
      const Bytes bytes =
          compile_host_library(compiler, {kScale},
                               {.isa = isa,
                                .optimization = isa == Isa::Avx2 ? Optimization::Quick : Optimization::Full,
                                .fast_math = isa == Isa::Avx512});
      expect_scales(SharedObject::load(bytes, "scale"));
    }
  }
}

TEST(HostCompiler, SeveralSourcesMakeOneLibrary) {
  const HostCompiler compiler = find_host_compiler(compiler_candidates(), DiskCache(""));
  const std::string twice = "extern \"C\" long twice(long x) { return 2 * x; }";
  const std::string quadruple =
      "extern \"C\" long twice(long); extern \"C\" double sin(double);\n"
      "extern \"C\" long quadruple(long x) { return twice(twice(x)); } extern \"C\" double sine(double x) { return "
      "sin(x); }";
  // Each source for an instruction set of its own, as a portable library has them.
  const Bytes bytes = compile_host_library(compiler, {twice, quadruple, kScale},
                                           {.source_isas = {Isa::Baseline, Isa::Native, Isa::Baseline}});
  const SharedObject library = SharedObject::load(bytes, "three");
  EXPECT_EQ(library.function<long (*)(long)>("quadruple")(5), 20);
  EXPECT_EQ(library.function<double (*)(double)>("sine")(0.5), std::sin(0.5));
  expect_scales(library);
}

TEST(HostCompiler, SameTextGivesSameBytes) {
  const HostCompiler compiler = find_host_compiler(compiler_candidates(), DiskCache(""));
  EXPECT_EQ(compile_host_library(compiler, {kScale}, {}), compile_host_library(compiler, {kScale}, {}));
}

TEST(HostCompiler, FlagsKeepTheNumericsOfTheText) {
  const HostCompiler compiler = find_host_compiler(compiler_candidates(), DiskCache(""));
  const std::string source = R"(
extern "C" float multiply_add(float a, float b, float c) { return a * b + c; }
extern "C" int next(int x) { return x + 1 > x; }
)";
  const SharedObject library =
      SharedObject::load(compile_host_library(compiler, {source}, {.isa = Isa::Native}), "numerics");
  // (1 + e)(1 - e) = 1 - e^2 rounds to 1; an FMA would keep -e^2.
  const float e = 0x1p-13f;
  EXPECT_EQ(library.function<float (*)(float, float, float)>("multiply_add")(1 + e, 1 - e, -1), 0.0f);
  EXPECT_EQ(library.function<int (*)(int)>("next")(INT32_MAX), 0);
}

TEST(HostCompiler, FailureKeepsTheSourceAndNamesTheLine) {
  const HostCompiler compiler = find_host_compiler(compiler_candidates(), DiskCache(""));
  const std::string wrong = "extern \"C\" int f() {\n  return nonsense;\n}\n";
  for (const bool several : {false, true}) {
    try {
      compile_host_library(compiler, several ? std::vector<std::string>{kScale, wrong} : std::vector{wrong}, {});
      FAIL() << "wrong text was accepted";
    } catch (const BuildError& error) {
      EXPECT_EQ(error.line(), 2);
      EXPECT_EQ(read_text(error.source_path()), wrong);
      const std::string message = error.what();
      EXPECT_NE(message.find(error.source_path() + ":2:"), std::string::npos) << message;
      EXPECT_NE(message.find("nonsense"), std::string::npos) << message;
      EXPECT_NE(error.log().find("nonsense"), std::string::npos);
      std::filesystem::remove_all(std::filesystem::path(error.source_path()).parent_path());
    }
  }
}

TEST(HostCompiler, UndefinedSymbolIsFoundWhenLinking) {
  const HostCompiler compiler = find_host_compiler(compiler_candidates(), DiskCache(""));
  try {
    compile_host_library(compiler, {"extern \"C\" void nowhere(); extern \"C\" void f() { nowhere(); }"}, {});
    FAIL() << "an undefined symbol was accepted";
  } catch (const BuildError& error) {
    EXPECT_NE(std::string(error.what()).find("nowhere"), std::string::npos) << error.what();
    std::filesystem::remove_all(std::filesystem::path(error.source_path()).parent_path());
  }
}

TEST(HostCompiler, TemporaryFilesGoAway) {
  const TemporaryDirectory directory;
  const char* old = std::getenv("TMPDIR");
  const std::string saved = old ? old : "";
  setenv("TMPDIR", directory.path().c_str(), 1);
  const HostCompiler compiler = find_host_compiler(compiler_candidates(), DiskCache(""));
  compile_host_library(compiler, {kScale}, {});
  if (old) {
    setenv("TMPDIR", saved.c_str(), 1);
  } else {
    unsetenv("TMPDIR");
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(HostCompiler, MissingCompilerIsNamed) {
  try {
    find_host_compiler({{"no-such-compiler"}, {"/nowhere/g++"}}, DiskCache(""));
    FAIL();
  } catch (const Unsupported& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("no-such-compiler, /nowhere/g++"), std::string::npos) << message;
    EXPECT_NE(message.find("FUSELOOM_CXX"), std::string::npos) << message;
  }
}

TEST(HostCompiler, VersionIsAskedForOnce) {
  const TemporaryDirectory directory;
  const DiskCache cache(directory.path() + "/cache");
  const HostCompiler first = find_host_compiler(compiler_candidates(), cache);
  EXPECT_EQ(cache.counts().hits, 0);
  const HostCompiler second = find_host_compiler(compiler_candidates(), cache);
  EXPECT_EQ(cache.counts().hits, 1);
  EXPECT_EQ(first.version, second.version);
  EXPECT_EQ(first.command, second.command);
  EXPECT_FALSE(first.version.empty());
}

TEST(HostCompiler, WrapperScriptIsAskedEveryTime) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/compiler";
  const DiskCache cache(directory.path() + "/cache");
  const auto install = [&](const std::string& version) {
    std::ofstream(path) << "#!/bin/sh\necho " << version << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  };
  install("one 1.0");
  EXPECT_EQ(find_host_compiler({{path}}, cache).version, "one 1.0");
  install("two 2.0");
  EXPECT_EQ(find_host_compiler({{path}}, cache).version, "two 2.0");
}

TEST(HostCompiler, SlowCompilerIsStopped) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/slow";
  // The shell's child must end too: it holds the pipe.
  std::ofstream(path) << "#!/bin/sh\n[ \"$1\" = --version ] && { echo slow 1.0; exit; }\nsleep 100\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  const HostCompiler compiler = find_host_compiler({{path}}, DiskCache(""));
  try {
    compile_host_library(compiler, {kScale}, {.timeout_seconds = 0.1});
    FAIL() << "no limit";
  } catch (const BuildError& error) {
    EXPECT_NE(std::string(error.what()).find("stopped after 0.1 s"), std::string::npos) << error.what();
    std::filesystem::remove_all(std::filesystem::path(error.source_path()).parent_path());
  }
}

TEST(Process, CapturesOutputInOrderAndExitCode) {
  const std::vector<ProcessResult> results = run_processes({{"/bin/sh", "-c", "echo one; echo two >&2; exit 3"},
                                                            {"/bin/sh", "-c", "kill -9 $$"},
                                                            {"/nowhere"},
                                                            {"/bin/true"}},
                                                           2, 10);
  EXPECT_EQ(results[0].output, "one\ntwo\n");
  EXPECT_EQ(results[0].exit_code, 3);
  EXPECT_EQ(results[1].exit_code, 128 + 9);
  EXPECT_FALSE(results[2].started);
  EXPECT_NE(results[2].output.find("/nowhere"), std::string::npos);
  EXPECT_TRUE(results[3].ok());
}

TEST(Process, LongOutputIsDrainedAndCut) {
  const ProcessResult result = run_processes({{"/bin/sh", "-c", "head -c 1000000 /dev/zero"}}, 1, 10)[0];
  EXPECT_TRUE(result.ok());
  EXPECT_EQ(result.output.size(), size_t{256} << 10);
}

TEST(Process, ShellLineQuotes) {
  EXPECT_EQ(shell_line({"/usr/bin/g++", "-DX=1", "a b", "it's", ""}), "/usr/bin/g++ -DX=1 'a b' 'it'\\''s' ''");
}

TEST(SharedObject, RefusesWhatIsNoLibrary) {
  EXPECT_THROW(SharedObject::load(as_bytes("not an ELF file"), "rubbish"), InternalError);
  EXPECT_THROW(SharedObject::load({}, "nothing"), InternalError);
}

TEST(SharedObject, SymbolsAndOwnership) {
  const HostCompiler compiler = find_host_compiler(compiler_candidates(), DiskCache(""));
  const Bytes one = compile_host_library(compiler, {"extern \"C\" int value() { return 1; }"}, {});
  const Bytes two = compile_host_library(compiler, {"extern \"C\" int value() { return 2; }"}, {});
  SharedObject a = SharedObject::load(one, "one");
  SharedObject b = SharedObject::load(two, "two");
  // Two libraries with equal symbols live side by side.
  EXPECT_EQ(a.function<int (*)()>("value")(), 1);
  EXPECT_EQ(b.function<int (*)()>("value")(), 2);
  EXPECT_EQ(a.find("missing"), nullptr);
  try {
    a.symbol("missing");
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("library one has no symbol 'missing'"), std::string::npos) << error.what();
  }
  a = std::move(b);
  EXPECT_FALSE(b.loaded());
  EXPECT_EQ(a.function<int (*)()>("value")(), 2);
}

// Kilobytes of this process in memory.
int64_t resident_kilobytes() {
  std::ifstream stream("/proc/self/statm");
  int64_t total = 0, resident = 0;
  stream >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE) / 1024;
}

TEST(SharedObject, LoadingAndUnloadingTenThousandTimes) {
  const HostCompiler compiler = find_host_compiler(compiler_candidates(), DiskCache(""));
  const Bytes one = compile_host_library(compiler, {"extern \"C\" int value() { return 1; }"}, {});
  const Bytes two = compile_host_library(compiler, {"extern \"C\" int value() { return 2; }"}, {});
  [[maybe_unused]] int64_t before = 0;
  for (int i = 0; i < 10000; ++i) {
    if (i == 100) before = resident_kilobytes();
    // None is mistaken for an older library whose descriptor had the same number.
    const SharedObject library = SharedObject::load(i % 2 ? one : two, "again");
    ASSERT_EQ(library.function<int (*)()>("value")(), i % 2 ? 1 : 2);
  }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep freed memory
  EXPECT_LT(resident_kilobytes() - before, 1024);
#endif
}

}  // namespace
}  // namespace fuseloom::build
