// Generated C++: compiles without a word under GCC and Clang, runs under the address sanitizer, is its own benchmark.
#include "aot_testing.h"
#include "path/path_testing.h"

namespace fuseloom::test {
namespace {

// Weights, a symbol, a branch, a loop, results that alias, integers.
graph::Graph everything() {
  return parse(R"(graph everything(%x: f32[n, 16], %k: i64[]) symbols {n in 0 .. 512} {
    %w: f32[16, 4] = constant() {value = f32[16, 4] {-0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, -0.75}}
    %m = matmul(%x, %w)
    %s = softmax(%m) {axis = 1}
    %t = transpose(%s) {perm = [1, 0]}
    %r = reduce_sum(%s) {axes = [1], keepdims = 0}
    return %t, %r, %k
  })");
}

TEST(Source, CompilesWithoutAWarning) {
  const compile::AotSource without_weights = compile_source(parse("graph g(%x: f32[n]) {\n  %y = exp(%x)\n  return %y\n}"));
  for (const char* compiler : {"g++", "clang++"}) EXPECT_EQ(CompiledSource(without_weights, compiler).log(), "");
  const compile::AotSource source = compile_source(everything());
  for (const char* compiler : {"g++", "clang++"}) {
    for (const char* flags : {"-fPIC -fvisibility=hidden -shared", "-DFUSELOOM_OBSERVABLE -fPIC -shared", "-DFUSELOOM_MAIN", "-DFUSELOOM_PROFILE -c"})
      EXPECT_EQ(CompiledSource(source, compiler, flags).log(), "") << source.text.size();
  }
}

TEST(Source, IsItsOwnBenchmarkAlsoUnderTheAddressSanitizer) {
  const compile::AotSource source = compile_source(everything());
  for (const char* flags : {"-DFUSELOOM_MAIN", "-DFUSELOOM_MAIN -fsanitize=address,undefined -fno-sanitize-recover=undefined"}) {
    for (const char* compiler : {"g++", "clang++"}) {
      const CompiledSource program(source, compiler, flags);
      ASSERT_EQ(program.log(), "");
      EXPECT_EQ(program.run("./model --seconds 0.01 --dim n=37 --strided --threads 2"), 0) << program.output();
      EXPECT_NE(program.output().find("x [37, 16], strided"), std::string::npos) << program.output();
      EXPECT_NE(program.output().find("GB/s"), std::string::npos) << program.output();
      EXPECT_EQ(program.run("./model --seconds 0.01 --dim n=0"), 0) << program.output();
      EXPECT_NE(program.run("./model --dim n=513"), 0);
      EXPECT_NE(program.output().find("n = 513, expected 0 .. 512"), std::string::npos) << program.output();
      EXPECT_NE(program.run("./model --nonsense"), 0);
      EXPECT_EQ(program.run("./model --seconds 0.01 --isa baseline"), 0) << program.output();
      EXPECT_NE(program.output().find("instruction set 1"), std::string::npos) << program.output();
      EXPECT_NE(program.run("./model --isa sse"), 0);
    }
  }
}

// Two models of one program: everything of theirs but the two functions is hidden or in namespaces of their own.
TEST(Source, SeveralModelsInOneProgram) {
  compile::AotOptions first{.name = "first"}, second{.name = "second"};
  const build::TemporaryDirectory folder;
  build::write_file(folder.path() + "/a.cpp", build::as_bytes(compile_source(everything(), first).text));
  build::write_file(folder.path() + "/b.cpp", build::as_bytes(compile_source(parse("graph g(%x: f32[n]) {\n  %y = exp(%x)\n  return %y\n}"), second).text));
  build::write_file(folder.path() + "/model.weights", compile_source(everything(), first).weights);
  build::write_file(folder.path() + "/main.cpp", build::as_bytes(std::string_view("#include <cstdint>\nstruct fuseloom_api;\nextern \"C\" const fuseloom_api* first_model(uint32_t);\n"
                                                                                  "extern \"C\" const fuseloom_api* second_model(uint32_t);\n"
                                                                                  "int main() { return first_model(1) != nullptr && second_model(1) != nullptr && first_model(1) != second_model(1) && first_model(99) == nullptr ? 0 : 1; }\n")));
  EXPECT_EQ(std::system(fmt::format("cd {} && g++ -std=c++17 -O0 -fwrapv -fno-strict-aliasing a.cpp b.cpp main.cpp -o main && ./main", folder.path()).c_str()), 0);
}

}  // namespace
}  // namespace fuseloom::test
