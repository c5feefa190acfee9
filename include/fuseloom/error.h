// The three errors of fuseloom. Every message says what was found, what was expected, where, and what to do next.
#pragma once
#include <stdexcept>
#include <string>

namespace fuseloom {

// Base of all errors thrown by fuseloom.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller's graph, file, input or option is wrong.
class UserError : public Error {
 public:
  using Error::Error;
};

// The request is legal, but a limit of fuseloom stands in its way. The message names the rule.
class Unsupported : public Error {
 public:
  using Error::Error;
};

// A bug in fuseloom.
class InternalError : public Error {
 public:
  using Error::Error;
};

}  // namespace fuseloom
