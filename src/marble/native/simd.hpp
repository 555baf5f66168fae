// Vectors, the exponential on them, and small matrix products. Everything the kernels are made of.
//
// The compiler's vector extension is used, so the same text becomes AVX2, AVX-512 or NEON. T is float or double. A
// vector has 32 bytes, or as many as the build says.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "ahead.hpp"

#ifdef _OPENMP
// Declared here, because Apple's compiler knows the pragmas but has no omp.h; torch's own OpenMP holds the functions.
extern "C" int omp_get_thread_num(void);
extern "C" int omp_get_num_threads(void);
#endif

#ifndef MARBLE_VECTOR_BYTES
#define MARBLE_VECTOR_BYTES 32
#endif

namespace marble {

constexpr int VECTOR_BYTES = MARBLE_VECTOR_BYTES;

template <typename T>
struct Vec {
    typedef T type __attribute__((vector_size(VECTOR_BYTES)));
    typedef std::conditional_t<sizeof(T) == 4, int32_t, int64_t> integer;
    typedef integer mask __attribute__((vector_size(VECTOR_BYTES)));
};
template <typename T>
using vec = typename Vec<T>::type;
//! lanes of a vector
template <typename T>
constexpr long V = VECTOR_BYTES / sizeof(T);

template <typename T>
inline vec<T> load(const T* from) {
    vec<T> v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

template <typename T>
inline void store(T* to, vec<T> v) {
    std::memcpy(to, &v, sizeof v);
}

template <typename T>
inline vec<T> all(T value) {
    return value - vec<T>{};
}

//! Lanes picked from those of a and then of b: lane l of the result is number Pick::at(l) of the 2 V
template <typename T, typename Pick, std::size_t... L>
inline vec<T> picked(vec<T> a, vec<T> b, std::index_sequence<L...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, Pick::at(L)...);
#else
    return __builtin_shuffle(a, b, typename Vec<T>::mask{typename Vec<T>::integer(Pick::at(L))...});
#endif
}

template <typename T, typename Pick>
inline vec<T> picked(vec<T> a, vec<T> b) {
    return picked<T, Pick>(a, b, std::make_index_sequence<V<T>>());
}

//! Lane l + BY, the first after the last
template <typename T, int BY>
struct Turned {
    static constexpr int at(int lane) { return (lane + BY) % V<T>; }
};

//! All lanes added up, by halves
template <typename T, int BY = V<T> / 2>
inline T sum(vec<T> v) {
    v += picked<T, Turned<T, BY>>(v, v);
    if constexpr (BY > 1)
        return sum<T, BY / 2>(v);
    else
        return v[0];
}

template <typename T, std::size_t... L>
inline typename Vec<T>::mask numbered(std::index_sequence<L...>) {
    return typename Vec<T>::mask{typename Vec<T>::integer(L)...};
}

//! v where the lane's number is below `count`, else 0
template <typename T>
inline vec<T> first_lanes(vec<T> v, long count) {
    const auto lanes = numbered<T>(std::make_index_sequence<V<T>>());
    return lanes < typename Vec<T>::integer(count) ? v : vec<T>{};
}

//! e^x to the last digit or two; 0 where it would be subnormal, the largest power where it would overflow
template <typename T>
inline vec<T> exp(vec<T> x) {
    constexpr bool single = sizeof(T) == 4;
    constexpr T lowest = single ? T(-87.33654) : T(-708.396418532264), highest = single ? T(88) : T(709);
    constexpr T log2e = T(1.4426950408889634074);
    // ln 2 in two parts: the first times any exponent is exact
    constexpr T ln2_high = single ? T(0.693359375) : T(6.93145751953125e-1);
    constexpr T ln2_low = single ? T(-2.12194440e-4) : T(1.42860682030941723212e-6);
    constexpr T round = single ? T(12582912.0) : T(6755399441055744.0);  // 1.5 * 2^mantissa: adding it rounds
    const auto underflow = x < lowest;
    x = x > highest ? all(highest) : x;
    x = underflow ? all(lowest) : x;
    const vec<T> shifted = x * log2e + round;
    const vec<T> n = shifted - round;
    const vec<T> r = (x - n * ln2_high) - n * ln2_low;  // |r| <= ln(2) / 2
    vec<T> p;
    if constexpr (single) {
        p = all(T(1.0 / 5040));
        for (T c : {T(1.0 / 720), T(1.0 / 120), T(1.0 / 24), T(1.0 / 6), T(0.5), T(1), T(1)}) p = p * r + c;
    } else {
        p = all(T(1.0 / 6227020800.0));
        for (T c : {T(1.0 / 479001600), T(1.0 / 39916800), T(1.0 / 3628800), T(1.0 / 362880), T(1.0 / 40320),
                    T(1.0 / 5040), T(1.0 / 720), T(1.0 / 120), T(1.0 / 24), T(1.0 / 6), T(0.5), T(1), T(1)})
            p = p * r + c;
    }
    // 2^n: n stands in the low bits of `shifted`
    typename Vec<T>::mask bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << (single ? 23 : 52)) + (typename Vec<T>::integer(single ? 127 : 1023) << (single ? 23 : 52));
    vec<T> power;
    std::memcpy(&power, &bits, sizeof power);
    return underflow ? vec<T>{} : p * power;
}

template <typename T>
inline vec<T> sigmoid(vec<T> x) {
    return T(1) / (T(1) + exp<T>(-x));
}

// ---- small matrix products -------------------------------------------------------------------------------------------

//! A factor read one number at a time: element (i, k) is at data[i * row + k * column]
template <typename T>
struct Left {
    const T* data;
    long row, column;
};

//! Vectors side by side in a tile: as many as the registers hold beside its rows
constexpr int TILE_COLUMNS = VECTOR_BYTES == 64 ? 4 : 2;

//! C (R x columns * V) = beta C + A (R x K) B (K x columns * V), held in registers
template <typename T, int R, int COLUMNS>
inline void tile(long K, Left<T> A, const T* B, long ldb, T* C, long ldc, T beta) {
    vec<T> acc[R][COLUMNS];
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 4
        for (int j = 0; j < COLUMNS; j++) acc[i][j] = vec<T>{};
    for (long k = 0; k < K; k++) {
        vec<T> b[COLUMNS];
#pragma GCC unroll 4
        for (int j = 0; j < COLUMNS; j++) b[j] = load<T>(B + k * ldb + j * V<T>);
#pragma GCC unroll 8
        for (int i = 0; i < R; i++) {
            const vec<T> a = all(A.data[i * A.row + k * A.column]);
#pragma GCC unroll 4
            for (int j = 0; j < COLUMNS; j++) acc[i][j] += a * b[j];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 4
        for (int j = 0; j < COLUMNS; j++) {
            T* c = C + i * ldc + j * V<T>;
            store<T>(c, beta == 0 ? acc[i][j] : beta * load<T>(c) + acc[i][j]);
        }
}

template <typename T, int R>
inline void tile_row(long N, long K, Left<T> A, const T* B, long ldb, T* C, long ldc, T beta) {
    long j = 0;
    constexpr long wide = TILE_COLUMNS * V<T>;
    for (; j + wide <= N; j += wide) tile<T, R, TILE_COLUMNS>(K, A, B + j, ldb, C + j, ldc, beta);
    for (; j < N; j += V<T>) tile<T, R, 1>(K, A, B + j, ldb, C + j, ldc, beta);
}

//! Which part of a product is needed: all of it; A is lower triangular; A is upper triangular; only C's lower triangle
enum class Shape { full, lower_left, upper_left, lower_result };

//! C (M x N) = beta C + A (M x K) B (K x N); N is a multiple of V. `ahead` is called after every few rows.
template <typename T, typename Fetch = NothingAhead>
void multiply(long M, long N, long K, Left<T> A, const T* B, long ldb, T* C, long ldc, T beta, Shape shape,
              Fetch&& ahead = Fetch()) {
    for (long i = 0; i < M; i += 6) {
        const long rows = M - i < 6 ? M - i : 6;
        long from = 0, to = K, columns = N;
        if (shape == Shape::lower_left) to = i + rows < K ? i + rows : K;
        if (shape == Shape::upper_left) from = i;
        if (shape == Shape::lower_result) columns = (i + rows + V<T> - 1) / V<T> * V<T>;
        const Left<T> a{A.data + i * A.row + from * A.column, A.row, A.column};
        const T* b = B + from * ldb;
        T* c = C + i * ldc;
        switch (rows) {
            case 6: tile_row<T, 6>(columns, to - from, a, b, ldb, c, ldc, beta); break;
            case 5: tile_row<T, 5>(columns, to - from, a, b, ldb, c, ldc, beta); break;
            case 4: tile_row<T, 4>(columns, to - from, a, b, ldb, c, ldc, beta); break;
            case 3: tile_row<T, 3>(columns, to - from, a, b, ldb, c, ldc, beta); break;
            case 2: tile_row<T, 2>(columns, to - from, a, b, ldb, c, ldc, beta); break;
            default: tile_row<T, 1>(columns, to - from, a, b, ldb, c, ldc, beta);
        }
        ahead();
    }
}

//! Of two rows HALF apart, what the upper and what the lower one holds once squares of HALF lanes have changed places
template <typename T, int HALF>
struct Upper {
    static constexpr int at(int lane) { return lane & HALF ? V<T> + lane - HALF : lane; }
};
template <typename T, int HALF>
struct Lower {
    static constexpr int at(int lane) { return lane & HALF ? V<T> + lane : lane + HALF; }
};

//! Transpose V rows of V lanes: squares of half the size change places, then those inside them
template <typename T, int HALF = V<T> / 2>
inline void transpose_square(vec<T>* rows) {
#pragma GCC unroll 16
    for (int i = 0; i < V<T>; i++) {
        if (i & HALF) continue;
        const vec<T> a = rows[i], b = rows[i + HALF];
        rows[i] = picked<T, Upper<T, HALF>>(a, b);
        rows[i + HALF] = picked<T, Lower<T, HALF>>(a, b);
    }
    if constexpr (HALF > 1) transpose_square<T, HALF / 2>(rows);
}

//! to (columns x rows, stride `ldt`) = from (rows x columns)^T; there are whole vectors of columns
template <typename T>
inline void transpose(long rows, long columns, const T* from, long ldf, T* to, long ldt) {
    const long whole = rows / V<T> * V<T>;
    for (long i = 0; i < whole; i += V<T>)
        for (long j = 0; j < columns; j += V<T>) {
            vec<T> square[V<T>];
#pragma GCC unroll 16
            for (int k = 0; k < V<T>; k++) square[k] = load<T>(from + (i + k) * ldf + j);
            transpose_square<T>(square);
#pragma GCC unroll 16
            for (int k = 0; k < V<T>; k++) store<T>(to + (j + k) * ldt + i, square[k]);
        }
    for (long i = whole; i < rows; i++)
        for (long j = 0; j < columns; j++) to[j * ldt + i] = from[i * ldf + j];
}

// ---- threads -----------------------------------------------------------------------------------------------------------

//! Call work(first, step) on each of `threads` threads, first = 0 .. threads - 1 and step = threads
template <typename Work>
inline void in_threads(long threads, const Work& work) {
#ifdef _OPENMP
#pragma omp parallel num_threads(int(threads))
    work(long(omp_get_thread_num()), long(omp_get_num_threads()));
#else
    (void)threads;
    work(0, 1);
#endif
}

// ---- blocks of channels ----------------------------------------------------------------------------------------------

//! Channels are worked off in at most this many blocks, whatever the number of threads
constexpr long CHANNEL_BLOCKS = 8;

struct Range {
    long first, last;
};

//! The channels of a block, in whole vectors; the last blocks of few channels are empty
template <typename T>
inline Range channels_of(long block, long channels) {
    const long each = (channels / V<T> + CHANNEL_BLOCKS - 1) / CHANNEL_BLOCKS * V<T>;
    const long first = block * each < channels ? block * each : channels;
    return {first, first + each < channels ? first + each : channels};
}

}  // namespace marble
