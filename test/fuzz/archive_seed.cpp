// archive_seed FOLDER FILE.fl...: writes an archive of each program text to the folder, for archive_fuzz to start from.
#include <filesystem>
#include <fstream>
#include <iterator>

#include "../support/archive_damage.h"

int main(int argc, char** argv) {
  using namespace fuseloom;
  for (int i = 2; i < argc; ++i) {
    const std::filesystem::path path(argv[i]);
    std::ifstream file(path, std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(file), {}};
    text = text.substr(0, text.find("\n// ----\n"));
    program::ArchiveContents contents{.writer = "seed", .documents = {{"graph", "a text"}}};
    program::ArchiveTarget target{.program = program::parse_program(text, op::standard_ops(), path.string())};
    target.modules.push_back({.architecture = "x86-64", .isa = "baseline", .bytes = std::vector<std::byte>(8)});
    contents.targets.push_back(std::move(target));
    const test::AlignedBytes bytes = test::written(contents);
    std::ofstream out(std::filesystem::path(argv[1]) / path.stem().concat(".floom"), std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.bytes.data()), static_cast<std::streamsize>(bytes.bytes.size()));
  }
  return 0;
}
