// What the heads of a Mamba-2 segment share, and their decays: everything before the scan itself, chunk by chunk.
//
// A chunk's running sum a of dt * A is carried as a part on a coarse grid, which adds up without rounding, and the rest
// (why: models/ssm/ssd_fast.py).
#include <cmath>
#include <limits>

#include "ssd.hpp"

namespace marble {

constexpr double GRID = 268435456.0;  // 2^28

//! ln(1 + e^x)
template <typename T>
inline T softplus(T x) {
    return (x > 0 ? x : T(0)) + std::log1p(std::exp(-std::fabs(x)));
}

//! value = rounded + rest, as two numbers of type T
template <typename T>
inline void split(double coarse, double rest, T* rounded, T* left) {
    *rounded = T(coarse + rest);
    *left = T((coarse - double(*rounded)) + rest);
}

template <typename T>
void decays(const Segment<T>& s, long chunk, long head) {
    const long at = chunk * Q, q = s.length(chunk);
    const double A = double(s.A[head]);
    double a_grid[Q] = {}, a_rest[Q] = {}, b_rest[Q] = {}, read[Q], write[Q];
    double grid = 0, rest = 0;
    for (long i = 0; i < q; i++) {
        const T dt = softplus(s.raw(at + i + s.conv - 1, s.convolved)[head] + s.dt_bias[head]);
        s.dt[(at + i) * s.heads + head] = dt;
        const double step = double(dt) * A, on_grid = std::nearbyint(step * GRID) / GRID;
        a_grid[i] = grid += on_grid;
        a_rest[i] = rest += step - on_grid;
        // A step size that underflowed to zero writes next to nothing, instead of ln(0).
        b_rest[i] = rest - std::log(std::max(double(dt), double(std::numeric_limits<T>::min())));
    }
    for (long i = 0; i < Q; i += V<double>) {
        const vec<double> grid_i = load(a_grid + i);
        store<double>(read + i, exp<double>(grid_i + load(a_rest + i)));
        store<double>(write + i, exp<double>((grid - grid_i) + (rest - load(b_rest + i))));
    }
    T* out[6];
    for (int which = 0; which < 6; which++) out[which] = s.decay_of(which, head) + at;
    for (long i = 0; i < q; i++) {
        split(a_grid[i], a_rest[i], out[0] + i, out[1] + i);
        split(a_grid[i], b_rest[i], out[2] + i, out[3] + i);
        out[4][i] = T(read[i]);
        out[5][i] = T(write[i]);
    }
    for (T* place : out) std::memset(place + q, 0, (Q - q) * sizeof(T));
    s.total[chunk * s.heads + head] = out[4][q - 1];
}

//! B and C of one chunk; `B_t` (state * Q) is room for B transposed
template <typename T>
void directions(const Segment<T>& s, long chunk, T* B_t) {
    const long at = chunk * Q, q = s.length(chunk), width = s.groups * s.state;
    T *u = s.u + at * 2 * width, *B = s.B + at * width, *C = s.C + at * width;
    convolve(s, s.inner(), 2 * width, at, q, u, 2 * width);
    for (long i = 0; i < q; i++) {
        silu(width, u + i * 2 * width, B + i * width);
        silu(width, u + i * 2 * width + width, C + i * width);
    }
    std::memset(B + q * width, 0, (Q - q) * width * sizeof(T));
    std::memset(C + q * width, 0, (Q - q) * width * sizeof(T));
    for (long g = 0; g < s.groups; g++) {
        transpose(Q, s.state, B + g * s.state, width, B_t, Q);
        multiply<T>(Q, Q, s.state, {C + g * s.state, width, 1}, B_t, Q, s.CB + (chunk * s.groups + g) * Q * Q, Q, 0,
                    Shape::full);
    }
}

//! The chunks first, first + step, ... of all: what one thread does
template <typename T>
void prepare(const Segment<T>& s, long first, long step) {
    std::vector<T> B_t(s.state * Q);
    for (long chunk = first; chunk < s.chunks(); chunk += step) {
        directions(s, chunk, B_t.data());
        for (long head = 0; head < s.heads; head++) decays(s, chunk, head);
    }
}

}  // namespace marble

extern "C" {
//! What Python must agree on (native/layout.py)
long marble_ssd_chunk() { return marble::Q; }
long marble_vector_bytes() { return sizeof(marble::vec<float>); }
long marble_ssd_segment_bytes() { return sizeof(marble::Segment<float>); }

#define MARBLE_SSD_PREPARE(T, SUFFIX)                                                                                  \
    void marble_ssd_prepare_##SUFFIX(const marble::Segment<T>* s, long threads) {                                      \
        marble::in_threads(threads, [&](long first, long step) { marble::prepare<T>(*s, first, step); });              \
    }
MARBLE_SSD_PREPARE(float, f32)
MARBLE_SSD_PREPARE(double, f64)
}
