// A CUDA device that does nothing. Preloaded into a CPU build of torch, it lets autograd carry fake CUDA tensors, which
// have a shape, a dtype and a device but no numbers: enough to see what would run where.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

const c10::Device THE_DEVICE(c10::DeviceType::CUDA, 0);

c10::Stream the_stream() { return c10::Stream(c10::Stream::DEFAULT, THE_DEVICE); }

struct Guard final : public c10::impl::DeviceGuardImplInterface {
    static constexpr c10::DeviceType static_type = c10::DeviceType::CUDA;
    c10::DeviceType type() const override { return static_type; }
    c10::Device exchangeDevice(c10::Device) const override { return THE_DEVICE; }
    c10::Device getDevice() const override { return THE_DEVICE; }
    void setDevice(c10::Device) const override {}
    void uncheckedSetDevice(c10::Device) const noexcept override {}
    c10::Stream getStream(c10::Device) const noexcept override { return the_stream(); }
    c10::Stream getNewStream(c10::Device, int = 0) const override { return the_stream(); }
    c10::Stream getDefaultStream(c10::Device) const override { return the_stream(); }
    c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
    c10::DeviceIndex deviceCount() const noexcept override { return 1; }
    void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
    void block(void*, const c10::Stream&) const override {}
    bool queryEvent(void*) const override { return true; }
    void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
    bool queryStream(const c10::Stream&) const override { return true; }
    void synchronizeStream(const c10::Stream&) const override {}
    void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};

// torch looks its hooks up by this name
struct CUDAHooks final : public at::CUDAHooksInterface {
    explicit CUDAHooks(at::CUDAHooksArgs) {}
    bool hasCUDA() const override { return true; }
    void init() const override {}
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    c10::DeviceIndex deviceCount() const override { return 1; }
    c10::DeviceIndex current_device() const override { return 0; }
    c10::DeviceIndex getCurrentDevice() const override { return 0; }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard);

}  // namespace

namespace at {
using ::CUDAHooks;
REGISTER_CUDA_HOOKS(CUDAHooks);
}  // namespace at
