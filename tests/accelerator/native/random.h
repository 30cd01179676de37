// The device's random numbers: a seed and a count of draws. The host draws when it queues, as CUDA's generators do, so
// the numbers do not depend on when a stream runs.
#pragma once

#include <cstring>
#include <mutex>

#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <c10/core/GeneratorImpl.h>

#include "stream.h"

namespace sim {

class Generator final : public c10::GeneratorImpl {
 public:
  Generator()
      : GeneratorImpl(device(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), seed_(c10::default_rng_seed_val) {}

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    draws_ = 0;
  }
  void set_offset(uint64_t offset) override {
    draws_ = offset;
  }
  uint64_t get_offset() const override {
    return draws_;
  }
  uint64_t current_seed() const override {
    return seed_;
  }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(
        state.numel() == kBytes && state.dtype() == caffe2::TypeMeta::Make<uint8_t>() && state.is_cpu(),
        "the state of a sim generator is ", kBytes, " bytes on the CPU");
    const auto* bytes = static_cast<const char*>(state.data());
    std::memcpy(&seed_, bytes, sizeof(seed_));
    std::memcpy(&draws_, bytes + sizeof(seed_), sizeof(draws_));
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::empty({kBytes}, at::TensorOptions().dtype(at::kByte));
    auto* bytes = static_cast<char*>(state.data_ptr());
    std::memcpy(bytes, &seed_, sizeof(seed_));
    std::memcpy(bytes + sizeof(seed_), &draws_, sizeof(draws_));
    return state.getIntrusivePtr();
  }

  uint64_t next() {
    return mixed(seed_ ^ mixed(draws_++));
  }

 private:
  static constexpr int64_t kBytes = 16;

  Generator* clone_impl() const override {
    auto* copy = new Generator;
    copy->seed_ = seed_;
    copy->draws_ = draws_;
    return copy;
  }

  uint64_t seed_;
  uint64_t draws_ = 0;
};

inline const at::Generator& default_generator() {
  static auto* one = new at::Generator(c10::make_intrusive<Generator>());
  return *one;
}

// The seed of the next operator that draws, from the generator it was given or the default one.
inline uint64_t next_seed(const c10::IValue& given) {
  auto generator = given.isNone() ? default_generator() : given.toGenerator();
  auto* own = dynamic_cast<Generator*>(generator.unsafeGetGeneratorImpl());
  TORCH_CHECK(own != nullptr, "Expected a generator of the device sim");
  std::lock_guard<std::mutex> lock(own->mutex_);
  return own->next();
}

} // namespace sim
