// fuseloom: compiles, runs, checks and measures tensor programs.
//
// Exit codes: 0 ok; 1 a result differs (verify, onnx-test, plan that does not fit); 2 the command line, a file or an input
// is wrong; 3 beyond what fuseloom can do; 4 a bug in fuseloom.
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <functional>

#include "fuseloom/error.h"
#include "verbs.h"

namespace {

using namespace fuseloom::tool;
using fuseloom::Unsupported;
using fuseloom::UserError;

// Options that belong to every verb with a model. `inputs`: the verb runs it.
void add_model_options(CLI::App& verb, ModelArguments& arguments, bool inputs = true) {
  verb.add_option("MODEL", arguments.path, "an ONNX file, graph text (.fl), or an archive (.floom)")->required();
  if (inputs) {
    verb.add_option("--input", arguments.inputs, "NAME=FILE.npy, NAME=FILE.pb or NAME=random (the default)");
    verb.add_option("--seed", arguments.seed, "of random inputs");
  }
  verb.add_option("--dim", arguments.dims, "NAME=N: the size of a symbolic dimension of random inputs");
  verb.add_option("--fix", arguments.fixed, "NAME=N: compile for this size of a dimension only");
  verb.add_option("--device", arguments.device, "cpu, cuda, cuda:N, or cuda-host (CUDA's code on the cpu)");
  if (inputs) {
    verb.add_option("--isa", arguments.isa, "native, baseline, avx2 or avx512");
    verb.add_option("--threads", arguments.threads, "0: one per core");
    verb.add_flag("--graphs", arguments.graphs, "record repeated calls as CUDA graphs");
    verb.add_flag("--tf32", arguments.tf32, "let the device's library round f32 operands of matrix products to 10 bits");
    verb.add_flag("--no-library", arguments.no_library, "matrix products by kernels, though the device has a library");
  }
  verb.add_flag("--no-fuse", arguments.no_fuse, "a kernel per node");
  verb.add_option_function<std::string>("--cache-dir", [&arguments](const std::string& dir) {
    arguments.cache_dir = dir;
    arguments.has_cache_dir = true;
  }, "where compiled kernels are kept; \"\" keeps nothing");
  verb.add_flag("--json", arguments.json, "one JSON object on standard output");
}

int fail(ExitCode code, const char* kind, const std::string& message, bool json) {
  if (json) fmt::print("{}\n", nlohmann::ordered_json({{"error", message}, {"kind", kind}}).dump());
  fmt::print(stderr, "fuseloom: {}: {}\n", kind, message);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Compiles, runs, checks and measures tensor programs.\n"
               "Exit codes: 0 ok, 1 a result differs, 2 wrong use, 3 unsupported, 4 internal error.", "fuseloom");
  app.require_subcommand(1);
  std::function<int()> action;
  bool json = false;

  RunArguments run_arguments;
  CLI::App* verb = app.add_subcommand("run", "run a model");
  add_model_options(*verb, run_arguments.model);
  verb->add_option("--output", run_arguments.output_dir, "folder for the results, as NAME.npy");
  verb->add_option("--repeat", run_arguments.repeat, "how often to run");
  verb->add_flag("--poison", run_arguments.model.poison, "fill memory with NaN before use and after");
  verb->callback([&] { action = [&] { return run(run_arguments); }; json = run_arguments.model.json; });

  ModelArguments verify_arguments;
  verb = app.add_subcommand("verify", "compare every kernel and every result with the oracle");
  add_model_options(*verb, verify_arguments);
  verb->add_flag("--poison", verify_arguments.poison, "fill memory with NaN before use and after");
  verb->callback([&] { action = [&] { return verify(verify_arguments); }; json = verify_arguments.json; });

  BenchArguments bench_arguments;
  verb = app.add_subcommand("bench", "latency, compile time, memory, time per kernel");
  add_model_options(*verb, bench_arguments.model);
  verb->add_option("--seconds", bench_arguments.seconds, "how long to measure");
  verb->add_option("--repeat", bench_arguments.repeat, "calls to measure, instead of --seconds");
  verb->add_option("--trace", bench_arguments.trace, "write a Chrome trace to this file");
  verb->callback([&] { action = [&] { return bench(bench_arguments); }; json = bench_arguments.model.json; });

  CompileArguments compile_arguments;
  verb = app.add_subcommand("compile", "write what runs without compiling: an archive (docs/archive.md), or a library or C++ file without fuseloom (docs/aot.md)");
  add_model_options(*verb, compile_arguments.model, false);
  verb->add_option("-o,--output", compile_arguments.output, "NAME.floom, NAME.so or NAME.cpp")->required();
  verb->add_option("--isa", compile_arguments.isa, "portable (code for all instruction sets, picked at run time), native, baseline, avx2 or avx512");
  verb->add_option("--name", compile_arguments.name, ".so, .cpp: of the model; its entry is NAME_model()");
  verb->add_option("--weights", compile_arguments.weights, ".so, .cpp: embed, or file: NAME.weights beside it");
  verb->add_flag("--observable", compile_arguments.observable, ".so, .cpp: every value can be looked at while the model runs");
  verb->add_flag("--raw-weights", compile_arguments.raw_weights, ".floom: weights as in the model; they are packed when the archive is loaded");
  verb->add_flag("--strip", compile_arguments.strip, ".floom: without the graph and the stages of compiling, which inspect and verify need");
  verb->callback([&] { action = [&] { return compile_model(compile_arguments); }; json = compile_arguments.model.json; });

  InspectArguments inspect_arguments;
  verb = app.add_subcommand("inspect", "show one stage of compiling");
  add_model_options(*verb, inspect_arguments.model);
  verb->add_option("--stage", inspect_arguments.stage, "graph, groups, kernels, source, program or memory")->required();
  verb->add_option("--html", inspect_arguments.html, "write a page to this file");
  verb->callback([&] { action = [&] { return inspect(inspect_arguments); }; json = inspect_arguments.model.json; });

  PlanArguments plan_arguments;
  verb = app.add_subcommand("plan", "plan memory for a list of buffers (CSV: id,lower,upper,size)");
  verb->add_option("FILE", plan_arguments.path, "the buffers")->required();
  verb->add_option("--capacity", plan_arguments.capacity, "bytes there are");
  verb->add_option("--alignment", plan_arguments.alignment, "of offsets, in bytes")->check(CLI::PositiveNumber);
  verb->add_option("--steps", plan_arguments.steps, "search budget in steps; 0: the default");
  verb->add_flag("--quick", plan_arguments.quick, "greedy placement only");
  verb->add_option("--output", plan_arguments.output, "write the plan to this CSV file");
  verb->add_flag("--json", plan_arguments.json, "one JSON object on standard output");
  verb->callback([&] { action = [&] { return plan(plan_arguments); }; json = plan_arguments.json; });

  SuiteArguments suite_arguments;
  verb = app.add_subcommand("suite", "built-in workloads against a copy");
  verb->add_option("DEVICE", suite_arguments.device, "cpu, gpu, cuda:N, or cuda-host (CUDA's code on the cpu, at small sizes)");
  verb->add_option("--filter", suite_arguments.filter, "only cases with this in their name");
  verb->add_option("--mebibytes", suite_arguments.mebibytes, "size of a case's largest tensor");
  verb->add_option("--seconds", suite_arguments.seconds, "per case");
  verb->add_option("--threads", suite_arguments.threads, "threads of the cases; the copy loop has one");
  verb->add_flag("--tf32", suite_arguments.tf32, "gpu: let the library round f32 operands of matrix products to 10 bits");
  verb->add_flag("--no-library", suite_arguments.no_library, "gpu: matrix products by kernels");
  verb->add_flag("--json", suite_arguments.json, "one JSON object on standard output");
  verb->callback([&] { action = [&] { return suite(suite_arguments); }; json = suite_arguments.json; });

  OnnxTestArguments test_arguments;
  verb = app.add_subcommand("onnx-test", "run ONNX backend tests: folders with model.onnx and test_data_set_*");
  verb->add_option("DIR", test_arguments.path, "a test, or a folder of tests")->required();
  verb->add_option("--filter", test_arguments.filter, "only tests with this in their name");
  verb->add_option("--executor", test_arguments.executor, "compiled or oracle");
  verb->add_option("--rtol", test_arguments.relative_tolerance, "relative tolerance");
  verb->add_option("--atol", test_arguments.absolute_tolerance, "absolute tolerance");
  verb->add_option("--atol-of-largest", test_arguments.absolute_of_largest, "absolute tolerance as a part of the largest expected magnitude");
  verb->add_option("--timeout", test_arguments.timeout, "seconds per test");
  verb->add_option_function<std::string>("--cache-dir", [&test_arguments](const std::string& dir) {
    test_arguments.cache_dir = dir;
    test_arguments.has_cache_dir = true;
  }, "where compiled kernels are kept");
  verb->add_flag("--verbose", test_arguments.verbose, "show tests that pass, too");
  verb->add_flag("--json", test_arguments.json, "one JSON object on standard output");
  verb->callback([&] { action = [&] { return onnx_test(test_arguments); }; json = test_arguments.json; });

  bool doctor_json = false;
  verb = app.add_subcommand("doctor", "what is installed, and whether compiling works");
  verb->add_flag("--json", doctor_json, "one JSON object on standard output");
  verb->callback([&] { action = [&] { return doctor(doctor_json); }; json = doctor_json; });

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kUserError;
  }
  try {
    return action();
  } catch (const UserError& error) {
    return fail(kUserError, "error", error.what(), json);
  } catch (const Unsupported& error) {
    return fail(kUnsupported, "unsupported", error.what(), json);
  } catch (const std::exception& error) {
    return fail(kInternalError, "internal error", error.what(), json);
  }
}
