/* Pillow's bicubic resize of an RGB picture, to the last bit, several times as fast.
 *
 * The rule, which is Pillow 13's (src/libImaging/Resample.c); where this file and Pillow disagree, this file is wrong:
 *
 *   weights   an output pixel is a weighted sum of `count` input pixels from `first` on, per axis. Weights are float64,
 *             divided by their sum, then rounded to multiples of 2^-22, halves away from zero
 *   pass      sum(weight * byte) + 1/2 in int32, shifted down by 22 bits, clipped to 0..255
 *   order     across first, then down; but down first if the height shrinks, and by more than twice what the width does.
 *             An axis that keeps its length has no pass
 *
 * int32 sums are the same whatever their order, so that they may be split: a weight is high * 2^12 + low, both of which
 * fit int16, and `vpmaddwd` multiplies 16 bytes with 16 of either at once. Eight rows go across together, so that a weight
 * is loaded once for eight rows; what has gone across goes down at once, from a ring of rows that stays in the cache.
 *
 * Needs AVX2, and gcc or clang; without them `resize` is absent and the caller asks Pillow.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Raised with every change of this file or its header, together with `resample.py`'s, which leaves alone what was built
 * from another revision: a node may have an older parbake installed than the sources it is sent. */
#define REVISION 1

#if defined(__x86_64__) && defined(__GNUC__)

#include "_resample_passes.h"

/* ---- the picture ------------------------------------------------------------------------------------------------ */

typedef struct {
    const uint8_t *pixels; /* RGBX, rows back to back */
    int width, height, out_width, out_height;
    uint8_t *out;          /* RGB, rows back to back */
    Weights horizontal, vertical;
    uint8_t *narrow;       /* [BLOCK_ROWS, taps * 4], for pictures narrower than the taps; else NULL */
    uint8_t *rows;         /* rows between the passes */
    size_t row_bytes;
    const uint8_t **taps;  /* the rows that one row is made of */
} Picture;

static const uint8_t *
source_row(const Picture *picture, int y)
{
    y = y < picture->height ? y : picture->height - 1;
    return picture->pixels + (size_t)y * picture->width * PIXEL_BYTES;
}

static void
block_across(const Picture *picture, const uint8_t *rows[BLOCK_ROWS], uint8_t *out, size_t stride)
{
    if (picture->narrow) {
        for (int number = 0; number < BLOCK_ROWS; number++) {
            uint8_t *copy = picture->narrow + (size_t)number * picture->horizontal.taps * PIXEL_BYTES;
            memcpy(copy, rows[number], (size_t)picture->width * PIXEL_BYTES);
            rows[number] = copy;
        }
    }
    across(rows, &picture->horizontal, picture->out_width, out, stride);
}

/* Rows [0, count) of a block into the result. */
static void
keep_rows(const Picture *picture, int y, int count, const uint8_t *rows)
{
    const size_t num_bytes = (size_t)picture->out_width * 3;
    for (int number = 0; number < count && y + number < picture->out_height; number++) {
        memcpy(picture->out + (y + number) * num_bytes, rows + number * picture->row_bytes, num_bytes);
    }
}

static void
only_across(const Picture *picture)
{
    for (int y = 0; y < picture->height; y += BLOCK_ROWS) {
        const uint8_t *rows[BLOCK_ROWS];
        for (int number = 0; number < BLOCK_ROWS; number++) {
            rows[number] = source_row(picture, y + number);
        }
        block_across(picture, rows, picture->rows, picture->row_bytes);
        keep_rows(picture, y, BLOCK_ROWS, picture->rows);
    }
}

/* One row of the given height's pass, from source rows. */
static void
source_down(const Picture *picture, int y, uint8_t *out)
{
    const Weights *weights = &picture->vertical;
    for (int tap = 0; tap < weights->taps; tap++) {
        picture->taps[tap] = source_row(picture, weights->first[y] + tap);
    }
    down(picture->taps, weights->count[y], weights->pairs + (size_t)y * weights->taps * 2,
         (size_t)picture->width * PIXEL_BYTES, out);
}

static void
only_down(const Picture *picture)
{
    for (int y = 0; y < picture->out_height; y++) {
        source_down(picture, y, picture->rows);
        strip(picture->rows, picture->width, picture->out + (size_t)y * picture->out_width * 3);
    }
}

static void
down_then_across(const Picture *picture)
{
    uint8_t *finished = picture->rows + BLOCK_ROWS * picture->row_bytes;
    for (int y = 0; y < picture->out_height; y += BLOCK_ROWS) {
        const uint8_t *rows[BLOCK_ROWS];
        for (int number = 0; number < BLOCK_ROWS; number++) {
            uint8_t *row = picture->rows + number * picture->row_bytes;
            if (y + number < picture->out_height) {
                source_down(picture, y + number, row);
            }
            rows[number] = row;
        }
        block_across(picture, rows, finished, picture->row_bytes);
        keep_rows(picture, y, BLOCK_ROWS, finished);
    }
}

/* The ring's row of source row y, counted from the first that is needed, is y modulo its length. */
static int
ring_rows(const Weights *weights)
{
    return (weights->taps + 2 * BLOCK_ROWS - 1) / BLOCK_ROWS * BLOCK_ROWS;
}

static void
across_then_down(const Picture *picture)
{
    const Weights *weights = &picture->vertical;
    const int length = ring_rows(weights), start = weights->first[0];
    int made = start;
    for (int y = 0; y < picture->out_height; y++) {
        const int first = weights->first[y], count = weights->count[y];
        for (; made < first + count; made += BLOCK_ROWS) {
            const uint8_t *rows[BLOCK_ROWS];
            for (int number = 0; number < BLOCK_ROWS; number++) {
                rows[number] = source_row(picture, made + number);
            }
            block_across(picture, rows, picture->rows + (made - start) % length * picture->row_bytes,
                         picture->row_bytes);
        }
        for (int tap = 0; tap < count; tap++) {
            picture->taps[tap] = picture->rows + (first + tap - start) % length * picture->row_bytes;
        }
        picture->taps[count] = picture->taps[count - 1];
        down(picture->taps, count, weights->pairs + (size_t)y * weights->taps * 2, (size_t)picture->out_width * 3,
             picture->out + (size_t)y * picture->out_width * 3);
    }
}

/* 0 if there is no memory. */
static int
resample(Picture *picture)
{
    const int width_shrinks = picture->width - picture->out_width, height_shrinks = picture->height - picture->out_height;
    const int wide = picture->width > picture->out_width ? picture->width : picture->out_width;
    const int down_first = height_shrinks > 0 && height_shrinks > (int64_t)width_shrinks * 2;
    size_t num_rows = 2 * BLOCK_ROWS;

    if (width_shrinks == 0 && height_shrinks == 0) {
        for (int y = 0; y < picture->height; y++) {
            strip(source_row(picture, y), picture->width, picture->out + (size_t)y * picture->out_width * 3);
        }
        return 1;
    }
    if (width_shrinks != 0) {
        if (!make_weights(&picture->horizontal, picture->width, picture->out_width, 1)) {
            return 0;
        }
        if (picture->horizontal.taps > picture->width) {
            picture->narrow = calloc((size_t)BLOCK_ROWS * picture->horizontal.taps, PIXEL_BYTES);
            if (!picture->narrow) {
                return 0;
            }
        }
    }
    if (height_shrinks != 0) {
        if (!make_weights(&picture->vertical, picture->height, picture->out_height, 0)) {
            return 0;
        }
        if (width_shrinks != 0 && !down_first) {
            num_rows = ring_rows(&picture->vertical);
        }
    }
    picture->row_bytes = (size_t)wide * PIXEL_BYTES + ROW_SLACK;
    if (width_shrinks != 0 && !down_first) {
        picture->row_bytes = (size_t)picture->out_width * 3 + ROW_SLACK;
    }
    picture->rows = malloc(num_rows * picture->row_bytes);
    picture->taps = malloc((picture->vertical.taps + 2) * sizeof(uint8_t *));
    if (!picture->rows || !picture->taps) {
        return 0;
    }
    if (height_shrinks == 0) {
        only_across(picture);
    } else if (width_shrinks == 0) {
        only_down(picture);
    } else if (down_first) {
        down_then_across(picture);
    } else {
        across_then_down(picture);
    }
    return 1;
}

/* ---- Python ----------------------------------------------------------------------------------------------------- */

/* https://arrow.apache.org/docs/format/CDataInterface.html */
struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

/* The bytes of an exported RGB picture of so many pixels: a fixed-size list of 4 uint8 each. NULL and an exception if it
 * is anything else. */
static const uint8_t *
exported_pixels(PyObject *capsule, int64_t num_pixels)
{
    const struct ArrowArray *array = PyCapsule_GetPointer(capsule, "arrow_array");
    const struct ArrowArray *child;
    if (!array) {
        return NULL;
    }
    child = array->n_children == 1 ? array->children[0] : NULL;
    if (!child || array->length != num_pixels || array->offset != 0 || child->length != num_pixels * PIXEL_BYTES ||
        child->offset != 0 || child->n_buffers != 2) {
        PyErr_SetString(PyExc_ValueError, "not the Arrow array of an RGB picture of this size");
        return NULL;
    }
    return child->buffers[1];
}

static PyObject *
resize(PyObject *module, PyObject *args)
{
    Picture picture = {0};
    PyObject *capsule;
    Py_buffer out;
    int done = 0;

    if (!PyArg_ParseTuple(args, "O(ii)(ii)w*", &capsule, &picture.width, &picture.height, &picture.out_width,
                          &picture.out_height, &out)) {
        return NULL;
    }
    if (picture.width < 1 || picture.height < 1 || picture.out_width < 1 || picture.out_height < 1 ||
        out.len != (Py_ssize_t)picture.out_width * picture.out_height * 3) {
        PyErr_SetString(PyExc_ValueError, "sizes must be positive, and the result's be that of its buffer");
        goto end;
    }
    picture.pixels = exported_pixels(capsule, (int64_t)picture.width * picture.height);
    if (!picture.pixels) {
        goto end;
    }
    picture.out = out.buf;
    Py_BEGIN_ALLOW_THREADS
    done = resample(&picture);
    Py_END_ALLOW_THREADS
    free_weights(&picture.horizontal);
    free_weights(&picture.vertical);
    free(picture.narrow);
    free(picture.rows);
    free(picture.taps);
    if (!done) {
        PyErr_NoMemory();
    }
end:
    PyBuffer_Release(&out);
    if (!done) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"resize", resize, METH_VARARGS, "resize(arrow_array, (width, height), (new_width, new_height), out) -> None"},
    {NULL, NULL, 0, NULL},
};

static int
offer(PyObject *module)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") ? PyModule_AddFunctions(module, methods) : 0;
}

#else

static int
offer(PyObject *module)
{
    return 0;
}

#endif

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_resample", NULL, 0, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC
PyInit__resample(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module && (PyModule_AddIntConstant(module, "REVISION", REVISION) < 0 || offer(module) < 0)) {
        Py_CLEAR(module);
    }
    return module;
}
