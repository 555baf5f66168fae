// The 2-D selective scan of 2DMamba over a grid: r_ij = a_ij r_i,j-1 + dt_ij x_ij B_ij, h_ij = a_ij h_i-1,j + r_ij,
// y_ij = C_ij h_ij with a = exp(dt A), and its gradients.
//
// As in scan.cpp a vector of channels is carried over the whole grid, with one row of states beside it. The way back
// recomputes a band of rows at a time from the row of states above it.
#include <vector>

#include "simd.hpp"

namespace marble {

template <typename T>
struct Grid {
    long height, width, channels, states, band;  // band: rows recomputed at a time
    const T* x;   // (height, width, channels)
    const T* dt;  // (height, width, channels)
    const T* A;   // (states, channels)
    const T* B;   // (height, width, states)
    const T* C;   // (height, width, states)
};

//! above (bands, width, states, channels), if not null: the row of states above each band
template <typename T>
void grid_forward(const Grid<T>& s, T* y, T* above, long first_block, long block_step) {
    const long N = s.states, W = s.width, D = s.channels;
    std::vector<T> r(N * V<T>), h(W * N * V<T>);
    for (long block = first_block; block < CHANNEL_BLOCKS; block += block_step) {
        const auto [first, last] = channels_of<T>(block, D);
        for (long c = first; c < last; c += V<T>) {
            std::fill(h.begin(), h.end(), T(0));
            for (long i = 0; i < s.height; i++) {
                if (above && i % s.band == 0)
                    for (long k = 0; k < W * N; k++)
                        store<T>(above + (i / s.band * W * N + k) * D + c, load<T>(&h[k * V<T>]));
                std::fill(r.begin(), r.end(), T(0));
                for (long j = 0; j < W; j++) {
                    const long cell = i * W + j;
                    const vec<T> dt = load<T>(s.dt + cell * D + c), u = dt * load<T>(s.x + cell * D + c);
                    vec<T> out{};
                    for (long n = 0; n < N; n++) {
                        T* state = &h[(j * N + n) * V<T>];
                        const vec<T> a = exp<T>(dt * load<T>(s.A + n * D + c));
                        const vec<T> row = a * load<T>(&r[n * V<T>]) + u * s.B[cell * N + n];
                        const vec<T> now = a * load<T>(state) + row;
                        store<T>(&r[n * V<T>], row);
                        store<T>(state, now);
                        out += now * s.C[cell * N + n];
                    }
                    store<T>(y + cell * D + c, out);
                }
            }
        }
    }
}

template <typename T>
struct GridGradient {
    const T* above;  // (bands, width, states, channels)
    const T* gy;     // (height, width, channels)
    T* gx;           // the same
    T* gdt;          // the same
    T* gA;           // (states, channels)
    T* gB;           // (CHANNEL_BLOCKS, height, width, states)
    T* gC;           // the same
};

template <typename T>
struct GridWorkspace {
    std::vector<T> a, r, h, g_B, g_C, column, row;  // (band, width, states, V) and for `column` (width, states, channels)
    explicit GridWorkspace(const Grid<T>& s)
        : a(s.band * s.width * s.states * V<T>), r(a.size()), h(a.size() + s.width * s.states * V<T>), g_B(a.size()),
          g_C(a.size()), column(s.width * s.states * s.channels), row(s.states * V<T>) {}
};

//! Decays, row states and states of rows [from, to) of one vector of channels; h starts with the row above them
template <typename T>
void recompute_band(const Grid<T>& s, const T* above, long from, long to, long c, GridWorkspace<T>& w) {
    const long N = s.states, W = s.width, D = s.channels, line = W * N * V<T>;
    for (long k = 0; k < W * N; k++) store<T>(&w.h[k * V<T>], load<T>(above + k * D + c));
    for (long i = from; i < to; i++)
        for (long j = 0; j < W; j++) {
            const long cell = i * W + j, at = ((i - from) * W + j) * N * V<T>;
            const vec<T> dt = load<T>(s.dt + cell * D + c), u = dt * load<T>(s.x + cell * D + c);
            for (long n = 0; n < N; n++) {
                const long k = at + n * V<T>;
                const vec<T> a = exp<T>(dt * load<T>(s.A + n * D + c));
                const vec<T> before = j > 0 ? load<T>(&w.r[k - N * V<T>]) : vec<T>{};
                const vec<T> row = a * before + u * s.B[cell * N + n];
                store<T>(&w.a[k], a);
                store<T>(&w.r[k], row);
                store<T>(&w.h[line + k], a * load<T>(&w.h[k]) + row);
            }
        }
}

//! Rows [from, to) backwards; column (width x states x V) is a g of the row below them
template <typename T>
void backward_band(const Grid<T>& s, const GridGradient<T>& g, long from, long to, long c, T* column,
                   GridWorkspace<T>& w) {
    const long N = s.states, W = s.width, D = s.channels, line = W * N * V<T>;
    for (long i = to - 1; i >= from; i--) {
        std::fill(w.row.begin(), w.row.end(), T(0));  // a times the row adjoint of the cell to the right
        for (long j = W - 1; j >= 0; j--) {
            const long cell = i * W + j, at = ((i - from) * W + j) * N * V<T>;
            const vec<T> dt = load<T>(s.dt + cell * D + c), x = load<T>(s.x + cell * D + c), u = dt * x;
            const vec<T> gy = load<T>(g.gy + cell * D + c);
            vec<T> gu{}, gdt{};
            for (long n = 0; n < N; n++) {
                const long k = at + n * V<T>;
                const vec<T> a = load<T>(&w.a[k]);
                const vec<T> of_h = load<T>(column + (j * N + n) * V<T>) + gy * s.C[cell * N + n];
                const vec<T> of_r = load<T>(&w.row[n * V<T>]) + of_h;
                const vec<T> left = j > 0 ? load<T>(&w.r[k - N * V<T>]) : vec<T>{};
                store<T>(column + (j * N + n) * V<T>, a * of_h);
                store<T>(&w.row[n * V<T>], a * of_r);
                store<T>(&w.g_C[k], load<T>(&w.g_C[k]) + gy * load<T>(&w.h[line + k]));
                store<T>(&w.g_B[k], load<T>(&w.g_B[k]) + u * of_r);
                gu += of_r * s.B[cell * N + n];
                const vec<T> exponent = a * (of_h * load<T>(&w.h[k]) + of_r * left);  // gradient of dt A
                gdt += exponent * load<T>(s.A + n * D + c);
                T* gA = g.gA + n * D + c;
                store<T>(gA, load<T>(gA) + exponent * dt);
            }
            store<T>(g.gx + cell * D + c, gu * dt);
            store<T>(g.gdt + cell * D + c, gdt + gu * x);
        }
    }
}

template <typename T>
void grid_backward(const Grid<T>& s, const GridGradient<T>& g, long first_block, long block_step) {
    const long N = s.states, W = s.width;
    GridWorkspace<T> w(s);
    for (long block = first_block; block < CHANNEL_BLOCKS; block += block_step) {
        const auto [first, last] = channels_of<T>(block, s.channels);
        std::fill(w.column.begin(), w.column.end(), T(0));
        for (long from = (s.height - 1) / s.band * s.band; from >= 0; from -= s.band) {
            const long to = from + s.band < s.height ? from + s.band : s.height;
            std::fill(w.g_B.begin(), w.g_B.end(), T(0));
            std::fill(w.g_C.begin(), w.g_C.end(), T(0));
            for (long c = first; c < last; c += V<T>) {
                recompute_band(s, g.above + from / s.band * W * N * s.channels, from, to, c, w);
                backward_band(s, g, from, to, c, &w.column[c * W * N], w);
            }
            const long cells = (to - from) * W * N, at = (block * s.height + from) * W * N;
            for (long k = 0; k < cells; k++) {
                g.gB[at + k] = sum<T>(load<T>(&w.g_B[k * V<T>]));
                g.gC[at + k] = sum<T>(load<T>(&w.g_C[k * V<T>]));
            }
        }
    }
}

}  // namespace marble

extern "C" {
long marble_scan2d_bytes() { return sizeof(marble::Grid<float>); }
long marble_scan2d_gradient_bytes() { return sizeof(marble::GridGradient<float>); }

#define MARBLE_GRID(T, SUFFIX)                                                                                        \
    void marble_scan2d_forward_##SUFFIX(const marble::Grid<T>* s, T* y, T* above, long threads) {                     \
        marble::in_threads(threads,                                                                                   \
                           [&](long first, long step) { marble::grid_forward<T>(*s, y, above, first, step); });       \
    }                                                                                                                 \
    void marble_scan2d_backward_##SUFFIX(const marble::Grid<T>* s, const marble::GridGradient<T>* g, long threads) {  \
        marble::in_threads(threads, [&](long first, long step) { marble::grid_backward<T>(*s, *g, first, step); });   \
    }
MARBLE_GRID(float, f32)
MARBLE_GRID(double, f64)
}
