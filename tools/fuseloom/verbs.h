// The verbs of the command line. Each returns the exit code; errors are thrown and main turns them into codes.
#pragma once
#include <string>

#include "model.h"

namespace fuseloom::tool {

// Scripts rely on these.
enum ExitCode : int {
  kOk = 0,
  kMismatch = 1,        // verify, onnx-test: a result differs; suite: nothing
  kUserError = 2,       // the command line, a file, an input
  kUnsupported = 3,     // legal, but beyond fuseloom
  kInternalError = 4,   // a bug in fuseloom
};

struct RunArguments {
  ModelArguments model;
  std::string output_dir;                  // "": results are only described
  int64_t repeat = 1;
};
int run(const RunArguments& arguments);

int verify(const ModelArguments& arguments);

struct BenchArguments {
  ModelArguments model;
  double seconds = 1;                      // how long to measure
  int64_t repeat = 0;                      // calls; 0: by seconds
  std::string trace;                       // where to write a Chrome trace
};
int bench(const BenchArguments& arguments);

struct CompileArguments {
  ModelArguments model;
  std::string output;                      // NAME.floom, NAME.so or NAME.cpp
  std::string isa = "portable";            // or one of build::isa_name: native, baseline, avx2, avx512
  // ---- .so, .cpp
  std::string name;                        // of the model; "": the output's
  std::string weights = "embed";           // or "file"
  bool observable = false;
  // ---- .floom
  bool raw_weights = false;                // do not store packed weights
  bool strip = false;                      // no documents
};
int compile_model(const CompileArguments& arguments);
int compile_archive(const CompileArguments& arguments);   // .floom

struct InspectArguments {
  ModelArguments model;
  std::string stage = "graph";
  std::string html;                        // file to write instead of text on standard output
};
int inspect(const InspectArguments& arguments);

struct PlanArguments {
  std::string path;
  int64_t capacity = -1;                   // bytes; -1: none
  int64_t alignment = 1;
  int64_t steps = 0;
  bool quick = false;
  std::string output;                      // CSV file with the offsets
  bool json = false;
};
int plan(const PlanArguments& arguments);

struct SuiteArguments {
  std::string device = "cpu";             // or gpu, cuda:N, cuda-host
  std::string filter;                      // part of a case's name
  int64_t mebibytes = 256;                 // size of the largest tensor of a case
  double seconds = 0.5;                    // per case
  int32_t threads = 1;
  bool tf32 = false, no_library = false;   // on a device
  bool json = false;
};
int suite(const SuiteArguments& arguments);
int gpu_suite(const SuiteArguments& arguments);

struct OnnxTestArguments {
  std::string path;
  std::string filter;
  std::string executor = "compiled";       // or "oracle"
  double relative_tolerance = 1e-3, absolute_tolerance = 1e-7, absolute_of_largest = 0;
  double timeout = 60;
  std::string cache_dir;
  bool has_cache_dir = false;
  bool verbose = false;
  bool json = false;
};
int onnx_test(const OnnxTestArguments& arguments);

int doctor(bool json);

}  // namespace fuseloom::tool
