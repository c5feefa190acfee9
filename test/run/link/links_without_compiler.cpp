// links_without_compiler KERNELS.so: links fuseloom_run and what it needs, nothing of the compiler. A program that was
// compiled elsewhere (as text and a library here) is written as an archive, loaded and run. Exit code 0 when the result is right.
#include <cstdio>

#include "build/file.h"
#include "build/isa.h"
#include "fuseloom/fuseloom.h"
#include "program/archive.h"

int main(int argc, char** argv) {
  using namespace fuseloom;
  if (argc != 2) return 2;
  constexpr const char* kText = R"(program p(%x: f32[n]) {
    temporary %y: f32[n]
    launch negate(%x, %y) sizes (n) extent n
    return "y" = %y: f32[n]
  })";
  program::ArchiveContents contents{.writer = "links_without_compiler"};
  program::ArchiveTarget target{.program = program::parse_program(kText, op::standard_ops())};
  target.modules.push_back({.architecture = std::string(build::architecture_name()), .isa = "baseline", .bytes = build::read_file(argv[1]).value()});
  contents.targets.push_back(std::move(target));
  const build::TemporaryDirectory folder;
  const std::string path = folder.path() + "/p.floom";
  build::replace_file(path, [&](const build::AppendBytes& append) { program::write_archive(contents, append); });

  const Program loaded = load(path, {.threads = 1});
  const Tensor y = loaded.run({Tensor::of(DType::F32, {2}, {1, -2})})[0];
  std::printf("%g %g\n", y.at(0), y.at(1));
  return y.at(0) == -1 && y.at(1) == 2 ? 0 : 1;
}
