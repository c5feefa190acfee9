// Where a tensor's memory lies and a program runs.
#pragma once
#include <cstdint>

namespace fuseloom {

enum class DeviceKind : uint8_t { Cpu, Cuda };

struct Device {
  DeviceKind kind = DeviceKind::Cpu;
  int32_t index = 0;  // Cuda: the driver's number

  friend bool operator==(const Device&, const Device&) = default;
};

}  // namespace fuseloom
