// NumPy's .npy files, versions 1 to 3: one tensor.
//
// bool, integers, f16, f32, f64 and complex numbers are NumPy's own types, in either byte order. NumPy has no bf16:
// it is written as the two-byte void type "|V2", which is what ml_dtypes writes, and read back from it.
#pragma once
#include <string>
#include <string_view>

#include "fuseloom/tensor.h"

namespace fuseloom::front {

// Throws UserError for a file that cannot be read, is not an .npy file, or holds another kind of element.
Tensor read_npy(const std::string& path);
// From memory. `name` is for messages.
Tensor parse_npy(std::string_view bytes, const std::string& name);

// Version 1, little endian, row-major.
std::string to_npy(const Tensor& tensor);
void write_npy(const std::string& path, const Tensor& tensor);

}  // namespace fuseloom::front
