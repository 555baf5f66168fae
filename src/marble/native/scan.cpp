// The selective scan of Mamba-1: h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t, y_t = C_t h_t, and its gradients.
//
// Channels are independent, so a vector of them is carried through all tokens with its states in the cache. The way back
// recomputes one segment of tokens at a time from the state it started from. Channels are worked off in a fixed
// number of blocks, and sums over channels (of B and C) are kept per block, so that the result does not depend on the threads.
#include <vector>

#include "simd.hpp"

namespace marble {

constexpr long SEGMENT = 64;

template <typename T>
struct Scan {
    long tokens, channels, states;
    const T* x;   // (tokens, channels)
    const T* dt;  // (tokens, channels)
    const T* A;   // (states, channels)
    const T* B;   // (tokens, states)
    const T* C;   // (tokens, states)
};

//! One token of one vector of channels: moves the states h (states x V) on and gives C h
template <typename T>
inline vec<T> step(const Scan<T>& s, long t, long c, T* h) {
    const vec<T> dt = load<T>(s.dt + t * s.channels + c), u = dt * load<T>(s.x + t * s.channels + c);
    const T *B = s.B + t * s.states, *C = s.C + t * s.states;
    vec<T> y{};
    for (long n = 0; n < s.states; n++) {
        const vec<T> a = exp<T>(dt * load<T>(s.A + n * s.channels + c));
        const vec<T> now = a * load<T>(h + n * V<T>) + u * B[n];
        store<T>(h + n * V<T>, now);
        y += now * C[n];
    }
    return y;
}

//! starts (segments, states, channels), if not null: the state each segment started from
template <typename T>
void scan_forward(const Scan<T>& s, T* y, T* starts, long first_block, long block_step) {
    std::vector<T> h(s.states * V<T>);
    for (long block = first_block; block < CHANNEL_BLOCKS; block += block_step) {
        const auto [first, last] = channels_of<T>(block, s.channels);
        for (long c = first; c < last; c += V<T>) {
            std::fill(h.begin(), h.end(), T(0));
            for (long t = 0; t < s.tokens; t++) {
                if (starts && t % SEGMENT == 0)
                    for (long n = 0; n < s.states; n++)
                        store<T>(starts + (t / SEGMENT * s.states + n) * s.channels + c, load<T>(&h[n * V<T>]));
                store<T>(y + t * s.channels + c, step(s, t, c, h.data()));
            }
        }
    }
}

template <typename T>
struct ScanGradient {
    const T* starts;  // (segments, states, channels)
    const T* gy;      // (tokens, channels)
    T* gx;            // (tokens, channels)
    T* gdt;           // (tokens, channels)
    T* gA;            // (states, channels)
    T* gB;            // (CHANNEL_BLOCKS, tokens, states)
    T* gC;            // (CHANNEL_BLOCKS, tokens, states)
};

//! Lanes of (rows x V) added up into (rows)
template <typename T>
inline void add_lanes(long rows, const T* lanes, T* sums) {
    for (long r = 0; r < rows; r++) sums[r] = sum<T>(load<T>(lanes + r * V<T>));
}

template <typename T>
struct ScanWorkspace {
    std::vector<T> a, h, g_B, g_C, carry;
    ScanWorkspace(long tokens, long states, long channels)
        : a(tokens * states * V<T>), h(a.size() + states * V<T>), g_B(a.size()), g_C(a.size()),
          carry(states * channels) {}
};

//! Tokens [from, to) of one vector of channels, backwards; carry (states x V) is exp(dt A) g of the token after them
template <typename T>
void scan_backward_part(const Scan<T>& s, const ScanGradient<T>& g, long from, long to, long c, T* carry,
                        ScanWorkspace<T>& w) {
    const long N = s.states, row = N * V<T>;
    for (long n = 0; n < N; n++)
        store<T>(&w.h[n * V<T>], load<T>(g.starts + (from / SEGMENT * N + n) * s.channels + c));
    for (long t = from; t < to; t++) {
        const vec<T> dt = load<T>(s.dt + t * s.channels + c), u = dt * load<T>(s.x + t * s.channels + c);
        T *a = &w.a[(t - from) * row], *h = &w.h[(t - from) * row];
        for (long n = 0; n < N; n++) {
            const vec<T> decay = exp<T>(dt * load<T>(s.A + n * s.channels + c));
            store<T>(a + n * V<T>, decay);
            store<T>(h + row + n * V<T>, decay * load<T>(h + n * V<T>) + u * s.B[t * N + n]);
        }
    }
    for (long t = to - 1; t >= from; t--) {
        const long at = t * s.channels + c;
        const vec<T> dt = load<T>(s.dt + at), x = load<T>(s.x + at), u = dt * x, gy = load<T>(g.gy + at);
        const T *a = &w.a[(t - from) * row], *h = &w.h[(t - from) * row];
        T *g_B = &w.g_B[(t - from) * row], *g_C = &w.g_C[(t - from) * row];
        vec<T> gu{}, gdt{};
        for (long n = 0; n < N; n++) {
            const long k = n * V<T>;
            const vec<T> grad = load<T>(carry + k) + gy * s.C[t * N + n];
            store<T>(g_C + k, load<T>(g_C + k) + gy * load<T>(h + row + k));
            store<T>(g_B + k, load<T>(g_B + k) + u * grad);
            gu += grad * s.B[t * N + n];
            const vec<T> passed = load<T>(a + k) * grad;
            store<T>(carry + k, passed);
            const vec<T> exponent = passed * load<T>(h + k);  // gradient of dt A
            gdt += exponent * load<T>(s.A + n * s.channels + c);
            T* gA = g.gA + n * s.channels + c;
            store<T>(gA, load<T>(gA) + exponent * dt);
        }
        store<T>(g.gx + at, gu * dt);
        store<T>(g.gdt + at, gdt + gu * x);
    }
}

template <typename T>
void scan_backward(const Scan<T>& s, const ScanGradient<T>& g, long first_block, long block_step) {
    const long N = s.states;
    ScanWorkspace<T> w(SEGMENT, N, s.channels);
    for (long block = first_block; block < CHANNEL_BLOCKS; block += block_step) {
        const auto [first, last] = channels_of<T>(block, s.channels);
        std::fill(w.carry.begin(), w.carry.end(), T(0));
        for (long from = (s.tokens - 1) / SEGMENT * SEGMENT; from >= 0; from -= SEGMENT) {
            const long to = from + SEGMENT < s.tokens ? from + SEGMENT : s.tokens;
            std::fill(w.g_B.begin(), w.g_B.end(), T(0));
            std::fill(w.g_C.begin(), w.g_C.end(), T(0));
            for (long c = first; c < last; c += V<T>) scan_backward_part(s, g, from, to, c, &w.carry[c * N], w);
            add_lanes((to - from) * N, w.g_B.data(), g.gB + (block * s.tokens + from) * N);
            add_lanes((to - from) * N, w.g_C.data(), g.gC + (block * s.tokens + from) * N);
        }
    }
}

}  // namespace marble

extern "C" {
//! of which text this library was made
const char* marble_fingerprint() { return MARBLE_FINGERPRINT; }
long marble_scan_blocks() { return marble::CHANNEL_BLOCKS; }
long marble_scan_segment() { return marble::SEGMENT; }

long marble_scan_bytes() { return sizeof(marble::Scan<float>); }
long marble_scan_gradient_bytes() { return sizeof(marble::ScanGradient<float>); }

#define MARBLE_SCAN(T, SUFFIX)                                                                                        \
    void marble_scan_forward_##SUFFIX(const marble::Scan<T>* s, T* y, T* starts, long threads) {                      \
        marble::in_threads(threads,                                                                                   \
                           [&](long first, long step) { marble::scan_forward<T>(*s, y, starts, first, step); });      \
    }                                                                                                                 \
    void marble_scan_backward_##SUFFIX(const marble::Scan<T>* s, const marble::ScanGradient<T>* g, long threads) {    \
        marble::in_threads(threads, [&](long first, long step) { marble::scan_backward<T>(*s, *g, first, step); });   \
    }
MARBLE_SCAN(float, f32)
MARBLE_SCAN(double, f64)
}
