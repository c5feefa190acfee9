// A file mapped read-only, shared by the tensors that view it.
#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace fuseloom::front::onnx {

struct MappedFile {
  std::shared_ptr<void> owner;  // unmaps when the last view is gone; null for an empty file
  std::string_view bytes;
};

// Throws UserError when the file cannot be read. The file must not shrink while it is mapped.
MappedFile map_file(const std::string& path);

// A file of external tensor data, named by `location` relative to the model's `folder`. Refuses (UserError) everything
// that could lead out of the folder: absolute paths, `..`, symbolic links on the way, files with more than one hard
// link, and anything that is not a regular file. `where` names the tensor.
MappedFile map_contained_file(const std::string& folder, const std::string& location, const std::string& where);

}  // namespace fuseloom::front::onnx
