/* Training of a (pruned) LeNet with Adam, one epoch per call: the same mathematics as the PyTorch loop of
 * training.py, for networks so small that most of PyTorch's time is not arithmetic.
 *
 * Eight images lie side by side in a vector, so that every operation of the convolutional part works on whole
 * vectors whatever the number of channels. Weight gradients of the linear layers are products over a batch.
 * Layout: parameters one after another in the order of LeNet.parameters(), each row-major.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef float v8 __attribute__((vector_size(32)));
typedef int32_t m8 __attribute__((vector_size(32)));
#define INLINE static inline __attribute__((always_inline))
enum { LANES = 8, CLASSES = 10, IMAGE = 28, FIRST = 13, SECOND = 5 };

typedef struct {
    int k1, k2, f1, f2;                          /* widths */
    float *w1, *b1, *w2, *b2, *v1, *c1, *v2, *c2, *v3, *c3; /* inside one array of parameters (or gradients) */
} Net;

static int point(Net *n, float *at) {
    float *start = at;
    n->w1 = at; at += n->k1 * 9;
    n->b1 = at; at += n->k1;
    n->w2 = at; at += n->k2 * n->k1 * 9;
    n->b2 = at; at += n->k2;
    n->v1 = at; at += n->f1 * n->k2 * SECOND * SECOND;
    n->c1 = at; at += n->f1;
    n->v2 = at; at += n->f2 * n->f1;
    n->c2 = at; at += n->f2;
    n->v3 = at; at += CLASSES * n->f2;
    n->c3 = at; at += CLASSES;
    return (int)(at - start);
}

INLINE v8 all(float f) { return (v8){f, f, f, f, f, f, f, f}; }
INLINE v8 pick(m8 where, v8 a, v8 b) { return (v8)(((m8)a & where) | ((m8)b & ~where)); }
INLINE float sum(v8 a) { return ((a[0] + a[4]) + (a[1] + a[5])) + ((a[2] + a[6]) + (a[3] + a[7])); }

/* acc[j][0..3] += the 3×3 filter f[j] at four neighbouring places of s, whose rows are `row` apart. */
INLINE void four(v8 acc[][4], int n, const v8 *s, int row, const float *const *f, int flip) {
    for (int dy = 0; dy < 3; dy++)
        for (int dx = 0; dx < 3; dx++)
            for (int j = 0; j < n; j++) {
                v8 w = all(f[j][flip ? 8 - 3 * dy - dx : 3 * dy + dx]);
                acc[j][0] += w * s[dy * row + dx];
                acc[j][1] += w * s[dy * row + dx + 1];
                acc[j][2] += w * s[(dy + 1) * row + dx];
                acc[j][3] += w * s[(dy + 1) * row + dx + 1];
            }
}

/* n output channels at once: convolution, 2×2 maximum, ReLU. `at` tells which of the four places won, -1 if none. */
INLINE void pooled_some(const v8 *x, int inputs, int size, const float *w, const float *b, int n, v8 *out, m8 *at) {
    int half = (size - 2) / 2;
    for (int p = 0; p < half; p++)
        for (int q = 0; q < half; q++) {
            v8 acc[2][4];
            const float *f[2];
            for (int j = 0; j < n; j++)
                acc[j][0] = acc[j][1] = acc[j][2] = acc[j][3] = all(b[j]);
            for (int i = 0; i < inputs; i++) {
                for (int j = 0; j < n; j++) f[j] = w + (j * inputs + i) * 9;
                four(acc, n, x + i * size * size + 2 * p * size + 2 * q, size, f, 0);
            }
            for (int j = 0; j < n; j++) {
                v8 best = acc[j][0];
                m8 k = {0};
                for (int t = 1; t < 4; t++) {
                    m8 more = acc[j][t] > best;
                    best = pick(more, acc[j][t], best);
                    k = (more & t) | (~more & k);
                }
                m8 on = best > 0.0f;
                out[j * half * half + p * half + q] = (v8)((m8)best & on);
                at[j * half * half + p * half + q] = k | ~on;
            }
        }
}

INLINE void pooled(const v8 *x, int inputs, int size, const float *w, const float *b, int outputs, v8 *out, m8 *at) {
    int half = (size - 2) / 2, o = 0;
    for (; o + 1 < outputs; o += 2)
        pooled_some(x, inputs, size, w + o * inputs * 9, b + o, 2, out + o * half * half, at + o * half * half);
    if (o < outputs)
        pooled_some(x, inputs, size, w + o * inputs * 9, b + o, 1, out + o * half * half, at + o * half * half);
}

/* The gradient of the pooled values at the places that won, in a plane with two rows and columns of zeros around. */
INLINE v8 spread(const v8 *g, const m8 *at, int half, v8 *plane) {
    int row = 2 * half + 4;
    v8 total = all(0);
    for (int p = 0; p < half; p++)
        for (int q = 0; q < half; q++) {
            v8 *here = plane + (2 * p + 2) * row + 2 * q + 2;
            m8 k = at[p * half + q], own = (m8)g[p * half + q];
            here[0] = (v8)(own & (k == 0));
            here[1] = (v8)(own & (k == 1));
            here[row] = (v8)(own & (k == 2));
            here[row + 1] = (v8)(own & (k == 3));
            total += (v8)(own & (k >= 0));
        }
    return total;
}

/* Gradient of one 3×3 filter: products of the plane with the shifted input. */
INLINE void filter_gradient(const v8 *plane, const v8 *x, int size, v8 *gw) {
    int wide = (size - 2) / 2 * 2, row = wide + 4;
    v8 s[9];
    for (int t = 0; t < 9; t++) s[t] = gw[t];
    for (int y = 0; y < wide; y++)
        for (int z = 0; z < wide; z++) {
            v8 g = plane[(y + 2) * row + z + 2];
            const v8 *a = x + y * size + z;
            for (int t = 0; t < 9; t++) s[t] += g * a[t / 3 * size + t % 3];
        }
    for (int t = 0; t < 9; t++) gw[t] = s[t];
}

/* Gradient of n of the second convolution's inputs, from the planes of all its outputs. */
INLINE void input_gradient(const v8 *planes, int outputs, const float *w, int inputs, int n, v8 *gx) {
    int row = 2 * SECOND + 4;
    for (int y = 0; y < 2 * SECOND + 2; y += 2)
        for (int z = 0; z < 2 * SECOND + 2; z += 2) {
            v8 acc[2][4];
            const float *f[2];
            memset(acc, 0, sizeof acc);
            for (int o = 0; o < outputs; o++) {
                for (int j = 0; j < n; j++) f[j] = w + (o * inputs + j) * 9;
                four(acc, n, planes + o * row * row + y * row + z, row, f, 1);
            }
            for (int j = 0; j < n; j++) {
                v8 *here = gx + j * FIRST * FIRST + y * FIRST + z;
                here[0] = acc[j][0];
                here[1] = acc[j][1];
                here[FIRST] = acc[j][2];
                here[FIRST + 1] = acc[j][3];
            }
        }
}

/* out = b + W x, four rows at once. */
static void linear(const v8 *x, int inputs, const float *w, const float *b, int outputs, v8 *out) {
    int o = 0;
    for (; o + 3 < outputs; o += 4) {
        const float *a = w + o * inputs;
        v8 s[4] = {all(b[o]), all(b[o + 1]), all(b[o + 2]), all(b[o + 3])};
        for (int i = 0; i < inputs; i++)
            for (int j = 0; j < 4; j++) s[j] += all(a[j * inputs + i]) * x[i];
        for (int j = 0; j < 4; j++) out[o + j] = s[j];
    }
    for (; o < outputs; o++) {
        v8 s = all(b[o]);
        for (int i = 0; i < inputs; i++) s += all(w[o * inputs + i]) * x[i];
        out[o] = s;
    }
}

/* gx = Wᵀ g, four columns at once. */
static void linear_back(const v8 *g, int outputs, const float *w, int inputs, v8 *gx) {
    int i = 0;
    for (; i + 3 < inputs; i += 4) {
        v8 s[4] = {all(0), all(0), all(0), all(0)};
        for (int o = 0; o < outputs; o++)
            for (int j = 0; j < 4; j++) s[j] += all(w[o * inputs + i + j]) * g[o];
        for (int j = 0; j < 4; j++) gx[i + j] = s[j];
    }
    for (; i < inputs; i++) {
        v8 s = all(0);
        for (int o = 0; o < outputs; o++) s += all(w[o * inputs + i]) * g[o];
        gx[i] = s;
    }
}

static void rectify(v8 *x, int n) {
    for (int i = 0; i < n; i++) x[i] = (v8)((m8)x[i] & (x[i] > 0.0f));
}

static void rectify_back(v8 *g, const v8 *x, int n) {
    for (int i = 0; i < n; i++) g[i] = (v8)((m8)g[i] & (x[i] > 0.0f));
}

/* A matrix with a row for every image of the batch; rows are whole vectors, filled up with zeros. */
typedef struct {
    int columns, stride;
    float *data;
} Rows;

INLINE int whole(int n) { return (n + 2 * LANES - 1) / (2 * LANES) * (2 * LANES); }

static void put(Rows *rows, int first, const v8 *values) {
    for (int l = 0; l < LANES; l++)
        for (int i = 0; i < rows->columns; i++) rows->data[(first + l) * rows->stride + i] = values[i][l];
}

/* gw = Gᵀ X and gb = column sums of G, over all images. */
static void product(const Rows *g, const Rows *x, int images, float *gw, float *gb) {
    for (int o = 0; o < g->columns; o += 4) {
        int n = g->columns - o < 4 ? g->columns - o : 4;
        for (int i = 0; i < x->stride; i += 2 * LANES) {
            v8 s[4][2];
            memset(s, 0, sizeof s);
            for (int r = 0; r < images; r++) {
                const float *a = g->data + r * g->stride + o;
                const v8 *b = (const v8 *)(x->data + r * x->stride + i);
                for (int j = 0; j < 4; j++) { /* columns beyond the last are zeros */
                    s[j][0] += all(a[j]) * b[0];
                    s[j][1] += all(a[j]) * b[1];
                }
            }
            int left = x->columns - i < 2 * LANES ? x->columns - i : 2 * LANES;
            for (int j = 0; j < n; j++) memcpy(gw + (o + j) * x->columns + i, s[j], left * sizeof(float));
        }
        for (int j = 0; j < n; j++) {
            float s = 0;
            for (int r = 0; r < images; r++) s += g->data[r * g->stride + o + j];
            gb[o + j] = s;
        }
    }
}

typedef struct {
    v8 *x, *p1, *p2, *h1, *h2, *out, *g1, *g2, *gh1, *gh2, *plane, *planes, *gw1, *gb1, *gw2, *gb2;
    m8 *at1, *at2;
    Rows z, a1, a2, d1, d2, d3;
} Room;

/* Hands out pieces of one block; with a null block it only counts. */
static void *piece(char **block, size_t *used, size_t bytes) {
    void *at = *block ? *block + *used : 0;
    *used += (bytes + 63) / 64 * 64;
    return at;
}

static Rows rows(char **block, size_t *used, int images, int columns) {
    Rows r = {columns, whole(columns), 0};
    r.data = piece(block, used, sizeof(float) * images * r.stride);
    return r;
}

static size_t arrange(Room *m, const Net *n, int images, char *block) {
    size_t used = 0;
#define VECTORS(count) piece(&block, &used, sizeof(v8) * (count))
    m->x = VECTORS(IMAGE * IMAGE);
    m->p1 = VECTORS(n->k1 * FIRST * FIRST);
    m->g1 = VECTORS(n->k1 * FIRST * FIRST);
    m->at1 = VECTORS(n->k1 * FIRST * FIRST);
    m->p2 = VECTORS(n->k2 * SECOND * SECOND);
    m->g2 = VECTORS(n->k2 * SECOND * SECOND);
    m->at2 = VECTORS(n->k2 * SECOND * SECOND);
    m->h1 = VECTORS(n->f1);
    m->gh1 = VECTORS(n->f1);
    m->h2 = VECTORS(n->f2);
    m->gh2 = VECTORS(n->f2);
    m->out = VECTORS(CLASSES);
    m->plane = VECTORS((2 * FIRST + 4) * (2 * FIRST + 4));
    m->planes = VECTORS(n->k2 * (2 * SECOND + 4) * (2 * SECOND + 4));
    m->gw1 = VECTORS(n->k1 * 9);
    m->gb1 = VECTORS(n->k1);
    m->gw2 = VECTORS(n->k2 * n->k1 * 9);
    m->gb2 = VECTORS(n->k2);
#undef VECTORS
    m->z = rows(&block, &used, images, n->k2 * SECOND * SECOND);
    m->a1 = rows(&block, &used, images, n->f1);
    m->a2 = rows(&block, &used, images, n->f2);
    m->d1 = rows(&block, &used, images, n->f1);
    m->d2 = rows(&block, &used, images, n->f2);
    m->d3 = rows(&block, &used, images, CLASSES);
    return used;
}

/* Cross-entropy of up to eight images; m->out becomes its gradient, divided by the size of the batch. */
static double loss(Room *m, const int64_t *labels, const int64_t *order, int here, int batch) {
    double total = 0;
    for (int l = 0; l < LANES; l++) {
        double top = m->out[0][l], all_of_them = 0, e[CLASSES];
        for (int c = 1; c < CLASSES; c++) top = m->out[c][l] > top ? m->out[c][l] : top;
        for (int c = 0; c < CLASSES; c++) all_of_them += e[c] = exp(m->out[c][l] - top);
        int64_t label = l < here ? labels[order[l]] : 0;
        if (l < here) total += log(all_of_them) + top - m->out[label][l];
        for (int c = 0; c < CLASSES; c++)
            m->out[c][l] = l < here ? (float)((e[c] / all_of_them - (c == label)) / batch) : 0.0f;
    }
    return total;
}

/* Forward and backward for up to eight images, `first` being their place in the batch. */
static double eight(Room *m, const Net *n, const uint8_t *images, const int64_t *labels, const int64_t *order,
                    int first, int batch, float scale, float shift) {
    int here = batch - first < LANES ? batch - first : LANES, row = 2 * SECOND + 4, flat = n->k2 * SECOND * SECOND;
    order += first;
    for (int l = 0; l < LANES; l++) {
        const uint8_t *own = images + order[l < here ? l : 0] * IMAGE * IMAGE;
        for (int i = 0; i < IMAGE * IMAGE; i++) ((float *)(m->x + i))[l] = own[i] * scale - shift;
    }
    pooled(m->x, 1, IMAGE, n->w1, n->b1, n->k1, m->p1, m->at1);
    pooled(m->p1, n->k1, FIRST, n->w2, n->b2, n->k2, m->p2, m->at2);
    linear(m->p2, flat, n->v1, n->c1, n->f1, m->h1);
    rectify(m->h1, n->f1);
    linear(m->h1, n->f1, n->v2, n->c2, n->f2, m->h2);
    rectify(m->h2, n->f2);
    linear(m->h2, n->f2, n->v3, n->c3, CLASSES, m->out);
    double found = loss(m, labels, order, here, batch);

    linear_back(m->out, CLASSES, n->v3, n->f2, m->gh2);
    rectify_back(m->gh2, m->h2, n->f2);
    linear_back(m->gh2, n->f2, n->v2, n->f1, m->gh1);
    rectify_back(m->gh1, m->h1, n->f1);
    linear_back(m->gh1, n->f1, n->v1, flat, m->g2);
    put(&m->z, first, m->p2);
    put(&m->a1, first, m->h1);
    put(&m->a2, first, m->h2);
    put(&m->d1, first, m->gh1);
    put(&m->d2, first, m->gh2);
    put(&m->d3, first, m->out);
    for (int o = 0; o < n->k2; o++) {
        v8 *plane = m->planes + o * row * row;
        m->gb2[o] += spread(m->g2 + o * SECOND * SECOND, m->at2 + o * SECOND * SECOND, SECOND, plane);
        for (int i = 0; i < n->k1; i++)
            filter_gradient(plane, m->p1 + i * FIRST * FIRST, FIRST, m->gw2 + (o * n->k1 + i) * 9);
    }
    int i = 0;
    for (; i + 1 < n->k1; i += 2)
        input_gradient(m->planes, n->k2, n->w2 + i * 9, n->k1, 2, m->g1 + i * FIRST * FIRST);
    if (i < n->k1) input_gradient(m->planes, n->k2, n->w2 + i * 9, n->k1, 1, m->g1 + i * FIRST * FIRST);
    for (int o = 0; o < n->k1; o++) {
        m->gb1[o] += spread(m->g1 + o * FIRST * FIRST, m->at1 + o * FIRST * FIRST, FIRST, m->plane);
        filter_gradient(m->plane, m->x, IMAGE, m->gw1 + o * 9);
    }
    return found;
}

static void collect(float *to, const v8 *from, int n) {
    for (int i = 0; i < n; i++) to[i] = sum(from[i]);
}

static void adam(float *p, const float *g, float *mean, float *square, int n, double rate, double decay, int64_t step) {
    const float new1 = (float)(1 - 0.9), b2 = 0.99f, new2 = (float)(1 - 0.99);
    float size = (float)(rate / (1 - pow(0.9, (double)step))), root = (float)sqrt(1 - pow(0.99, (double)step));
    for (int i = 0; i < n; i++) {
        float d = g[i] + (float)decay * p[i];
        mean[i] += new1 * (d - mean[i]);
        square[i] = b2 * square[i] + new2 * d * d;
        p[i] -= size * mean[i] / (sqrtf(square[i]) / root + 1e-8f);
    }
}

/* One pass over images[order[0 … count-1]]. `state` holds Adam's two averages, one after the other; `step` is how
 * many updates were made before. Returns the sum of the images' losses, or -1 if there is no memory. */
double lenet_epoch(const uint8_t *images, const int64_t *labels, const int64_t *order, int64_t count, int batch,
                   float scale, float shift, const int *widths, float *parameters, float *state, int64_t step,
                   double rate, double decay) {
    Net n = {.k1 = widths[0], .k2 = widths[1], .f1 = widths[2], .f2 = widths[3]}, g = n;
    Room m;
    int total = point(&n, parameters), slots = (batch + LANES - 1) / LANES * LANES;
    size_t bytes = arrange(&m, &n, slots, 0), own = (sizeof(float) * total + 63) / 64 * 64;
    char *block = aligned_alloc(64, bytes + own);
    if (!block) return -1;
    memset(block, 0, bytes + own);
    arrange(&m, &n, slots, block);
    point(&g, (float *)(block + bytes));
    double found = 0;
    for (int64_t start = 0; start < count; start += batch) {
        int size = count - start < batch ? (int)(count - start) : batch;
        memset(m.gw1, 0, sizeof(v8) * n.k1 * 9);
        memset(m.gb1, 0, sizeof(v8) * n.k1);
        memset(m.gw2, 0, sizeof(v8) * n.k2 * n.k1 * 9);
        memset(m.gb2, 0, sizeof(v8) * n.k2);
        int used = 0;
        for (; used < size; used += LANES)
            found += eight(&m, &n, images, labels, order + start, used, size, scale, shift);
        collect(g.w1, m.gw1, n.k1 * 9);
        collect(g.b1, m.gb1, n.k1);
        collect(g.w2, m.gw2, n.k2 * n.k1 * 9);
        collect(g.b2, m.gb2, n.k2);
        product(&m.d1, &m.z, used, g.v1, g.c1);
        product(&m.d2, &m.a1, used, g.v2, g.c2);
        product(&m.d3, &m.a2, used, g.v3, g.c3);
        adam(parameters, g.w1, state, state + total, total, rate, decay, ++step);
    }
    free(block);
    return found;
}
