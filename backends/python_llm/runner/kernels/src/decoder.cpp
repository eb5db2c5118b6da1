#include "decoder.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <vector>

#include "attention.h"
#include "matrix.h"
#include "simd.h"
#include "threads.h"

namespace pl {
namespace {

constexpr int kQueryRows = 4;  // rows of a span whose attention shares one pass over the keys

struct Layer {
  Matrix q, k, v, o, gate, up, down;
  std::vector<float> norm_in, norm_post_attention, norm_pre_mlp, norm_post_mlp, norm_q, norm_k;
  int rope = 0, window = 0;
};

// Rows of activations and, where an integer matrix reads them, their quantised form.
struct Rows {
  std::vector<float> x;
  std::vector<int8_t> q;
  std::vector<float> scale, sum;
  int k = 0;

  void resize(int rows, int width) {
    k = width;
    const size_t count = static_cast<size_t>(rows) * width;
    if (x.size() >= count) return;
    x.resize(count);
    q.resize(count);
    scale.resize(count / kGroup);
    sum.resize(count / kGroup);
  }
  float* row(int index) { return x.data() + static_cast<size_t>(index) * k; }
  void quantize(int index) { quantize(index, 0, k); }
  // Only columns [begin, begin + count), whole groups.
  void quantize(int index, int begin, int count) {
    const size_t at = static_cast<size_t>(index) * k + begin, group = at / kGroup;
    quantize_row(x.data() + at, count, q.data() + at, scale.data() + group, sum.data() + group);
  }
  Activations view() const { return {k, x.data(), q.data(), scale.data(), sum.data()}; }
};

void rms_norm(const float* x, const std::vector<float>& weight, float eps, float* out) {
  const int n = static_cast<int>(weight.size());
  __m256 squares = _mm256_setzero_ps();
  for (int i = 0; i < n; i += 8) {
    const __m256 v = _mm256_loadu_ps(x + i);
    squares = _mm256_fmadd_ps(v, v, squares);
  }
  const __m256 factor = _mm256_set1_ps(1.0f / std::sqrt(sum_lanes(squares) / n + eps));
  for (int i = 0; i < n; i += 8) {
    const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), factor);
    _mm256_storeu_ps(out + i, _mm256_mul_ps(v, _mm256_loadu_ps(weight.data() + i)));
  }
}

void add(float* x, const float* y, int n) {
  for (int i = 0; i < n; i += 8) {
    _mm256_storeu_ps(x + i, _mm256_add_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
  }
}

// gate = activation(gate) * up
void gate_up(float* gate, const float* up, int n, int activation) {
  const __m256 one = _mm256_set1_ps(1.0f), half = _mm256_set1_ps(0.5f);
  for (int i = 0; i < n; i += 8) {
    const __m256 x = _mm256_loadu_ps(gate + i);
    __m256 y;
    if (activation == 0) {
      y = _mm256_div_ps(x, _mm256_add_ps(one, exp_ps(_mm256_sub_ps(_mm256_setzero_ps(), x))));
    } else if (activation == 2) {
      const __m256 cube = _mm256_mul_ps(_mm256_mul_ps(x, x), x);
      const __m256 inner = _mm256_fmadd_ps(cube, _mm256_set1_ps(0.044715f), x);
      const __m256 t = tanh_ps(_mm256_mul_ps(inner, _mm256_set1_ps(0.7978845608028654f)));
      y = _mm256_mul_ps(_mm256_mul_ps(half, x), _mm256_add_ps(one, t));
    } else {
      alignas(32) float lanes[8];
      _mm256_store_ps(lanes, x);
      for (float& lane : lanes) lane = 0.5f * lane * (1.0f + std::erf(lane * 0.70710678118654752f));
      y = _mm256_load_ps(lanes);
    }
    _mm256_storeu_ps(gate + i, _mm256_mul_ps(y, _mm256_loadu_ps(up + i)));
  }
}

void rotate(float* head, const float* cosine, const float* sine, int head_dim) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float low = head[i], high = head[i + half];
    head[i] = low * cosine[i] - high * sine[i];
    head[i + half] = high * cosine[i] + low * sine[i];
  }
}

LayerPages layer_shape(const PlSettings& settings) {
  LayerPages pages;
  pages.kv_heads = settings.kv_heads;
  pages.head_dim = settings.head_dim;
  pages.page = settings.page;
  pages.key_format = static_cast<KvFormat>(settings.key_format);
  pages.value_format = static_cast<KvFormat>(settings.value_format);
  return pages;
}

class Decoder {
 public:
  explicit Decoder(const PlSettings& settings) : s_(settings), layers_(settings.layers), scratch_(settings.threads), pool_(settings.threads) {}

  Layer& layer(int index) { return layers_[index]; }
  Arena& arena() { return arena_; }

  Matrix& matrix(int index, int which) {
    if (which == PL_HEAD) return head_;
    Layer& layer = layers_[index];
    Matrix* matrices[] = {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down};
    return *matrices[which];
  }

  std::vector<float>& norm(int index, int which) {
    if (which == PL_NORM_LAST) return norm_last_;
    Layer& layer = layers_[index];
    std::vector<float>* norms[] = {&layer.norm_in,       &layer.norm_post_attention, &layer.norm_pre_mlp,
                                   &layer.norm_post_mlp, &layer.norm_q,              &layer.norm_k};
    return *norms[which];
  }

  size_t weight_bytes() const {
    size_t total = head_.tile_bytes * head_.tiles();
    for (const Layer& l : layers_) {
      for (const Matrix* m : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) total += m->tile_bytes * m->tiles();
    }
    return total;
  }

  void step(const PlStep& step) {
    pool_.settle();
    prepare(step);
    // By value: a thread that comes late still reads it when the caller has gone on.
    pool_.run([this, step](int id) {
      Phase* phase = phases_.data();
      for (size_t index = 0; index < layers_.size(); ++index) run_layer(step, static_cast<int>(index), id, phase);
    });
  }

  void head(const int32_t* sampled, int count, float* logits) {
    pool_.settle();
    phases_ = std::vector<Phase>(3);
    pool_.run([this, sampled, count, logits](int) {
      rows(phases_[0], count, [&](int i) {
        rms_norm(&residual_[static_cast<size_t>(sampled[i]) * s_.hidden], norm_last_, s_.norm_eps, wide_.row(i));
        if (is_integer(head_.format)) wide_.quantize(i);
      });
      product(phases_[1], {{&head_, logits, static_cast<size_t>(s_.vocab)}}, wide_, count);
      if (s_.logit_softcap == 0.0f) return;
      rows(phases_[2], count, [&](int i) {
        float* row = logits + static_cast<size_t>(i) * s_.vocab;
        for (int j = 0; j < s_.vocab; ++j) row[j] = std::tanh(row[j] / s_.logit_softcap) * s_.logit_softcap;
      });
    });
  }

 private:
  struct Product {
    const Matrix* matrix;
    float* out;
    size_t stride;
  };

  static constexpr int kPhasesPerLayer = 10;  // phases that hand out work in run_layer

  int q_size() const { return s_.heads * s_.head_dim; }
  int kv_size() const { return s_.kv_heads * s_.head_dim; }

  void prepare(const PlStep& step) {
    const size_t rows = step.rows;
    residual_.assign(step.embeddings, step.embeddings + rows * s_.hidden);
    wide_.resize(step.rows, s_.hidden);
    mixed_.resize(step.rows, q_size());
    inner_.resize(step.rows, s_.inner);
    if (q_.size() < rows * q_size()) q_.resize(rows * q_size());
    if (k_.size() < rows * kv_size()) k_.resize(rows * kv_size());
    if (v_.size() < rows * kv_size()) v_.resize(rows * kv_size());
    if (up_.size() < rows * s_.inner) up_.resize(rows * s_.inner);
    if (branch_.size() < rows * s_.hidden) branch_.resize(rows * s_.hidden);
    span_of_.resize(rows);
    blocks_.clear();
    for (int span = 0; span < step.spans; ++span) {
      const int begin = step.span_rows[span], end = step.span_rows[span + 1];
      std::fill(span_of_.begin() + begin, span_of_.begin() + end, span);
      for (int row = begin; row < end; row += kQueryRows) blocks_.push_back({span, row, std::min(kQueryRows, end - row)});
    }
    // The longest first: what is handed out last decides when all are done.
    std::sort(blocks_.begin(), blocks_.end(), [&](const Block& a, const Block& b) {
      return position(step, a.row) * a.rows > position(step, b.row) * b.rows;
    });
    phases_ = std::vector<Phase>(layers_.size() * kPhasesPerLayer);
    for (AttentionScratch& scratch : scratch_) scratch.resize(kQueryRows * s_.heads / s_.kv_heads, layer_shape(s_));
  }

  int position(const PlStep& step, int row) const {
    const int span = span_of_[row];
    return step.span_starts[span] + row - step.span_rows[span];
  }

  // All threads; rows are cut in even shares.
  template <typename Body>
  void rows(Phase& phase, int count, Body body) {
    phase.share(count, std::max(1, count / (pool_.count() * 4)), [&](int begin, int end) {
      for (int row = begin; row < end; ++row) body(row);
    });
  }

  // All threads: the products of several matrices with the same rows.
  void product(Phase& phase, std::initializer_list<Product> products, const Rows& a, int count) {
    int total = 0;
    for (const Product& p : products) total += p.matrix->tiles();
    const Activations view = a.view();
    phase.share(total, std::max(1, total / (pool_.count() * 8)), [&](int begin, int end) {
      int offset = 0;
      for (const Product& p : products) {
        const int low = std::max(begin - offset, 0), high = std::min(end - offset, p.matrix->tiles());
        if (low < high) multiply(*p.matrix, view, count, p.out, p.stride, low, high);
        offset += p.matrix->tiles();
      }
    });
  }

  void run_layer(const PlStep& step, int index, int id, Phase*& phase) {
    const Layer& layer = layers_[index];
    const LayerPages pages = layer_pages(step, index);
    rows(*phase++, step.rows, [&](int r) {
      rms_norm(&residual_[static_cast<size_t>(r) * s_.hidden], layer.norm_in, s_.norm_eps, wide_.row(r));
      if (is_integer(layer.q.format) || is_integer(layer.k.format) || is_integer(layer.v.format)) wide_.quantize(r);
    });
    const size_t q_stride = q_size(), kv_stride = kv_size();
    product(*phase++,
            {{&layer.q, q_.data(), q_stride}, {&layer.k, k_.data(), kv_stride}, {&layer.v, v_.data(), kv_stride}}, wide_,
            step.rows);
    rows(*phase++, step.rows, [&](int r) { place(step, layer, pages, r); });
    attention(step, layer, pages, id, *phase++);
    product(*phase++, {{&layer.o, branch_.data(), static_cast<size_t>(s_.hidden)}}, mixed_, step.rows);
    rows(*phase++, step.rows, [&](int r) { between(layer, r); });
    const size_t inner = s_.inner;
    product(*phase++, {{&layer.gate, inner_.x.data(), inner}, {&layer.up, up_.data(), inner}}, wide_, step.rows);
    rows(*phase++, step.rows, [&](int r) {
      gate_up(inner_.row(r), &up_[r * inner], s_.inner, s_.activation);
      if (is_integer(layer.down.format)) inner_.quantize(r);
    });
    product(*phase++, {{&layer.down, branch_.data(), static_cast<size_t>(s_.hidden)}}, inner_, step.rows);
    rows(*phase++, step.rows, [&](int r) { after(layer, r); });
  }

  LayerPages layer_pages(const PlStep& step, int index) const {
    LayerPages pages = layer_shape(s_);
    pages.page_stride = pages.layer_bytes() * layers_.size();
    pages.base = step.kv + pages.layer_bytes() * index;
    return pages;
  }

  // Norm, rotate and store the keys and values of a row; its queries stay in q_.
  void place(const PlStep& step, const Layer& layer, const LayerPages& pages, int row) {
    const int span = span_of_[row], at = position(step, row), hd = s_.head_dim;
    const float* cosine = step.cosines[layer.rope] + static_cast<size_t>(row) * (hd / 2);
    const float* sine = step.sines[layer.rope] + static_cast<size_t>(row) * (hd / 2);
    float* q = &q_[static_cast<size_t>(row) * q_size()];
    for (int h = 0; h < s_.heads; ++h) {
      if (s_.qk_norm) rms_norm(q + h * hd, layer.norm_q, s_.norm_eps, q + h * hd);
      rotate(q + h * hd, cosine, sine, hd);
    }
    const int page_id = step.tables[step.table_starts[span] + at / s_.page], slot = at % s_.page;
    for (int h = 0; h < s_.kv_heads; ++h) {
      float* k = &k_[static_cast<size_t>(row) * kv_size() + h * hd];
      if (s_.qk_norm) rms_norm(k, layer.norm_k, s_.norm_eps, k);
      rotate(k, cosine, sine, hd);
      store_key(pages, pages.keys(page_id, h), slot, k);
      store_value(pages, pages.values(page_id, h), slot, &v_[static_cast<size_t>(row) * kv_size() + h * hd]);
    }
  }

  // A piece is some rows of a span and one KV head; all heads where a head's outputs do not fill whole groups.
  void attention(const PlStep& step, const Layer& layer, const LayerPages& pages, int id, Phase& phase) {
    const AttentionSettings settings{s_.heads, s_.attention_scale, s_.attention_softcap, layer.window};
    const int width = q_size() / s_.kv_heads;
    const int pieces = width % kGroup == 0 ? s_.kv_heads : 1, heads = s_.kv_heads / pieces;
    const bool quantize = is_integer(layer.o.format);
    phase.share(static_cast<int>(blocks_.size()) * pieces, 1, [&](int index, int) {
      const Block& block = blocks_[index / pieces];
      const int first = index % pieces * heads;
      attend(pages, settings, step.tables + step.table_starts[block.span], position(step, block.row), block.rows, first, heads,
             &q_[static_cast<size_t>(block.row) * q_size()], mixed_.row(block.row), q_size(), scratch_[id]);
      for (int r = 0; quantize && r < block.rows; ++r) mixed_.quantize(block.row + r, first * width, heads * width);
    });
  }

  // Adds the attention's output to the residual and norms it for the MLP.
  void between(const Layer& layer, int row) {
    float* residual = &residual_[static_cast<size_t>(row) * s_.hidden];
    float* branch = &branch_[static_cast<size_t>(row) * s_.hidden];
    if (s_.sandwich_norms) rms_norm(branch, layer.norm_post_attention, s_.norm_eps, branch);
    add(residual, branch, s_.hidden);
    rms_norm(residual, s_.sandwich_norms ? layer.norm_pre_mlp : layer.norm_post_attention, s_.norm_eps, wide_.row(row));
    if (is_integer(layer.gate.format) || is_integer(layer.up.format)) wide_.quantize(row);
  }

  // Adds the MLP's output to the residual.
  void after(const Layer& layer, int row) {
    float* branch = &branch_[static_cast<size_t>(row) * s_.hidden];
    if (s_.sandwich_norms) rms_norm(branch, layer.norm_post_mlp, s_.norm_eps, branch);
    add(&residual_[static_cast<size_t>(row) * s_.hidden], branch, s_.hidden);
  }

  struct Block {
    int span, row, rows;
  };

  const PlSettings s_;
  Arena arena_;
  std::vector<Layer> layers_;
  Matrix head_;
  std::vector<float> norm_last_;

  std::vector<float> residual_, q_, k_, v_, up_, branch_;
  Rows wide_, mixed_, inner_;
  std::vector<int> span_of_;
  std::vector<Block> blocks_;
  std::vector<Phase> phases_;
  std::vector<AttentionScratch> scratch_;  // one for each thread
  ThreadPool pool_;                        // last: its threads are gone before anything that they may still look at
};

}  // namespace
}  // namespace pl

using pl::Decoder;

namespace {

Decoder& decoder(void* model) { return *static_cast<Decoder*>(model); }

template <typename Body>
int32_t guarded(Body body) {
  try {
    body();
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

int32_t set_matrix(void* model, int32_t layer, int32_t which, pl::Matrix&& packed, const float* bias) {
  pl::Matrix& matrix = decoder(model).matrix(layer, which);
  matrix = std::move(packed);
  if (bias != nullptr) matrix.bias.assign(bias, bias + matrix.n);
  return 0;
}

}  // namespace

extern "C" {

void* pl_new(const PlSettings* settings) {
  try {
    return new Decoder(*settings);
  } catch (const std::exception&) {
    return nullptr;
  }
}

void pl_free(void* model) { delete static_cast<Decoder*>(model); }

void pl_set_layer(void* model, int32_t layer, int32_t rope, int32_t window) {
  decoder(model).layer(layer).rope = rope;
  decoder(model).layer(layer).window = window;
}

int32_t pl_set_norm(void* model, int32_t layer, int32_t which, const float* weights, int32_t count) {
  return guarded([&] { decoder(model).norm(layer, which).assign(weights, weights + count); });
}

int32_t pl_set_integer(void* model, int32_t layer, int32_t which, int32_t format, int32_t n, int32_t k, const int8_t* q,
                       const float* d, const float* m, const float* bias) {
  return guarded([&] {
    set_matrix(model, layer, which, pl::pack_integer(decoder(model).arena(), static_cast<pl::Format>(format), n, k, q, d, m), bias);
  });
}

int32_t pl_set_float(void* model, int32_t layer, int32_t which, int32_t format, int32_t n, int32_t k,
                     const void* values, const float* bias) {
  return guarded([&] {
    set_matrix(model, layer, which, pl::pack_float(decoder(model).arena(), static_cast<pl::Format>(format), n, k, values), bias);
  });
}

size_t pl_weight_bytes(const void* model) { return static_cast<const Decoder*>(model)->weight_bytes(); }

size_t pl_page_bytes(const PlSettings* settings) {
  return pl::layer_shape(*settings).layer_bytes() * settings->layers;
}

int32_t pl_step(void* model, const PlStep* step) {
  return guarded([&] { decoder(model).step(*step); });
}

int32_t pl_head(void* model, const int32_t* rows, int32_t count, float* logits) {
  return guarded([&] { decoder(model).head(rows, count, logits); });
}

int32_t pl_multiply(int32_t format, int32_t n, int32_t k, const int8_t* q, const float* d, const float* m,
                    const void* values, const float* x, int32_t rows, float* out) {
  return guarded([&] {
    const auto kind = static_cast<pl::Format>(format);
    pl::Arena arena;
    const pl::Matrix matrix =
        pl::is_integer(kind) ? pl::pack_integer(arena, kind, n, k, q, d, m) : pl::pack_float(arena, kind, n, k, values);
    std::vector<int8_t> whole(static_cast<size_t>(rows) * k);
    std::vector<float> scale(whole.size() / pl::kGroup), sum(scale.size());
    for (int r = 0; r < rows; ++r) {
      const size_t group = static_cast<size_t>(r) * k / pl::kGroup;
      pl::quantize_row(x + static_cast<size_t>(r) * k, k, &whole[static_cast<size_t>(r) * k], &scale[group], &sum[group]);
    }
    pl::multiply(matrix, {k, x, whole.data(), scale.data(), sum.data()}, rows, out, n, 0, matrix.tiles());
  });
}
}
