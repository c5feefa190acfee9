#include "compile/trace.h"

#include <filesystem>
#include <fstream>

#include "base/check.h"

namespace fuseloom::compile {

Trace::Trace(std::string dir) : dir_(std::move(dir)) {
  if (dir_.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(dir_, error);
  FL_REQUIRE(!error, "trace folder '{}' cannot be made: {}; set FUSELOOM_TRACE to a folder that can be written", dir_, error.message());
}

void Trace::write(std::string_view stage, std::string_view extension, std::string_view text) {
  if (!on()) return;
  const std::string name = fmt::format("{:02}.{}.{}", files_.size(), stage, extension);
  std::ofstream(std::filesystem::path(dir_) / name, std::ios::binary) << text;
  files_.push_back(name);
}

void Trace::finish() const {
  if (!on()) return;
  std::ofstream out(std::filesystem::path(dir_) / "index.html");
  out << "<!doctype html><meta charset=utf-8><title>fuseloom trace</title><h1>Stages</h1><ol start=0>\n";
  for (const std::string& file : files_) out << "<li><a href=\"" << file << "\">" << file << "</a></li>\n";
  out << "</ol>\n";
}

}  // namespace fuseloom::compile
