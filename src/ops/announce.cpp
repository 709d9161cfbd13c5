#include "ops/announce.h"

namespace nibble {

void announce_weights_cpu(const Tensor& weights, Stream stream);

void announce_weights(std::span<const Tensor> packed, Stream stream) {
  if (stream.device.kind == Device::Kind::Cpu && !packed.empty()) {
    announce_weights_cpu(packed[0], stream);
  }
}

}  // namespace nibble
