// A whole decoder step in one call: every layer for every row of a plan. A second call gives the logits of some rows.
//
// The interface is plain C, for ctypes. Rows are the tokens of all spans, span after span. Everything is row-major.
// A row's results depend on its own sequence alone, bit for bit. Does not know requests, sampling or files.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct PlSettings {
  int32_t layers, hidden, inner, heads, kv_heads, head_dim, vocab;
  int32_t activation;  // 0 silu, 1 gelu (erf), 2 gelu (tanh)
  int32_t qk_norm, sandwich_norms, threads, page;
  int32_t key_format, value_format;  // see kv_pages.h
  float norm_eps, attention_scale, attention_softcap, logit_softcap;  // a cap of 0: none
};

// Matrices of a layer, then the head (layer -1).
enum PlMatrix { PL_Q = 0, PL_K, PL_V, PL_O, PL_GATE, PL_UP, PL_DOWN, PL_HEAD };
// Norms of a layer, then the last one (layer -1).
enum PlNorm { PL_NORM_IN = 0, PL_NORM_POST_ATTENTION, PL_NORM_PRE_MLP, PL_NORM_POST_MLP, PL_NORM_Q, PL_NORM_K, PL_NORM_LAST };

struct PlStep {
  int32_t rows, spans;
  const float* embeddings;     // [rows, hidden], scaled
  const int32_t* span_rows;    // [spans + 1]: span s has rows [span_rows[s], span_rows[s + 1])
  const int32_t* span_starts;  // [spans]: position of a span's first row
  const int32_t* tables;       // page ids of all spans, one after another
  const int32_t* table_starts; // [spans]: where each begins in `tables`
  const float* const* cosines; // for each rope: [rows, head_dim / 2]
  const float* const* sines;
  uint8_t* kv;                 // pages, each of pl_page_bytes
};

// Returns null when memory runs out.
void* pl_new(const PlSettings* settings);
void pl_free(void* model);
// rope: which of the step's cosines the layer uses; window: see attention.h.
void pl_set_layer(void* model, int32_t layer, int32_t rope, int32_t window);
int32_t pl_set_norm(void* model, int32_t layer, int32_t which, const float* weights, int32_t count);
// q [n, k], d and m per group; see matrix.h. bias: [n] or null. Nonzero: out of memory.
int32_t pl_set_integer(void* model, int32_t layer, int32_t which, int32_t format, int32_t n, int32_t k, const int8_t* q,
                       const float* d, const float* m, const float* bias);
int32_t pl_set_float(void* model, int32_t layer, int32_t which, int32_t format, int32_t n, int32_t k,
                     const void* values, const float* bias);
size_t pl_weight_bytes(const void* model);
// Bytes of one page of the KV pool, over all layers.
size_t pl_page_bytes(const PlSettings* settings);
// Nonzero: out of memory.
int32_t pl_step(void* model, const PlStep* step);
// Logits of `rows` of the last step: [count, vocab].
int32_t pl_head(void* model, const int32_t* rows, int32_t count, float* logits);
// out [rows, n] = x [rows, k] times one matrix, alone and on one thread: for tests and measurements.
int32_t pl_multiply(int32_t format, int32_t n, int32_t k, const int8_t* q, const float* d, const float* m,
                    const void* values, const float* x, int32_t rows, float* out);
}
