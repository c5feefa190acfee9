// Checks with words. The words are built on failure only.
//   FL_CHECK(cond, "fmt", ...)        an invariant of ours: throws InternalError
//   FL_REQUIRE(cond, "fmt", ...)      a demand on the user: throws UserError
//   FL_SUPPORTED(cond, "fmt", ...)    a documented limit: throws Unsupported
#pragma once
#include <fmt/format.h>

#include "fuseloom/error.h"

#define FL_CHECK(condition, ...)                                                                              \
  do {                                                                                                        \
    if (!(condition)) [[unlikely]]                                                                            \
      throw ::fuseloom::InternalError(::fmt::format("{}:{}: ", __FILE__, __LINE__) + ::fmt::format(__VA_ARGS__)); \
  } while (false)
#define FL_REQUIRE(condition, ...)                                                     \
  do {                                                                                 \
    if (!(condition)) [[unlikely]] throw ::fuseloom::UserError(::fmt::format(__VA_ARGS__)); \
  } while (false)
#define FL_SUPPORTED(condition, ...)                                                     \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] throw ::fuseloom::Unsupported(::fmt::format(__VA_ARGS__)); \
  } while (false)
