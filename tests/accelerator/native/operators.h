// The operators that a device must have itself: making tensors, views, sizes, copies, reading a number.
#pragma once

#include <ATen/native/TensorShape.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "fallback.h"
#include "guard.h"

namespace sim {

inline constexpr c10::DispatchKeySet kKeys{c10::DispatchKey::PrivateUse1};

inline at::Tensor empty(
    c10::IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device>,
    std::optional<bool> pin,
    std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  return at::Tensor(at::detail::empty_generic(size, &allocator(), kKeys, c10::dtype_or_default(dtype), format));
}

inline at::Tensor empty_strided(
    c10::IntArrayRef size,
    c10::IntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device>,
    std::optional<bool> pin) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  return at::Tensor(at::detail::empty_strided_generic(size, stride, &allocator(), kKeys, c10::dtype_or_default(dtype)));
}

inline const at::Tensor& resize_(
    const at::Tensor& self,
    c10::IntArrayRef size,
    std::optional<at::MemoryFormat> format) {
  const auto bytes = at::detail::computeStorageNbytesContiguous(
      size, self.dtype().itemsize(), static_cast<size_t>(self.storage_offset()));
  if (bytes > self.storage().nbytes()) at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), bytes);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  if (format) impl->empty_tensor_restride(*format);
  return self;
}

inline at::Tensor& set_all(
    at::Tensor& self,
    c10::Storage storage,
    int64_t offset,
    c10::IntArrayRef size,
    c10::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset);
  if (stride.empty())
    impl->set_sizes_contiguous(size);
  else
    impl->set_sizes_and_strides(size, stride);
  const auto bytes = at::detail::computeStorageNbytes(
      self.sizes(), self.strides(), self.dtype().itemsize(), static_cast<size_t>(offset));
  if (bytes > self.storage().nbytes()) at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), bytes);
  return self;
}

inline at::Tensor& set_storage(at::Tensor& self, c10::Storage storage) {
  const auto size = static_cast<int64_t>(storage.nbytes() / self.dtype().itemsize());
  return set_all(self, std::move(storage), 0, {size}, {});
}

inline at::Scalar local_scalar(const at::Tensor& self) {
  auto read = at::empty(self.sizes(), self.options().device(c10::DeviceType::CPU));
  copy_to_host(self, read, false);
  return read.item();
}

inline at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

inline void record_stream(at::Tensor& self, c10::Stream stream) {
  memory().used_by(self.storage().data_ptr().get(), stream.id());
}

// The CPU's kernel would draw from the generator of the host.
inline std::tuple<at::Tensor, at::Tensor> native_dropout(
    const at::Tensor& input,
    double chance,
    std::optional<bool> train) {
  auto kept = at::empty_like(input, input.options().dtype(at::kBool));
  if (!train.value_or(true)) return {input.clone(), kept.fill_(true)};
  kept.bernoulli_(1 - chance);
  return {input.mul(kept).mul(chance < 1 ? 1 / (1 - chance) : 0.0), kept};
}

inline void register_operators(torch::Library& m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("_reshape_alias", [](const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride) {
    return at::native::as_strided_tensorimpl(self, size, stride, self.storage_offset());
  });
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_.source_Storage", TORCH_FN(set_storage));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_all));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("record_stream", TORCH_FN(record_stream));
  m.impl("native_dropout", TORCH_FN(native_dropout));
  // These have a kernel of the CPU and a composition of other operators that rounds otherwise.
  for (const char* name : {"native_layer_norm", "native_group_norm"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

} // namespace sim
