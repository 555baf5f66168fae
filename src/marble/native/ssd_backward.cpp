// The way back over one segment of the Mamba-2 scan, head by head (equations: models/ssm/ssd_backward.py).
#include "ssd.hpp"

namespace marble {

//! What the way back reads and writes beside the segment. Sums over heads are per block of heads.
template <typename T>
struct Gradient {
    const T* y;       // (tokens, inner) before the gate
    const T* starts;  // (chunks, heads, N, P) the state each chunk started from
    const T* d_gated; // (tokens, inner)
    T* d_rows;        // (tokens, row), laid out like `rows`: the columns of z and x are written
    T* d_state;       // (groups, N, heads per group * P), of the state after the segment; then of the one before it
    T* d_B;           // (blocks, chunks * Q, N) of B after its convolution and SiLU
    T* d_C;           // the same
    T* d_step;        // (tokens, heads) of dt * A
    T* d_log_dt;      // (tokens, heads)
    T* d_skip;        // (heads,) added to
    T* d_taps;        // (conv, convolved) added to, in the columns of x
    T* d_conv_bias;   // (convolved,) the same
    T* next_du;       // (conv - 1, convolved) of the first rows of the next segment; then of this one's
};

//! What a head carries from a chunk to the one before it
template <typename T>
struct Carried {
    std::vector<T> dS;  // (N, P) of the state after the chunk at hand
    std::vector<T> du;  // (Q + conv - 1, P) of the chunk at hand, then of the first rows of the next one
};

//! Buffers of one thread
template <typename T>
struct Workspace {
    Carried<T> carried[HEADS_PER_BLOCK];
    std::vector<T> slope, x, x_t, dy, read_dy, written, dx, to_next, mask, M, dM, dC, dB, S_t, dS_t, dCB, suffix;
    explicit Workspace(const Segment<T>& s)
        : slope(Q * s.headdim), x(slope.size()), x_t(x.size()), dy(x.size()), read_dy(x.size()), written(x.size()),
          dx(x.size()), to_next(x.size()), mask(Q * Q), M(Q * Q), dM(Q * Q), dC(Q * s.state), dB(Q * s.state),
          S_t(s.state * s.headdim), dS_t(S_t.size()), dCB(Q * Q), suffix(Q) {
        for (Carried<T>& of_head : carried) {
            of_head.dS.resize(s.state * s.headdim);
            of_head.du.resize((Q + s.conv - 1) * s.headdim);
        }
    }
};

template <typename T>
inline void add_to(T* sum, vec<T> v) {
    store<T>(sum, load<T>(sum) + v);
}

//! x = silu(u), and the slope there in place of u
template <typename T>
void silu_with_slope(long n, T* u, T* x) {
    for (long i = 0; i < n; i += V<T>) {
        const vec<T> v = load<T>(u + i), sig = sigmoid<T>(v);
        store<T>(x + i, v * sig);
        store<T>(u + i, sig * (T(1) + v * (T(1) - sig)));
    }
}

//! dy of one head's chunk; writes the gradient of z
template <typename T>
void backward_gate(const Segment<T>& s, const Gradient<T>& g, long head, long at, long q, T* dy) {
    const long P = s.headdim;
    for (long i = 0; i < q; i++) {
        const long from = (at + i) * s.inner() + head * P;
        const T* z = s.gate(at + i, head);
        T* d_z = g.d_rows + (at + i) * s.row + head * P;
        for (long p = 0; p < P; p += V<T>) {
            const vec<T> v = load<T>(z + p), sig = sigmoid<T>(v), d = load<T>(g.d_gated + from + p);
            store<T>(dy + i * P + p, d * v * sig);
            store<T>(d_z + p, d * load<T>(g.y + from + p) * sig * (T(1) + v * (T(1) - sig)));
        }
    }
}

//! dM -> dCB += dM * mask, and pairs = dM * mask * CB in place of dM; given_j = sum over i of pairs
template <typename T>
void backward_mask(long q, T* dM, const T* mask, const T* CB, T* dCB, T* given) {
    std::memset(given, 0, Q * sizeof(T));
    for (long i = 0; i < q; i++)
        for (long j = 0; j <= i; j += V<T>) {
            const long at = i * Q + j;
            const vec<T> masked = load<T>(dM + at) * load<T>(mask + at);
            store<T>(dCB + at, load<T>(dCB + at) + masked);
            const vec<T> pairs = masked * load<T>(CB + at);
            store<T>(dM + at, pairs);
            store<T>(given + j, load<T>(given + j) + pairs);
        }
}

//! across[k] = sum of pairs_ij over j <= k < i; `suffix` (Q) holds the sums over i > k
template <typename T>
void pairs_across(long q, const T* pairs, T* suffix, T* across) {
    std::memset(suffix, 0, Q * sizeof(T));
    for (long k = q - 2; k >= 0; k--) {
        const T* next = pairs + (k + 1) * Q;
        for (long j = 0; j <= k + 1; j += V<T>) store<T>(suffix + j, load<T>(suffix + j) + load<T>(next + j));
        vec<T> part{};
        for (long j = 0; j <= k; j += V<T>) part += first_lanes<T>(load<T>(suffix + j), k + 1 - j);
        across[k] = sum<T>(part);
    }
}

//! total (q, N) += part, and dots[i] = part_i . direction_i
template <typename T>
void add_and_dot(long q, long N, const T* part, const T* direction, long stride, T* total, T* dots) {
    for (long i = 0; i < q; i++) {
        vec<T> dot{};
        for (long n = 0; n < N; n += V<T>) {
            const vec<T> v = load<T>(part + i * N + n);
            store<T>(total + i * N + n, load<T>(total + i * N + n) + v);
            dot += v * load<T>(direction + i * stride + n);
        }
        dots[i] = sum<T>(dot);
    }
}

//! du (q + conv - 1, P) -> gradients of a chunk's raw rows, of the taps and of the bias
template <typename T>
void backward_convolution(const Segment<T>& s, const Gradient<T>& g, long head, long at, long q, const T* du) {
    const long P = s.headdim, halo = s.conv - 1, channel = head * P;
    for (long p = 0; p < P; p += V<T>) {
        vec<T> bias{};
        for (long t = 0; t < q; t++) bias += load<T>(du + t * P + p);
        add_to(g.d_conv_bias + channel + p, bias);
        for (long k = 0; k < s.conv; k++) {
            vec<T> tap{};
            for (long t = 0; t < q; t++) tap += load<T>(du + t * P + p) * load<T>(s.raw(at + t + k, channel) + p);
            add_to(g.d_taps + k * s.convolved + channel + p, tap);
        }
    }
    for (long t = 0; t < q; t++)
        for (long p = 0; p < P; p += V<T>) {
            vec<T> d{};
            for (long k = 0; k < s.conv; k++)
                d += load<T>(du + (t + halo - k) * P + p) * load<T>(s.taps + k * s.convolved + channel + p);
            store<T>(g.d_rows + (at + t) * s.row + s.inner() + channel + p, d);
        }
}

//! What `backward_chunk` will touch of rows that lie apart
template <typename T>
Ahead rows_of(const Segment<T>& s, const Gradient<T>& g, long head, long chunk) {
    const long P = s.headdim, at = chunk * Q, q = s.length(chunk), inner = s.inner();
    T* d_rows = g.d_rows + at * s.row + head * P;
    Ahead ahead;
    ahead.want(s.raw(at, head * P), s.row, q + s.conv - 1, P);
    ahead.want(s.gate(at, head), s.row, q, P);
    ahead.want(g.d_gated + at * inner + head * P, inner, q, P);
    ahead.want(g.y + at * inner + head * P, inner, q, P);
    ahead.want(d_rows, s.row, q, P);
    ahead.want(d_rows + inner, s.row, q, P);
    ahead.want(g.starts + (chunk * s.heads + head) * s.state * P, P, s.state, P);
    return ahead;
}

//! One head's chunk; meanwhile, what is wanted `ahead` is fetched. The parts of d_B and d_C are added to.
template <typename T>
void backward_chunk(const Segment<T>& s, const Gradient<T>& g, long head, long c, T* d_B, T* d_C, Carried<T>& carried,
                    Workspace<T>& w, Ahead ahead) {
    const long P = s.headdim, N = s.state, halo = s.conv - 1, group = head / s.heads_per_group();
    const long at = c * Q, q = s.length(c), stride = s.groups * N;
    const T *read = s.decay_of(4, head) + at, *write = s.decay_of(5, head) + at;
    const T *B = s.B + at * stride + group * N, *C = s.C + at * stride + group * N;
    const T* CB = s.CB + (c * s.groups + group) * Q * Q;
    const T* S = g.starts + (c * s.heads + head) * N * P;
    const T total = s.total[c * s.heads + head];
    T *dS = carried.dS.data(), *du = carried.du.data();
    T given[Q], across[Q], from_past[Q], handed_on[Q];
    convolve(s, head * P, P, at, q, w.slope.data(), P);
    silu_with_slope(q * P, w.slope.data(), w.x.data());
    backward_gate(s, g, head, at, q, w.dy.data());
    decay_mask(s, head, at, q, w.mask.data());
    chunk_matrix(q, w.mask.data(), CB, s.skip[head], w.M.data());
    scale_rows(q, P, w.dy.data(), read, w.read_dy.data());
    scale_rows(q, P, w.x.data(), write, w.written.data());

    std::memset(w.x_t.data(), 0, P * Q * sizeof(T));
    transpose(q, P, w.x.data(), P, w.x_t.data(), Q);
    multiply<T>(q, Q, P, {w.dy.data(), P, 1}, w.x_t.data(), Q, w.dM.data(), Q, 0, Shape::lower_result, ahead);
    for (long i = 0; i < q; i++) g.d_skip[head] += w.dM[i * Q + i];
    backward_mask(q, w.dM.data(), w.mask.data(), CB, w.dCB.data(), given);
    pairs_across(q, w.dM.data(), w.suffix.data(), across);

    multiply<T>(q, P, q, {w.M.data(), 1, Q}, w.dy.data(), P, w.dx.data(), P, 0, Shape::upper_left, ahead);
    multiply<T>(q, P, N, {B, stride, 1}, dS, P, w.to_next.data(), P, 0, Shape::full, ahead);
    std::memmove(du + q * P, du, halo * P * sizeof(T));  // the chunk after this one began with these
    for (long i = 0; i < q; i++)
        for (long p = 0; p < P; p += V<T>) {
            const long k = i * P + p;
            const vec<T> dx = load<T>(&w.dx[k]) + load<T>(&w.to_next[k]) * write[i];
            store<T>(du + k, dx * load<T>(&w.slope[k]));
        }
    backward_convolution(s, g, head, at, q, du);

    transpose(N, P, S, P, w.S_t.data(), N);
    transpose(N, P, dS, P, w.dS_t.data(), N);
    multiply<T>(q, N, P, {w.read_dy.data(), P, 1}, w.S_t.data(), N, w.dC.data(), N, 0, Shape::full, ahead);
    multiply<T>(q, N, P, {w.written.data(), P, 1}, w.dS_t.data(), N, w.dB.data(), N, 0, Shape::full, ahead);
    add_and_dot(q, N, w.dC.data(), C, stride, d_C, from_past);
    add_and_dot(q, N, w.dB.data(), B, stride, d_B, handed_on);

    vec<T> through{};
    for (long k = 0; k < N * P; k += V<T>) through += load<T>(S + k) * load<T>(dS + k);
    multiply<T>(N, P, q, {C, 1, stride}, w.read_dy.data(), P, dS, P, total, Shape::full, ahead);

    double later = double(sum<T>(through)) * double(total);
    for (long i = q - 1; i >= 0; i--) g.d_step[(at + i) * s.heads + head] = T(later += double(from_past[i]));
    double earlier = 0;
    for (long i = 0; i < q; i++) {
        T* d_step = g.d_step + (at + i) * s.heads + head;
        if (i > 0) *d_step = T(double(*d_step) + (earlier + double(across[i - 1])));
        earlier += double(handed_on[i]);
        g.d_log_dt[(at + i) * s.heads + head] = given[i] + handed_on[i];
    }
}

//! copy(carried, stored, bytes) of what a head carries over the ends of the segment
template <typename T, typename Copy>
void at_the_ends(const Segment<T>& s, const Gradient<T>& g, long head, Carried<T>& carried, const Copy& copy) {
    const long P = s.headdim, state_row = s.heads_per_group() * P, group = head / s.heads_per_group();
    T* d_state = g.d_state + group * s.state * state_row + head % s.heads_per_group() * P;
    for (long n = 0; n < s.state; n++) copy(&carried.dS[n * P], d_state + n * state_row, P * sizeof(T));
    for (long t = 0; t < s.conv - 1; t++)
        copy(&carried.du[t * P], g.next_du + t * s.convolved + head * P, P * sizeof(T));
}

//! A block of heads goes through the segment together, chunk by chunk: what they share stays in the cache
template <typename T>
void backward_block(const Segment<T>& s, const Gradient<T>& g, long block, Workspace<T>& w) {
    const HeadBlock heads = heads_of(s, block);
    const long N = s.state, stride = s.groups * N;
    for (long head = heads.first; head < heads.last; head++)
        at_the_ends(s, g, head, w.carried[head - heads.first],
                    [](T* mine, const T* theirs, long bytes) { std::memcpy(mine, theirs, bytes); });
    for (long c = s.chunks() - 1; c >= 0; c--) {
        const long at = c * Q, q = s.length(c);
        T *d_B = g.d_B + (block * s.chunks() * Q + at) * N, *d_C = g.d_C + (block * s.chunks() * Q + at) * N;
        std::memset(w.dCB.data(), 0, w.dCB.size() * sizeof(T));
        std::memset(d_B, 0, q * N * sizeof(T));
        std::memset(d_C, 0, q * N * sizeof(T));
        for (long head = heads.first; head < heads.last; head++) {
            Ahead ahead;
            if (head + 1 < heads.last)
                ahead = rows_of(s, g, head + 1, c);
            else if (c > 0)
                ahead = rows_of(s, g, heads.first, c - 1);
            backward_chunk(s, g, head, c, d_B, d_C, w.carried[head - heads.first], w, ahead);
        }
        const T *B = s.B + at * stride + heads.group * N, *C = s.C + at * stride + heads.group * N;
        multiply<T>(q, N, q, {w.dCB.data(), Q, 1}, B, stride, d_C, N, 1, Shape::lower_left);
        multiply<T>(q, N, q, {w.dCB.data(), 1, Q}, C, stride, d_B, N, 1, Shape::upper_left);
    }
    for (long head = heads.first; head < heads.last; head++)
        at_the_ends(s, g, head, w.carried[head - heads.first],
                    [](const T* mine, T* theirs, long bytes) { std::memcpy(theirs, mine, bytes); });
}

//! The blocks first, first + step, ... of all: what one thread does
template <typename T>
void backward(const Segment<T>& s, const Gradient<T>& g, long first, long step) {
    Workspace<T> w(s);
    for (long block = first; block < s.groups * s.blocks_per_group(); block += step) backward_block(s, g, block, w);
}

}  // namespace marble

extern "C" {
//! How many blocks the heads are worked off in
long marble_ssd_blocks(long heads, long groups) {
    const long per_group = heads / groups;
    return groups * ((per_group + marble::HEADS_PER_BLOCK - 1) / marble::HEADS_PER_BLOCK);
}

long marble_ssd_gradient_bytes() { return sizeof(marble::Gradient<float>); }

#define MARBLE_SSD_BACKWARD(T, SUFFIX)                                                                                 \
    void marble_ssd_backward_##SUFFIX(const marble::Segment<T>* s, const marble::Gradient<T>* g, long threads) {       \
        marble::in_threads(threads, [&](long first, long step) { marble::backward<T>(*s, *g, first, step); });         \
    }
MARBLE_SSD_BACKWARD(float, f32)
MARBLE_SSD_BACKWARD(double, f64)
}
