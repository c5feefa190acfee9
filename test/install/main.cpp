#include <fuseloom/fuseloom.h>

#include <cstdio>

int main() {
  fuseloom::Graph graph;
  const fuseloom::Value x = graph.input("x", fuseloom::DType::F32, {"n"});
  graph.output(fuseloom::relu(x) * 2.0 + 1.0);
  fuseloom::CompileOptions options;
  options.cache_dir = "";
  const fuseloom::Program program = fuseloom::compile(graph, options);
  const fuseloom::Tensor y = program.run({fuseloom::Tensor::of(fuseloom::DType::F32, {3}, {-1, 0, 4})})[0];
  const bool right = y.at(0) == 1 && y.at(1) == 1 && y.at(2) == 9 && program.info().kernels == 1;
  std::printf("%s\n", right ? "right" : "wrong");
  return right ? 0 : 1;
}
