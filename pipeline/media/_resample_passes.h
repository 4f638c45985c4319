/* Weights and the two passes of `_resample.c`, which tells the rule. Needs AVX2. */

#ifndef PARBAKE_RESAMPLE_PASSES_H
#define PARBAKE_RESAMPLE_PASSES_H

#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define AVX2 __attribute__((target("avx2")))

enum {
    PRECISION_BITS = 22,
    LOW_BITS = 12,
    BLOCK_ROWS = 8,     /* rows that go across together */
    PIXEL_BYTES = 4,    /* Pillow's RGBX */
    ROW_SLACK = 32,     /* a store may run over the end of a row by less than this */
};
/* ---- weights ---------------------------------------------------------------------------------------------------- */

typedef struct {
    int taps;        /* input pixels an output pixel is computed from, even; weights beyond its own are zero */
    int *first;      /* [out_size] */
    int *count;      /* [out_size], how many of the taps are its own */
    int16_t *pairs;  /* [out_size, taps / 2, 4]: high, high, low, low of two neighbours */
} Weights;

static double
bicubic(double x)
{
    const double a = -0.5;
    x = x < 0.0 ? -x : x;
    if (x < 1.0) {
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    }
    return x < 2.0 ? (((x - 5) * x + 8) * x - 4) * a : 0.0;
}

static void
free_weights(Weights *weights)
{
    free(weights->first);
    free(weights->count);
    free(weights->pairs);
    memset(weights, 0, sizeof *weights);
}

/* Weights of an axis; 0 if there is no memory. `uniform`: the taps of every output pixel lie inside the axis, or from its
 * start on where it is shorter than they are; `first` moves back for it, and zeros stand before the pixel's own. */
static int
make_weights(Weights *weights, int in_size, int out_size, int uniform)
{
    const double scale = (double)in_size / out_size;
    const double filter_scale = scale < 1.0 ? 1.0 : scale;
    const double support = 2.0 * filter_scale;
    const double inverse_scale = 1.0 / filter_scale;
    double *weight;
    int index;

    weights->taps = 0;
    weights->first = malloc(out_size * sizeof(int));
    weights->count = malloc(out_size * sizeof(int));
    weights->pairs = NULL;
    if (!weights->first || !weights->count) {
        return 0;
    }
    for (index = 0; index < out_size; index++) {
        const double center = (index + 0.5) * scale;
        int first = (int)(center - support + 0.5);
        int end = (int)(center + support + 0.5);
        first = first < 0 ? 0 : first;
        end = end > in_size ? in_size : end;
        weights->first[index] = first;
        weights->count[index] = end - first;
        weights->taps = end - first > weights->taps ? end - first : weights->taps;
    }
    weights->taps += weights->taps % 2;
    weights->pairs = calloc((size_t)out_size * weights->taps * 2, sizeof(int16_t));
    weight = malloc((weights->taps + 1) * sizeof(double));
    if (!weights->pairs || !weight) {
        free(weight);
        return 0;
    }
    for (index = 0; index < out_size; index++) {
        const double center = (index + 0.5) * scale;
        const int first = weights->first[index], count = weights->count[index];
        int16_t *pairs = weights->pairs + (size_t)index * weights->taps * 2;
        double sum = 0.0;
        int shift = 0, tap;
        for (tap = 0; tap < count; tap++) {
            weight[tap] = bicubic((tap + first - center + 0.5) * inverse_scale);
            sum += weight[tap];
        }
        if (uniform && first + weights->taps > in_size) {
            shift = weights->taps > in_size ? first : first + weights->taps - in_size;
            weights->first[index] = first - shift;
        }
        for (tap = 0; tap < count; tap++) {
            const double share = sum != 0.0 ? weight[tap] / sum : weight[tap];
            const int whole = (int)(share * (1 << PRECISION_BITS) + (share < 0 ? -0.5 : 0.5));
            const int high = (whole + (1 << (LOW_BITS - 1))) >> LOW_BITS;
            const int at = shift + tap;
            pairs[at / 2 * 4 + at % 2] = (int16_t)high;
            pairs[at / 2 * 4 + 2 + at % 2] = (int16_t)(whole - high * (1 << LOW_BITS));
        }
    }
    free(weight);
    return 1;
}

/* ---- passes ----------------------------------------------------------------------------------------------------- */

static inline AVX2 __m256i
two_halves(const int16_t *halves)
{
    int32_t both;
    memcpy(&both, halves, sizeof both);
    return _mm256_set1_epi32(both);
}

static inline AVX2 __m256i
rounded(__m256i high, __m256i low)
{
    return _mm256_srai_epi32(_mm256_add_epi32(_mm256_slli_epi32(high, LOW_BITS), low), PRECISION_BITS);
}

static inline void
store_pixel(uint8_t *out, int pixel)
{
    memcpy(out, &pixel, sizeof pixel);
}

/* Eight rows RGBX to eight rows RGB of `out_size` pixels, `out_stride` bytes apart, each with one byte of slack. */
static AVX2 void
across(const uint8_t *const rows[BLOCK_ROWS], const Weights *weights, int out_size, uint8_t *out, size_t out_stride)
{
    /* 16 bytes of a row are 4 neighbours; as int16, next to each other by channel: R0 R1 G0 G1 B0 B1 X0 X1 */
    const __m256i front = _mm256_setr_epi8(
        0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1, 0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1);
    const __m256i back = _mm256_or_si256(front, _mm256_set1_epi16(8));
    const __m256i half = _mm256_set1_epi32(1 << (PRECISION_BITS - 1));
    const uint8_t *const row0 = rows[0], *const row1 = rows[1], *const row2 = rows[2], *const row3 = rows[3];
    const uint8_t *const row4 = rows[4], *const row5 = rows[5], *const row6 = rows[6], *const row7 = rows[7];
    const int taps = weights->taps;
    const int16_t *pairs = weights->pairs;

#define LANES(a, b, offset)                                                                     \
    _mm256_inserti128_si256(                                                                    \
        _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)((a) + (offset)))),             \
        _mm_loadu_si128((const __m128i *)((b) + (offset))), 1)
#define SHORT_LANES(a, b, offset)                                                               \
    _mm256_inserti128_si256(                                                                    \
        _mm256_castsi128_si256(_mm_loadl_epi64((const __m128i *)((a) + (offset)))),             \
        _mm_loadl_epi64((const __m128i *)((b) + (offset))), 1)
#define ADD(sum, term) sum = _mm256_add_epi32(sum, term)
#define FOUR_TAPS(n, a, b)                                                                      \
    {                                                                                           \
        const __m256i pixels = LANES(a, b, offset);                                             \
        const __m256i near = _mm256_shuffle_epi8(pixels, front);                                \
        const __m256i far = _mm256_shuffle_epi8(pixels, back);                                  \
        ADD(high##n, _mm256_add_epi32(_mm256_madd_epi16(near, high_a), _mm256_madd_epi16(far, high_b))); \
        ADD(low##n, _mm256_add_epi32(_mm256_madd_epi16(near, low_a), _mm256_madd_epi16(far, low_b)));    \
    }
#define TWO_TAPS(n, a, b)                                                                       \
    {                                                                                           \
        const __m256i near = _mm256_shuffle_epi8(SHORT_LANES(a, b, offset), front);             \
        ADD(high##n, _mm256_madd_epi16(near, high_a));                                          \
        ADD(low##n, _mm256_madd_epi16(near, low_a));                                            \
    }

    for (int x = 0; x < out_size; x++, pairs += taps * 2, out += 3) {
        __m256i high0 = _mm256_setzero_si256(), high1 = high0, high2 = high0, high3 = high0;
        __m256i low0 = half, low1 = half, low2 = half, low3 = half;
        size_t offset = (size_t)weights->first[x] * PIXEL_BYTES;
        int tap = 0;
        for (; tap + 4 <= taps; tap += 4, offset += 4 * PIXEL_BYTES) {
            const __m256i high_a = two_halves(pairs + tap * 2), low_a = two_halves(pairs + tap * 2 + 2);
            const __m256i high_b = two_halves(pairs + tap * 2 + 4), low_b = two_halves(pairs + tap * 2 + 6);
            FOUR_TAPS(0, row0, row1)
            FOUR_TAPS(1, row2, row3)
            FOUR_TAPS(2, row4, row5)
            FOUR_TAPS(3, row6, row7)
        }
        if (tap < taps) {
            const __m256i high_a = two_halves(pairs + tap * 2), low_a = two_halves(pairs + tap * 2 + 2);
            TWO_TAPS(0, row0, row1)
            TWO_TAPS(1, row2, row3)
            TWO_TAPS(2, row4, row5)
            TWO_TAPS(3, row6, row7)
        }
        /* lanes hold rows 0 2 4 6 and 1 3 5 7, a pixel each */
        const __m256i pixels = _mm256_packus_epi16(
            _mm256_packs_epi32(rounded(high0, low0), rounded(high1, low1)),
            _mm256_packs_epi32(rounded(high2, low2), rounded(high3, low3)));
        const __m128i even = _mm256_castsi256_si128(pixels), odd = _mm256_extracti128_si256(pixels, 1);
        store_pixel(out, _mm_cvtsi128_si32(even));
        store_pixel(out + out_stride, _mm_cvtsi128_si32(odd));
        store_pixel(out + out_stride * 2, _mm_extract_epi32(even, 1));
        store_pixel(out + out_stride * 3, _mm_extract_epi32(odd, 1));
        store_pixel(out + out_stride * 4, _mm_extract_epi32(even, 2));
        store_pixel(out + out_stride * 5, _mm_extract_epi32(odd, 2));
        store_pixel(out + out_stride * 6, _mm_extract_epi32(even, 3));
        store_pixel(out + out_stride * 7, _mm_extract_epi32(odd, 3));
    }
#undef LANES
#undef SHORT_LANES
#undef ADD
#undef FOUR_TAPS
#undef TWO_TAPS
}

/* `count` rows of `num_bytes` to one; rows[count] must exist if count is odd, its weight is zero. */
static AVX2 void
down(const uint8_t *const *rows, int count, const int16_t *pairs, size_t num_bytes, uint8_t *out)
{
    const __m256i zero = _mm256_setzero_si256();
    size_t at = 0;
    int tap;

    while (at < num_bytes && num_bytes >= 32) {
        __m256i high0 = zero, high1 = zero, high2 = zero, high3 = zero;
        __m256i low0 = _mm256_set1_epi32(1 << (PRECISION_BITS - 1)), low1 = low0, low2 = low0, low3 = low0;
        for (tap = 0; tap < count; tap += 2) {
            const __m256i upper = _mm256_loadu_si256((const __m256i *)(rows[tap] + at));
            const __m256i lower = _mm256_loadu_si256((const __m256i *)(rows[tap + 1] + at));
            const __m256i high = two_halves(pairs + tap * 2), low = two_halves(pairs + tap * 2 + 2);
            const __m256i front = _mm256_unpacklo_epi8(upper, lower), back = _mm256_unpackhi_epi8(upper, lower);
            const __m256i part0 = _mm256_unpacklo_epi8(front, zero), part1 = _mm256_unpackhi_epi8(front, zero);
            const __m256i part2 = _mm256_unpacklo_epi8(back, zero), part3 = _mm256_unpackhi_epi8(back, zero);
            high0 = _mm256_add_epi32(high0, _mm256_madd_epi16(part0, high));
            high1 = _mm256_add_epi32(high1, _mm256_madd_epi16(part1, high));
            high2 = _mm256_add_epi32(high2, _mm256_madd_epi16(part2, high));
            high3 = _mm256_add_epi32(high3, _mm256_madd_epi16(part3, high));
            low0 = _mm256_add_epi32(low0, _mm256_madd_epi16(part0, low));
            low1 = _mm256_add_epi32(low1, _mm256_madd_epi16(part1, low));
            low2 = _mm256_add_epi32(low2, _mm256_madd_epi16(part2, low));
            low3 = _mm256_add_epi32(low3, _mm256_madd_epi16(part3, low));
        }
        _mm256_storeu_si256(
            (__m256i *)(out + at),
            _mm256_packus_epi16(
                _mm256_packs_epi32(rounded(high0, low0), rounded(high1, low1)),
                _mm256_packs_epi32(rounded(high2, low2), rounded(high3, low3))));
        if (at + 32 == num_bytes) {
            return;
        }
        at = at + 64 <= num_bytes ? at + 32 : num_bytes - 32; /* the last 32 bytes may be made twice */
    }
    for (; at < num_bytes; at++) {
        unsigned sum = 1u << (PRECISION_BITS - 1);
        for (tap = 0; tap < count; tap++) {
            const int16_t *halves = pairs + tap / 2 * 4 + tap % 2;
            sum += rows[tap][at] * (unsigned)(halves[0] * (1 << LOW_BITS) + halves[2]);
        }
        const int shifted = (int)sum >> PRECISION_BITS;
        out[at] = (uint8_t)(shifted < 0 ? 0 : shifted > 255 ? 255 : shifted);
    }
}

/* RGBX to RGB. */
static AVX2 void
strip(const uint8_t *row, int width, uint8_t *out)
{
    const __m128i order = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    int x = 0;
    for (; x + 6 <= width; x += 4) { /* stores 16 bytes, of which 12 count */
        const __m128i pixels = _mm_loadu_si128((const __m128i *)(row + x * PIXEL_BYTES));
        _mm_storeu_si128((__m128i *)(out + x * 3), _mm_shuffle_epi8(pixels, order));
    }
    for (; x < width; x++) {
        memcpy(out + x * 3, row + x * PIXEL_BYTES, 3);
    }
}

#endif
