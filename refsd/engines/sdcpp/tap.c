/* Looks inside a program that computes its graphs through ggml_backend_graph_compute.
 *
 * Preloaded (LD_PRELOAD) into an unmodified program that links ggml as a shared library, it writes
 * every graph's inputs and output, can put other inputs in their place, and can stop the program.
 *
 *   TAP_DIR    where everything is read and written
 *   TAP_NODES  also write the nodes whose names start so
 *   TAP_OPS    also write these operations' first source and result ("GROUP_NORM,GELU")
 *   TAP_WEIGHTS  also write the result of each operation that reads a weight, and how that weight begins
 *   TAP_STOP   "<count> <signature>": leave with exit code 0 after so many graphs of that signature
 *   TAP_SKIP   signatures, with ";" between them: their graphs are not computed, their output is anything
 *
 * TAP_DIR/feed.txt, read: a line an input to replace, "<signature> <nth> <input> <file>", where nth counts
 * the graphs of that signature and both numbers start at 0.
 * TAP_DIR/index.txt, written: "graph <signature>", unless skipped "where <device> <buffer type of the output>
 * <buffer type of the backend> <nodes> <first unsupported operation>", then a line a tensor, "input|source|node|output
 * <name> <type> <ne0> <ne1> <ne2> <ne3> <file> <op> <op_params[0]> <op_params[1]>". Fields are tab-separated.
 * Before a node that reads a weight: "weight <type> <ne0> <ne1> <ne2> <ne3> <its first 16 bytes in hexadecimal>".
 *
 * A graph's signature is its inputs, sorted: "f32:1x1x1x1,f32:32x32x4x1,f32:768x77x1x1". Equal ones keep the
 * order in which the graph uses them.
 * An input is a leaf outside the buffers that hold weights, less stable-diffusion.cpp's constants. A graph of which nodes are wanted runs in
 * pieces, because nodes share memory.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The head of ggml.h's struct ggml_tensor, as of 0.9.8; `save` notices another one. */
struct ggml_tensor {
    int type;
    void *buffer;
    int64_t ne[4];
    size_t nb[4];
    int op; /* 0: GGML_OP_NONE, a leaf */
    int32_t op_params[16];
    int32_t flags;
    struct ggml_tensor *src[10];
};
struct view { char bytes[1024]; }; /* room for a struct ggml_cgraph, returned through memory */

extern int ggml_graph_n_nodes(void *graph);
extern struct ggml_tensor *ggml_graph_node(void *graph, int i);
extern struct view ggml_graph_view(void *graph, int i0, int i1);
extern const char *ggml_get_name(const struct ggml_tensor *t);
extern size_t ggml_nbytes(const struct ggml_tensor *t);
extern size_t ggml_type_size(int type);
extern const char *ggml_type_name(int type);
extern const char *ggml_op_desc(const struct ggml_tensor *t);
extern bool ggml_is_contiguous(const struct ggml_tensor *t);
extern int ggml_backend_buffer_get_usage(void *buffer); /* 1: weights */
extern void *ggml_backend_buffer_get_type(void *buffer);
extern const char *ggml_backend_buft_name(void *type);
extern void *ggml_backend_get_default_buffer_type(void *backend);
extern void *ggml_backend_get_device(void *backend);
extern const char *ggml_backend_dev_name(void *device);
extern bool ggml_backend_supports_op(void *backend, const struct ggml_tensor *t);
extern void ggml_backend_tensor_get(const struct ggml_tensor *t, void *data, size_t offset, size_t size);
extern void ggml_backend_tensor_set(struct ggml_tensor *t, const void *data, size_t offset, size_t size);

enum { MAX_INPUTS = 64, MAX_SIGNATURE = 2048, MAX_GRAPHS = 1 << 20 };
static char *signatures[MAX_GRAPHS];
static int graphs;
static int (*compute)(void *, void *);
static FILE *index_file;
static const char *dir;

static void die(const char *why, const char *what) {
    fprintf(stderr, "tap: %s %s\n", why, what);
    _exit(97);
}

static const char *describe(const struct ggml_tensor *t, char *out, size_t size) {
    const int64_t *n = t->ne;
    snprintf(out, size, "%s:%lldx%lldx%lldx%lld", ggml_type_name(t->type), (long long)n[0], (long long)n[1],
             (long long)n[2], (long long)n[3]);
    return out;
}

/* By description; equals stay in the order in which the graph uses them. */
static void sort_inputs(struct ggml_tensor **inputs, int count) {
    char left[128], right[128];
    for (int i = 1; i < count; i++)
        for (int j = i; j > 0; j--) {
            struct ggml_tensor *before = inputs[j - 1];
            describe(before, left, sizeof left);
            describe(inputs[j], right, sizeof right);
            if (strcmp(left, right) <= 0) break;
            inputs[j - 1] = inputs[j];
            inputs[j] = before;
        }
}

static int inputs_of(void *graph, struct ggml_tensor **inputs) {
    int count = 0;
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        struct ggml_tensor *node = ggml_graph_node(graph, i);
        for (int s = 0; s < 10; s++) {
            struct ggml_tensor *t = node->src[s];
            if (!t || t->op != 0 || !t->buffer || ggml_backend_buffer_get_usage(t->buffer) == 1) continue;
            if (!strncmp(ggml_get_name(t), "ggml_runner_build_in", 20)) continue;
            int known = 0;
            while (known < count && inputs[known] != t) known++;
            if (known < count) continue;
            if (count == MAX_INPUTS) die("too many inputs in", ggml_get_name(t));
            inputs[count++] = t;
        }
    }
    sort_inputs(inputs, count);
    return count;
}

static void sign(struct ggml_tensor **inputs, int count, char *out) {
    size_t at = 0;
    char one[128];
    out[0] = 0;
    for (int i = 0; i < count; i++) {
        at += snprintf(out + at, MAX_SIGNATURE - at, "%s%s", i ? "," : "", describe(inputs[i], one, sizeof one));
        if (at >= MAX_SIGNATURE) die("too many inputs in", out);
    }
}

static void feed(struct ggml_tensor **inputs, int count, const char *signature, int nth) {
    char path[4096], line[8192], want[MAX_SIGNATURE], file[2048];
    int when, which;
    snprintf(path, sizeof path, "%s/feed.txt", dir);
    FILE *plan = fopen(path, "r");
    if (!plan) return;
    while (fgets(line, sizeof line, plan)) {
        if (sscanf(line, "%2047[^\t]\t%d\t%d\t%2047[^\n]", want, &when, &which, file) != 4) die("bad line", line);
        if (strcmp(want, signature) || when != nth) continue;
        if (which >= count) die("no such input", line);
        size_t size = ggml_nbytes(inputs[which]);
        void *data = malloc(size + 1);
        snprintf(path, sizeof path, "%s/%s", dir, file);
        FILE *f = fopen(path, "rb");
        if (!f || fread(data, 1, size + 1, f) != size) die("missing or of another size:", path);
        fclose(f);
        ggml_backend_tensor_set(inputs[which], data, 0, size);
        free(data);
    }
    fclose(plan);
}

static void save(const char *role, int number, struct ggml_tensor *t) {
    char file[64], path[4096];
    size_t row = ggml_type_size(t->type) * t->ne[0], size = row * t->ne[1] * t->ne[2] * t->ne[3];
    if (ggml_is_contiguous(t) ? size != ggml_nbytes(t) : t->nb[0] != ggml_type_size(t->type))
        die("a block type, a transposed one, or another struct ggml_tensor:", ggml_get_name(t));
    snprintf(file, sizeof file, "g%04d-%s%d.bin", graphs, role, number);
    snprintf(path, sizeof path, "%s/%s", dir, file);
    char *data = malloc(size), *to = data;
    for (int64_t k = 0; k < t->ne[3]; k++)
        for (int64_t j = 0; j < t->ne[2]; j++)
            for (int64_t i = 0; i < t->ne[1]; i++, to += row)
                ggml_backend_tensor_get(t, to, i * t->nb[1] + j * t->nb[2] + k * t->nb[3], row);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f)) die("cannot write", path);
    free(data);
    fprintf(index_file, "%s\t%s\t%s\t%lld\t%lld\t%lld\t%lld\t%s\t%s\t%d\t%d\n", role, ggml_get_name(t),
            ggml_type_name(t->type), (long long)t->ne[0], (long long)t->ne[1], (long long)t->ne[2],
            (long long)t->ne[3], file, ggml_op_desc(t), t->op_params[0], t->op_params[1]);
}

static bool listed(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *at = list; at && (at = strstr(at, word)); at += n)
        if ((at == list || at[-1] == ',') && (at[n] == ',' || !at[n])) return true;
    return false;
}

/* The weight that an operation reads, straight or reshaped; NULL where it reads none, or only moves numbers. */
static struct ggml_tensor *weight_of(struct ggml_tensor *node) {
    static const char *same = "RESHAPE,VIEW,PERMUTE,TRANSPOSE,CONT,CPY,DUP", *parts = "IM2COL,GET_ROWS";
    if (listed(same, ggml_op_desc(node)) || listed(parts, ggml_op_desc(node))) return NULL;
    if (strcmp(ggml_type_name(node->type), "f32") || !ggml_is_contiguous(node)) return NULL;
    for (int s = 0; s < 10; s++) {
        struct ggml_tensor *t = node->src[s];
        while (t && t->op != 0 && listed(same, ggml_op_desc(t))) t = t->src[0];
        if (t && t->op == 0 && t->buffer && ggml_backend_buffer_get_usage(t->buffer) == 1) return t;
    }
    return NULL;
}

static void note_weight(const struct ggml_tensor *t) {
    unsigned char head[16] = {0};
    size_t size = ggml_nbytes(t);
    ggml_backend_tensor_get(t, head, 0, size < sizeof head ? size : sizeof head);
    fprintf(index_file, "weight\t%s\t%lld\t%lld\t%lld\t%lld\t", ggml_type_name(t->type), (long long)t->ne[0],
            (long long)t->ne[1], (long long)t->ne[2], (long long)t->ne[3]);
    for (size_t i = 0; i < sizeof head; i++) fprintf(index_file, "%02x", head[i]);
    fputc('\n', index_file);
}

static int compute_nodes(void *backend, void *graph, int from, int to) {
    if (from == to) return 0;
    struct view piece = ggml_graph_view(graph, from, to);
    return compute(backend, &piece);
}

static int compute_and_save(void *backend, void *graph) {
    const char *names = getenv("TAP_NODES"), *ops = getenv("TAP_OPS");
    bool weighed = getenv("TAP_WEIGHTS");
    int nodes = ggml_graph_n_nodes(graph), status = 0, start = 0;
    if (!names && !ops && !weighed) return compute(backend, graph);
    for (int i = 0; i < nodes && !status; i++) {
        struct ggml_tensor *node = ggml_graph_node(graph, i);
        bool by_op = listed(ops, ggml_op_desc(node)) && node->src[0]->nb[0] == ggml_type_size(node->src[0]->type);
        struct ggml_tensor *weight = weighed ? weight_of(node) : NULL;
        if (!by_op && !weight && !(names && !strncmp(ggml_get_name(node), names, strlen(names)))) continue;
        status = compute_nodes(backend, graph, start, i);
        if (by_op) save("source", i, node->src[0]);
        if (!status) status = compute_nodes(backend, graph, i, i + 1);
        if (weight) note_weight(weight);
        save("node", i, node);
        start = i + 1;
    }
    return status ? status : compute_nodes(backend, graph, start, nodes);
}

static void tell_where(void *backend, void *graph) {
    int nodes = ggml_graph_n_nodes(graph), n = 0;
    while (n < nodes && ggml_backend_supports_op(backend, ggml_graph_node(graph, n))) n++;
    void *device = ggml_backend_get_device(backend), *memory = ggml_graph_node(graph, nodes - 1)->buffer;
    fprintf(index_file, "where\t%s\t%s\t%s\t%d\t%s\n", device ? ggml_backend_dev_name(device) : "unknown",
            memory ? ggml_backend_buft_name(ggml_backend_buffer_get_type(memory)) : "unknown",
            ggml_backend_buft_name(ggml_backend_get_default_buffer_type(backend)), nodes,
            n < nodes ? ggml_op_desc(ggml_graph_node(graph, n)) : "");
}

static bool skipped(const char *signature) {
    const char *list = getenv("TAP_SKIP");
    size_t n = strlen(signature);
    for (const char *at = list; at && (at = strstr(at, signature)); at += n)
        if ((at == list || at[-1] == ';') && (at[n] == ';' || !at[n])) return true;
    return false;
}

static void stop_after(int nth, const char *signature) {
    const char *stop = getenv("TAP_STOP");
    char *rest;
    if (stop && strtol(stop, &rest, 10) == nth + 1 && !strcmp(rest + 1, signature)) _exit(0);
}

int ggml_backend_graph_compute(void *backend, void *graph) {
    if (!compute) {
        compute = (int (*)(void *, void *))dlsym(RTLD_NEXT, "ggml_backend_graph_compute");
        dir = getenv("TAP_DIR");
    }
    if (!dir || graphs == MAX_GRAPHS) return compute(backend, graph);
    char path[4096], signature[MAX_SIGNATURE];
    snprintf(path, sizeof path, "%s/index.txt", dir);
    if (!index_file && !(index_file = fopen(path, "w"))) die("cannot write", path);

    struct ggml_tensor *inputs[MAX_INPUTS];
    int count = inputs_of(graph, inputs), nth = 0;
    sign(inputs, count, signature);
    for (int g = 0; g < graphs; g++) nth += !strcmp(signatures[g], signature);
    signatures[graphs] = strdup(signature);
    feed(inputs, count, signature, nth);
    fprintf(index_file, "graph\t%s\n", signature);
    bool computed = !skipped(signature);
    if (computed) tell_where(backend, graph);
    for (int i = 0; i < count; i++) save("input", i, inputs[i]);
    int status = computed ? compute_and_save(backend, graph) : 0;
    save("output", 0, ggml_graph_node(graph, ggml_graph_n_nodes(graph) - 1));
    fflush(index_file);
    graphs++;
    stop_after(nth, signature);
    return status;
}
