// What the Mamba-2 kernels share: the sizes and places of one segment, and the steps that both directions take.
//
// Letters and equations as in models/ssm/ssd_fast.py and models/ssm/ssd_backward.py. Heads are worked off in blocks of fixed
// size, and sums over heads are kept per block, so that the result does not depend on the number of threads.
#pragma once

#include <vector>

#include "simd.hpp"

namespace marble {

constexpr long Q = 64;  // tokens per chunk
constexpr long HEADS_PER_BLOCK = 4;

//! One segment. Rows are [z | x | B | C | dt], preceded by conv - 1 earlier ones.
template <typename T>
struct Segment {
    long tokens, conv, heads, groups, headdim, state, row, convolved;  // sizes; `row` is the stride of `rows`
    const T* rows;       // (conv - 1 + tokens, row)
    const T* taps;       // (conv, convolved)
    const T* conv_bias;  // (convolved,)
    const T* dt_bias;    // (heads,)
    const T* A;          // (heads,) < 0
    const T* skip;       // (heads,) D
    // What the heads share, and the decays: written by ssd_prepare
    T* dt;     // (tokens, heads)
    T* u;      // (tokens, 2 * groups * state) B and C after their convolution, before SiLU
    T* B;      // (chunks * Q, groups * state), zero after the last token
    T* C;      // the same
    T* CB;     // (chunks, groups, Q, Q) C B^T
    T* decay;  // (6, heads, chunks * Q): a, its rest, b, its rest, exp(a), exp(a_Q - b); zero after the last token
    T* total;  // (chunks, heads) exp(a_Q)

    long inner() const { return heads * headdim; }
    long chunks() const { return (tokens + Q - 1) / Q; }
    long length(long chunk) const { return tokens - chunk * Q < Q ? tokens - chunk * Q : Q; }
    long heads_per_group() const { return heads / groups; }
    long blocks_per_group() const { return (heads_per_group() + HEADS_PER_BLOCK - 1) / HEADS_PER_BLOCK; }
    T* decay_of(int which, long head) const { return decay + (which * heads + head) * chunks() * Q; }
    //! row `token` of z
    const T* gate(long token, long head) const { return rows + (token + conv - 1) * row + head * headdim; }
    //! the first tap's row of the convolved channels for `token`
    const T* raw(long token, long channel) const { return rows + token * row + inner() + channel; }
};

//! The heads of a block, and the group whose B and C they read
struct HeadBlock {
    long group, first, last;
};

template <typename T>
inline HeadBlock heads_of(const Segment<T>& s, long block) {
    const long per_group = s.heads_per_group(), group = block / s.blocks_per_group();
    const long from = block % s.blocks_per_group() * HEADS_PER_BLOCK;
    const long to = from + HEADS_PER_BLOCK < per_group ? from + HEADS_PER_BLOCK : per_group;
    return {group, group * per_group + from, group * per_group + to};
}

//! u (q, stride `ldu`): `channels` convolved channels of a chunk from `first` on, before SiLU
template <typename T>
void convolve(const Segment<T>& s, long first, long channels, long at, long q, T* u, long ldu) {
    for (long i = 0; i < q; i++) {
        const T* raw = s.raw(at + i, first);
        for (long p = 0; p < channels; p += V<T>) {
            vec<T> v = load<T>(s.conv_bias + first + p);
            for (long k = 0; k < s.conv; k++)
                v += load<T>(raw + k * s.row + p) * load<T>(s.taps + k * s.convolved + first + p);
            store<T>(u + i * ldu + p, v);
        }
    }
}

template <typename T>
void silu(long n, const T* u, T* x) {
    for (long i = 0; i < n; i += V<T>) {
        const vec<T> v = load<T>(u + i);
        store<T>(x + i, v * sigmoid<T>(v));
    }
}

//! mask (q, Q) = exp(a_i - b_j) for j <= i, else 0
template <typename T>
void decay_mask(const Segment<T>& s, long head, long at, long q, T* mask) {
    const T *a = s.decay_of(0, head) + at, *a_rest = s.decay_of(1, head) + at;
    const T *b = s.decay_of(2, head) + at, *b_rest = s.decay_of(3, head) + at;
    for (long i = 0; i < q; i++) {
        T* out = mask + i * Q;
        long j = 0;
        for (; j <= i; j += V<T>)
            store<T>(out + j, exp<T>((a[i] - load<T>(b + j)) + (a_rest[i] - load<T>(b_rest + j))));
        for (long later = i + 1; later < j; later++) out[later] = 0;
        std::memset(out + j, 0, (Q - j) * sizeof(T));
    }
}

//! M (q, Q) = mask * CB, plus D on the diagonal
template <typename T>
void chunk_matrix(long q, const T* mask, const T* CB, T D, T* M) {
    for (long i = 0; i < q * Q; i += V<T>) store<T>(M + i, load<T>(mask + i) * load<T>(CB + i));
    for (long i = 0; i < q; i++) M[i * Q + i] += D;
}

//! to (q, P) = from, row i times scale[i]
template <typename T>
void scale_rows(long q, long P, const T* from, const T* scale, T* to) {
    for (long i = 0; i < q; i++)
        for (long p = 0; p < P; p += V<T>) store<T>(to + i * P + p, load<T>(from + i * P + p) * scale[i]);
}

}  // namespace marble
