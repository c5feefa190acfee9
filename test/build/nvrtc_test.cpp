#include "build/nvrtc.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>

#include "build/compile_service.h"

namespace fuseloom::build {
namespace {

const char kKernel[] = R"(
extern "C" __global__ void scale(const float* in, float* out, long long n, float factor) {
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = in[i] * factor + 1.0f;
}
)";

std::string_view as_text(const Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

class NvrtcTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      library_ = find_nvrtc(nvrtc_candidates());
    } catch (const Unsupported& error) {
      GTEST_SKIP() << error.what();
    }
  }
  NvrtcLibrary library_;
};

TEST_F(NvrtcTest, KnowsItsVersionAndArchitectures) {
  const Nvrtc nvrtc(library_);
  EXPECT_GE(nvrtc.version().first, 12);
  const std::vector<int> architectures = nvrtc.supported_architectures();
  EXPECT_NE(std::find(architectures.begin(), architectures.end(), 90), architectures.end());
}

TEST_F(NvrtcTest, CompilesToCubinAndPtx) {
  const Nvrtc nvrtc(library_);
  const Nvrtc::Output cubin = nvrtc.compile(kKernel, {.architecture = "90"});
  EXPECT_EQ(as_text(cubin.bytes).substr(0, 4),
            "\x7f"
            "ELF");
  EXPECT_NE(as_text(cubin.bytes).find("scale"), std::string_view::npos);
  const Nvrtc::Output ptx = nvrtc.compile(kKernel, {.architecture = "90", .output = CudaOutput::Ptx});
  EXPECT_NE(as_text(ptx.bytes).find(".target sm_90"), std::string_view::npos);
  EXPECT_EQ(ptx.bytes.back(), std::byte{0});
}

TEST_F(NvrtcTest, ContractsOnlyWithFastMath) {
  const Nvrtc nvrtc(library_);
  const Bytes exact = nvrtc.compile(kKernel, {.output = CudaOutput::Ptx}).bytes;
  EXPECT_EQ(as_text(exact).find("fma.rn.f32"), std::string_view::npos);
  const Bytes fast = nvrtc.compile(kKernel, {.output = CudaOutput::Ptx, .fast_math = true}).bytes;
  EXPECT_NE(as_text(fast).find("fma.rn.f32"), std::string_view::npos);
}

TEST_F(NvrtcTest, FailureKeepsTheSourceAndNamesTheLine) {
  try {
    Nvrtc(library_).compile("extern \"C\" __global__ void f(int* x) {\n  *x = nonsense;\n}\n", {});
    FAIL() << "wrong text was accepted";
  } catch (const BuildError& error) {
    EXPECT_EQ(error.line(), 2) << error.log();
    EXPECT_TRUE(std::filesystem::exists(error.source_path()));
    EXPECT_NE(std::string(error.what()).find("nonsense"), std::string::npos) << error.what();
    std::filesystem::remove_all(std::filesystem::path(error.source_path()).parent_path());
  }
}

TEST_F(NvrtcTest, UnknownArchitectureIsRefusedByName) {
  try {
    Nvrtc(library_).compile(kKernel, {.architecture = "12"});
    FAIL();
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find("sm_12"), std::string::npos) << error.what();
  }
}

TEST_F(NvrtcTest, ModuleComesFromTheCache) {
  const TemporaryDirectory directory;
  const DiskCache cache(directory.path() + "/cache");
  const CudaModule cold = build_cuda_module(kKernel, {}, &cache);
  EXPECT_EQ(cold.statistics.misses, 1);
  const CudaModule warm = build_cuda_module(kKernel, {}, &cache);
  EXPECT_EQ(warm.statistics.hits, 1);
  EXPECT_EQ(warm.bytes, cold.bytes);
  const CudaModule other = build_cuda_module(kKernel, {.max_registers = 32}, &cache);
  EXPECT_EQ(other.statistics.misses, 1);
  EXPECT_NE(other.key, cold.key);
}

TEST(Nvrtc, MissingLibraryIsNamed) {
  try {
    find_nvrtc({"/nowhere/libnvrtc.so.12", "libnvrtc-of-nobody.so"});
    FAIL();
  } catch (const Unsupported& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("/nowhere/libnvrtc.so.12, libnvrtc-of-nobody.so"), std::string::npos) << message;
    EXPECT_NE(message.find("CUDA_HOME"), std::string::npos) << message;
  }
}

TEST(Nvrtc, FileThatIsNoNvrtcIsRefused) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/libnvrtc.so.12";
  write_file(path, as_bytes("not a library"));
  EXPECT_THROW(Nvrtc{find_nvrtc({path})}, Unsupported);
}

}  // namespace
}  // namespace fuseloom::build
