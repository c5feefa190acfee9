// A line of progress on standard error, where that is a terminal; nothing otherwise.
#pragma once
#include <unistd.h>

#include <cstdio>
#include <string>

#include <fmt/format.h>

namespace fuseloom::tool {

class Progress {
 public:
  Progress() : on_(isatty(STDERR_FILENO) == 1) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void show(const std::string& text) {
    if (!on_) return;
    fmt::print(stderr, "\r\033[K{}", text.substr(0, 100));
    std::fflush(stderr);
    shown_ = true;
  }
  void clear() {
    if (shown_) fmt::print(stderr, "\r\033[K");
    shown_ = false;
  }

 private:
  bool on_, shown_ = false;
};

}  // namespace fuseloom::tool
