// Vectors of 32 bytes, the exponential on them, and small matrix products. Everything the kernels are made of.
//
// The compiler's vector extension is used, so the same text becomes AVX2, AVX-512 or NEON. T is float or double.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef _OPENMP
// Declared here, because Apple's compiler knows the pragmas but has no omp.h; torch's own OpenMP holds the functions.
extern "C" int omp_get_thread_num(void);
extern "C" int omp_get_num_threads(void);
#endif

namespace marble {

template <typename T>
struct Vec {
    typedef T type __attribute__((vector_size(32)));
    typedef std::conditional_t<sizeof(T) == 4, int32_t, int64_t> integer;
    typedef integer mask __attribute__((vector_size(32)));
};
template <typename T>
using vec = typename Vec<T>::type;
//! lanes of a vector
template <typename T>
constexpr long V = 32 / sizeof(T);

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

template <typename T>
inline T sum(vec<T> v) {
    T total = 0;
    for (long lane = 0; lane < V<T>; lane++) total += v[lane];
    return total;
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

//! C (R x columns * V) = beta C + A (R x K) B (K x columns * V), held in registers
template <typename T, int R, int COLUMNS>
inline void tile(long K, Left<T> A, const T* B, long ldb, T* C, long ldc, T beta) {
    vec<T> acc[R][COLUMNS];
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 2
        for (int j = 0; j < COLUMNS; j++) acc[i][j] = vec<T>{};
    for (long k = 0; k < K; k++) {
        vec<T> b[COLUMNS];
#pragma GCC unroll 2
        for (int j = 0; j < COLUMNS; j++) b[j] = load<T>(B + k * ldb + j * V<T>);
#pragma GCC unroll 8
        for (int i = 0; i < R; i++) {
            const vec<T> a = all(A.data[i * A.row + k * A.column]);
#pragma GCC unroll 2
            for (int j = 0; j < COLUMNS; j++) acc[i][j] += a * b[j];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 2
        for (int j = 0; j < COLUMNS; j++) {
            T* c = C + i * ldc + j * V<T>;
            store<T>(c, beta == 0 ? acc[i][j] : beta * load<T>(c) + acc[i][j]);
        }
}

template <typename T, int R>
inline void tile_row(long N, long K, Left<T> A, const T* B, long ldb, T* C, long ldc, T beta) {
    long j = 0;
    for (; j + 2 * V<T> <= N; j += 2 * V<T>) tile<T, R, 2>(K, A, B + j, ldb, C + j, ldc, beta);
    for (; j < N; j += V<T>) tile<T, R, 1>(K, A, B + j, ldb, C + j, ldc, beta);
}

//! Which part of a product is needed: all of it; A is lower triangular; A is upper triangular; only C's lower triangle
enum class Shape { full, lower_left, upper_left, lower_result };

//! C (M x N) = beta C + A (M x K) B (K x N); N is a multiple of V
template <typename T>
void multiply(long M, long N, long K, Left<T> A, const T* B, long ldb, T* C, long ldc, T beta, Shape shape) {
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
    }
}

//! to (columns x rows, stride `ldt`) = from (rows x columns)^T
template <typename T>
inline void transpose(long rows, long columns, const T* from, long ldf, T* to, long ldt) {
    for (long i = 0; i < rows; i += 8)
        for (long j = 0; j < columns; j += 8)
            for (long jj = j; jj < j + 8 && jj < columns; jj++)
                for (long ii = i; ii < i + 8 && ii < rows; ii++) to[jj * ldt + ii] = from[ii * ldf + jj];
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
