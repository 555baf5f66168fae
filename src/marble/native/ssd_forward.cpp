// The Mamba-2 scan of one segment: everything between the projected rows and the gated tokens.
//
// A block of heads goes through the segment chunk by chunk, so that the states of its heads, and the B, C and C B^T
// they share, stay in the cache from the convolution to the gate.
#include "ssd.hpp"

namespace marble {

//! Where results go
template <typename T>
struct Scanned {
    T* state;        // (groups, N, heads per group * P), moved on
    T* gated;        // (tokens, gated_row); may be the gates of `rows` themselves, which are read once
    long gated_row;
    T* y;            // (tokens, inner) before the gate, or null
    T* starts;       // (chunks, heads, N, P) the state each chunk started from, or null
};

//! Buffers of one thread
template <typename T>
struct ForwardRoom {
    std::vector<T> x, written, y, past, M, states;
    explicit ForwardRoom(const Segment<T>& s)
        : x(Q * s.headdim), written(x.size()), y(x.size()), past(x.size()), M(Q * Q),
          states(HEADS_PER_BLOCK * s.state * s.headdim) {}
};

//! What `forward_chunk` will touch of rows that lie apart
template <typename T>
Ahead rows_of(const Segment<T>& s, const Scanned<T>& to, long head, long chunk) {
    const long P = s.headdim, at = chunk * Q, q = s.length(chunk);
    Ahead ahead;
    ahead.want(s.raw(at, head * P), s.row, q + s.conv - 1, P);
    ahead.want(s.gate(at, head), s.row, q, P);
    ahead.want(to.gated + at * to.gated_row + head * P, to.gated_row, q, P);
    if (to.y) ahead.want(to.y + at * s.inner() + head * P, s.inner(), q, P);
    return ahead;
}

//! One head's chunk; meanwhile, what is wanted `ahead` is fetched
template <typename T>
void forward_chunk(const Segment<T>& s, const Scanned<T>& to, long head, long chunk, T* S, ForwardRoom<T>& w,
                   Ahead ahead) {
    const long P = s.headdim, N = s.state, stride = s.groups * N, group = head / s.heads_per_group();
    const long at = chunk * Q, q = s.length(chunk);
    const T *B = s.B + at * stride + group * N, *C = s.C + at * stride + group * N;
    const T *read = s.decay_of(4, head) + at, *write = s.decay_of(5, head) + at;
    if (to.starts) std::memcpy(to.starts + (chunk * s.heads + head) * N * P, S, N * P * sizeof(T));
    convolve(s, head * P, P, at, q, w.x.data(), P);
    silu(q * P, w.x.data(), w.x.data());
    decay_mask(s, head, at, q, w.M.data());
    chunk_matrix(q, w.M.data(), s.CB + (chunk * s.groups + group) * Q * Q, s.skip[head], w.M.data());
    multiply<T>(q, P, q, {w.M.data(), Q, 1}, w.x.data(), P, w.y.data(), P, 0, Shape::lower_left, ahead);
    multiply<T>(q, P, N, {C, stride, 1}, S, P, w.past.data(), P, 0, Shape::full, ahead);
    scale_rows(q, P, w.x.data(), write, w.written.data());
    multiply<T>(N, P, q, {B, 1, stride}, w.written.data(), P, S, P, s.total[chunk * s.heads + head], Shape::full,
                ahead);
    for (long i = 0; i < q; i++) {
        const T* z = s.gate(at + i, head);
        T* gated = to.gated + (at + i) * to.gated_row + head * P;
        T* y = to.y ? to.y + (at + i) * s.inner() + head * P : nullptr;
        for (long p = 0; p < P; p += V<T>) {
            const vec<T> v = load<T>(&w.y[i * P + p]) + load<T>(&w.past[i * P + p]) * read[i];
            const vec<T> g = load<T>(z + p);
            if (y) store<T>(y + p, v);
            store<T>(gated + p, v * g * sigmoid<T>(g));
        }
    }
}

//! The blocks first, first + step, ... of all: what one thread does
template <typename T>
void forward(const Segment<T>& s, const Scanned<T>& to, long first, long step) {
    const long P = s.headdim, N = s.state, state_row = s.heads_per_group() * P;
    ForwardRoom<T> w(s);
    for (long block = first; block < s.groups * s.blocks_per_group(); block += step) {
        const HeadBlock heads = heads_of(s, block);
        const long columns = (heads.last - heads.first) * P, place = heads.first % s.heads_per_group() * P;
        T* state = to.state + heads.group * N * state_row + place;
        for (long n = 0; n < N; n++)  // (N, heads, P) -> (heads, N, P)
            for (long c = 0; c < columns; c += P)
                std::memcpy(&w.states[c * N + n * P], state + n * state_row + c, P * sizeof(T));
        for (long chunk = 0; chunk < s.chunks(); chunk++)
            for (long head = heads.first; head < heads.last; head++) {
                Ahead ahead;
                if (head + 1 < heads.last)
                    ahead = rows_of(s, to, head + 1, chunk);
                else if (chunk + 1 < s.chunks())
                    ahead = rows_of(s, to, heads.first, chunk + 1);
                forward_chunk(s, to, head, chunk, &w.states[(head - heads.first) * N * P], w, ahead);
            }
        for (long n = 0; n < N; n++)
            for (long c = 0; c < columns; c += P)
                std::memcpy(state + n * state_row + c, &w.states[c * N + n * P], P * sizeof(T));
    }
}

}  // namespace marble

extern "C" {
long marble_ssd_scanned_bytes() { return sizeof(marble::Scanned<float>); }

#define MARBLE_SSD_FORWARD(T, SUFFIX)                                                                                  \
    void marble_ssd_forward_##SUFFIX(const marble::Segment<T>* s, const marble::Scanned<T>* to, long threads) {        \
        marble::in_threads(threads, [&](long first, long step) { marble::forward<T>(*s, *to, first, step); });         \
    }
MARBLE_SSD_FORWARD(float, f32)
MARBLE_SSD_FORWARD(double, f64)
}
