// FUSELOOM_TRACE=dir: every stage as a numbered file, and an index.html over them.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace fuseloom::compile {

class Trace {
 public:
  // "" traces nothing. Creates the folder; throws UserError when it cannot.
  explicit Trace(std::string dir);
  bool on() const { return !dir_.empty(); }
  void write(std::string_view stage, std::string_view extension, std::string_view text);   // NN.stage.extension
  void finish() const;                                                                       // index.html

 private:
  std::string dir_;
  std::vector<std::string> files_;
};

}  // namespace fuseloom::compile
